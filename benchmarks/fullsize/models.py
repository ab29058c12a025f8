"""The models at full size, with random weights made on the device, and their real pipelines.

Text encoders are left out: prompt embeddings are random. `tiny=True` makes the same classes small,
for tests. Nothing here says anything about quality.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from types import SimpleNamespace
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
    modules: Mapping[str, tuple[str, Config]] = field(default_factory=dict)  # its further networks
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


class SilentProcessor:
    """What Qwen-Image-2.1 asks of its processor when it is made: the length of its template."""

    tokenizer = SimpleNamespace(encode=lambda mark: [0])

    def apply_chat_template(self, messages: Any, **options: Any) -> list[list[int]]:
        """One token."""
        return [[0]]


PROMPTS = ("prompt", "negative_prompt")
TINY_CONNECTORS = {
    f"{kind}_connector_{key}": value
    for kind in ("video", "audio")
    for key, value in {
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 1,
        "num_learnable_registers": 4,
    }.items()
}

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
    "qwen21": Model(
        "QwenImage21Pipeline",
        "QwenImage21Transformer2DModel",
        {},  # the defaults are Qwen-Image-2.1's: 32 layers, 32 x 128
        "AutoencoderKLQwenImage21",
        {},
        DYNAMIC | {"shift": 1.0},
        {"height": 1024, "width": 1024},
        {"prompt_embeds": (1, 128, 4096)},
        parts={"text_encoder": None, "processor": SilentProcessor()},
        tiny={
            "config": {
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": 3,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "context_in_dim": 16,
                "axes_dims_rope": (2, 2, 4),
            },
            "vae_config": {
                "base_dim": 2,
                "decoder_base_dim": 2,
                "z_dim": 16,
                "dim_mult": [1] * 5,
                "temperal_downsample": [False] * 4,
                "latents_mean": [0.0] * 16,
                "latents_std": [1.0] * 16,
            },
            "call": {"height": 64, "width": 64},
            "embeddings": {"prompt_embeds": (1, 8, 16)},
        },
    ),
    "ltx2": Model(
        "LTX2Pipeline",
        "LTX2VideoTransformer3DModel",
        {"rope_type": "split"},  # the other defaults are the 19B model's: 48 layers, 32 x 128
        "AutoencoderKLLTX2Video",
        {
            "decoder_causal": False,
            "spatial_compression_ratio": 32,
            "temporal_compression_ratio": 8,
        },
        {
            "use_dynamic_shifting": True,
            "base_shift": 0.95,
            "max_shift": 2.05,
            "base_image_seq_len": 1024,
            "max_image_seq_len": 4096,
            "shift_terminal": 0.1,
        },
        {
            "height": 512,
            "width": 768,
            "num_frames": 121,
            "guidance_scale": 3.0,
            "audio_guidance_scale": 7.0,
            "stg_scale": 0.0,
            "audio_stg_scale": 0.0,
            "modality_scale": 1.0,
            "audio_modality_scale": 1.0,
            "use_cross_timestep": False,
        },
        {f"{prompt}_embeds": (1, 1024, 3840 * 49) for prompt in PROMPTS}
        | {f"{prompt}_attention_mask": (1, 1024) for prompt in PROMPTS},
        parts=dict.fromkeys(("text_encoder", "tokenizer")),
        modules={
            "audio_vae": ("AutoencoderKLLTX2Audio", {}),
            "connectors": ("pipelines.ltx2.LTX2TextConnectors", {"rope_type": "split"}),
            "vocoder": ("pipelines.ltx2.LTX2Vocoder", {}),
        },
        note="guidance in one pass with a batch of two",
        tiny={
            "config": {
                "in_channels": 16,
                "out_channels": 16,
                "num_layers": 2,
                "num_attention_heads": 2,
                "attention_head_dim": 8,
                "cross_attention_dim": 16,
                "audio_in_channels": 8,
                "audio_out_channels": 8,
                "audio_num_attention_heads": 2,
                "audio_attention_head_dim": 4,
                "audio_cross_attention_dim": 8,
                "caption_channels": 16,
            },
            "vae_config": {
                "latent_channels": 16,
                "block_out_channels": (8,) * 4,
                "decoder_block_out_channels": (8, 16, 32),
                "layers_per_block": (1,) * 5,
                "decoder_layers_per_block": (1,) * 4,
            },
            "audio_vae": {
                "base_channels": 8,
                "latent_channels": 4,
                "resolution": 32,
                "mel_bins": 8,
            },
            "connectors": {
                "caption_channels": 16,
                "text_proj_in_factor": 2,
                "connector_rope_base_seq_len": 32,
                **TINY_CONNECTORS,
            },
            "vocoder": {
                "in_channels": 16,
                "hidden_channels": 8,
                "upsample_kernel_sizes": [4, 4],
                "upsample_factors": [2, 2],
                "resnet_kernel_sizes": [3],
                "resnet_dilations": [[1, 3, 5]],
            },
            "call": {"height": 64, "width": 64, "num_frames": 9},
            "embeddings": {f"{prompt}_embeds": (1, 8, 32) for prompt in PROMPTS}
            | {f"{prompt}_attention_mask": (1, 8) for prompt in PROMPTS},
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
        return [part for part in both if part is not None]

    @property
    def blocks(self) -> list[Any]:
        """All transformer blocks, in their order."""
        return [block for transformer in self.transformers for block in _blocks(transformer)]

    @property
    def last_blocks(self) -> list[Any]:
        """The last block of each transformer."""
        return [_blocks(transformer)[-1] for transformer in self.transformers]


def _blocks(transformer: Any) -> list[Any]:
    lists = (part for part in transformer.children() if isinstance(part, torch.nn.ModuleList))
    return [block for layers in lists for block in layers]


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
    parts |= {
        key: _make(kind, config | small[key], device)
        for key, (kind, config) in model.modules.items()
    }
    pipe = getattr(diffusers, model.pipeline)(scheduler=scheduler, vae=vae, **parts, **model.parts)
    pipe.set_progress_bar_config(disable=True)
    shapes = small["embeddings"] or model.embeddings
    embeddings = {key: _embedding(key, shape, device) for key, shape in shapes.items()}
    return Built(name, pipe, model.call | small["call"] | embeddings, model, device)


def _make(
    name: str, config: Config, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Any:
    with device, _default_dtype(dtype):
        return attrgetter(name)(diffusers)(**config).eval().requires_grad_(False)


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
