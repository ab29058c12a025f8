"""HunyuanVideo: embedded guidance, a Llama and a CLIP for the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_text, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import byte_tokenizer, clip_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

LATENT_CHANNELS = 4


@seeded
def build() -> DiffusionPipeline:
    """Three Llama layers, since the pipeline skips the last two."""
    import diffusers

    tokenizer = byte_tokenizer()
    return diffusers.HunyuanVideoPipeline(
        text_encoder=decoder("LlamaModel", tokenizer, num_hidden_layers=3),
        tokenizer=tokenizer,
        transformer=diffusers.HunyuanVideoTransformer3DModel(
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=1,
            text_embed_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            rope_axes_dim=(4, 6, 6),
        ),
        vae=diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=LATENT_CHANNELS,
            block_out_channels=(4, 4, 4, 4),
            layers_per_block=1,
            norm_num_groups=2,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=clip_text(),
        tokenizer_2=clip_tokenizer(),
    )


def call() -> dict[str, Any]:
    """The default template is longer, in characters, than the default limit on tokens."""
    return {
        "prompt": PROMPT,
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "guidance_scale": 6.0,
        "prompt_template": {"template": "{}", "crop_start": 0},
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("hunyuan-video", build, call)]
