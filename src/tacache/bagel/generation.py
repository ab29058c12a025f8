"""The names under which the command line finds the generation by BAGEL."""

from pathlib import Path
from typing import Any

from tacache import host
from tacache.bagel.inferencer import BagelHost
from tacache.host import Output, Request
from tacache.prompts import Sample

__all__ = ["Output", "Request", "file_stem", "generate", "warm_up"]


def generate(inferencer: Any, sample: Sample, request: Request, stem: Path) -> Output:
    """As `tacache.host.generate`."""
    return host.generate(BagelHost(inferencer), sample, request, stem)


def warm_up(inferencer: Any, prompt: str, call: dict[str, Any]) -> None:
    """As `tacache.host.warm_up`."""
    host.warm_up(BagelHost(inferencer), prompt, call)


def file_stem(index: int, sample: Sample) -> str:
    """As `tacache.host.file_stem`."""
    return host.file_stem(index, *sample)
