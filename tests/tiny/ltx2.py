"""LTX-2: pictures and sound denoised together, each under its own copy of the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.ltx import shifted_euler
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKLLTX2Audio,
        AutoencoderKLLTX2Video,
        DiffusionPipeline,
        LTX2VideoTransformer3DModel,
    )
    from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder

SIZE = 32
FRAMES = 9
LATENT_CHANNELS = 4
AUDIO_CHANNELS = 2
MEL_BINS = 16
AUDIO_WIDTH = AUDIO_CHANNELS * MEL_BINS // 4  # of a token, and of the audio VAE's statistics
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}


def video_vae() -> AutoencoderKLLTX2Video:
    """Sixteen times smaller in space, eight in time."""
    from diffusers import AutoencoderKLLTX2Video

    return AutoencoderKLLTX2Video(
        latent_channels=LATENT_CHANNELS,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 3,
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 4,
        patch_size=1,
    )


def audio_vae() -> AutoencoderKLLTX2Audio:
    """From mel spectrograms, four times smaller both ways."""
    from diffusers import AutoencoderKLLTX2Audio

    return AutoencoderKLLTX2Audio(
        base_channels=AUDIO_WIDTH,
        num_res_blocks=1,
        latent_channels=AUDIO_CHANNELS,
        resolution=32,
        mel_bins=MEL_BINS,
    )


def connectors(text_layers: int) -> LTX2TextConnectors:
    """Small transformers that hand all text layers to pictures and sound."""
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    streams = {
        f"{stream}_connector_{key}": value
        for stream in ("video", "audio")
        for key, value in (HEADS | {"num_layers": 1, "num_learnable_registers": 4}).items()
    }
    return LTX2TextConnectors(
        caption_channels=WIDTH,
        text_proj_in_factor=text_layers + 1,
        connector_rope_base_seq_len=32,
        **streams,
    )


def transformer() -> LTX2VideoTransformer3DModel:
    """Two streams that attend to each other."""
    from diffusers import LTX2VideoTransformer3DModel

    return LTX2VideoTransformer3DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        cross_attention_dim=32,
        audio_in_channels=AUDIO_WIDTH,
        audio_out_channels=AUDIO_WIDTH,
        audio_cross_attention_dim=32,
        num_layers=2,
        caption_channels=WIDTH,
        **HEADS,
        **{f"audio_{key}": value for key, value in HEADS.items()},
    )


def vocoder() -> LTX2Vocoder:
    """From the two channels' spectrograms to sound."""
    from diffusers.pipelines.ltx2 import LTX2Vocoder

    return LTX2Vocoder(
        in_channels=2 * MEL_BINS,
        hidden_channels=8,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
    )


@seeded
def build() -> DiffusionPipeline:
    """A plain Gemma 3 stands for the vision-language one; only its layers are read."""
    from diffusers import LTX2Pipeline

    tokenizer = gemma_tokenizer()
    text_encoder = decoder("Gemma3TextModel", tokenizer)
    return LTX2Pipeline(
        scheduler=shifted_euler(),
        vae=video_vae(),
        audio_vae=audio_vae(),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        connectors=connectors(text_encoder.config.num_hidden_layers),
        transformer=transformer(),
        vocoder=vocoder(),
    )


def call() -> dict[str, Any]:
    """Text guidance in one batched pass; the guidances that perturb the model are off."""
    return {
        "prompt": PROMPT,
        "negative_prompt": "blurry",
        "height": SIZE,
        "width": SIZE,
        "num_frames": FRAMES,
        "guidance_scale": 3.0,
        "audio_guidance_scale": 3.0,
        "stg_scale": 0.0,
        "audio_stg_scale": 0.0,
        "modality_scale": 1.0,
        "audio_modality_scale": 1.0,
        "max_sequence_length": 32,
    }


PIPELINES = [Tiny("ltx2", build, call)]
