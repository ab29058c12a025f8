"""What `tacache generate` makes of one prompt and seed, on any host."""

import re

from tacache.storage.files import Frozen


class Output(Frozen):
    """One prompt and seed: its file, and how it compares to full steps where that was asked."""

    prompt: str
    seed: int
    file: str
    seconds: float
    evaluations: int | None = None
    full_file: str | None = None
    full_seconds: float | None = None
    psnr: float | None = None


def file_stem(index: int, prompt: str, seed: int) -> str:
    """A name that sorts by prompt and can be read: 0003-a-red-apple-s7."""
    words = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:48].rstrip("-")
    return f"{index:04d}-{words or 'prompt'}-s{seed}"
