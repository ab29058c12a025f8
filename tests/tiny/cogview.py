"""CogView4: a linear shift by size, and integer-rounded timesteps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import byte_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 16
LATENT_CHANNELS = 4


@seeded
def build() -> DiffusionPipeline:
    """A GLM reads the prompt; sizes and crops enter with the time."""
    import diffusers

    tokenizer = byte_tokenizer()
    return diffusers.CogView4Pipeline(
        tokenizer=tokenizer,
        text_encoder=decoder("GlmModel", tokenizer),
        vae=image_vae(LATENT_CHANNELS),
        transformer=diffusers.CogView4Transformer2DModel(
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            text_embed_dim=WIDTH,
            time_embed_dim=32,
            condition_dim=16,
            pos_embed_max_size=32,
            sample_size=SIZE // 2,
            rope_axes_dim=(8, 8),
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, time_shift_type="linear", base_shift=0.25, max_shift=0.75
        ),
    )


def call() -> dict[str, Any]:
    """Guidance makes a second pass."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 5.0,
        "max_sequence_length": 64,
    }


PIPELINES = [Tiny("cogview4", build, call, calls_per_step=2)]
