"""Mochi: sigmas inverted, so that time grows from noise to data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

LATENT_CHANNELS = 12


@seeded
def build() -> DiffusionPipeline:
    """The VAE keeps the real factors, 8 in space and 6 in time, which the pipeline assumes."""
    import diffusers

    return diffusers.MochiPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
        vae=diffusers.AutoencoderKLMochi(
            latent_channels=LATENT_CHANNELS,
            encoder_block_out_channels=(32, 32, 32, 32),
            decoder_block_out_channels=(32, 32, 32, 32),
            layers_per_block=(1, 1, 1, 1, 1),
        ),
        text_encoder=t5_text(),
        tokenizer=t5_tokenizer(),
        transformer=diffusers.MochiTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=2,
            pooled_projection_dim=16,
            in_channels=LATENT_CHANNELS,
            text_embed_dim=WIDTH,
            time_embed_dim=16,
            max_sequence_length=32,
        ),
    )


def call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": 32,
        "width": 32,
        "num_frames": 7,
        "guidance_scale": 4.5,
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("mochi", build, call)]
