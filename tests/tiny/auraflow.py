"""AuraFlow: Euler without shifting by size, guidance in one batched pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, umt5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 16
LATENT_CHANNELS = 4


@seeded
def build() -> DiffusionPipeline:
    """One joint layer, one single layer."""
    import diffusers

    return diffusers.AuraFlowPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=umt5_text(),
        vae=image_vae(LATENT_CHANNELS),
        transformer=diffusers.AuraFlowTransformer2DModel(
            sample_size=SIZE // 2,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            caption_projection_dim=32,
            pos_embed_max_size=64,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.73),
    )


def call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 3.5,
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("auraflow", build, call)]
