"""The names under which the command line and the demo find the generation by a pipeline."""

from pathlib import Path
from typing import Any

from tacache import host
from tacache.diffusers.pipeline import PipelineHost
from tacache.host import Output, Request, file_stem
from tacache.prompts import Sample

__all__ = ["Output", "Request", "file_stem", "generate", "warm_up", "write"]


def generate(pipe: Any, prompt: str, seed: int, request: Request, stem: Path) -> Output:
    """As `tacache.host.generate`."""
    return host.generate(PipelineHost(pipe), Sample(prompt, seed), request, stem)


def warm_up(pipe: Any, prompt: str, call: dict[str, Any]) -> None:
    """As `tacache.host.warm_up`."""
    host.warm_up(PipelineHost(pipe), prompt, call)


def write(pixels: host.Pixels, stem: Path, request: Request) -> Path:
    """As `tacache.host.write`."""
    return host.write(pixels, stem, request.clip_suffix, request.fps)
