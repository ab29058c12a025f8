"""The FLUX.1 family: text to picture, and its image-conditioned variants."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, clip_text, t5_text
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import mask, picture
from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer
from tests.tiny.vaes import image_vae
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler

SIZE = 32
LATENT_CHANNELS = 4
PACKED = 4 * LATENT_CHANNELS
FILL_INPUT = 2 * PACKED + 4 * 2 * 2  # noise, masked picture, and the mask's pixels per token
BACKBONE = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "pooled_projection_dim": WIDTH,
    "guidance_embeds": True,
    "axes_dims_rope": (4, 4, 8),
}


def dynamic_euler() -> FlowMatchEulerDiscreteScheduler:
    """FLUX.1-dev's scheduler: Euler, shifted by the picture's size."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)


@seeded
def build(pipeline: str, in_channels: int = PACKED, controlled: bool = False) -> DiffusionPipeline:
    """Any FLUX.1 pipeline: they share components but for Fill's input and ControlNet's branch."""
    import diffusers

    extra = {}
    if controlled:
        extra["controlnet"] = diffusers.FluxControlNetModel(in_channels=PACKED, **BACKBONE)
    return getattr(diffusers, pipeline)(
        scheduler=dynamic_euler(),
        vae=image_vae(LATENT_CHANNELS),
        text_encoder=clip_text(),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5_text(),
        tokenizer_2=t5_tokenizer(),
        transformer=diffusers.FluxTransformer2DModel(
            in_channels=in_channels, out_channels=PACKED, **BACKBONE
        ),
        **extra,
    )


def text_call() -> dict[str, Any]:
    """Guidance is embedded, so one pass a step."""
    return {
        "prompt": PROMPT,
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 3.5,
        "max_sequence_length": 32,
    }


def image_call() -> dict[str, Any]:
    """Strength 1 keeps every step; tests of a later start override it."""
    return text_call() | {"image": picture(SIZE), "strength": 1.0}


def kontext_call() -> dict[str, Any]:
    """Auto-resizing would scale the picture to about a megapixel."""
    return text_call() | {
        "image": picture(SIZE),
        "max_area": SIZE * SIZE,
        "_auto_resize": False,
    }


def masked_call() -> dict[str, Any]:
    """Repaints the left half of a picture."""
    return image_call() | {"mask_image": mask(SIZE)}


def controlnet_call() -> dict[str, Any]:
    """The control picture is encoded by the VAE."""
    return text_call() | {"control_image": picture(SIZE)}


PIPELINES = [
    Tiny("flux", partial(build, "FluxPipeline"), text_call),
    Tiny("flux-img2img", partial(build, "FluxImg2ImgPipeline"), image_call),
    Tiny("flux-kontext", partial(build, "FluxKontextPipeline"), kontext_call),
    Tiny(
        "flux-controlnet",
        partial(build, "FluxControlNetPipeline", controlled=True),
        controlnet_call,
    ),
    Tiny("flux-inpaint", partial(build, "FluxInpaintPipeline"), masked_call),
    Tiny("flux-fill", partial(build, "FluxFillPipeline", in_channels=FILL_INPUT), masked_call),
]
