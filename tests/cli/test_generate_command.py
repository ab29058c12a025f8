"""`tacache calibrate` and `tacache generate` on a tiny pipeline saved to a folder."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.command_line import fail_at, our_line, run, save_pipelines
from tests.tiny import PIPELINES

from tacache.diffusers import apply, pipeline_loading
from tacache.diffusers.pipeline import PipelineHost
from tacache.instant import LIKE_STEPS
from tacache.plan import Plan
from tacache.profile import Profile
from tacache.storage.origin import Origin
from tacache.storage.store import PlanStore

SIZE = ["--height", "32", "--width", "32", "--call", "max_sequence_length=32"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return save_pipelines(root, "flux", "wan", "sdxl")


@pytest.fixture(scope="module")
def flux_plan(folders, tmp_path_factory) -> Path:
    work = tmp_path_factory.mktemp("plans")
    profile = work / "flux.profile.json"
    made = run("calibrate", folders / "flux", "--count", 2, "--steps", 10, *SIZE, "-o", profile)
    assert made.exit_code == 0, made.output
    planned = run("plan", profile, "--evaluations", 5)
    assert planned.exit_code == 0, planned.output
    return work / "flux.plan.json"


@pytest.mark.slow
def test_calibrate_records_what_it_ran(folders, flux_plan):
    profile = Profile.load(flux_plan.with_name("flux.profile.json"))
    assert (profile.steps, profile.samples) == (10, 2)
    assert profile.origin.pipeline == "FluxPipeline"
    assert profile.origin.model == str(folders / "flux")
    assert profile.origin.call is not None
    assert profile.origin.call["height"] == 32
    assert profile.origin.call["guidance_scale"] == 3.5
    assert not flux_plan.with_name("flux.profile.json.runs").exists()


@pytest.mark.slow
def test_calibrate_goes_on_where_it_was_killed(folders, tmp_path, monkeypatch):

    prompts, out = tmp_path / "prompts.txt", tmp_path / "p.json"
    prompts.write_text("a fox\na boat\na lamp\n")
    command = ["calibrate", folders / "flux", "--prompts", prompts, "--steps", 4, *SIZE, "-o", out]
    record, seen = PipelineHost.record, []

    def dying(host, samples, call):
        seen.append(samples[0].prompt)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return record(host, samples, call)

    monkeypatch.setattr(PipelineHost, "record", dying)
    assert run(*command).exit_code != 0
    assert not out.exists()
    assert out.with_name("p.json.runs").read_text().count("\n") == 2
    assert run(*command).exit_code == 0
    assert seen == ["a fox", "a boat", "a lamp", "a lamp"]
    assert Profile.load(out).samples == 3
    assert not out.with_name("p.json.runs").exists()


def test_json_of_calibrate_is_the_profile(folders, tmp_path):
    out = tmp_path / "p.json"
    seeds = ["--seeds", "0,1", "--count", 1, "--batch-size", 2]
    made = run("calibrate", folders / "flux", *seeds, "--steps", 3, *SIZE, "-o", out, "--json")
    facts = json.loads(made.stdout)
    assert facts["file"] == str(out)
    assert facts["samples"] == 2


def test_generate_writes_a_picture_a_prompt_and_seed(folders, flux_plan, tmp_path):
    wanted = ["A red fox!", "--prompt", "boat", "-n", 2, "--seed", 5]
    made = run("generate", folders / "flux", "--plan", flux_plan, *wanted, "-o", tmp_path)
    assert made.exit_code == 0, made.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0000-a-red-fox-s5.png",
        "0000-a-red-fox-s6.png",
        "0001-boat-s5.png",
        "0001-boat-s6.png",
    ]
    assert Image.open(tmp_path / "0001-boat-s5.png").size == (32, 32)  # as calibrated
    assert made.output.count("5 evaluations") == 4


def test_compare_writes_full_steps_beside_with_psnr_and_times(folders, flux_plan, tmp_path):
    wanted = ["--prompt", "boat", "--compare", "--json"]
    made = run("generate", folders / "flux", "--plan", flux_plan, *wanted, "-o", tmp_path)
    (output,) = json.loads(made.stdout)["outputs"]
    assert Path(output["file"]).is_file()
    assert Path(output["full_file"]).is_file()
    assert Path(output["file"]).read_bytes() != Path(output["full_file"]).read_bytes()
    full, plan, pair = (Image.open(output[f"{name}file"]) for name in ("full_", "", "pair_"))
    assert pair.size == (2 * full.width, full.height)
    assert pair.crop((0, 0, *full.size)).tobytes() == full.tobytes()
    assert pair.crop((full.width, 0, *pair.size)).tobytes() == plan.tobytes()
    assert 20 < output["psnr"] < 100
    assert output["seconds"] > 0 < output["full_seconds"]


def test_bars_of_a_comparison_say_what_they_are(folders, flux_plan, tmp_path):
    made = run("generate", folders / "flux", "--plan", flux_plan, "--prompt", "boat", "--compare",
               "-o", tmp_path)  # fmt: skip
    assert "by the plan: " in made.stderr
    assert "full steps: " in made.stderr


def test_generate_without_a_plan_makes_every_step(folders, tmp_path):
    made = run(
        "generate", folders / "flux", "--prompt", "boat", "--steps", 2, *SIZE, "-o", tmp_path
    )
    assert made.exit_code == 0, made.output
    assert "evaluations" not in made.output
    assert "every step is evaluated" in made.stderr
    assert len(list(tmp_path.iterdir())) == 1


SHORT = [*SIZE, "--steps", 12]


def drawn(folders, tmp_path, *options: object):
    """The outputs of one or more prompts, and what was said of the plan."""
    command = ("generate", folders / "flux", *SHORT, *options, "--json", "-o", tmp_path / "out")
    made = run(*command)
    assert made.exit_code == 0, made.output
    return [one["evaluations"] for one in json.loads(made.stdout)["outputs"]]


@pytest.mark.slow
def test_a_quality_of_the_flow_costs_what_the_table_says(folders, tmp_path, caplog):
    command = ("generate", folders / "flux", *SIZE, "--prompt", "boat", "--json", "-o", tmp_path)
    made = run(*command, "--steps", 20, "--like-steps", 16)
    (output,) = json.loads(made.stdout)["outputs"]
    assert output["evaluations"] == LIKE_STEPS[16]
    assert "that was not measured" in caplog.text


def test_a_psnr_that_nobody_has_measured_makes_all_steps(folders, tmp_path, caplog):
    assert drawn(folders, tmp_path, "--min-psnr", 35, "--prompt", "boat") == [None]
    assert "makes all of its 12 steps" in caplog.text


@pytest.mark.parametrize("how", [("--speedup", 3), ("--evaluations", 4)])
def test_a_speedup_needs_no_plan(folders, tmp_path, caplog, how):
    assert drawn(folders, tmp_path, *how, "--prompt", "boat", "--prompt", "fox") == [4, 4]
    assert caplog.text.count("an instant plan is followed") == 1


def test_a_plan_has_its_own_evaluations(flux_plan):
    for asked in (("--speedup", 4), ("--like-steps", 28)):
        refused = run("generate", "an/x", "--prompt", "x", *asked, "--plan", flux_plan)
        assert our_line(refused).endswith("leave --speedup and the like out")


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--speedup", 100), True), (("--evaluations", 4), True), (("--speedup", 4), False)],
)
def test_a_budget_that_nothing_was_measured_at_is_told(options, told):
    words = ("generate", "bagel", "--prompt", "a fox", "--steps", 51, *options)
    assert ("fewer than 5 evaluations" in run(*words).stderr) == told


@pytest.mark.slow
def test_a_speedup_finds_the_plan_that_was_fitted(folders, tmp_path, caplog):
    few = ["--fast", "--count", 2, "--evaluations", 4]
    assert run("fit", folders / "flux", *SHORT, *few).exit_code == 0
    (stored,) = PlanStore().plans()
    assert drawn(folders, tmp_path, "--speedup", 3, "--prompt", "boat") == [4]
    assert f"the stored plan {stored.name} is followed" in caplog.text
    assert drawn(folders, tmp_path, "--plan", stored.name, "--prompt", "boat") == [4]


@pytest.mark.slow
def test_a_plan_is_learned_from_the_first_outputs(folders, tmp_path, caplog):
    learn = ("--speedup", 3, "--learn", 2, "--prompt", "boat")
    assert drawn(folders, tmp_path, *learn, "-n", 3) == [None, None, 4]
    assert len(PlanStore().plans()) == 1
    assert drawn(folders, tmp_path, *learn) == [4]
    assert "the stored plan" in caplog.text


@pytest.mark.slow
def test_a_speedup_is_compared_with_full_steps(folders, tmp_path, caplog):
    command = ("generate", folders / "flux", *SHORT, "--speedup", 3, "--prompt", "boat")
    made = run(*command, "--compare", "--json", "-o", tmp_path)
    (output,) = json.loads(made.stdout)["outputs"]
    assert output["evaluations"] == 4
    assert 5 < output["psnr"] < 100
    assert "stays full" not in caplog.text  # of the steps that warm up


def test_loading_takes_a_dtype_a_device_and_a_variant(folders, tmp_path):
    PIPELINES["flux"].build().save_pretrained(tmp_path / "model", variant="small")
    size = [*SIZE, "--steps", 2, "-o", tmp_path / "out"]
    command = ["generate", tmp_path / "model", "--prompt", "boat", *size]
    how = [part for one in ("dtype=bfloat16", "device=cpu") for part in ("--load", one)]
    assert run(*command, *how).exit_code == 2  # there are no files without a variant
    made = run(*command, *how, "--load", "variant=small")
    assert made.exit_code == 0, made.output


def test_a_pipeline_saved_with_its_plan_follows_it_and_compares_to_full_steps(
    folders, flux_plan, tmp_path
):
    pipe = PIPELINES["flux"].build()
    apply(pipe, Plan.load(flux_plan))
    pipe.save_pretrained(tmp_path / "model")
    size = [*SIZE, "--steps", 10]
    followed = run(
        "generate", tmp_path / "model", "--prompt", "boat", *size, "-o", tmp_path, "--json"
    )
    (output,) = json.loads(followed.stdout)["outputs"]
    assert output["evaluations"] == 5
    compared = run(
        "generate",
        tmp_path / "model",
        "--plan",
        flux_plan,
        "--prompt",
        "boat",
        "--compare",
        "-o",
        tmp_path,
        "--json",
    )
    (output,) = json.loads(compared.stdout)["outputs"]
    assert output["evaluations"] == 5
    assert output["psnr"] < 100  # the full steps were not those of the saved plan


def test_processes_of_one_launcher_take_a_device_each(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pipeline_loading.default_device() == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert pipeline_loading.default_device() == "cuda:3"


@pytest.mark.parametrize(("options", "suffix"), [([], ".mp4"), (["--gif"], ".gif")])
def test_clips(folders, tmp_path, options, suffix):
    size = ["--height", 16, "--width", 16, "--frames", 5, "--call", "max_sequence_length=32"]
    made = run(
        "generate",
        folders / "wan",
        "--prompt",
        "waves",
        "--steps",
        2,
        *size,
        *options,
        "-o",
        tmp_path,
    )
    assert made.exit_code == 0, made.output
    (clip,) = tmp_path.iterdir()
    assert clip.suffix == suffix
    assert clip.stat().st_size > 0


def test_a_failing_prompt_does_not_lose_the_others(folders, flux_plan, tmp_path, monkeypatch):
    fail_at(monkeypatch, PipelineHost, "two", RuntimeError("out of memory"))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("one", "two", "three")))
    made = run(
        "generate",
        folders / "flux",
        "--plan",
        flux_plan,
        "--prompts",
        prompts,
        "-o",
        tmp_path / "out",
    )
    assert made.exit_code == 1
    assert "'two' with seed 0 failed: out of memory" in made.stderr
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_plan_of_another_model_is_one_line_and_nothing_written(folders, tmp_path):
    size = ["--height", 16, "--width", 16, "--frames", 5, "--call", "max_sequence_length=32"]
    profile = tmp_path / "wan.profile.json"
    run("calibrate", folders / "wan", "--count", 1, "--steps", 4, *size, "-o", profile)
    plan = tmp_path / "wan.plan.json"
    Plan.full(Profile.load(profile).times).model_copy(
        update={"origin": Profile.load(profile).origin}
    ).save(plan)
    made = run(
        "generate", folders / "flux", "--plan", plan, "--prompt", "boat", "-o", tmp_path / "out"
    )
    assert made.exit_code == 2
    assert our_line(made).startswith("tacache: the plan was made for WanTransformer3DModel")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "{sdxl}", "--count", "1"], "cannot carry a plan: it does not sample a flow"),
        (["calibrate", "./nowhere"], "there is no folder ./nowhere"),
        (["calibrate", "{flux}", "--prompts", "{empty}"], "has no prompts"),
        (["calibrate", "{flux}", "--seeds", "a,b"], "whole numbers"),
        (["calibrate", "{flux}", "--call", "heigth=3"], "(meant 'height'?)"),
        (["calibrate", "{flux}", "--call", "height"], "NAME=VALUE"),
        (["calibrate", "{flux}", "--load", "dtype=int3"], "unknown dtype 'int3'"),
        (["calibrate", "{flux}", "--load", "offload=disk"], "unknown offload 'disk'"),
        (["calibrate", "{flux}", "--load", "dtyp=float16"], "--load does not know 'dtyp'"),
        (
            ["generate", "tiny-flux", "--prompt", "x", "--load", "revision=x"],
            "ships with tacache: leave revision",
        ),
        (["generate", "{flux}"], "--prompts FILE"),
        (["generate", "tiny-flux", "--speedup", "4"], "--prompts test"),
        (["generate", "{flux}", "--prompt", "x", "--compare"], "give --plan"),
        (["generate", "{flux}", "--prompt", "x", "--plan", "{empty}"], "is not JSON"),
        (["generate", "{flux}", "--prompt", "x", "--plan", "mine"], "there is no plan 'mine'"),
        (["generate", "{flux}", "--prompt", "x", "--speedup", "0.5"], "a number from 1"),
        (["generate", "{flux}", "--prompt", "x", "--learn", "1"], "learn is 0 or at least 2"),
        (
            ["generate", "an/x", "--prompt", "x", "--speedup", "4", "--evaluations", "9"],
            "not speedup and evaluations",
        ),
        (
            ["generate", "an/x", "--prompt", "x", "--speedup", "4", "--like-steps", "28"],
            "not speedup and like_steps",
        ),
        (
            ["generate", "an/x", "--prompt", "x", "--min-psnr", "35", "--psnr-of", "p9"],
            "psnr_of is mean or p5",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(folders, tmp_path, arguments, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    places = {"flux": folders / "flux", "sdxl": folders / "sdxl", "empty": empty}
    made = run(*(argument.format(**places) for argument in arguments))
    assert made.exit_code == 2
    assert message in our_line(made)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


@pytest.mark.slow
def test_a_model_that_is_nowhere_is_one_line(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    made = run("calibrate", "nobody/has-this-model")
    assert made.exit_code == 2
    assert "cannot load nobody/has-this-model" in our_line(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--load", "device=tpu9"], "there is no device 'tpu9' here: "),
        (["--load", "device=cuda:99"], "there is no device 'cuda:99' here: "),
        (["--height", "0"], "Invalid value for '--height'"),
        (["--guidance", "nan"], "--guidance is a finite number, not nan"),
        (["--call", "guidance_scale=abc"], "with seed 0: full(): argument"),
        (["--seeds", "0,1,0"], "seed 0 is given twice: the same sample would count as two"),
    ],
)
def test_what_cannot_be_run_is_one_line(folders, tmp_path, options, message):
    out = tmp_path / "p.json"
    command = ["calibrate", folders / "flux", "--count", 1, "--steps", 4, *SIZE, "-o", out]
    result = run(*command, *options)
    assert result.exit_code == 2
    *_, last = result.stderr.splitlines()
    assert last.startswith("tacache: ")
    assert message in last
    assert "Traceback" not in result.stderr
    assert not out.exists()


def test_a_file_of_another_kind_is_not_overwritten(folders, flux_plan, tmp_path):
    profile = flux_plan.with_name("flux.profile.json")
    before = profile.read_bytes()
    refused = run("plan", profile, "--evaluations", 5, "-o", profile)
    assert refused.exit_code == 2
    assert "is there and is not a tacache-plan file: name another file" in refused.stderr
    assert profile.read_bytes() == before
    again = run("calibrate", folders / "flux", "--count", 1, "--steps", 4, "-o", flux_plan)
    assert again.exit_code == 2
    assert "is there and is not a tacache-profile file" in again.stderr


@pytest.mark.slow
def test_a_saved_plan_is_compared_and_a_file_is_no_folder(folders, flux_plan, tmp_path):
    pipe = PIPELINES["flux"].build()
    apply(pipe, Plan.load(flux_plan).model_copy(update={"origin": Origin()}))
    pipe.save_pretrained(tmp_path / "saved")
    command = ["generate", tmp_path / "saved", "--prompt", "a fox", *SIZE, "--steps", 10]
    made = run(*command, "--compare", "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "5 evaluations" in made.output
    assert "PSNR" in made.output
    full = run("generate", folders / "flux", "--prompt", "a fox", *SIZE, "--compare")
    assert full.exit_code == 2
    assert "--compare sets a plan against full steps: give --plan" in full.stderr
    refused = run(*command, "-o", flux_plan)
    assert refused.exit_code == 2
    assert "is a file, and a folder is needed" in refused.stderr


def test_a_misspelt_model_that_ships_is_named():
    refused = run("generate", "tinyflux", "--prompt", "a fox")
    assert refused.exit_code == 2
    assert refused.stderr == "tacache: there is no model tinyflux (meant tiny-flux?)\n"


def test_an_interrupt_is_said(folders, tmp_path, monkeypatch):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_loading, "load_pipeline", stopped)
    result = run("calibrate", folders / "flux", "--count", 1, "-o", tmp_path / "p.json")
    assert result.exit_code == 130
    assert result.stderr == "tacache: stopped\n"
