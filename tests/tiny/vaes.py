"""Tiny image autoencoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers import AutoencoderKL


def image_vae(latent_channels: int, levels: int = 2, **overrides: Any) -> AutoencoderKL:
    """A KL autoencoder that halves each side once per level after the first."""
    from diffusers import AutoencoderKL

    shape = {
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "block_out_channels": (4,) * levels,
        "norm_num_groups": 2,
        "latent_channels": latent_channels,
        "sample_size": 32,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "scaling_factor": 1.5,
        "shift_factor": 0.06,
    }
    return AutoencoderKL(**shape | overrides)
