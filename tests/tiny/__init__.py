"""Real diffusers pipelines with tiny random weights: `PIPELINES["flux"].build()`."""

from __future__ import annotations

from tests.tiny import (
    auraflow,
    bria,
    chroma,
    cogview,
    flux,
    flux2,
    hidream,
    hunyuan,
    ltx,
    ltx2,
    lumina,
    mochi,
    modular,
    qwen,
    sana,
    sd3,
    sdxl,
    skyreels,
    wan,
)
from tests.tiny.entry import PROMPT, Tiny

FAMILIES = (
    flux,
    sd3,
    wan,
    qwen,
    hunyuan,
    ltx,
    ltx2,
    lumina,
    sana,
    auraflow,
    chroma,
    bria,
    cogview,
    hidream,
    mochi,
    flux2,
    sdxl,
    skyreels,
    modular,
)
PIPELINES: dict[str, Tiny] = {tiny.name: tiny for family in FAMILIES for tiny in family.PIPELINES}

__all__ = ["PIPELINES", "PROMPT", "Tiny"]
