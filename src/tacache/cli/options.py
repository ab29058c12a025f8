"""The options that several commands share, each bound once."""

import math
import shlex
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli.arguments import named_values
from tacache.cli.printing import tell
from tacache.errors import TACacheError

SAMPLES, CALLED, LOADED, OUTPUT = (
    "Prompts and seeds",
    "How the model is called",
    "How the model is loaded",
    "Output",
)
PROMPTS_HELP = (
    "A text or JSONL file, or a set that ships: calibration, test (tiny-flux and tiny-wan have "
    "their own)."
)
# The names that --load knows; the first six were options of their own, which still work.
OLD_OPTIONS = ("dtype", "device", "offload", "compile", "bagel_path", "weights")
LOAD_NAMES = (*OLD_OPTIONS, "revision", "variant")
BAGEL_ONLY = {"bagel_path", "weights"}

Model = Annotated[
    str,
    typer.Argument(
        help="A hub id, a pipeline's folder, tiny-flux, tiny-wan or bagel.", show_default=False
    ),
]
Pipeline = Annotated[
    str,
    typer.Argument(
        help="tiny-flux, tiny-wan, a hub id or a pipeline's folder.", show_default=False
    ),
]
Prompts = Annotated[str, typer.Option(help=PROMPTS_HELP)]
Count = Annotated[int | None, typer.Option(min=1, help="Use only the first COUNT prompts.")]
Seeds = Annotated[
    str, typer.Option(help="Seeds, such as 0,1,2; every prompt runs with each of them.")
]
FirstSeed = Annotated[int, typer.Option(help="The first seed; the others count on from it.")]
Calibration = Annotated[
    str, typer.Option(help=f"The prompts that a method is tuned on. {PROMPTS_HELP}")
]
CalibrationCount = Annotated[
    int | None, typer.Option(min=1, help="How many of those prompts are used (default: 8).")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON for programs to read.", rich_help_panel=OUTPUT),
]
OldText = Annotated[str | None, typer.Option(hidden=True)]
OldSwitch = Annotated[bool, typer.Option("--compile", hidden=True)]


def finite(value: float | None) -> float | None:
    """Refuse a guidance scale that is no finite number."""
    if value is not None and not math.isfinite(value):
        raise TACacheError(f"--guidance is a finite number, not {value}")
    return value


@dataclass(frozen=True)
class Call:
    """How the model is called; what is not given is the plan's or the model's own."""

    PANEL: ClassVar = CALLED
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of a full run (default: the plan's).")
    ] = None
    height: Annotated[int | None, typer.Option(min=1, help="Height in pixels.")] = None
    width: Annotated[int | None, typer.Option(min=1, help="Width in pixels.")] = None
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of a clip.")] = None
    guidance: Annotated[
        float | None, typer.Option(help="Guidance scale, such as 3.5.", callback=finite)
    ] = None
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--call",
            metavar="NAME=VALUE",
            help="Any other argument of the model's call, such as max_sequence_length=256; the "
            "value is JSON or text. May be repeated.",
        ),
    ] = None


@dataclass(frozen=True)
class FullCall(Call):
    """The same options for full-step runs, where the number of steps has a default."""

    steps: Annotated[int, typer.Option(min=2, help="Steps of a full run.")] = 50


@dataclass(frozen=True)
class Load:
    """How the model is loaded: --load, and the options it has taken the place of."""

    PANEL: ClassVar = LOADED
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="dtype=bfloat16, device=cuda:1, offload=model (or sequential), compile=true, "
            "revision=BRANCH, variant=fp16; for the model bagel: bagel-path=CHECKOUT and "
            "weights=FOLDER. May be repeated.",
        ),
    ] = None
    dtype: OldText = None
    device: OldText = None
    offload: OldText = None
    compile: OldSwitch = False
    bagel_path: OldText = None
    weights: OldText = None

    def checked(self, model: str) -> dict[str, Any]:
        """Return what is asked for by name, after a look at names and values."""
        asked: dict[str, Any] = {**self._old(), **_loads(self.load)}
        if model != "bagel" and asked.keys() & BAGEL_ONLY:
            raise TACacheError(f"bagel-path and weights go with the model bagel, not {model}")
        if "compile" in asked:
            if asked["compile"] not in ("true", "false"):
                raise TACacheError(f"compile is true or false, not {asked['compile']!r}")
            asked["compile"] = asked["compile"] == "true"
        return asked

    def _old(self) -> dict[str, str]:
        """Return what is given in an old spelling, and print the new one."""
        given = {name: getattr(self, name) for name in OLD_OPTIONS}
        found = {name: "true" if value is True else value for name, value in given.items() if value}
        for name, value in found.items():
            word = name.replace("_", "-")
            new = shlex.quote(f"{word}={value}")
            tell(f"--{word} is now --load {new}; the old spelling goes with the next version")
        return found


def _loads(pairs: list[str] | None) -> dict[str, str]:
    """Return the pairs of --load, with names that are known."""
    found = {name.replace("-", "_"): value for name, value in named_values("--load", pairs)}
    for name in found.keys() - set(LOAD_NAMES):
        known = ", ".join(LOAD_NAMES).replace("_", "-")
        raise TACacheError(f"--load does not know {name!r}: choose from {known}")
    return found
