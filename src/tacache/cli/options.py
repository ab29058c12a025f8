"""The options that several commands share, each bound once."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli.arguments import named_values
from tacache.cli.model_kinds import KINDS
from tacache.errors import TACacheError
from tacache.models import check_known

SAMPLES, CALLED, LOADED, OUTPUT = (
    "Prompts and seeds",
    "How the model is called",
    "How the model is loaded",
    "Output",
)
PROMPTS_HELP = (
    "A text or JSONL file, or a set that ships: calibration, test (small models have their own)."
)
DEFAULT_STEPS = 50  # of a full run, where the model has no number of its own
BAGEL_ONLY = {"bagel_path", "weights"}
LOAD_NAMES = (
    "dtype",
    "device",
    "offload",
    "compile",
    "bagel_path",
    "weights",
    "revision",
    "variant",
)

Model = Annotated[
    str,
    typer.Argument(
        help="A hub id, a pipeline's folder, tiny-flux, tiny-flux-turbo, tiny-wan or bagel.",
        show_default=False,
    ),
]
Pipeline = Annotated[
    str,
    typer.Argument(
        help="tiny-flux, tiny-flux-turbo, tiny-wan, a hub id or a pipeline's folder.",
        show_default=False,
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


def finite(value: float | None) -> float | None:
    """Refuse a guidance scale that is no finite number."""
    if value is not None and not math.isfinite(value):
        raise TACacheError(f"--guidance is a finite number, not {value}")
    return value


@dataclass(frozen=True)
class CallOptions:
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
class FullCallOptions(CallOptions):
    """The same options for full-step runs, where the number of steps has a default."""

    steps: Annotated[
        int | None,
        typer.Option(
            min=2, help=f"Steps of a full run (default: the model's own, or {DEFAULT_STEPS})."
        ),
    ] = None


@dataclass(frozen=True)
class QualityOptions:
    """A quality, in the place of a number of evaluations or a speedup."""

    PANEL: ClassVar = "A quality in the place of a speed"
    like_steps: Annotated[
        int | None,
        typer.Option(help="As near to the flow as so many Euler steps, such as 28."),
    ] = None
    min_psnr: Annotated[
        float | None, typer.Option(help="A PSNR to the full run in dB, such as 35.")
    ] = None
    psnr_of: Annotated[
        str,
        typer.Option(
            metavar="mean|p5",
            help="Of which pictures --min-psnr is: their mean, or their 5th percentile.",
        ),
    ] = "mean"

    def options(self) -> dict[str, Any]:
        """Return the options by the names that fits, `accelerate` and servers have for them."""
        return asdict(self)


@dataclass(frozen=True)
class LoadOptions:
    """How the model is loaded."""

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

    def checked(self, model: str) -> dict[str, Any]:
        """Return what is asked for by name, after a look at names and values."""
        if model not in KINDS:
            check_known(model)
        options: dict[str, Any] = dict(_loads(self.load))
        if model != "bagel" and options.keys() & BAGEL_ONLY:
            raise TACacheError(f"bagel-path and weights go with the model bagel, not {model}")
        if "compile" in options:
            if options["compile"] not in ("true", "false"):
                raise TACacheError(f"compile is true or false, not {options['compile']!r}")
            options["compile"] = options["compile"] == "true"
        return options


def _loads(pairs: list[str] | None) -> dict[str, str]:
    """Return the pairs of --load, with names that are known."""
    texts = {name.replace("-", "_"): value for name, value in named_values("--load", pairs)}
    for name in texts.keys() - set(LOAD_NAMES):
        known = ", ".join(LOAD_NAMES).replace("_", "-")
        raise TACacheError(f"--load does not know {name!r}: choose from {known}")
    return texts
