"""Stable Diffusion 3: three text encoders, classifier-free guidance in one batched pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_text, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import picture
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 16
LATENT_CHANNELS = 4


@seeded
def build(pipeline: str) -> DiffusionPipeline:
    """Both pipelines share all components; the T5 width is that of the two CLIPs together."""
    import diffusers

    return getattr(diffusers, pipeline)(
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=SIZE // 2,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            caption_projection_dim=32,
            joint_attention_dim=2 * WIDTH,
            pooled_projection_dim=2 * WIDTH,
            pos_embed_max_size=SIZE,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=clip_text(pooled=True),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip_text(pooled=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_text(width=2 * WIDTH),
        tokenizer_3=t5_tokenizer(),
    )


def text_call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 4.0,
        "max_sequence_length": 32,
    }


def image_call() -> dict[str, Any]:
    """Strength 1 keeps every step; tests of a later start override it."""
    return text_call() | {"image": picture(SIZE), "strength": 1.0}


PIPELINES = [
    Tiny("sd3", partial(build, "StableDiffusion3Pipeline"), text_call),
    Tiny("sd3-img2img", partial(build, "StableDiffusion3Img2ImgPipeline"), image_call),
]
