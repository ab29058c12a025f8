"""The models at full size, with random weights made on the device, and their real pipelines.

Text encoders are left out: prompt embeddings are random. `tiny=True` makes the same classes small,
for tests. Nothing here says anything about quality.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch

Config = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A pipeline with its parts' configurations, and how it is called."""

    pipeline: str
    transformer: str
    config: Config
    vae: str
    vae_config: Config
    shift: Config  # of the scheduler
    call: Config
    embeddings: Mapping[str, tuple[int, ...]]  # call argument -> shape; a mask is all ones
    parts: Config = field(default_factory=dict)  # what else the pipeline is made of
    experts: int = 1
    passes: int = 1  # of the transformer in one guided evaluation
    vae_dtype: torch.dtype = torch.bfloat16
    note: str = ""
    tiny: Config = field(default_factory=dict)  # part -> what is smaller in a test


DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15, "shift": 3.0}
KL = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 16,
    "sample_size": 1024,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
TINY_KL = {"block_out_channels": (8, 8, 8, 8), "norm_num_groups": 4, "layers_per_block": 1}
TINY_WAN_VAE = {"base_dim": 4, "z_dim": 16, "num_res_blocks": 1}
WAN = {"freq_dim": 256, "text_dim": 4096, "in_channels": 16, "out_channels": 16}
TINY_WAN = {
    "num_layers": 3,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "ffn_dim": 16,
    "text_dim": 16,
}
VIDEO = {"height": 480, "width": 832, "guidance_scale": 5.0}
WAN_TEXT = {"prompt_embeds": (1, 512, 4096), "negative_prompt_embeds": (1, 512, 4096)}
TINY_WAN_TEXT = {"prompt_embeds": (1, 8, 16), "negative_prompt_embeds": (1, 8, 16)}

MODELS = {
    "flux": Model(
        "FluxPipeline",
        "FluxTransformer2DModel",
        {"guidance_embeds": True},  # the other defaults are FLUX.1-dev's: 19 + 38 layers, 24 x 128
        "AutoencoderKL",
        KL | {"scaling_factor": 0.3611, "shift_factor": 0.1159},
        DYNAMIC,
        {"height": 1024, "width": 1024, "guidance_scale": 3.5},
        {"prompt_embeds": (1, 512, 4096), "pooled_prompt_embeds": (1, 768)},
        parts=dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")),
        tiny={
            "config": {
                "num_layers": 2,
                "num_single_layers": 2,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "joint_attention_dim": 16,
                "pooled_projection_dim": 8,
                "axes_dims_rope": (2, 2, 4),
            },
            "vae_config": TINY_KL,
            "call": {"height": 64, "width": 64},
            "embeddings": {"prompt_embeds": (1, 8, 16), "pooled_prompt_embeds": (1, 8)},
        },
    ),
    "wan": Model(
        "WanPipeline",
        "WanTransformer3DModel",
        WAN | {"num_layers": 30, "num_attention_heads": 12, "ffn_dim": 8960},
        "AutoencoderKLWan",
        {},
        {"shift": 3.0},
        VIDEO | {"num_frames": 81},
        WAN_TEXT,
        parts=dict.fromkeys(("text_encoder", "tokenizer")),
        passes=2,
        vae_dtype=torch.float32,
        tiny={
            "config": TINY_WAN,
            "vae_config": TINY_WAN_VAE,
            "call": {"height": 32, "width": 32, "num_frames": 5},
            "embeddings": TINY_WAN_TEXT,
        },
    ),
    "sd35": Model(
        "StableDiffusion3Pipeline",
        "SD3Transformer2DModel",
        {
            "sample_size": 128,
            "num_layers": 38,
            "num_attention_heads": 38,
            "attention_head_dim": 64,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 2432,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 192,
            "qk_norm": "rms_norm",
        },
        "AutoencoderKL",
        KL | {"scaling_factor": 1.5305, "shift_factor": 0.0609},
        {"shift": 3.0},
        {"height": 1024, "width": 1024, "guidance_scale": 3.5},
        {
            "prompt_embeds": (1, 333, 4096),
            "negative_prompt_embeds": (1, 333, 4096),
            "pooled_prompt_embeds": (1, 2048),
            "negative_pooled_prompt_embeds": (1, 2048),
        },
        parts=dict.fromkeys(
            (
                *("text_encoder", "tokenizer", "text_encoder_2"),
                *("tokenizer_2", "text_encoder_3", "tokenizer_3"),
            )
        ),
        note="guidance in one pass with a batch of two",
        tiny={
            "config": {
                "sample_size": 8,
                "num_layers": 3,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "joint_attention_dim": 16,
                "caption_projection_dim": 16,
                "pooled_projection_dim": 8,
                "pos_embed_max_size": 8,
            },
            "vae_config": TINY_KL,
            "call": {"height": 64, "width": 64},
            "embeddings": {
                "prompt_embeds": (1, 8, 16),
                "negative_prompt_embeds": (1, 8, 16),
                "pooled_prompt_embeds": (1, 8),
                "negative_pooled_prompt_embeds": (1, 8),
            },
        },
    ),
    "qwen": Model(
        "QwenImagePipeline",
        "QwenImageTransformer2DModel",
        {},  # the defaults are Qwen-Image's: 60 layers, 24 x 128
        "AutoencoderKLQwenImage",
        {},
        DYNAMIC | {"base_shift": 0.5, "max_shift": 0.9, "shift": 1.0},
        {"height": 1024, "width": 1024, "true_cfg_scale": 4.0},
        {
            "prompt_embeds": (1, 128, 3584),
            "negative_prompt_embeds": (1, 128, 3584),
            "prompt_embeds_mask": (1, 128),
            "negative_prompt_embeds_mask": (1, 128),
        },
        parts=dict.fromkeys(("text_encoder", "tokenizer")),
        passes=2,
        tiny={
            "config": {
                "num_layers": 3,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "joint_attention_dim": 16,
                "axes_dims_rope": (2, 2, 4),
            },
            "vae_config": TINY_WAN_VAE,
            "call": {"height": 32, "width": 32},
            "embeddings": {
                "prompt_embeds": (1, 8, 16),
                "negative_prompt_embeds": (1, 8, 16),
                "prompt_embeds_mask": (1, 8),
                "negative_prompt_embeds_mask": (1, 8),
            },
        },
    ),
    "wan22": Model(
        "WanPipeline",
        "WanTransformer3DModel",
        WAN,  # the other defaults are the 14B model's: 40 layers, 40 x 128
        "AutoencoderKLWan",
        {},
        {"shift": 5.0},
        VIDEO | {"num_frames": 17, "guidance_scale": 4.0, "guidance_scale_2": 3.0},
        WAN_TEXT,
        parts=dict.fromkeys(("text_encoder", "tokenizer")) | {"boundary_ratio": 0.875},
        experts=2,
        passes=2,
        vae_dtype=torch.float32,
        note="17 of 81 frames",
        tiny={
            "config": TINY_WAN,
            "vae_config": TINY_WAN_VAE,
            "call": {"height": 32, "width": 32, "num_frames": 5},
            "embeddings": TINY_WAN_TEXT,
        },
    ),
}


