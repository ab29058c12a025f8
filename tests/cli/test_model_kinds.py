"""`tacache calibrate|fit|generate bagel` on a checkout and weights of the stand-in's."""

import json
import sys

import numpy as np
import pytest
from PIL import Image
from tests.bagel_stand_in import no_checkout_loaded, write_checkout, write_weights
from tests.command_line import fail_at, run

from tacache import Plan, Profile
from tacache.bagel.inferencer import BagelHost
from tacache.cli.named_models import prompts_of
from tacache.storage.store import PlanStore

SIZE = ["--height", 32, "--width", 32]


@pytest.fixture(autouse=True)
def _free_names():
    with no_checkout_loaded():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bagel")
    write_checkout(root / "Bagel")
    write_weights(root / "BAGEL-tiny")
    (root / "prompts.txt").write_text("a fox\na boat\na lamp\na kite\n")
    return root


@pytest.fixture(scope="module")
def where(folder):
    places = f"bagel-path={folder / 'Bagel'}", f"weights={folder / 'BAGEL-tiny'}"
    return ["bagel", "--load", places[0], "--load", places[1]]


@pytest.fixture
def plan(where, folder, tmp_path):
    """A plan file, by the commands a user would give."""
    profile, plan = tmp_path / "b.profile.json", tmp_path / "b.plan.json"
    asked = ["--prompts", folder / "prompts.txt", "--steps", 13, "--guidance", 4, *SIZE]
    made = run("calibrate", *where, *asked, "--count", 2, "-o", profile)
    assert made.exit_code == 0, made.output
    assert f"Written to {profile}" in made.output
    planned = run("plan", profile, "--evaluations", 6, "-o", plan)
    assert planned.exit_code == 0, planned.output
    return plan


@pytest.mark.slow
def test_from_calibration_to_pictures(where, plan, tmp_path):
    profile = Profile.load(tmp_path / "b.profile.json")
    assert (profile.steps, profile.samples) == (12, 2)
    assert profile.origin.call["cfg_text_scale"] == 4.0
    assert profile.origin.call["image_shapes"] == [32, 32]
    assert profile.origin.model == "BAGEL-tiny"
    assert not list(tmp_path.glob("*.runs"))
    out = tmp_path / "out"
    made = run(
        "generate", *where, "--plan", plan, "--prompt", "a red fox", "-n", 2, "--compare", "-o", out
    )
    assert made.exit_code == 0, made.output
    assert made.output.count("6 evaluations; beside full steps in ") == 2
    assert made.output.count(" PSNR ") == 2
    names = [f"0000-a-red-fox-s0{suffix}.png" for suffix in ("-full", "-pair", "")]
    assert sorted(path.name for path in out.iterdir())[:3] == names
    full, pair, followed = (np.asarray(Image.open(out / name), dtype=float) for name in names)
    assert pair.shape[1] >= 2 * full.shape[1]
    assert full.shape == (32, 32, 3)
    assert 0 < np.abs(full - followed).mean() < 5
    assert "calibrate with it" not in made.output  # the plan's own settings were used


@pytest.mark.slow
def test_json_is_for_programs(where, plan, folder, tmp_path):
    asked = ["--prompts", folder / "prompts.txt", "--count", 2, "--json", "-o", tmp_path / "out"]
    made = run("generate", *where, "--plan", plan, *asked)
    assert made.exit_code == 0, made.output
    outputs = json.loads(made.stdout)["outputs"]
    assert [(one["prompt"], one["evaluations"]) for one in outputs] == [("a fox", 6), ("a boat", 6)]


