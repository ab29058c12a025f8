"""`tacache export` on tiny pipelines: what it draws and records, resumed, shared out, refused."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.command_line import our_line, run, save_pipelines

from tacache.diffusers.pipeline import PipelineHost
from tacache.prompts import Sample
from tacache.work.processes import Processes, Together
from tacache_lab.bench.records import RecordError, read_records
from tacache_lab.bench.runner import held, lock_file
from tacache_lab.export.scores import add_scores

SIZE = ["--height", 32, "--width", 32, "--call", "max_sequence_length=32"]
PROMPTS = ["two cups", "a red bus"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return save_pipelines(root, "flux", "wan")


@pytest.fixture
def metadata(tmp_path) -> Path:
    path = tmp_path / "metadata.jsonl"
    rows = [{"tag": "counting", "include": [], "prompt": prompt} for prompt in PROMPTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def geneval(folders, metadata, tmp_path) -> list[object]:
    """A small export of GenEval."""
    command = ["export", "geneval", folders / "flux", "--metadata", metadata, *SIZE]
    return [*command, "--steps", 4, "--samples", 2, "-o", tmp_path / "out"]


@pytest.fixture
def drawn(monkeypatch) -> list[tuple[str, int]]:
    """What the pipeline is asked for from here on; the prompt `broken` fails."""
    seen: list[tuple[str, int]] = []
    draw = PipelineHost.draw

    def watched(host: Any, sample: Sample, call: Any) -> Any:
        seen.append((sample.text, sample.seed))
        if sample.prompt == "broken":
            raise MemoryError("no memory left")
        return draw(host, sample, call)

    monkeypatch.setattr(PipelineHost, "draw", watched)
    return seen


def test_full_steps_in_genevals_layout(geneval, tmp_path):
    made = run(*geneval)
    assert made.exit_code == 0, made.output
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    assert found == [
        f"0000{place}/{name}"
        for place in range(2)
        for name in ("metadata.jsonl", "samples/0000.png", "samples/0001.png")
    ]
    assert json.loads((tmp_path / "out/00001/metadata.jsonl").read_text())["prompt"] == PROMPTS[1]
    assert Image.open(tmp_path / "out/00000/samples/0001.png").size == (32, 32)
    records = read_records(tmp_path / "out.jsonl")
    assert [(r.method, r.evaluations, r.prompt, r.seed, r.spent) for r in records] == [
        ("full", 4, prompt, seed, 4) for prompt in PROMPTS for seed in (0, 1)
    ]
    assert all((tmp_path / record.picture).is_file() for record in records)
    assert "4 of 4 samples" in made.stdout


def test_the_pictures_are_those_of_generate(geneval, folders, tmp_path):
    assert run(*geneval).exit_code == 0
    command = ["generate", folders / "flux", *SIZE, "--steps", 4, "--seed", 1]
    made = run(*command, "--prompt", PROMPTS[1], "-o", tmp_path / "one", "--json")
    (output,) = json.loads(made.stdout)["outputs"]
    exported = tmp_path / "out/00001/samples/0001.png"
    assert exported.read_bytes() == Path(output["file"]).read_bytes()


def test_it_goes_on_where_it_stopped(geneval, drawn, tmp_path):
    assert run(*geneval, "--count", 1).exit_code == 0
    assert drawn == [(PROMPTS[0], 0), (PROMPTS[0], 1)]
    (tmp_path / "out/00000/samples/0001.png").unlink()
    drawn.clear()
    assert run(*geneval).exit_code == 0
    assert drawn == [(PROMPTS[0], 1), (PROMPTS[1], 0), (PROMPTS[1], 1)]
    assert len(read_records(tmp_path / "out.jsonl")) == 4


@pytest.mark.slow
def test_a_failed_sample_is_told_and_tried_again(geneval, drawn, metadata, tmp_path, monkeypatch):
    metadata.write_text('{"prompt": "broken"}\n{"prompt": "a cup"}\n')
    made = run(*geneval, "--samples", 1)
    assert made.exit_code == 1
    assert "'broken' with seed 0 failed: MemoryError: no memory left" in made.stderr
    assert "1 of 2 samples" in made.stdout
    assert (tmp_path / "out/00000/samples").is_dir()
    statuses = {r.prompt: (r.status, r.picture) for r in read_records(tmp_path / "out.jsonl")}
    assert statuses["broken"] == ("failed", None)
    assert statuses["a cup"] == ("done", "out/00001/samples/0000.png")
    again = run(*geneval, "--samples", 1, "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["failed"][0]["prompt"] == "broken"
    assert [prompt for prompt, _ in drawn] == ["broken", "a cup", "broken"]
    monkeypatch.undo()
    assert run(*geneval, "--samples", 1).exit_code == 0
    assert {r.status for r in read_records(tmp_path / "out.jsonl")} == {"done"}


def test_a_plan_is_followed(geneval, folders, tmp_path):
    profile = tmp_path / "flux.profile.json"
    calibrated = run(
        "calibrate", folders / "flux", "--count", 1, "--steps", 6, *SIZE, "-o", profile
    )
    assert calibrated.exit_code == 0, calibrated.output
    assert run("plan", profile, "--evaluations", 3).exit_code == 0
    command = [part for part in geneval if part not in ("--steps", 4)]
    made = run(*command, "--plan", tmp_path / "flux.plan.json", "--samples", 1)
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "out.jsonl")
    assert {(r.method, r.evaluations, r.spent, r.steps) for r in records} == {
        ("plan:flux", 3, 3, 6)
    }
    assert records[0].settings["rule"] == "tasu"


def test_a_method_of_the_benchmark_is_made_ready_and_drawn(geneval, tmp_path):
    asked = ["--method", "tasu-10", "--evaluations", 3, "--calibration-count", 2, "--samples", 1]
    made = run(*geneval, *asked)
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "out.jsonl")
    assert {(r.method, r.evaluations, r.spent) for r in records} == {("tasu-10", 3, 3)}
    assert {r.tuned_on.samples for r in records} == {2}
    assert (tmp_path / "out/00001/samples/0000.png").is_file()


@pytest.mark.slow
def test_a_cache_inside_the_model_draws_as_it_does(geneval, tmp_path):
    asked = ["--method", "diffusers-taylorseer", "--evaluations", 3, "--samples", 1]
    made = run(*geneval, *asked, "--calibration-count", 1)
    assert made.exit_code == 0, made.output
    assert {r.spent for r in read_records(tmp_path / "out.jsonl")} == {3}
    assert all(r.equivalent_evaluations is not None for r in read_records(tmp_path / "out.jsonl"))
    cached = (tmp_path / "out/00000/samples/0000.png").read_bytes()
    full = [part if part != tmp_path / "out" else tmp_path / "full" for part in geneval]
    assert run(*full, "--samples", 1).exit_code == 0
    assert (tmp_path / "full/00000/samples/0000.png").read_bytes() != cached


@pytest.mark.slow
def test_scores_wait_for_an_export_to_end(geneval, tmp_path):
    assert run(*geneval, "--samples", 1).exit_code == 0
    records = tmp_path / "out.jsonl"
    with held(lock_file(records), records):
        assert "another benchmark is appending" in our_line(run(*geneval, "--samples", 2))
        with pytest.raises(RecordError, match="another benchmark is appending"):
            add_scores("geneval", tmp_path / "out", [])


def test_a_method_with_nothing_to_tune_runs_no_calibration_prompts(geneval, tmp_path, monkeypatch):
    def refused(*_: Any) -> None:
        raise AssertionError("calibrated")

    monkeypatch.setattr("tacache_lab.export.sample_drawing.record_full_run", refused)
    made = run(*geneval, "--method", "fewer", "--evaluations", 2, "--samples", 1)
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "out.jsonl")
    assert [(one.spent, one.tuned_on) for one in records] == [(2, None)] * len(PROMPTS)


@pytest.mark.slow
def test_a_method_without_such_a_budget_says_so(geneval, tmp_path):
    asked = ["--method", "easycache", "--evaluations", 1, "--calibration-count", 1]
    assert "easycache cannot be made ready: easycache cannot run on 1" in our_line(
        run(*geneval, *asked)
    )
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.slow
def test_clips_for_vbench(folders, tmp_path):
    prompts = tmp_path / "all_dimension.txt"
    prompts.write_text("a dog runs.\na cup and/or a plate\n")
    size = ["--height", 32, "--width", 32, "--frames", 5, "--call", "max_sequence_length=16"]
    command = ["export", "vbench", folders / "wan", "--metadata", prompts, *size, "--steps", 3]
    made = run(*command, "--samples", 2, "-o", tmp_path / "clips")
    assert made.exit_code == 1
    assert "cannot hold '/'" in made.stderr
    # VBench takes the first file it lists for the kind of all: nothing else may lie there
    names = sorted(path.name for path in (tmp_path / "clips").iterdir())
    assert names == ["a dog runs.-0.mp4", "a dog runs.-1.mp4"]
    assert "VBench judges clips, and this pipeline makes pictures" in our_line(
        run("export", "vbench", folders / "flux", "--metadata", prompts, *SIZE, "--steps", 2,
            "-o", tmp_path / "other")
    )  # fmt: skip


@pytest.fixture
def bagel(tmp_path, monkeypatch):
    """A checkout and weights of BAGEL's stand-in, as options of the command."""
    stand_in = pytest.importorskip("tests.bagel_stand_in")
    checkout, weights = tmp_path / "Bagel", tmp_path / "BAGEL-tiny"
    stand_in.write_checkout(checkout)
    stand_in.write_weights(weights)
    with stand_in.no_checkout_loaded():
        yield [
            "bagel",
            "--load",
            f"bagel-path={checkout}",
            "--load",
            f"weights={weights}",
            "--height",
            32,
            "--width",
            32,
        ]


