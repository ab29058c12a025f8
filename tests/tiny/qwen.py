"""Qwen-Image and its editing variant: guidance as a second pass, norm-preserving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, qwen_vision_language
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import picture
from tests.tiny.tokenizers import byte_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKLQwenImage,
        DiffusionPipeline,
        FlowMatchEulerDiscreteScheduler,
        QwenImageTransformer2DModel,
    )
    from PIL.Image import Image
    from transformers import BatchFeature, PreTrainedTokenizerBase

LATENT_CHANNELS = 4


def scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Shifted by size and stretched so that the last sigma before zero is 0.02."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
    )


def vae(halvings: int) -> AutoencoderKLQwenImage:
    """A video autoencoder used on single frames."""
    from diffusers import AutoencoderKLQwenImage

    return AutoencoderKLQwenImage(
        base_dim=2,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1] * (halvings + 1),
        num_res_blocks=1,
        temperal_downsample=[False] * halvings,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )


def transformer() -> QwenImageTransformer2DModel:
    """A joint transformer over packed latents and text."""
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
    )


class PictureProcessor:
    """Stands for Qwen2VLProcessor, whose constructor needs torchvision for its videos."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import Qwen2VLImageProcessorPil

        self.tokenizer = tokenizer
        self.pictures = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)

    def __call__(self, text: list[str], images: Image, **options: Any) -> BatchFeature:
        """One image mark for each merged patch, as the text encoder wants."""
        from transformers import BatchFeature

        pixels = self.pictures(images=images, return_tensors="pt")
        marks = int(pixels["image_grid_thw"].prod()) // self.pictures.merge_size**2
        expanded = [prompt.replace("<|image_pad|>", "<|image_pad|>" * marks) for prompt in text]
        return BatchFeature({**self.tokenizer(expanded, **options), **pixels})


@seeded
def build_text() -> DiffusionPipeline:
    """Text to picture."""
    from diffusers import QwenImagePipeline

    tokenizer = byte_tokenizer()
    pipe = QwenImagePipeline(
        scheduler=scheduler(),
        vae=vae(halvings=1),
        text_encoder=qwen_vision_language(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer(),
    )
    return with_template(pipe, "{}")


@seeded
def build_edit() -> DiffusionPipeline:
    """The VAE is deep because the pipeline enlarges every input to a megapixel."""
    from diffusers import QwenImageEditPipeline

    tokenizer = byte_tokenizer()
    pipe = QwenImageEditPipeline(
        scheduler=scheduler(),
        vae=vae(halvings=6),
        text_encoder=qwen_vision_language(tokenizer),
        tokenizer=tokenizer,
        processor=PictureProcessor(tokenizer),
        transformer=transformer(),
    )
    return with_template(pipe, "<|vision_start|><|image_pad|><|vision_end|>{}")


def with_template(pipe: DiffusionPipeline, template: str) -> DiffusionPipeline:
    """The default instruction would swamp a prompt of some twenty characters."""
    pipe.prompt_template_encode = template
    pipe.prompt_template_encode_start_idx = 0
    return pipe


def text_call() -> dict[str, Any]:
    """A negative prompt switches the second pass on."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "true_cfg_scale": 4.0,
        "height": 16,
        "width": 16,
    }


def edit_call() -> dict[str, Any]:
    """Output of 4 x 4 latents."""
    return text_call() | {"image": picture(32), "height": 256, "width": 256}


PIPELINES = [
    Tiny("qwen-image", build_text, text_call, calls_per_step=2),
    Tiny("qwen-image-edit", build_edit, edit_call, calls_per_step=2),
]
