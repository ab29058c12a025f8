"""Embedded models, with random weights in a folder of the shape that ships."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.command_line import run
from tests.tiny import PIPELINES

import tacache_models
from tacache import models
from tacache.cli.named_models import call_arguments
from tacache.cli.options import FullCallOptions
from tacache.errors import HostError, PlanError
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts.quality_choice import quality_choice
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.prompts import fingerprint
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore, target_of
from tacache_lab.demo import demo_runs
from tacache_lab.demo.demo_request import VIDEO_CALIBRATION, VIDEO_PROMPTS

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "apple", "cat"]
WIDTH = 32  # of the tiny transformer's text input


def write_text_package(root: Path) -> None:
    """A package of MiniLM's shape: BERT and its tokenizer, tiny and random."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder = root / tacache_models.TEXT_PACKAGE / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text('"""A stand-in."""\n')
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(WORDS), hidden_size=WIDTH, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}).save_pretrained(folder)


@pytest.fixture(scope="module")
def text_package(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    write_text_package(root)
    return root


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    """Scheduler, autoencoder and transformer in half precision, as the model ships."""
    folder = tmp_path_factory.mktemp("parts")
    pipe = PIPELINES["flux"].build()
    for part in tacache_models.PARTS:
        component = getattr(pipe, part)
        (component.half() if part != "scheduler" else component).save_pretrained(folder / part)
    return folder


@pytest.fixture
def tiny(parts, text_package, monkeypatch) -> Path:
    """`tiny-flux` with random weights, 32 pixels wide."""
    for name in [name for name in sys.modules if name.split(".")[0] == tacache_models.TEXT_PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(text_package))
    shipped = models.shipped()["tiny-flux"]
    smaller = replace(shipped, folder=parts, call={**shipped.call, "height": 32, "width": 32})
    monkeypatch.setitem(models.shipped(), "tiny-flux", smaller)
    return parts


def picture(pipe, prompt="a red apple", **call):
    arguments = {**models.default_call("tiny-flux"), "num_inference_steps": 2, **call}
    generator = torch.Generator().manual_seed(0)
    return pipe(prompt, generator=generator, output_type="pt", **arguments).images[0]


def test_the_registry_says_how_the_model_is_called():
    shipped = models.shipped()["tiny-flux"]
    assert shipped.folder == Path(tacache_models.__file__).parent / "tiny-flux"
    assert shipped.profile == shipped.folder / "profile.json"
    assert shipped.prompts("test") == shipped.folder / "test.jsonl"
    call = models.default_call("tiny-flux")
    assert (call["height"], call["width"], call["max_sequence_length"]) == (128, 128, 32)
    assert (call["true_cfg_scale"], call["negative_prompt"]) == (3.0, "")
    call["height"] = 1
    assert models.default_call("tiny-flux")["height"] == 128
    assert models.default_call("black-forest-labs/FLUX.1-dev") == {}


def test_an_unknown_model_is_an_error_that_names_those_there_are():
    with pytest.raises(HostError, match="tiny-flux, tiny-flux-turbo, tiny-wan"):
        models.load("other-model")


@pytest.mark.slow
def test_load_assembles_a_pipeline_that_draws(tiny):
    pipe = models.load("tiny-flux")
    assert type(pipe).__name__ == "FluxPipeline"
    assert {pipe.transformer.dtype, pipe.vae.dtype, pipe.text_encoder.dtype} == {torch.float32}
    assert pipe.text_encoder is pipe.text_encoder_2
    assert pipe.tokenizer.model_max_length == tacache_models.TOKENS
    drawn = picture(pipe)
    assert drawn.shape == (3, 32, 32)
    assert not torch.equal(drawn, picture(pipe, "a blue cat"))
    assert not torch.equal(drawn, picture(pipe, true_cfg_scale=1.0))


def test_load_takes_another_folder(tiny, tmp_path):
    with pytest.raises(HostError, match="weights of tiny-flux are not in"):
        models.load("tiny-flux", tmp_path)
    assert models.load("tiny-flux", str(tiny)).transformer.config.num_layers == 1


def test_loading_leaves_the_verbosity_as_it_was(tiny):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    models.load("tiny-flux")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_damaged_weights_are_one_clear_error(tiny, tmp_path):
    for part in tacache_models.PARTS:
        (tmp_path / part).mkdir()
    with pytest.raises(HostError, match="cannot load tiny-flux from"):
        models.load("tiny-flux", tmp_path)


@pytest.mark.parametrize("package", ["diffusers", "transformers", tacache_models.TEXT_PACKAGE])
def test_a_missing_package_is_named_with_its_extra(tiny, monkeypatch, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    with pytest.raises(HostError, match=rf"{package.replace('_', '-')}.*tacache-models"):
        models.load("tiny-flux")


@pytest.mark.slow
def test_save_writes_a_folder_that_diffusers_loads(tiny, tmp_path):
    from diffusers import FluxPipeline

    assert models.save("tiny-flux", tmp_path / "whole") == tmp_path / "whole"
    again = FluxPipeline.from_pretrained(tmp_path / "whole")
    assert again.transformer.dtype == torch.float32
    torch.testing.assert_close(picture(again), picture(models.load("tiny-flux")))


# --- the model that makes clips


@pytest.fixture(scope="module")
def clip_parts(tmp_path_factory) -> Path:
    """`tiny-wan` with random weights, as its export writes it: half precision, with UniPC."""
    folder = tmp_path_factory.mktemp("clips") / "tiny-wan"
    pipe = PIPELINES["wan"].build()
    for part in models.shipped()["tiny-wan"].halved:
        getattr(pipe, part).half()
    pipe.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_wan(clip_parts, monkeypatch) -> Path:
    shipped = models.shipped()["tiny-wan"]
    call = {**shipped.call, "height": 16, "width": 16, "num_frames": 5, "num_inference_steps": 10}
    monkeypatch.setitem(
        models.shipped(), "tiny-wan", replace(shipped, folder=clip_parts, call=call)
    )
    return clip_parts


def test_the_registry_says_how_clips_are_made():
    shipped = models.embedded("tiny-wan")
    assert (shipped.call["num_frames"] - 1) % 4 == 0
    assert shipped.call["num_frames"] >= 16
    assert shipped.call["height"] == shipped.call["width"] >= 64
    assert shipped.call["num_inference_steps"] == 50
    assert shipped.fps is not None
    assert models.embedded("tiny-flux").fps is None
    for name in ("calibration", "test"):
        assert models.own_prompts("tiny-wan", name) == shipped.folder / f"{name}.jsonl"


def test_a_missing_part_of_the_clip_model_is_named(tiny_wan, tmp_path, monkeypatch):
    with pytest.raises(HostError, match=f"tiny-wan are not in {tmp_path}: scheduler is missing"):
        models.load("tiny-wan", tmp_path)
    for part in ("scheduler", "vae", "transformer", "text_encoder"):
        (tmp_path / part).mkdir()
    with pytest.raises(HostError, match="tokenizer is missing"):
        models.load("tiny-wan", tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ftfy" else found(name)
    )
    with pytest.raises(HostError, match=r"tiny-wan needs the package ftfy: .*tacache-models"):
        models.load("tiny-wan")


@pytest.mark.slow
def test_the_clip_model_walks_by_euler_on_its_own_shift(tiny_wan, tmp_path):
    from diffusers import WanPipeline

    pipe = models.load("tiny-wan")
    assert type(pipe).__name__ == "WanPipeline"
    assert type(pipe.scheduler).__name__ == "FlowMatchEulerDiscreteScheduler"
    assert pipe.scheduler.config.shift == 3.0
    assert {pipe.transformer.dtype, pipe.vae.dtype, pipe.text_encoder.dtype} == {torch.float32}
    whole = models.save("tiny-wan", tmp_path / "whole")
    again = WanPipeline.from_pretrained(whole)
    plain = clip_of(again)  # its text encoder may be in half precision
    again.to(torch.float32)
    saved = models.load("tiny-wan", whole)
    assert type(again.scheduler) is type(saved.scheduler) is type(pipe.scheduler)
    clips = [clip_of(one) for one in (pipe, again, saved)]
    assert clips[0].shape == (5, 3, 16, 16)
    torch.testing.assert_close(clips[0], clips[1])
    torch.testing.assert_close(clips[0], clips[2])
    torch.testing.assert_close(clips[0], plain, rtol=1e-2, atol=1e-3)


def clip_of(pipe):
    pipe.set_progress_bar_config(disable=True)
    arguments = {**models.default_call("tiny-wan"), "num_inference_steps": 2}
    generator = torch.Generator().manual_seed(0)
    return pipe("a red apple", generator=generator, output_type="pt", **arguments).frames[0]


@pytest.mark.slow
def test_demo_makes_clips_with_a_page_that_plays_them(tiny_wan, tmp_path):
    command = ["demo", "a red [apple]", "--video", "--evaluations", "5,4", "--steps", 10]
    made = run(*command, "-o", tmp_path)
    assert made.exit_code == 0, made.output
    text = " ".join(made.stdout.split())
    assert "tiny-wan, 10 steps, mean of 1 prompt" in text
    assert "changes" in text
    page = (tmp_path / "index.html").read_text()
    # Full steps; plain steps, an instant plan and the paper's rule at two budgets.
    assert page.count('class="film"') == 7
    assert "-side-by-side.gif and .mp4" in text
    assert "a clip takes" in page
    assert "script-src" in page
    assert (tmp_path / "strip.gif").is_file()
    assert "PSNR of changes" in page
    assert "Clips" in page
    assert len(list((tmp_path / "clips").glob("*.gif"))) == 8


def test_demo_of_clips_takes_the_models_own_prompts(tiny_wan, tmp_path, monkeypatch):
    command = importlib.import_module(
        "tacache_lab.commands.demo_command"
    )  # the package names the function so
    drawn = []
    monkeypatch.setattr(demo_runs, "draw", lambda *arguments, **options: drawn.append(arguments))
    monkeypatch.setattr(command, "_print_model_demo", lambda *arguments: None)
    assert run("demo", "--video", "-o", tmp_path).exit_code == 0
    runs, request, _ = drawn[0]
    assert runs == [demo_runs.DemoRun("tiny-wan", 50, [13, 10])]
    assert request.prompts == VIDEO_PROMPTS
    assert request.calibration == VIDEO_CALIBRATION
    assert request.fps == models.embedded("tiny-wan").fps


def test_demo_of_clips_is_not_replaced_by_another_where_weights_are_missing(tmp_path, monkeypatch):
    shipped = replace(models.shipped()["tiny-wan"], folder=tmp_path / "none")
    monkeypatch.setitem(models.shipped(), "tiny-wan", shipped)
    made = run("demo", "--video", "-o", tmp_path)
    assert made.exit_code == 2
    assert "the weights of tiny-wan are not in" in made.stderr


# --- the command line


@pytest.mark.slow
def test_the_model_is_an_id_like_any_other(tiny, tmp_path):
    file = tmp_path / "t.profile.json"
    made = run("calibrate", "tiny-flux", "--count", 2, "--steps", 8, "--batch-size", 2, "-o", file)
    assert made.exit_code == 0, made.output
    profile = Profile.load(file)
    assert (profile.steps, profile.samples, profile.origin.model) == (8, 2, "tiny-flux")
    assert profile.origin.call is not None
    assert profile.origin.call["true_cfg_scale"] == 3.0
    assert profile.origin.call["height"] == 32
    plan = make_plan(profile, evaluations=4).save(tmp_path / "t.plan.json")
    command = ["generate", "tiny-flux", "--plan", plan, "--prompt", "a red apple", "--compare"]
    drawn = run(*command, "-o", tmp_path / "out", "--json")
    assert drawn.exit_code == 0, drawn.output
    output = json.loads(drawn.stdout)["outputs"][0]
    assert output["evaluations"] == Plan.load(plan).evaluations == 4
    assert output["psnr"] > 0
    assert Path(output["full_file"]).is_file()


def test_sets_of_prompts_are_the_models_own(tiny, tmp_path):
    file = tmp_path / "t.profile.json"
    for name in ("calibration", "test"):
        (tiny / f"{name}.jsonl").write_text(json.dumps({"prompt": f"a {name} apple"}) + "\n")
    made = run("calibrate", "tiny-flux", "--steps", 3, "-o", file, "--json")
    assert made.exit_code == 0, made.output
    assert Profile.load(file).origin.prompts_sha256 == fingerprint(["a calibration apple"])
    command = ["generate", "tiny-flux", "--prompts", "test", "--steps", 2, "--json"]
    drawn = run(*command, "-o", tmp_path / "out")
    assert drawn.exit_code == 0, drawn.output
    assert [one["prompt"] for one in json.loads(drawn.stdout)["outputs"]] == ["a test apple"]


def test_a_file_comes_before_a_set_of_that_name(tmp_path, monkeypatch):
    assert models.own_prompts("tiny-flux", "test") == models.embedded("tiny-flux").prompts("test")
    assert models.own_prompts("another/model", "test") == "test"
    assert models.own_prompts("tiny-flux", "mine.txt") == "mine.txt"
    monkeypatch.chdir(tmp_path)
    Path("test").write_text("a file\n")
    assert models.own_prompts("tiny-flux", "test") == "test"


@pytest.mark.parametrize(
    ("name", "asked", "steps"),
    [
        ("tiny-flux-turbo", None, 8),
        ("tiny-flux-turbo", 12, 12),
        ("tiny-flux", None, 50),
        ("owner/model", None, 50),
    ],
)
def test_a_full_run_has_the_models_own_number_of_steps(name, asked, steps):
    arguments = call_arguments(name, FullCallOptions(steps=asked))
    assert arguments["num_inference_steps"] == steps


def test_options_override_the_models_own_arguments(tiny, tmp_path):
    file = tmp_path / "t.profile.json"
    given = ["--guidance", 1.5, "--height", 64, "--call", "max_sequence_length=16"]
    made = run("calibrate", "tiny-flux", "--count", 1, "--steps", 3, *given, "-o", file)
    assert made.exit_code == 0, made.output
    call = Profile.load(file).origin.call
    assert call is not None
    assert (call["true_cfg_scale"], call["height"], call["width"]) == (1.5, 64, 32)
    assert call["max_sequence_length"] == 16


def test_the_model_loads_in_another_precision(tiny):
    from tacache.diffusers.pipeline_loading import Loading, load_pipeline

    pipe = load_pipeline("tiny-flux", Loading(dtype="bfloat16", device="cpu"))
    assert pipe.transformer.dtype == torch.bfloat16


@pytest.mark.parametrize(("device", "within"), [("cpu", 1), ("meta", 2)])
def test_threads_are_few_on_a_cpu_and_given_back(device, within):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with models.steady_threads(SimpleNamespace(device=torch.device(device))):
            assert torch.get_num_threads() == within
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_clips_have_the_rate_of_their_model():
    assert models.frame_rate("tiny-wan") == 12
    assert models.frame_rate("tiny-flux") == models.frame_rate("me/wan") == models.FPS
    assert models.frame_rate(None) == models.FPS


# --- the fitted plans that ship


@pytest.mark.parametrize("target", ["run", "flow"])
def test_a_fitted_plan_is_read_by_its_evaluations_and_target(tmp_path, target):
    shipped = replace(models.embedded("tiny-flux"), folder=tmp_path, call={})
    assert shipped.plans(target) == {}
    plan = Plan.full([1.0, 0.6, 0.3, 0.0])
    plan.save(shipped.plan_file(13, target))
    assert shipped.plans(target) == {13: shipped.plan_file(13, target)}
    assert shipped.plan(13, target) == plan
    with pytest.raises(PlanError, match=f"fitted to the {target}.*but those of 13.*tacache fit"):
        shipped.plan(7, target)
    other = {"run": "flow", "flow": "run"}[target]
    with pytest.raises(PlanError, match="those of none"):
        shipped.plan(13, other)


def test_a_target_that_no_plan_has_is_refused(tmp_path):
    with pytest.raises(PlanError, match="not to 'noise'"):
        replace(models.embedded("tiny-flux"), folder=tmp_path, call={}).plan(13, "noise")


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, target) for name, facts in models.shipped().items() for target in facts.targets],
)
def test_shipped_plans_belong_to_their_model_and_its_call(name, target):
    shipped = models.embedded(name)
    assert tuple(shipped.plans(target)) == shipped.budgets
    for budget in shipped.plans(target):
        plan = shipped.plan(budget, target)
        steps = shipped.call["num_inference_steps"]
        assert (plan.rule, plan.evaluations, plan.steps) == ("fitted", budget, steps)
        assert (plan.origin.model, plan.origin.dtype) == (name, "float32")
        assert plan.origin.call is not None
        assert shipped.call.items() <= plan.origin.call.items()
        assert plan.certificate is not None
        assert (plan.certificate.equivalent_steps is not None) is (target == "flow")