@pytest.mark.slow
def test_bagel_draws_by_full_steps_and_by_a_plan(bagel, metadata, tmp_path):
    asked = ["--metadata", metadata, "--samples", 1, "--steps", 7]
    made = run("export", "geneval", *bagel, *asked, "-o", tmp_path / "full")
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "full.jsonl")
    assert {(r.method, r.evaluations, r.spent) for r in records} == {("full", 6, 6)}
    assert Image.open(tmp_path / "full/00001/samples/0000.png").size == (32, 32)
    profile = tmp_path / "b.profile.json"
    assert run("calibrate", *bagel, "--count", 1, "--steps", 7, "-o", profile).exit_code == 0
    assert run("plan", profile, "--evaluations", 4).exit_code == 0
    planned = ["--metadata", metadata, "--samples", 1, "--plan", tmp_path / "b.plan.json"]
    made = run("export", "geneval", *bagel[:5], *planned, "-o", tmp_path / "plan")
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "plan.jsonl")
    assert {(r.method, r.evaluations, r.spent, r.steps) for r in records} == {("plan:b", 4, 4, 6)}
    again = run("export", "geneval", *bagel[:5], *planned, "-o", tmp_path / "plan")
    assert again.exit_code == 0, again.output
    assert len(read_records(tmp_path / "plan.jsonl")) == 2


