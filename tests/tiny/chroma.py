"""Chroma: FLUX without pooled text, with guidance as a second pass."""

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
    """A small network, the approximator, replaces the modulation layers."""
    import diffusers

    return diffusers.ChromaPipeline(
        scheduler=dynamic_euler(),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=t5_text(),
        tokenizer=t5_tokenizer(),
        transformer=diffusers.ChromaTransformer2DModel(
            in_channels=PACKED,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 4, 8),
            approximator_num_channels=16,
            approximator_hidden_dim=32,
            approximator_layers=1,
        ),
    )


def call() -> dict[str, Any]:
    """Guidance makes a second pass."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 3.0,
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("chroma", build, call, calls_per_step=2)]