@pytest.mark.parametrize("name", models.shipped())
def test_every_shipped_plan_promises_a_mean_and_a_5th_percentile_of_eight_prompts_at_least(name):
    for file in (models.embedded(name).folder / "plans").iterdir():
        certificate = Plan.load(file).certificate
        assert certificate.held_out >= 8, file.name
        assert certificate.worst_psnr <= certificate.p5_psnr <= certificate.psnr, file.name


@pytest.mark.parametrize("steps", [28, 50])
def test_a_shipped_plan_of_tiny_flux_promises_35_db_to_nineteen_pictures_in_twenty(steps, tmp_path):
    shipped = models.embedded("tiny-flux")
    plan = Plan.load(shipped.plan_file(13, "run", steps))
    run = RunSignature(plan.origin, plan.full_times)
    goal = QualityGoal(min_psnr=35, psnr_of="p5")
    chosen = quality_choice(goal, run, PlanStore(tmp_path)).stored
    assert chosen.path.parent == shipped.folder / "plans"
    assert chosen.plan.full_steps == steps
    assert chosen.plan.certificate.p5_psnr >= 35
    mean = quality_choice(QualityGoal(min_psnr=35), run, PlanStore(tmp_path)).stored
    assert mean.plan.evaluations <= chosen.plan.evaluations < steps


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param(name, file, id=f"{name}-{file.name}")
        for name, facts in models.shipped().items()
        for file in sorted((facts.folder / "plans").iterdir())
    ],
)
def test_the_name_of_a_shipped_plan_says_what_it_is_and_it_is_found_by_its_run(name, file):
    plan, shipped = Plan.load(file), models.embedded(name)
    assert shipped.plan_file(plan.evaluations, target_of(plan), plan.full_steps) == file
    assert plan.origin.call["num_inference_steps"] == plan.full_steps
    found = PlanStore().fitted_for(plan.origin, plan.full_times, plan.breaks)
    assert file in [entry.path for entry in found]
