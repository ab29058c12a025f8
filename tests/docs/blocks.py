"""What README and the tutorials tell people to type, and how a test types it.

Commands and Python run as they are printed. Names of the hub stand for tiny models of the same
class, whose calls are small unless told otherwise; commands that would take minutes get fewer
prompts and budgets (`FEWER`); and what cannot run here is on a short list with its reason
(`EXEMPT`).
"""

import inspect
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.tiny import PIPELINES
from typer.testing import CliRunner

from tacache.cli.command_line import app

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/tutorials/{p.name}" for p in ROOT.glob("docs/tutorials/*.md"))]

# the first words of a command -> why it is not run
EXEMPT = {
    "pip install": "it installs packages; `make dist` installs the package and runs its demo",
    "git clone": "it asks the network",
    "ln -s": "it links into ComfyUI; tests/test_comfyui.py runs the nodes",
    "make demo": "it makes an environment, and then runs `tacache demo`, which is run",
}
# hub id -> the tiny pipeline of the same class
TINY = {
    "black-forest-labs/FLUX.1-dev": "flux",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "wan",
}
# added to a command, where the later word wins: as much of everything as a test has time for
FEWER = {
    "demo": "--evaluations 5 --steps 12",
    "calibrate": "--count 1",
    "calibrate tiny-flux": "--count 1 --steps 16",
    "fit": "--count 2 --fast",
    "fit tiny-flux": "--count 2 --fast --steps 16",
    "generate tiny-flux": "--steps 16",
    "generate tiny-wan": "--steps 12",
    "bench": "--count 1 --calibration-count 2",
}
A_PROMPT = "a red apple"  # for the demo that draws several unless told


class Block(NamedTuple):
    """A block of code: its language and its text."""

    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page that people type."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [Block(*one) for one in found if one[0] in ("console", "python")]


def commands(block: Block) -> list[list[str]]:
    """The words of every command, without the comment after it."""
    lines = block.text.replace("\\\n", " ").splitlines()
    assert all(line.startswith("$ ") for line in lines), f"no command: {lines}"
    return [shlex.split(line[2:], comments=True) for line in lines]


def exemption(words: list[str]) -> str | None:
    """Why a command is not run, or None."""
    return EXEMPT.get(" ".join(words[:2]))


def type_command(words: list[str]) -> str:
    """Run a command of ours, and give back what it prints."""
    program, verb, *rest = words
    assert Path(program).name == "tacache", f"{shlex.join(words)} can be neither run nor exempted"
    prompts = [A_PROMPT] if verb == "demo" and not [w for w in rest if " " in w] else []
    fewer = FEWER.get(" ".join(words[1:3]), FEWER.get(verb, ""))
    typed = [verb, *rest, *prompts, *shlex.split(fewer)]
    made = CliRunner().invoke(app, typed)
    assert made.exit_code == 0, f"{shlex.join(typed)}\n{made.output}{made.exception!r}"
    return made.output


def use_tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every hub id of `TINY` load its tiny pipeline, on the CPU and with a small call."""
    import diffusers

    from tacache.diffusers import pipeline_loading

    pipes = {hub: PIPELINES[name].build() for hub, name in TINY.items()}
    plain_load, plain_config = pipeline_loading._load, diffusers.DiffusionPipeline.load_config

    def load(model: str, *rest: Any, **options: Any) -> Any:
        return pipes[model] if model in pipes else plain_load(model, *rest, **options)

    def config(model: str, **options: Any) -> dict[str, Any]:
        if model in pipes:
            return {"_class_name": type(pipes[model]).__name__}
        return dict(plain_config(model, **options))

    monkeypatch.setattr(pipeline_loading, "_load", load)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "load_config", config)
    monkeypatch.setattr(diffusers.DiffusionPipeline, "to", lambda pipe, *_, **__: pipe)
    for hub, name in TINY.items():
        kind = type(pipes[hub])

        def loaded(model: Any, plain: Any = kind.from_pretrained, **options: Any) -> Any:
            return pipes[model] if model in pipes else plain(model, **options)

        monkeypatch.setattr(kind, "from_pretrained", loaded)
        call = PIPELINES[name].call()
        set_defaults(monkeypatch, kind.__call__, {k: v for k, v in call.items() if k != "prompt"})


def set_defaults(monkeypatch: pytest.MonkeyPatch, function: Any, values: dict[str, Any]) -> None:
    """Give a function other defaults for the arguments that are named."""
    plain = inspect.unwrap(function)
    named = [p for p in inspect.signature(plain).parameters.values() if p.default is not p.empty]
    by_place = [p for p in named if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = tuple(values.get(p.name, p.default) for p in by_place)
    monkeypatch.setattr(plain, "__defaults__", defaults)
    by_name = {p.name: values.get(p.name, p.default) for p in named if p.kind is p.KEYWORD_ONLY}
    monkeypatch.setattr(plain, "__kwdefaults__", by_name or None)