@pytest.mark.slow
def test_without_a_plan_full_steps_are_run(where, tmp_path):
    asked = ["--prompt", "a fox", "--steps", 5, "--width", 48, "--height", 32]
    made = run("generate", *where, *asked, "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "evaluations" not in made.output
    assert Image.open(tmp_path / "out" / "0000-a-fox-s0.png").size == (48, 32)


@pytest.mark.slow
def test_one_side_keeps_the_others_of_the_plan(where, plan, tmp_path):
    asked = ["--plan", plan, "--prompt", "a fox", "--width", 64, "-o", tmp_path / "out"]
    assert run("generate", *where, *asked).exit_code == 0
    assert Image.open(tmp_path / "out" / "0000-a-fox-s0.png").size == (64, 32)


@pytest.mark.slow
def test_fit_writes_a_plan_that_generates(where, folder, tmp_path):
    out = tmp_path / "fitted.plan.json"
    asked = ["--prompts", folder / "prompts.txt", "--steps", 13, "--fast", *SIZE]
    made = run("fit", *where, *asked, "--speedup", 2.4, "-o", out)
    assert made.exit_code == 0, made.output
    plan = Plan.load(out)
    assert (plan.rule, plan.steps, plan.evaluations) == ("fitted", 12, 5)  # 12 / 2.4
    assert plan.certificate is not None
    assert plan.certificate.psnr is not None
    assert not list(tmp_path.glob("*.runs"))
    made = run("generate", *where, "--plan", out, "--prompt", "a cat", "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    assert "5 evaluations" in made.output


@pytest.mark.slow
def test_a_speedup_needs_no_plan_and_finds_the_fitted_one(where, folder, tmp_path, caplog):
    asked = ["--steps", 15, "--guidance", 4, *SIZE]
    drawing = ["generate", *where, *asked, "--speedup", 2, "--prompt", "a cat", "-o", tmp_path]
    made = run(*drawing)
    assert made.exit_code == 0, made.output
    assert "7 evaluations" in made.output
    assert "an instant plan is followed" in caplog.text
    few = ["--prompts", folder / "prompts.txt", "--fast", "--evaluations", 7]
    made = run("fit", *where, *asked, *few)
    assert made.exit_code == 0, made.output
    (stored,) = PlanStore().plans()
    assert stored.name.startswith("BAGEL-tiny-7of14-")
    made = run(*drawing)
    assert "7 evaluations" in made.output
    assert f"the stored plan {stored.name} is followed" in caplog.text


@pytest.mark.slow
def test_a_prompt_that_fails_does_not_keep_the_others(where, folder, tmp_path, monkeypatch):
    fail_at(monkeypatch, BagelHost, "a boat", ZeroDivisionError("no boats"))
    asked = ["--prompts", folder / "prompts.txt", "--count", 3, "--steps", 4, *SIZE]
    made = run("generate", *where, *asked, "-o", tmp_path / "out")
    assert made.exit_code == 1
    assert "'a boat' with seed 0 failed: no boats" in made.stderr
    assert len(list((tmp_path / "out").iterdir())) == 2


def folders(path: str, weights: str) -> list[str]:
    return ["bagel", "--load", f"bagel-path={path}", "--load", f"weights={weights}"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["calibrate", "generate", "fit"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["bagel"], "bagel needs --load bagel-path=DIR"),
        (["bagel", "--load", "bagel-path=CHECKOUT"], "bagel needs --load weights=DIR"),
        (["bagel", "--load", "weights=WEIGHTS"], "bagel needs --load bagel-path=DIR"),
        (folders("/nowhere", "WEIGHTS"), "no folder /nowhere"),
        (folders("WEIGHTS", "WEIGHTS"), "is no BAGEL checkout"),
        (folders("CHECKOUT", "CHECKOUT"), "of BAGEL's weights"),
        (["tiny-flux", "--load", "weights=WEIGHTS"], "go with the model bagel, not tiny-flux"),
        ([..., "--load", "offload=model"], "bagel has no offload"),
        ([..., "--load", "compile=true"], "bagel is not compiled"),
        ([..., "--load", "revision=main"], "bagel is loaded from folders"),
        ([..., "--frames", "5"], "bagel makes pictures"),
        ([..., "--load", "dtype=int8"], "unknown dtype 'int8'"),
        ([..., "--call", "cfg_text_scal=3"], "meant 'cfg_text_scale'?"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(command, options, message, where, folder, tmp_path):
    arguments = where if options[0] is ... else []
    words = [word for word in options if word is not ...]
    for name, path in (("CHECKOUT", folder / "Bagel"), ("WEIGHTS", folder / "BAGEL-tiny")):
        words = [word.replace(name, str(path)) for word in words]
    arguments = [*arguments, *words]
    prompts = ["--prompts", folder / "prompts.txt"]
    made = run(command, *arguments, *prompts, "-o", tmp_path / "out")
    assert made.exit_code == 2
    assert message in made.stderr
    assert made.stderr.strip().splitlines()[-1].startswith("tacache: ")
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_the_models_name_is_no_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "diffusers", None)  # BAGEL does not need it
    (tmp_path / "bagel").mkdir()
    assert prompts_of("bagel", "calibration") == "calibration"


def test_bagel_takes_one_prompt_at_a_time(where):
    made = run("calibrate", *where, "--batch-size", 2)
    assert made.exit_code == 2
    assert "one picture a call" in made.stderr


def test_bagel_runs_in_one_process(where, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    made = run("generate", *where, "--prompt", "a fox")
    assert made.exit_code == 2
    assert "leave torchrun" in made.stderr


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, "32x32", [32]])
def test_a_plan_with_a_size_that_is_none_is_one_line(where, plan, tmp_path, size):
    fields = json.loads(plan.read_text())
    fields["origin"]["call"]["image_shapes"] = size
    plan.write_text(json.dumps(fields))
    asked = ["--prompt", "a cat", "--height", 32, "-o", tmp_path / "out"]
    refused = run("generate", *where, "--plan", plan, *asked)
    assert refused.exit_code == 2, refused.output
    assert f"image_shapes are a height and a width, not {size!r}" in refused.stderr
