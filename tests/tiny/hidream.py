"""HiDream-I1: a mixture of experts under UniPC, four text encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_text, decoder, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import byte_tokenizer, clip_tokenizer, t5_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.wan import unipc
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 16
LATENT_CHANNELS = 4


@seeded
def build() -> DiffusionPipeline:
    """One Llama layer feeds each of the two blocks; the pipeline enlarges to a default area."""
    import diffusers

    tokenizer = byte_tokenizer()
    pipe = diffusers.HiDreamImagePipeline(
        scheduler=unipc(),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=clip_text(pooled=True),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip_text(pooled=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5_text(),
        tokenizer_3=t5_tokenizer(),
        text_encoder_4=decoder("LlamaForCausalLM", tokenizer),
        tokenizer_4=tokenizer,
        transformer=diffusers.HiDreamImageTransformer2DModel(
            patch_size=2,
            in_channels=LATENT_CHANNELS,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            caption_channels=[WIDTH, WIDTH],
            text_emb_dim=2 * WIDTH,
            num_routed_experts=4,
            num_activated_experts=2,
            axes_dims_rope=(4, 4, 8),
            max_resolution=(SIZE, SIZE),
            llama_layers=[0, 1],
        ),
    )
    pipe.default_sample_size = SIZE // pipe.vae_scale_factor
    return pipe


def call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 5.0,
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("hidream", build, call)]
