"""Sizes of the small text-to-video model, and the numbers its training shares."""

from pathlib import Path
from typing import Any

WORK = Path(__file__).parents[1] / "work" / "video"

FACTS = "training.json"  # in a model's folder: what its training came to
EARLIER = "earlier.json"  # in the work folder: the same of the model it goes on from

SIZE = 96  # pixels: 6 by 6 tokens of 16 pixels in a frame of latents
FRAMES = 17  # 4 k + 1: the first frame has a latent frame of its own, then four share one
LATENT_FRAMES = 1 + (FRAMES - 1) // 4
LATENT_SIDE = SIZE // 8
FPS = 12
TOKENS = 32  # of a prompt; call the pipeline with max_sequence_length=32
TEXT_WIDTH = 192
CHANNELS = 16
GUIDANCE = 4.0
STEPS = 50
SHIFT = 3.0  # of the flow, as Wan has at its smaller size

# Pixels enter in patches of 2 x 2, as in Wan 2.2, so two more halvings make an eighth.
AUTOENCODER: dict[str, Any] = {
    "base_dim": 32,
    "decoder_base_dim": 32,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 8,
    "scale_factor_temporal": 4,
    "latents_mean": [0.0] * CHANNELS,  # measured once it is trained
    "latents_std": [1.0] * CHANNELS,
}

TRANSFORMER: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "num_attention_heads": 6,
    "attention_head_dim": 64,
    "ffn_dim": 1280,
    "num_layers": 6,
    "text_dim": TEXT_WIDTH,
    "freq_dim": 256,
    "rope_max_seq_len": 64,
}

TEXT_ENCODER: dict[str, Any] = {
    "d_model": TEXT_WIDTH,
    "d_kv": 32,
    "num_heads": 6,
    "d_ff": 512,
    "num_layers": 3,
    "dropout_rate": 0.0,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 32,
}

UNIPC: dict[str, Any] = {
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": SHIFT,
}
