"""Every command of every recipe runs, on a tiny model of the same class with less of everything."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import PIPELINES, prompted
from typer.testing import CliRunner

from tacache.cli.command_line import app
from tacache.plan import Plan
from tacache_lab.bench.records import read_records

RECIPES = Path(__file__).parent.parent / "recipes"
sys.path.insert(0, str(RECIPES))

import estimate  # noqa: E402  # beside the recipes, and no package

pytestmark = pytest.mark.slow

# recipe -> the pipeline of the same class, under the name its commands call it by
TINY = {
    "flux-dev": ("black-forest-labs/FLUX.1-dev", "flux"),
    "wan2.1-1.3b": ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan"),
    "hunyuanvideo": ("hunyuanvideo-community/HunyuanVideo", "hunyuan-video"),
    "qwen-image": ("Qwen/Qwen-Image", "qwen-image"),
    "sd3.5": ("stabilityai/stable-diffusion-3.5-large", "sd3"),
    "wan2.2": ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan-2.2"),
}
# the page of three commands a model: hub id -> what builds its tiny pipeline, and the call of it
SHORT = "three-commands"
SMALL = {"height": 64, "width": 64}
LARGER = {"height": 128, "width": 128}  # what a decoder that pads by reflection takes
THREE_COMMANDS = {
    "black-forest-labs/FLUX.1-dev": (PIPELINES["flux"].build, PIPELINES["flux"].call),
    "black-forest-labs/flux-3-image-klein-base": (
        prompted.PIPELINES["Flux3ModularPipeline"],
        lambda: SMALL,
    ),
    "Qwen/Qwen-Image-2.1-Turbo": (prompted.PIPELINES["QwenImage21Pipeline"], lambda: SMALL),
    "krea/Krea-2-Turbo": (prompted.PIPELINES["Krea2Pipeline"], lambda: SMALL),
    "Tongyi-MAI/Z-Image-Turbo": (PIPELINES["z-image"].build, PIPELINES["z-image"].call),
    "MiniMaxAI/MiniMax-H3": (
        prompted.PIPELINES["MiniMaxH3ModularPipeline"],
        lambda: {"height": 32, "width": 32},
    ),
    "Lightricks/LTX-2": (PIPELINES["ltx2"].build, lambda: PIPELINES["ltx2"].call() | LARGER),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": (PIPELINES["wan-2.2"].build, PIPELINES["wan-2.2"].call),
}
# instead of what an option says, and added to a command, where the later wins: only size differs
LESS = {"--steps": "6", "--evaluations": "4"}
FEWER = {
    "calibrate": "--count 2",
    "fit": "--count 2 --fast",
    "bench": "--count 2 --calibration-count 2",
    "generate": "--count 1",
    "export": "--count 1 --samples 1",
}
PAPER = {"flux-dev": ("0.04", "0.4"), "wan2.1-1.3b": ("0.03", "0.3"), "bagel": ("0.06", "0.6")}


def blocks(recipe: str) -> list[tuple[str, str]]:
    """Every block of code: its language and its text."""
    text = (RECIPES / f"{recipe}.md").read_text(encoding="utf-8")
    return re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL)


def typed(block: str) -> list[list[str]]:
    """The words of every line of a console, without the program's name."""
    lines = block.replace("\\\n", " ").splitlines()
    assert all(line.startswith("$ tacache ") for line in lines), lines
    return [shlex.split(line[2:])[1:] for line in lines]


def commands(recipe: str) -> list[list[str]]:
    """Every command of a recipe."""
    return [words for kind, text in blocks(recipe) if kind == "console" for words in typed(text)]


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def smaller(words: list[str], call: dict[str, Any]) -> list[str]:
    """The command with fewer steps, prompts and evaluations, and the tiny model's arguments."""
    less = [LESS.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    if words[0] not in FEWER or "--score" in words:
        return less
    own = [part for k, v in call.items() for part in ("--call", f"{k}={json.dumps(v)}")]
    return [*less, *FEWER[words[0]].split(), *own]


def run(words: list[str]) -> Any:
    made = CliRunner().invoke(app, words)
    assert made.exit_code == 0, f"{shlex.join(words)}\n{made.output}{made.exception!r}"
    return made


@pytest.fixture
def tiny(request, monkeypatch, tmp_path) -> tuple[str, dict[str, Any]]:
    """A recipe and its tiny model, which loading by the recipe's hub id gives."""
    hub, name = TINY[request.param]
    call = stand_for(hub, PIPELINES[name].build, PIPELINES[name].call, monkeypatch, tmp_path)
    return request.param, call


@pytest.fixture
def newer(request, monkeypatch, tmp_path) -> tuple[str, dict[str, Any]]:
    """A model of the page of three commands, likewise."""
    build, arguments = THREE_COMMANDS[request.param]
    return request.param, stand_for(request.param, build, arguments, monkeypatch, tmp_path)


def stand_for(hub, build, arguments, monkeypatch, folder) -> dict[str, Any]:
    """Let a hub id load a tiny pipeline; return what it is called with."""
    import diffusers

    from tacache.diffusers import pipeline_loading

    pipe = build()
    call = {name: value for name, value in arguments().items() if name != "prompt"}
    plain_load, plain_config = pipeline_loading._load, diffusers.DiffusionPipeline.load_config

    def load(model: str, dtype: Any) -> Any:
        return pipe if model == hub else plain_load(model, dtype)

    def config(model: str) -> dict[str, Any]:
        return {"_class_name": type(pipe).__name__} if model == hub else plain_config(model)

    monkeypatch.setattr(pipeline_loading, "_load", load)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "load_config", config)
    monkeypatch.setattr(type(pipe), "from_pretrained", lambda model, dtype: load(model, dtype))
    monkeypatch.chdir(folder)
    write_prompts()
    return call


