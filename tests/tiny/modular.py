"""Modular pipelines of diffusers, from the components of the pipelines that have tiny twins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.configurations import TABLE as TWIN_TABLE
from tests.tiny.entry import Tiny

if TYPE_CHECKING:
    from diffusers import ModularPipeline
    from torch import Tensor

TWINS = {tiny.name: tiny for tiny in TWIN_TABLE}

# The twin's decoder is not made for use.
SILENT = {"output_type": "latent", "output": ["latents", "audio_latents"]}


def build(blocks: str, twin: str) -> ModularPipeline:
    """The pipeline of these blocks with all components of the twin that it knows."""
    import diffusers

    components = TWINS[twin].build().components
    pipe = getattr(diffusers, blocks)().init_pipeline()
    known = {name: part for name, part in components.items() if name in pipe._component_specs}
    pipe.update_components(**known)
    pipe.set_progress_bar_config(disable=True)
    for block in pipe._blocks.sub_blocks.values():
        for inner in getattr(block, "sub_blocks", {}).values():
            if hasattr(inner, "set_progress_bar_config"):
                inner.set_progress_bar_config(disable=True)
    return pipe


def call(blocks: str, twin: str, **changes: Any) -> dict[str, Any]:
    """What the twin is called with, as far as these blocks take it; latents come out."""
    import diffusers

    known = {one.name for one in getattr(diffusers, blocks)().inputs}
    given = {name: one for name, one in TWINS[twin].call().items() if name in known}
    return {**given, "output": ["latents"], **changes}


def latents(result: dict[str, Tensor]) -> Tensor:
    """The latents of a modular pipeline's result."""
    return result["latents"]


def modular(name: str, blocks: str, twin: str, calls_per_step: int, **options: Any) -> Tiny:
    """A modular pipeline from text, whose call or whose denoisers may differ from the twin's."""
    denoisers = options.pop("denoisers", ("transformer",))
    return Tiny(
        name,
        partial(build, blocks, twin),
        partial(call, blocks, twin, **options),
        denoisers,
        calls_per_step,
        latent_output="pt",  # pictures are made, but not asked for
        output=latents,
    )


TABLE = [
    modular("modular-flux", "FluxAutoBlocks", "flux", 1),
    modular("modular-flux-kontext", "FluxKontextAutoBlocks", "flux", 1),
    modular("modular-flux2", "Flux2AutoBlocks", "flux2", 1),
    modular("modular-qwen-image", "QwenImageAutoBlocks", "qwen-image", 2),
    modular("modular-sd3", "StableDiffusion3AutoBlocks", "sd3", 2),
    modular("modular-wan", "WanBlocks", "wan", 2),
    modular(
        "modular-wan-2.2",
        "Wan22Blocks",
        "wan-2.2",
        2,
        denoisers=("transformer", "transformer_2"),
    ),
    modular("modular-z-image", "ZImageAutoBlocks", "z-image", 1),
    modular("modular-ltx", "LTXAutoBlocks", "ltx", 2),
    modular("modular-ltx2", "LTX2AutoBlocks", "ltx2", 4, **SILENT),
]
