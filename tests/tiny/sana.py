"""Sana (a flow model under DPM-Solver++) and Sana-Sprint (a consistency model)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import gemma_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import AutoencoderDC, DiffusionPipeline, SanaTransformer2DModel

SIZE = 32
LATENT_CHANNELS = 4


def deep_vae() -> AutoencoderDC:
    """A deep-compression autoencoder that, at two blocks, only halves each side."""
    from diffusers import AutoencoderDC

    blocks = {"block_out_channels": (8, 8), "layers_per_block": (1, 1), "qkv_multiscales": ((), ())}
    sides = {
        f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in blocks.items()
    }
    return AutoencoderDC(latent_channels=LATENT_CHANNELS, attention_head_dim=4, **sides)


def transformer(**overrides: Any) -> SanaTransformer2DModel:
    """Linear attention over latents, cross-attention to the text."""
    from diffusers import SanaTransformer2DModel

    return SanaTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=WIDTH,
        sample_size=SIZE // 2,
        **overrides,
    )


def shared() -> dict[str, Any]:
    """The components both pipelines have."""
    tokenizer = gemma_tokenizer()
    return {
        "tokenizer": tokenizer,
        "text_encoder": decoder("Gemma2Model", tokenizer),
        "vae": deep_vae(),
    }


@seeded
def build_sana() -> DiffusionPipeline:
    """Sana with the multistep solver it is published with."""
    from diffusers import DPMSolverMultistepScheduler, SanaPipeline

    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return SanaPipeline(transformer=transformer(), scheduler=scheduler, **shared())


@seeded
def build_sprint() -> DiffusionPipeline:
    """Sana-Sprint draws noise at every step: nothing a velocity plan may skip."""
    from diffusers import SanaSprintPipeline, SCMScheduler

    return SanaSprintPipeline(
        transformer=transformer(guidance_embeds=True, qk_norm="rms_norm_across_heads"),
        scheduler=SCMScheduler(),
        **shared(),
    )


def shared_call() -> dict[str, Any]:
    """Binning would enlarge the picture, the long instruction would swamp the prompt."""
    return {
        "prompt": PROMPT,
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 4.5,
        "max_sequence_length": 32,
        "use_resolution_binning": False,
        "complex_human_instruction": None,
    }


def sana_call() -> dict[str, Any]:
    """Guidance doubles the batch, not the number of passes."""
    return shared_call() | {"negative_prompt": "blurry"}


def sprint_call() -> dict[str, Any]:
    """The default intermediate timestep is only valid for two steps."""
    return shared_call() | {"intermediate_timesteps": None}


PIPELINES = [
    Tiny("sana", build_sana, sana_call),
    Tiny("sana-sprint", build_sprint, sprint_call),
]
