"""Sizes of the embedded model, and the numbers its training shares."""

from pathlib import Path
from typing import Any

WORK = Path(__file__).parent / "work"

SIZE = 128  # pixels
TOKENS = 32  # of a prompt; call the pipeline with max_sequence_length=32
TEXT_WIDTH = 384  # MiniLM's states

AUTOENCODER: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (32, 64, 96, 128),
    "layers_per_block": 1,
    "latent_channels": 16,
    "norm_num_groups": 16,
    "sample_size": SIZE,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "mid_block_add_attention": False,
}

TRANSFORMER: dict[str, Any] = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 2,
    "num_single_layers": 5,
    "attention_head_dim": 64,
    "num_attention_heads": 5,
    "joint_attention_dim": TEXT_WIDTH,
    "pooled_projection_dim": TEXT_WIDTH,
    "guidance_embeds": False,
    "axes_dims_rope": (16, 24, 24),
}

# As FLUX.1-dev has it, with its largest shift at the native size (64 tokens here, 4096 there).
SCHEDULER: dict[str, Any] = {
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 4,
    "max_image_seq_len": 64,
}
