"""Bria: FLUX without pooled text, which scales its input for every scheduler but plain Euler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.flux import LATENT_CHANNELS, PACKED, SIZE, dynamic_euler
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@seeded
def build() -> DiffusionPipeline:
    """Bria 3.2 with one block of each kind."""
    import diffusers

    return diffusers.BriaPipeline(
        scheduler=dynamic_euler(),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=t5_text(),
        tokenizer=t5_tokenizer(),
        transformer=diffusers.BriaTransformer2DModel(
            in_channels=PACKED,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=None,
            axes_dims_rope=[4, 4, 8],
        ),
    )


def call() -> dict[str, Any]:
    """Guidance doubles the batch of each pass."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 3.0,
    }


PIPELINES = [Tiny("bria", build, call)]
