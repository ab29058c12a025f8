"""Figures in the documentation come from committed results files."""

import json
import pkgutil
import re
import shutil
from pathlib import Path
from statistics import mean

import pytest
from benchmarks import demo
from tests.docs.held_figures import gain, measured
from tests.docs.readme import README, best_rival, nearness, packed, pictures

ROOT = Path(__file__).parent.parent
STEPS = ("skip", "first skip", "skip, as in eq. 12-13", "skip, compiled")


def records(name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("device", "torch"), [("x86_64", "2.13.0+cpu"), ("NVIDIA H200", "2.11.0+cu130")]
)
def test_the_cost_of_a_skip_is_what_was_measured(device, torch):
    text = (ROOT / "docs" / "reference" / "performance.md").read_text(encoding="utf-8")
    assert torch in text
    measured = [
        one for one in records("benchmarks/results/skip_cost.jsonl") if one["device"] == device
    ]
    assert {one["torch"] for one in measured} == {torch}
    by_row = {(one["latent"], one["dtype"], one["step"]): one for one in measured}
    rows = {(latent, dtype) for latent, dtype, _ in by_row}
    assert len(rows) == 4
    for latent, dtype in rows:
        found = [by_row[latent, dtype, step] for step in STEPS]
        cells = [f"{one['passes']:.1f} ({one['microseconds'] / 1000:.2f} ms)" for one in found]
        assert f"| {latent} | {dtype} | {' | '.join(cells)} |" in text


PAGES = ["README.md", "training/README.md", "training/video/README.md"]
SMALL = ("tiny-flux", "tiny-flux-turbo", "tiny-wan")
PAGES += [f"models/src/tacache_models/{model}/README.md" for model in SMALL]
PAGES += sorted(
    page.relative_to(ROOT).as_posix()
    for folder in ("docs", "recipes", "comfyui", "benchmarks")
    for page in (ROOT / folder).rglob("*.md")
)
PAGES += ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
PAGES += ["lab/README.md", "models/README.md"]