@pytest.mark.slow
def test_bagel_draws_by_a_method_too(bagel, metadata, tmp_path):
    command = ["export", "geneval", *bagel, "--metadata", metadata, "--steps", 5]
    few = ["--method", "fewer", "--evaluations", 3, "--samples", 1]
    made = run(*command, *few, "-o", tmp_path / "x")
    assert made.exit_code == 0, made.output
    records = read_records(tmp_path / "x.jsonl")
    assert {(r.method, r.evaluations, r.spent) for r in records} == {("fewer", 3, 3)}
    dry = run(*command, "--dry-run")
    assert "4 evaluations of 4 steps each" in dry.stdout


class Alone(Processes):
    """One of two processes, whose other one is not waited for."""

    @contextmanager
    def failing_together(self):
        """Nobody else fails."""
        yield Together(1)


def test_processes_share_the_samples_out(geneval, drawn, tmp_path, monkeypatch):
    shares = []
    for rank in (1, 0):
        monkeypatch.setattr(Processes, "current", lambda rank=rank: Alone(rank, 2))
        drawn.clear()
        assert run(*geneval).exit_code == 0
        shares.append(list(drawn))
    assert shares[0] == [(prompt, 1) for prompt in PROMPTS]
    assert shares[1] == [(prompt, 0) for prompt in PROMPTS]
    assert len(read_records(tmp_path / "out.jsonl")) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--seed", 1], "was drawn with another prompt or seed: name another folder"),
        (["--method", "fewer", "--evaluations", 2], "holds samples by full at 4 evaluations"),
        (["--call", "guidance_scale=2.0"], "records of another model, call"),
    ],
)
def test_a_folder_holds_one_kind_of_samples(geneval, tmp_path, change, message):
    few = ["--count", 1, "--samples", 1, "--calibration-count", 1]
    assert run(*geneval, *few).exit_code == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    assert message in our_line(run(*geneval, *few, *change))
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_scores_come_back_into_the_records(geneval, metadata, tmp_path):
    assert run(*geneval).exit_code == 0
    results = tmp_path / "results.jsonl"
    rows = [
        {"filename": record.picture, "tag": "counting", "correct": record.seed == 0}
        for record in read_records(tmp_path / "out.jsonl")
    ]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    back = ["export", "geneval", "--metadata", metadata, "--score", results]
    made = run(*back, "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "0.5000" in made.stdout
    facts = json.loads(run(*back, "-o", tmp_path / "out", "--json").stdout)
    assert facts["scores"]["geneval/counting"] == {"mean": 0.5, "samples": 4}
    assert {r.scores["geneval"] for r in read_records(tmp_path / "out.jsonl")} == {0.0, 1.0}


def test_a_dry_run_counts_and_draws_nothing(geneval, tmp_path):
    made = run(*geneval, "--dry-run")
    assert made.exit_code == 0, made.output
    assert "2 prompts, 4 samples by full, 4 evaluations of 4 steps each" in made.stdout
    assert "16 evaluations in all" in made.stdout
    facts = json.loads(run(*geneval, "--method", "tasu:0.06/0.6", "--dry-run", "--json").stdout)
    assert (facts["samples"], facts["evaluations"]) == (4, None)
    assert facts["first_file"] == "00000/samples/0000.png"
    fewer = (*geneval, "--method", "fewer", "--dry-run", "--json")
    facts = json.loads(run(*fewer, "--evaluations", 3).stdout)
    assert (facts["method"], facts["evaluations"]) == ("fewer", 3)
    refused = run(*fewer)
    assert refused.exit_code == 2
    assert refused.stderr == "tacache: a run of 4 steps has no 13 evaluations\n"
    prompts = tmp_path / "p.txt"
    prompts.write_text("this/that\n")
    told = run("export", "compbench", "any/model", "--metadata", prompts, "--dry-run")
    assert "cannot be: 'this/that': T2I-CompBench reads" in told.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--method", "tasv"], "unknown method 'tasv'"),
        (["--method", "published"], "unknown method 'published'"),
        (["--method", "tasu", "--plan", "PLAN"], "give --plan or --method"),
        (["--call", "hieght=3"], "no argument 'hieght' (meant 'height'?)"),
        (["--metadata", "more.jsonl"], "GenEval takes one --metadata file, not 2"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(geneval, tmp_path, change, message, profile):
    from tacache import make_plan

    plan = make_plan(profile, evaluations=5).save(tmp_path / "p.plan.json")
    made = run(*geneval, *[plan if part == "PLAN" else part for part in change])
    assert message in our_line(made)


def test_a_model_is_needed_to_draw(metadata):
    assert "give a MODEL" in our_line(run("export", "geneval", "--metadata", metadata))
    assert "no benchmark 'genevil'" in our_line(run("export", "genevil", "x"))
