"""Options that several commands share, and how results are printed."""

import json
from typing import Annotated, Any

import typer

PROMPTS_HELP = (
    "A text or JSONL file, or a set that ships: calibration, test (tiny-flux and tiny-wan have "
    "their own)."
)
Model = Annotated[
    str,
    typer.Argument(
        help="A hub id, a pipeline's folder, tiny-flux or tiny-wan.", show_default=False
    ),
]
Height = Annotated[int | None, typer.Option(help="Height in pixels.")]
Width = Annotated[int | None, typer.Option(help="Width in pixels.")]
Frames = Annotated[int | None, typer.Option(help="Frames of a clip.")]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale.")]
More = Annotated[
    list[str] | None,
    typer.Option("--call", help="Any other argument of the pipeline, as NAME=VALUE (JSON)."),
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps, cpu.")]
Offload = Annotated[str | None, typer.Option(help="Keep weights on the CPU: model, sequential.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the transformer.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs to read.")]


def print_json(value: Any) -> None:
    """Print a value for programs to read."""
    print(json.dumps(value, indent=2))
