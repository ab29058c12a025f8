"""Real diffusers pipelines with tiny random weights: `PIPELINES["flux"].build()`."""

from __future__ import annotations

from tests.tiny.configurations import TABLE
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.further import TABLE as FURTHER_TABLE
from tests.tiny.further_embedded import TABLE as EMBEDDED_TABLE
from tests.tiny.further_modular import TABLE as FURTHER_MODULAR_TABLE
from tests.tiny.modular import TABLE as MODULAR_TABLE
from tests.tiny.singular import TABLE as SINGULAR_TABLE

PIPELINES: dict[str, Tiny] = {tiny.name: tiny for tiny in (*TABLE, *MODULAR_TABLE)}
# Variants and newer models, each of which is run once, for the page of pipelines.
FURTHER: dict[str, Tiny] = {
    tiny.name: tiny
    for tiny in (*FURTHER_TABLE, *EMBEDDED_TABLE, *FURTHER_MODULAR_TABLE, *SINGULAR_TABLE)
}

__all__ = ["FURTHER", "PIPELINES", "PROMPT", "Tiny"]