@pytest.mark.parametrize("path", PAGES)
def test_links_to_files_lead_somewhere(path):
    file = ROOT / path
    for target in re.findall(r"\]\(([^)#\s]+)", file.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("../../actions/"):
            assert (file.parent / target).exists(), f"{path}: {target}"


@pytest.mark.parametrize("path", PAGES)
def test_names_of_modules_and_files_are_those_of_today(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in re.findall(
        r"\b((?:(?:lab/|models/)?src/tacache\w*|tacache|(?:lab/|models/)?tests)/[\w/-]+\.py)\b",
        text,
    ):
        assert (ROOT / name).is_file() or (ROOT / "src" / name).is_file(), f"{path}: {name}"
    for name in re.findall(r"(?<![\w/.-])tacache(?:_lab|_models)?(?:\.[A-Za-z_]+)+\b", text):
        assert _names_something(name), f"{path}: {name}"


@pytest.mark.parametrize("path", PAGES)
def test_a_test_that_a_page_names_is_there(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for file, name in re.findall(r"\b((?:lab/|models/)?tests/[\w/]+\.py)::(\w+)", text):
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def _names_something(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_a_name_that_is_gone_would_be_found():
    assert _names_something("tacache_lab.bench.run_bench")
    assert not _names_something("tacache.bench.run_bench")


@pytest.mark.parametrize(
    ("model", "file"), [("tiny-flux", "following"), ("tiny-flux-turbo", "following-turbo")]
)
def test_the_card_says_what_was_scored(model, file):
    card = (ROOT / f"models/src/tacache_models/{model}/README.md").read_text(encoding="utf-8")
    report = json.loads((ROOT / f"training/results/{file}.json").read_text(encoding="utf-8"))
    assert (report["model"], report["prompts"]) == (model, 120)
    assert f"**{report['scores']['overall']:.3f}**" in card
    followed = [int(count) for count in re.findall(r"\| (\d+) of 20 \|", card)]
    assert followed == list(report["followed"].values())


def test_the_tables_of_the_distillation_are_its_records():
    report = json.loads((ROOT / "training/results/turbo.json").read_text(encoding="utf-8"))
    table = (ROOT / "training/README.md").read_text(encoding="utf-8")
    card = (ROOT / "models/src/tacache_models/tiny-flux-turbo/README.md").read_text("utf-8")
    figures = dict(report["held_out"])
    guided = figures.pop("teacher, 8 guided steps")
    for text in (table, card):
        assert shown(guided) in text
    for name, student in figures.items():
        cells = " | ".join(shown(student[kind]) for kind in ("teacher", "reuse", "fewer"))
        assert f"{report['students'][name]['bytes'] / 1e6:.1f} MB | {cells} |" in table
    assert f"| this LoRA | 8 | {shown(figures['lora-32']['teacher'])} |" in card


def shown(values):
    """A mean and a 5th percentile as tables have them."""
    return f"{values['mean']:.1f} ({values['p5']:.1f})"


def test_the_card_says_how_far_the_detector_can_be_trusted():
    card = (ROOT / "models/src/tacache_models/tiny-flux/README.md").read_text(encoding="utf-8")
    objects = json.loads((ROOT / "training/results/detector.json").read_text())["objects"]
    assert f"{objects['scenes']} composed scenes" in card
    for name in ("drawn", "decoded"):
        for threshold in ("0.1", "0.3", "0.6"):
            figures = objects[name][threshold]
            assert figures["recall"] == figures["precision"] == figures["colours"] == 1.0
    half, whole = (objects["disturbed"][strength]["accepted"] for strength in ("0.5", "1.0"))
    assert f"{half:.0%}".replace("%", " %") in card
    assert f"{whole:.0%}".replace("%", " %") in card


def test_the_card_of_the_clip_model_says_what_its_runs_came_to():
    folder = ROOT / "models/src/tacache_models/tiny-wan"
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    told = (ROOT / "training/video/README.md").read_text(encoding="utf-8")
    runs = [f"training/results/video/{run}" for run in ("first", "second")]
    flows = [records(f"{run}/flow.jsonl")[-1] for run in runs]
    autoencoders = [records(f"{run}/autoencoder.jsonl")[-1] for run in runs]
    for name, found in (("flow_steps", flows), ("autoencoder_steps", autoencoders)):
        assert sum(one["step"] for one in found) == facts[name]
        assert f"{facts[name]:,} steps" in card
        assert all(f"{one['step']:,} steps" in told for one in found)
    for run in runs:
        measured = json.loads((ROOT / run / "autoencoder.json").read_text(encoding="utf-8"))
        assert f"{measured['psnr']:.1f} dB" in told
    assert f"{facts['psnr']:.1f} dB" in card
    assert f"{facts['loss']:.4f}" in card


def test_tables_of_the_demo_are_those_of_its_record():
    for page in demo.PAGES:
        text = page.read_text(encoding="utf-8")
        assert demo.fill(text, demo.FIGURES) == text, page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "study"),
    [
        ("docs/reference/results.md", "main"),
        ("docs/reference/results.md", "calibration"),
        ("docs/reference/rivals.md", "main"),
        ("docs/reference/rivals.md", "wan-main"),
        ("docs/reference/flow.md", "flow"),
        ("docs/reference/flow.md", "wan-flow"),
        ("docs/reference/others.md", "crystals"),
        ("docs/reference/others.md", "crystals-flow"),
        ("docs/reference/others.md", "galaxies"),
        ("docs/reference/others.md", "galaxies-flow"),
        ("docs/reference/others.md", "galaxies-32"),
        ("docs/reference/others.md", "galaxies-32-flow"),
        ("docs/reference/clips.md", "wan-main"),
        ("docs/reference/clips.md", "wan-ablation"),
        ("docs/reference/clips.md", "wan-calibration"),
    ],
)
def test_tables_of_methods_are_what_was_measured(page, study, tmp_path):
    from tacache_lab.report.writing import fill_document

    copy = tmp_path / "page.md"
    shutil.copyfile(ROOT / page, copy)
    assert not fill_document([ROOT / f"benchmarks/results/{study}.jsonl.gz"], copy)


@pytest.mark.slow
def test_what_is_said_of_rivals_on_pictures_holds():
    """Who is ahead of whom, and where a lead may be chance; the words are those of the page."""
    found = {key: values for key, values in measured("main").items() if key[1] is not None}
    for budget in (25, 17, 13, 10, 7, 5):
        others = {name: mean(values) for (name, k), values in found.items() if k == budget}
        assert max(others, key=others.__getitem__) == "fitted"
        del others["fitted"]
        rival = max(others, key=others.__getitem__)
        by, margin = gain(found["fitted", budget], found[rival, budget])
        assert (by > margin) == (budget not in (13, 5)), (budget, rival, by, margin)
    for metric, sign in (("ssim", 1), ("lpips", -1)):
        values = {key: sign * mean(one) for key, one in measured("main", metric).items()}
        before = {(n, k) for n, k in values if k and values[n, k] > values["fitted", k]}
        assert {(name, 13) for name in ("hicache", "taylorseer-1", "instant")} <= before
        assert {key for key in before if key[1] != 13} == {("instant", 17)}
    fine = {key: mean(one) for key, one in measured("main", reference="to_fine").items()}
    before = {key for key in fine if key[1] and fine[key] > fine["fitted", key[1]]}
    at_25 = ("ab2", "stork", "instant", "unipc", "fastflow", "diffusers-seacache")
    assert before == {
        *((name, 17) for name in ("ab2", "stork", "instant")),
        *((name, 25) for name in at_25),
        ("taylorseer-1-sigma", 13),
    }
    newest = ("diffusers-seacache", "ertacache", "spectrum", "l2p", "fastflow", "stork", "cfg-late")
    of_main = pictures("main")
    of_clips = pictures("wan-main")
    for study, its_own in ((of_main, [25]), (of_clips, [5])):
        best = {k: best_rival(study, k).split()[-1] for k in (25, 17, 13, 10, 7, 5)}
        assert [k for k, name in best.items() if name in newest] == its_own
    ours = {"fitted", "instant", "tasu", "tasu-10", "damped", "magnitude", "direction"}
    count = len({name for name, k in found} - ours)
    assert f"best of {count}, each tuned" in " ".join(README.read_text("utf-8").split())
    assert f"beside {count} rivals" in (ROOT / "docs/index.md").read_text("utf-8")


@pytest.mark.slow
def test_what_tuning_evaluates_is_what_was_counted():
    text = " ".join((ROOT / "docs/reference/bench.md").read_text(encoding="utf-8").split())
    spent: dict[str, list[int]] = {}
    for one in packed("wan-main"):
        if one.get("prepare_evaluations"):
            spent.setdefault(one["method"], []).append(one["prepare_evaluations"])
    for name, said in (("magcache", "MagCache"), ("budcache", "BudCache"), ("fitted", "a fit")):
        assert f"{min(spent[name]):,} to {max(spent[name]):,} for {said}" in text


@pytest.mark.slow
def test_what_is_said_of_fitted_clips_holds():
    text = " ".join((ROOT / "docs/reference/clips.md").read_text(encoding="utf-8").split())
    found = measured("wan-main")
    psnr = {key: mean(values) for key, values in found.items()}
    assert psnr["fitted", 25] > psnr["tasu", 25] + 8
    assert psnr["fitted", 17] < psnr["tasu", 25]
    budgeted = [key for key in psnr if key[1] is not None]
    assert f"the {len({method for method, _ in budgeted}) - 1} others" in text
    before = [key for key in budgeted if psnr[key] > psnr["fitted", key[1]]]
    assert sorted(before) == [("ertacache", 7), ("oss", 7)]
    for key in budgeted:
        if key[0] != "fitted" and key[1] in (25, 17, 13, 10):
            by, margin = gain(found["fitted", key[1]], found[key])
            assert by > margin, f"{key} may be as good by chance"
    assert all(psnr["damped", k] > psnr["reuse", k] for k in (25, 17, 13, 10, 7))
    assert psnr["damped", 7] < psnr["fewer", 7]
    moved = {key: mean(values) for key, values in measured("wan-main", "motion-psnr").items()}
    before = [key for key in budgeted if moved[key] > moved["fitted", key[1]]]
    of_five = ("budcache", "diffusers-magcache", "ertacache", "instant", "l2p")
    assert sorted(before) == sorted(
        [*((name, 5) for name in of_five), ("ertacache", 7), ("oss", 7)]
    )
    for key in before:
        motion = measured("wan-main", "motion-psnr")
        by, margin = gain(motion[key], motion["fitted", key[1]])
        assert by < margin, f"{key} is ahead beyond chance"


@pytest.mark.slow
def test_what_is_said_of_the_flow_holds():
    for metric, best in (("psnr", max), ("ssim", max), ("lpips", min)):  # first at every budget
        means = {
            key: mean(values)
            for key, values in measured("flow", metric, reference="to_fine").items()
        }
        for budget in (5, 7, 10, 13, 17, 20, 25):
            others = [value for key, value in means.items() if key[1] == budget]
            assert best(others) == means["fitted-flow", budget]


@pytest.mark.slow
def test_what_is_said_of_the_flow_of_clips_holds():
    found, _ = nearness("wan-flow")
    for budget in (10, 7):
        assert found["fitted", budget] == pytest.approx(found["fitted-flow", budget], abs=0.25)
    for budget in (13, 17, 20, 25):  # first from 13 on
        reached = [value for key, value in found.items() if key[1] == budget]
        assert max(reached) == found["fitted-flow", budget]
    run = [one["to_fine"]["metrics"] for one in packed("wan-flow") if one["method"] == "full"]
    ssim, lpips = (
        mean(measured("wan-flow", metric, reference="to_fine")["fitted-flow", 13])
        for metric in ("ssim", "lpips")
    )
    assert ssim > mean(one["ssim"] for one in run)
    assert lpips < mean(one["lpips"] for one in run)


def test_what_is_said_of_instant_plans_on_clips_holds():
    others = {key: mean(values) for key, values in measured("wan-main").items()}
    at_once = {k: others["instant", k] for k in (25, 17, 13, 10)}
    at_once[11] = mean(measured("wan-instant")["instant", 11])
    assert others["tasu", 25] > at_once[25]
    assert others["taylorseer-1:wan", None] > at_once[10]
    assert others["diffusers-taylorseer:wan", None] > at_once[11]
    assert all(at_once[k] > others[name, k] for name in ("reuse", "fewer") for k in (13, 17, 25))