def write_prompts() -> None:
    """Copies of the benchmarks, with a prompt each."""
    prompts = {
        "evaluation_metadata.jsonl": '{"tag": "colors", "prompt": "a red bus"}\n',
        "VBench_full_info.json": '[{"prompt_en": "a dog runs", "dimension": ["scene"]}]',
    }
    for file, text in prompts.items():
        Path(file).write_text(text)


def write_results(words: list[str]) -> None:
    """What the evaluator would say of an export."""
    (picture,) = [r.picture for r in read_records(f"{option(words, '-o')}.jsonl")]
    verdicts: dict[str, Any] = {
        "geneval": {"filename": picture, "tag": "colors", "correct": True},
        "vbench": {"scene": [0.5, [{"video_path": picture, "video_results": 0.5}]]},
    }
    Path(option(words, "--score") or "").write_text(json.dumps(verdicts[words[1]]) + "\n")


def run_block(kind: str, text: str, call: dict[str, Any]) -> None:
    """Python as it is; commands made smaller, each of which leaves the file it names."""
    if kind == "python":
        exec(compile(text, "a recipe", "exec"), {})
        return
    assert kind == "console"
    for words in typed(text):
        if "--score" in words:
            write_results(words)
        made = run(smaller(words, call))
        if target := option(words, "-o"):
            assert Path(target).exists(), made.output


@pytest.mark.parametrize("tiny", TINY, indirect=True)
def test_every_command_runs(tiny):
    recipe, call = tiny
    for kind, text in blocks(recipe):
        run_block(kind, text, call)
    check_made(recipe)


@pytest.mark.parametrize("newer", THREE_COMMANDS, indirect=True)
def test_three_commands_of_each_newer_model_run(newer):
    hub, call = newer
    (text,) = (text for kind, text in blocks(SHORT) if hub in text and kind == "console")
    words = typed(text)
    assert len(words) == 3
    run_block("console", text, call)
    plan = next(Path(option(of, "-o") or "") for of in words if "plan.json" in of[-1])
    assert Plan.load(plan).evaluations == int(LESS["--evaluations"])
    assert list(Path(option(words[-1], "-o") or "").glob("*-pair.*"))


def test_every_newer_model_has_its_commands():
    models = {of[1] for of in commands(SHORT) if of[0] != "plan"}
    assert models == THREE_COMMANDS.keys()


def check_made(recipe: str) -> None:
    """There is a command for everything, and its files are what they are to be."""
    verbs = {words[0] for words in commands(recipe)}
    assert {"calibrate", "plan", "show", "fit", "generate", "bench"} <= verbs
    assert Plan.load(f"{recipe}-fitted.plan.json").rule == "fitted"
    assert {record.status for record in read_records(f"{recipe}.jsonl")} == {"done"}


def test_every_command_for_bagel_runs(tmp_path, monkeypatch):
    """With a checkout and weights of the stand-in in the folders that the recipe names."""
    stand_in = pytest.importorskip("tests.bagel_stand_in")
    monkeypatch.chdir(tmp_path)
    write_prompts()
    stand_in.write_checkout(Path("Bagel"))
    stand_in.write_weights(Path("BAGEL-7B-MoT"))
    with stand_in.no_checkout_loaded():
        for kind, text in blocks("bagel"):
            run_block(kind, text, {"image_shapes": list(stand_in.SIZE)})
    check_made("bagel")


@pytest.mark.parametrize("recipe", estimate.MODELS)
def test_the_figures_are_the_computed_ones(recipe):
    text = (RECIPES / f"{recipe}.md").read_text(encoding="utf-8")
    for row in estimate.rows(recipe):
        assert row in text


def test_the_count_of_operations_is_the_papers():
    """Table 1: FLUX.1-dev 3.72 PFLOPs a sample; its Wan2.1-1.3B and BAGEL leave attention out."""
    flux, wan, bagel = (estimate.MODELS[name] for name in ("flux-dev", "wan2.1-1.3b", "bagel"))
    assert flux.operations * 50 / 1e15 == pytest.approx(3.72, rel=0.01)
    for model, pflops in ((wan, 8.21), (bagel, 5.25)):
        linear = 2 * model.weights_a_token * model.tokens * model.passes * model.steps
        assert linear / 1e15 == pytest.approx(pflops, rel=0.03)


def test_the_rate_lies_between_those_that_were_timed():
    rates = [m.operations / m.timed for m in estimate.MODELS.values() if m.timed]
    assert len(rates) == 2
    assert min(rates) < estimate.RATE < max(rates) < 1.25 * min(rates)


@pytest.mark.parametrize("recipe", estimate.MODELS)
def test_thresholds_are_the_papers_where_it_has_some(recipe):
    (planned,) = [words for words in commands(recipe) if words[0] == "plan"]
    assert option(planned, "--max-skip") == "12"
    if recipe in PAPER:
        assert (option(planned, "--tau-k"), option(planned, "--tau-d")) == PAPER[recipe]


def test_every_recipe_is_listed_and_tested():
    found = {path.stem for path in RECIPES.glob("*.md")} - {"README"}
    assert found - {SHORT} == estimate.MODELS.keys() == {*TINY, "bagel"}
    listed = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in listed for name in found)


def test_the_script_prints_one_recipe_or_all(capsys, monkeypatch):
    import runpy

    monkeypatch.setattr(sys, "argv", ["estimate.py", "sd3.5"])
    runpy.run_path(str(RECIPES / "estimate.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("sd3.5\n| | H200, H100 |")
