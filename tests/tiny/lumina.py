"""Lumina Image 2 and Z-Image: single-stream transformers that refine text and noise apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import byte_tokenizer, gemma_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

LATENT_CHANNELS = 4


@seeded
def build_lumina() -> DiffusionPipeline:
    """Lumina's time runs from 0 to 1 inside the transformer; its VAE factor is fixed at 8."""
    import diffusers

    tokenizer = gemma_tokenizer()
    return diffusers.Lumina2Pipeline(
        transformer=diffusers.Lumina2Transformer2DModel(
            sample_size=4,
            in_channels=LATENT_CHANNELS,
            hidden_size=48,
            num_layers=1,
            num_refiner_layers=1,
            num_attention_heads=2,
            num_kv_heads=1,
            multiple_of=16,
            axes_dim_rope=(8, 8, 8),
            axes_lens=(300, 16, 16),
            cap_feat_dim=WIDTH,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=6.0),
        vae=image_vae(LATENT_CHANNELS, levels=4),
        text_encoder=decoder("Gemma2Model", tokenizer),
        tokenizer=tokenizer,
    )


def lumina_call() -> dict[str, Any]:
    """Guidance makes a second pass; a short system prompt leaves room for the prompt."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "system_prompt": "draw",
        "height": 64,
        "width": 64,
        "guidance_scale": 4.0,
        "max_sequence_length": 64,
    }


@seeded
def build_z_image() -> DiffusionPipeline:
    """Z-Image: the text enters as a list of tensors of different lengths."""
    import diffusers

    tokenizer = byte_tokenizer()
    return diffusers.ZImagePipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=decoder("Qwen3Model", tokenizer),
        tokenizer=tokenizer,
        transformer=diffusers.ZImageTransformer2DModel(
            in_channels=LATENT_CHANNELS,
            dim=32,
            n_layers=1,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            cap_feat_dim=WIDTH,
            axes_dims=[4, 6, 6],
            axes_lens=[256, 32, 32],
        ),
    )


def z_image_call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": 16,
        "width": 16,
        "guidance_scale": 4.0,
        "max_sequence_length": 64,
    }


PIPELINES = [
    Tiny("lumina2", build_lumina, lumina_call, calls_per_step=2),
    Tiny("z-image", build_z_image, z_image_call),
]
