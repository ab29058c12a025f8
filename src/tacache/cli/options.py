"""Options that several commands share, and how results are printed."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tacache.errors import TACacheError
from tacache.storage.atomic import check_writable

PROMPTS_HELP = (
    "A text or JSONL file, or a set that ships: calibration, test (tiny-flux and tiny-wan have "
    "their own)."
)
Model = Annotated[
    str,
    typer.Argument(
        help="A hub id, a pipeline's folder, tiny-flux, tiny-wan or bagel.", show_default=False
    ),
]
Height = Annotated[int | None, typer.Option(min=1, help="Height in pixels.")]
Width = Annotated[int | None, typer.Option(min=1, help="Width in pixels.")]
Frames = Annotated[int | None, typer.Option(min=1, help="Frames of a clip.")]
Guidance = Annotated[
    float | None, typer.Option(help="Guidance scale.", callback=lambda value: _finite(value))
]
More = Annotated[
    list[str] | None,
    typer.Option("--call", help="Any other argument of the pipeline, as NAME=VALUE (JSON)."),
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps, cpu.")]
Offload = Annotated[str | None, typer.Option(help="Keep weights on the CPU: model, sequential.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the transformer.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs to read.")]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise TACacheError(f"--guidance is a finite number, not {value}")
    return value


def check_folder(path: Path) -> None:
    """Stop before the work where its files could not be put into this folder."""
    check_writable(path)


def words(text: str) -> list[str]:
    """The words of an option such as psnr,ssim."""
    return [word.strip() for word in text.split(",")]


def print_json(value: Any) -> None:
    """Print a value for programs to read."""
    print(json.dumps(value, indent=2))
