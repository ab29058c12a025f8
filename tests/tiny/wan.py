"""Wan 2.1 and 2.2: UniPC over flow sigmas, guidance as a second pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_vision, umt5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import clip, picture
from tests.tiny.tokenizers import t5_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKLWan,
        DiffusionPipeline,
        FlowMatchEulerDiscreteScheduler,
        UniPCMultistepScheduler,
        WanTransformer3DModel,
    )

SIZE = 16
FRAMES = 5
LATENT_CHANNELS = 16
TEMPORAL_MASK = 4  # image-to-video's mask has one channel per frame in a latent frame
BACKBONE = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "text_dim": WIDTH,
    "freq_dim": 32,
    "ffn_dim": 32,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}


def unipc(flow_shift: float = 3.0) -> UniPCMultistepScheduler:
    """Wan's own scheduler: second order, with integer timesteps."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=flow_shift
    )


def euler() -> FlowMatchEulerDiscreteScheduler:
    """The variant users swap in, and the one flow-matching papers assume."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=3.0)


def video_vae() -> AutoencoderKLWan:
    """Eight times smaller in space, four in time, as the real one."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=3, z_dim=LATENT_CHANNELS, dim_mult=[1, 1, 1, 1], num_res_blocks=1
    )


def transformer(**overrides: Any) -> WanTransformer3DModel:
    """The denoiser, or one of two experts."""
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(**BACKBONE | overrides)


def shared() -> dict[str, Any]:
    """The components all Wan pipelines have."""
    return {
        "tokenizer": t5_tokenizer(),
        "text_encoder": umt5_text(),
        "vae": video_vae(),
        "scheduler": unipc(),
    }


@seeded
def build_text() -> DiffusionPipeline:
    """Wan 2.1 text to video."""
    from diffusers import WanPipeline

    return WanPipeline(transformer=transformer(), **shared())


@seeded
def build_euler() -> DiffusionPipeline:
    """Wan 2.1 text to video with Euler in place of UniPC."""
    from diffusers import WanPipeline

    return WanPipeline(transformer=transformer(), **shared() | {"scheduler": euler()})


@seeded
def build_experts() -> DiffusionPipeline:
    """Wan 2.2: a second expert takes over below the boundary."""
    from diffusers import WanPipeline

    return WanPipeline(
        transformer=transformer(), transformer_2=transformer(), boundary_ratio=0.875, **shared()
    )


@seeded
def build_image() -> DiffusionPipeline:
    """Wan 2.1 image to video: the picture enters as latents and as CLIP features."""
    from diffusers import WanImageToVideoPipeline
    from transformers import CLIPImageProcessor

    return WanImageToVideoPipeline(
        transformer=transformer(
            in_channels=2 * LATENT_CHANNELS + TEMPORAL_MASK,
            image_dim=WIDTH,
            added_kv_proj_dim=24,
        ),
        image_encoder=clip_vision(),
        image_processor=CLIPImageProcessor(size=SIZE, crop_size=SIZE),
        **shared(),
    )


@seeded
def build_vace() -> DiffusionPipeline:
    """Wan VACE: a control branch reads the clip, its mask and references."""
    from diffusers import WanVACEPipeline, WanVACETransformer3DModel

    return WanVACEPipeline(
        transformer=WanVACETransformer3DModel(
            vace_layers=[0], vace_in_channels=2 * LATENT_CHANNELS + 64, **BACKBONE
        ),
        **shared(),
    )


@seeded
def build_video() -> DiffusionPipeline:
    """Wan 2.1 video to video."""
    from diffusers import WanVideoToVideoPipeline

    return WanVideoToVideoPipeline(transformer=transformer(), **shared())


def text_call() -> dict[str, Any]:
    """Guidance above one makes a second, unconditional pass."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "num_frames": FRAMES,
        "guidance_scale": 5.0,
        "max_sequence_length": 32,
    }


def image_call() -> dict[str, Any]:
    """The clip starts from a picture."""
    return text_call() | {"image": picture(SIZE)}


def vace_call() -> dict[str, Any]:
    """Without a mask the whole clip is repainted."""
    return text_call() | {"video": clip(SIZE, FRAMES)}


def video_call() -> dict[str, Any]:
    """The frame count is the clip's; strength 1 keeps every step."""
    call = text_call() | {"video": clip(SIZE, FRAMES), "strength": 1.0}
    del call["num_frames"]
    return call


twice = partial(Tiny, calls_per_step=2)
PIPELINES = [
    twice("wan", build_text, text_call),
    twice("wan-euler", build_euler, text_call),
    twice("wan-i2v", build_image, image_call),
    twice("wan-vace", build_vace, vace_call),
    twice("wan-2.2", build_experts, text_call, denoisers=("transformer", "transformer_2")),
    twice("wan-v2v", build_video, video_call),
]
