"""Figures in the documentation come from committed results files."""

import gzip
import json
import math
import pkgutil
import re
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from benchmarks import demo
from tacache.lab.report.estimates import student_t
from tests.docs.readme import nearness

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
PAGES += [f"src/tacache/models/{model}/README.md" for model in ("tiny-flux", "tiny-wan")]
PAGES += sorted(
    page.relative_to(ROOT).as_posix()
    for folder in ("docs", "recipes", "comfyui", "benchmarks")
    for page in (ROOT / folder).rglob("*.md")
)
PAGES += ["CONTRIBUTING.md"]


@pytest.mark.parametrize("path", PAGES)
def test_links_to_files_lead_somewhere(path):
    file = ROOT / path
    for target in re.findall(r"\]\(([^)#\s]+)", file.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (file.parent / target).exists(), f"{path}: {target}"


# decisions tell what was, too
@pytest.mark.parametrize("path", [path for path in PAGES if path != "docs/decisions.md"])
def test_names_of_modules_and_files_are_those_of_today(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in re.findall(r"\b((?:src/tacache|tacache|tests)/[\w/-]+\.py)\b", text):
        assert (ROOT / name).is_file() or (ROOT / "src" / name).is_file(), f"{path}: {name}"
    for name in re.findall(r"(?<![\w/.-])tacache(?:\.[A-Za-z_]+)+\b", text):
        assert _names_something(name), f"{path}: {name}"


def _names_something(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_a_name_that_is_gone_would_be_found():
    assert _names_something("tacache.lab.bench.run_bench")
    assert not _names_something("tacache.bench.run_bench")


def test_the_card_says_what_was_scored():
    card = (ROOT / "src/tacache/models/tiny-flux/README.md").read_text(encoding="utf-8")
    report = json.loads((ROOT / "training/results/following.json").read_text(encoding="utf-8"))
    assert report["prompts"] == 120
    assert f"**{report['scores']['overall']:.3f}**" in card
    followed = [int(count) for count in re.findall(r"\| (\d+) of 20 \|", card)]
    assert followed == list(report["followed"].values())


def test_the_card_says_how_far_the_detector_can_be_trusted():
    card = (ROOT / "src/tacache/models/tiny-flux/README.md").read_text(encoding="utf-8")
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
    folder = ROOT / "src/tacache/models/tiny-wan"
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


def test_the_fitted_plans_are_what_was_measured():
    text = (ROOT / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
    found = records("benchmarks/results/fitted.jsonl")
    assert {one["prompts"] for one in found} == {24}
    assert {one["guidance"] for one in found} == {3.0}
    methods = ("reuse", "tasu", "damped", "fitted, fast", "fitted")
    for budget in (5, 7, 10, 13, 17, 25):
        here = [one for one in found if one["evaluations"] == budget]
        best = {one["method"]: one for one in sorted(here, key=lambda one: one["psnr"])}
        cells = [
            f"{best[name]['psnr']:.2f} ± {best[name]['error']:.2f}" if name in best else "-"
            for name in methods
        ]
        assert f"| {budget} | {' | '.join(cells)} |" in text
        behind = best["fitted"]["psnr"] - best["fitted, fast"]["psnr"]
        assert behind < (1.7 if budget == 17 else 0.5)  # as the text says
    for one in found:
        limit = {"fitted, fast": 1500, "fitted": 3000}.get(str(one["method"]), 10**9)
        assert one["spent"] <= limit


def test_the_gap_to_a_direct_optimisation_is_what_was_measured():
    text = (ROOT / "docs" / "explanation" / "fitting.md").read_text(encoding="utf-8")
    for one in records("benchmarks/results/direct.jsonl"):
        cells = [f"{one[name]['others']:.6f}" for name in ("lock-step", "direct")]
        assert f"| {one['evaluations']} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize(
    ("page", "study"),
    [
        ("docs/reference/results.md", "main"),
        ("docs/reference/results.md", "calibration"),
        ("docs/reference/flow.md", "flow"),
        ("docs/reference/flow.md", "wan-flow"),
        ("docs/reference/clips.md", "wan-main"),
        ("docs/reference/clips-studies.md", "wan-ablation"),
        ("docs/reference/clips-studies.md", "wan-calibration"),
    ],
)
def test_tables_of_methods_are_what_was_measured(page, study, tmp_path):
    from tacache.lab.report.writing import fill_document

    copy = tmp_path / "page.md"
    shutil.copyfile(ROOT / page, copy)
    assert not fill_document([ROOT / f"benchmarks/results/{study}.jsonl.gz"], copy)


def packed(study: str) -> list[dict[str, Any]]:
    with gzip.open(ROOT / f"benchmarks/results/{study}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return list(map(json.loads, lines))


def measured(
    study: str, metric: str = "psnr", prompts: int = 24, reference: str = "to_full"
) -> dict[tuple[str, int | None], list[float]]:
    """What a study measured to the full pictures or clips, by method and budget, by prompts."""
    found: dict[tuple[str, int | None], dict[str, float]] = {}
    for one in packed(study):
        if one["status"] == "done" and one[reference] and one["method"] not in ("full", "fine"):
            values = found.setdefault((one["method"], one["evaluations"]), {})
            values[one["prompt"]] = one[reference]["metrics"][metric]
    assert {len(values) for values in found.values()} == {prompts}
    return {key: [values[prompt] for prompt in sorted(values)] for key, values in found.items()}


def gain(first: list[float], second: list[float]) -> tuple[float, float]:
    """The mean of the differences, and half of its 95 % confidence interval."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    count = len(differences)
    return mean(differences), student_t(count - 1) * stdev(differences) / math.sqrt(count)


def lead(first: list[float], second: list[float]) -> str:
    """A gain in words."""
    by, margin = gain(first, second)
    return f"{by:.1f} ± {margin:.1f}"


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
        before = {n for n, k in values if k and values[n, k] > values["fitted", k]}
        assert {"hicache", "taylorseer-1", "taylorseer-2"} <= before
        assert all(
            values[key] <= values["fitted", key[1]]
            for key in values
            if key[1] in (25, 17, 10, 7, 5)
        )
    fine = {key: mean(one) for key, one in measured("main", reference="to_fine").items()}
    before = {key for key in fine if key[1] and fine[key] > fine["fitted", key[1]]}
    assert before == {("ab2", 17), ("ab2", 25), ("unipc", 25), ("taylorseer-1-sigma", 13)}


def test_what_tuning_evaluates_is_what_was_counted():
    text = " ".join((ROOT / "docs/reference/bench-rules.md").read_text(encoding="utf-8").split())
    spent: dict[str, list[int]] = {}
    for one in packed("wan-main"):
        if one.get("prepare_evaluations"):
            spent.setdefault(one["method"], []).append(one["prepare_evaluations"])
    for name, said in (("magcache", "MagCache"), ("budcache", "BudCache"), ("fitted", "a fit")):
        assert f"{min(spent[name]):,} to {max(spent[name]):,} for {said}" in text


def test_what_is_said_of_fitted_clips_is_what_was_measured():
    text, studies = (
        " ".join((ROOT / "docs/reference" / page).read_text(encoding="utf-8").split())
        for page in ("clips.md", "clips-studies.md")
    )
    found = measured("wan-main")
    psnr = {key: mean(values) for key, values in found.items()}
    assert psnr["fitted", 25] > psnr["tasu", 25] + 8
    assert f"{psnr['fitted', 25] - psnr['tasu', 25]:.1f} dB closer" in text
    assert f"13 evaluations has {psnr['fitted', 13]:.1f} dB, and" in text
    assert f"with 25 has {psnr['tasu', 25]:.1f}." in text
    assert psnr["fitted", 17] < psnr["tasu", 25]
    more = mean(measured("wan-pareto")["fitted", 21])
    assert f"({psnr['fitted', 17]:.1f} and {more:.1f} dB)" in text
    assert f"give {psnr['tasu:wan', None]:.1f} dB" in text
    budgeted = [key for key in psnr if key[1] is not None]
    assert f"the {len({method for method, _ in budgeted}) - 1} others" in text
    before = [key for key in budgeted if psnr[key] > psnr["fitted", key[1]]]
    assert before == [("oss", 7)]
    for key in budgeted:
        if key[0] != "fitted" and key[1] in (25, 17, 13, 10):
            by, margin = gain(found["fitted", key[1]], found[key])
            assert by > margin, f"{key} may be as good by chance"
    assert all(psnr["damped", k] > psnr["reuse", k] for k in (25, 17, 13, 10, 7))
    assert psnr["damped", 7] < psnr["fewer", 7]
    assert f"before it by {lead(found['oss', 7], found['fitted', 7])} dB" in text
    moved = {key: mean(values) for key, values in measured("wan-main", "motion-psnr").items()}
    before = [key for key in budgeted if moved[key] > moved["fitted", key[1]]]
    assert sorted(before) == [("budcache", 5), ("diffusers-magcache", 5), ("oss", 7)]
    few, changes = (measured("wan-few", metric, prompts=60) for metric in ("psnr", "motion-psnr"))
    rivals = {
        ("oss", 7): "OSS",
        ("budcache", 5): "BudCache",
        ("magcache", 5): "MagCache",
        ("diffusers-magcache", 5): "MagCache of diffusers, the first by changes on the 24 prompts",
    }
    for rival, said in rivals.items():
        leads = [lead(one["fitted", rival[1]], one[rival]) for one in (few, changes)]
        assert f"| {rival[1]} | {said} | {' | '.join(leads)} |" in text
    taught = measured("wan-calibration")
    for budget in (13, 10, 7):
        fits = [mean(taught[key]) for key in taught if key[0][:6] == "fitted" and key[1] == budget]
        assert max(fits) - min(fits) < 2
    fixed = [
        mean(values) for (name, _), values in measured("wan-thresholds").items() if "/" in name
    ]
    assert f"{min(fixed):.1f} to {sorted(fixed)[-2]:.1f} dB" in studies  # the last is full steps


def read(name: str) -> str:
    """A page in one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def test_what_is_said_of_the_flow_was_measured():
    found, steps = nearness("flow")
    page, full = read("docs/reference/flow.md"), found["euler", 50]
    assert f"50 Euler steps have {full:.1f} dB" in page
    assert f"is {found['fitted-flow', 17] - full:.1f} dB nearer than they are" in page
    assert f"With 13 it is {full - found['fitted-flow', 13]:.1f} dB farther" in page
    assert f"as near as {steps(13):.0f} of them" in page
    assert f"with 25 as near as {steps(25):.0f}" in page
    for text in (page, read("README.md"), read("docs/explanation/caches.md")):
        assert f"as {steps(17):.0f} Euler steps" in text
    for metric, best in (("psnr", max), ("ssim", max), ("lpips", min)):  # first at every budget
        means = {
            key: mean(values)
            for key, values in measured("flow", metric, reference="to_fine").items()
        }
        for budget in (5, 7, 10, 13, 17, 20, 25):
            others = [value for key, value in means.items() if key[1] == budget]
            assert best(others) == means["fitted-flow", budget]


def test_what_is_said_of_the_flow_of_clips_was_measured():
    found, steps = nearness("wan-flow")
    page, full = read("docs/reference/flow.md"), found["euler", 50]
    ours = {k: found["fitted-flow", k] for k in (7, 10, 13, 17, 20, 25)}
    assert f"50 Euler steps have {full:.1f} dB here" in page
    over_solvers = ours[17] - max(found[name, 17] for name in ("ab2", "unipc", "dpm++2m", "heun"))
    assert (
        f"is {ours[17] - full:.1f} dB nearer than they are and {over_solvers:.1f} dB nearer" in page
    )
    assert f"as near to the flow as {steps(17):.0f} Euler steps; with 20 as near as" in page
    assert f"with 20 as near as {steps(20):.0f}, with 25 as near as {steps(25):.0f}." in page
    assert f"With 13 it is {full - ours[13]:.1f} dB farther" in page
    assert f"as near as {steps(13):.0f} of them, while SSIM and LPIPS say" in page
    for budget in (10, 7):
        assert found["fitted", budget] == pytest.approx(ours[budget], abs=0.25)
    for budget in (13, 17, 20, 25):  # first from 13 on
        assert max(value for key, value in found.items() if key[1] == budget) == ours[budget]
    run = [one["to_fine"]["metrics"] for one in packed("wan-flow") if one["method"] == "full"]
    ssim, lpips = (
        mean(measured("wan-flow", metric, reference="to_fine")["fitted-flow", 13])
        for metric in ("ssim", "lpips")
    )
    assert ssim > mean(one["ssim"] for one in run)
    assert lpips < mean(one["lpips"] for one in run)
    assert f"on clips of tiny-wan as {steps(17):.0f}" in read("docs/explanation/caches.md")


def test_what_is_said_of_instant_plans_on_clips_was_measured():
    text = " ".join((ROOT / "docs/reference/clips.md").read_text(encoding="utf-8").split())
    at_once = {k: mean(v) for (_, k), v in measured("wan-instant").items()}
    others = {key: mean(values) for key, values in measured("wan-main").items()}
    rows = {"instant plan": at_once}
    for name, said in (
        ("tasu", "the paper's rule at its best ratio"),
        ("reuse", "reuse of the last velocity"),
        ("fewer", "fewer Euler steps"),
    ):
        rows[said] = {k: others[name, k] for k in (13, 17, 25)}
    for said, row in rows.items():
        assert f"| {said} | {' | '.join(f'{row[k]:.1f}' for k in (13, 17, 25))} |" in text
    published = (others["taylorseer-1:wan", None], others["diffusers-taylorseer:wan", None])
    assert f"{published[0]:.1f} dB to {at_once[10]:.1f} with 10" in text
    assert f"{published[1]:.1f} dB to {at_once[11]:.1f} with 11" in text
    assert others["tasu", 25] > at_once[25]
    assert all(at_once[k] > others[name, k] for name in ("reuse", "fewer") for k in (13, 17, 25))
