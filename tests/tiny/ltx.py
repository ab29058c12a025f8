"""LTX-Video, plain and with conditioning frames (a time per token)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import picture
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import AutoencoderKLLTXVideo, DiffusionPipeline, FlowMatchEulerDiscreteScheduler

SIZE = 32
FRAMES = 9
LATENT_CHANNELS = 8


def video_vae() -> AutoencoderKLLTXVideo:
    """Eight times smaller in space and time."""
    from diffusers import AutoencoderKLLTXVideo

    return AutoencoderKLLTXVideo(
        latent_channels=LATENT_CHANNELS,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        patch_size=1,
    )


def shifted_euler() -> FlowMatchEulerDiscreteScheduler:
    """The first releases shift by the clip's size and stop at a sigma of 0.1."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.95,
        max_shift=2.05,
        base_image_seq_len=1024,
        shift_terminal=0.1,
    )


def plain_euler() -> FlowMatchEulerDiscreteScheduler:
    """The conditional pipeline passes its own timesteps and no shift."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler()


@seeded
def build(
    pipeline: str, scheduler: Callable[[], FlowMatchEulerDiscreteScheduler]
) -> DiffusionPipeline:
    """Both pipelines share all components but the scheduler's settings."""
    import diffusers

    return getattr(diffusers, pipeline)(
        scheduler=scheduler(),
        vae=video_vae(),
        text_encoder=t5_text(),
        tokenizer=t5_tokenizer(),
        transformer=diffusers.LTXVideoTransformer3DModel(
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            num_attention_heads=2,
            attention_head_dim=16,
            cross_attention_dim=32,
            num_layers=1,
            caption_channels=WIDTH,
        ),
    )


def text_call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "num_frames": FRAMES,
        "guidance_scale": 3.0,
        "max_sequence_length": 32,
    }


def condition_call() -> dict[str, Any]:
    """Without noise on the condition, which is drawn anew at each step of the loop."""
    return text_call() | {"image": picture(SIZE), "image_cond_noise_scale": 0.0}


PIPELINES = [
    Tiny("ltx", partial(build, "LTXPipeline", shifted_euler), text_call),
    Tiny("ltx-condition", partial(build, "LTXConditionPipeline", plain_euler), condition_call),
]
