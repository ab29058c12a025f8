"""Stable Diffusion XL: it predicts noise, so no velocity plan fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import clip_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 16
LATENT_CHANNELS = 4
TIME_IDS = 6  # original size, crop and target size, two numbers each


@seeded
def build() -> DiffusionPipeline:
    """A U-Net in place of a transformer."""
    import diffusers

    return diffusers.StableDiffusionXLPipeline(
        vae=image_vae(LATENT_CHANNELS, shift_factor=None),
        text_encoder=clip_text(),
        text_encoder_2=clip_text(pooled=True),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        unet=diffusers.UNet2DConditionModel(
            sample_size=SIZE // 2,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            attention_head_dim=4,
            cross_attention_dim=2 * WIDTH,
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=WIDTH + TIME_IDS * 8,
        ),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            timestep_spacing="leading",
            steps_offset=1,
        ),
        add_watermarker=False,
    )


def call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 5.0,
    }


PIPELINES = [Tiny("sdxl", build, call, denoisers=("unet",))]