@dataclass
class Built:
    """A pipeline on its device, and the arguments of every call to it."""

    name: str
    pipe: Any
    call: Config
    model: Model
    device: torch.device

    @property
    def transformers(self) -> list[Any]:
        """The transformer, or both experts."""
        both = (self.pipe.transformer, getattr(self.pipe, "transformer_2", None))
        return [one for one in both if one is not None]

    @property
    def blocks(self) -> list[Any]:
        """All transformer blocks, in their order."""
        return [block for one in self.transformers for block in _blocks(one)]

    @property
    def last_blocks(self) -> list[Any]:
        """The last block of each transformer."""
        return [_blocks(one)[-1] for one in self.transformers]


def _blocks(transformer: Any) -> list[Any]:
    lists = (one for one in transformer.children() if isinstance(one, torch.nn.ModuleList))
    return [block for one in lists for block in one]


def build(name: str, device: torch.device, *, tiny: bool = False) -> Built:
    """The named model in bfloat16, made on the device itself."""
    model = MODELS[name]
    small = defaultdict(dict, model.tiny if tiny else {})
    torch.manual_seed(0)
    experts = [
        _make(model.transformer, model.config | small["config"], device)
        for _ in range(model.experts)
    ]
    vae = _make(model.vae, model.vae_config | small["vae_config"], device, model.vae_dtype)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(**model.shift)
    parts = dict(zip(("transformer", "transformer_2"), experts, strict=False))
    pipe = getattr(diffusers, model.pipeline)(scheduler=scheduler, vae=vae, **parts, **model.parts)
    pipe.set_progress_bar_config(disable=True)
    shapes = small["embeddings"] or model.embeddings
    embeddings = {key: _embedding(key, shape, device) for key, shape in shapes.items()}
    return Built(name, pipe, model.call | small["call"] | embeddings, model, device)


def _make(
    name: str, config: Config, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Any:
    with device, _default_dtype(dtype):
        return getattr(diffusers, name)(**config).eval().requires_grad_(False)


def _embedding(key: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    if key.endswith("_mask"):
        return torch.ones(shape, dtype=torch.long, device=device)
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
