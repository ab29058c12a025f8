"""SkyReels V2 diffusion forcing: one scheduler copy for each latent frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny import wan
from tests.tiny.entry import Tiny
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@seeded
def build() -> DiffusionPipeline:
    """Wan's components around a transformer that takes a time per frame."""
    from diffusers import SkyReelsV2DiffusionForcingPipeline, SkyReelsV2Transformer3DModel

    return SkyReelsV2DiffusionForcingPipeline(
        transformer=SkyReelsV2Transformer3DModel(**wan.BACKBONE),
        **wan.shared() | {"scheduler": wan.unipc(flow_shift=8.0)},
    )


def call() -> dict[str, Any]:
    """Synchronous: all frames share their time, so a step is a step."""
    return wan.text_call() | {"base_num_frames": wan.FRAMES, "ar_step": 0}


PIPELINES = [Tiny("skyreels-v2-df", build, call, calls_per_step=2)]
