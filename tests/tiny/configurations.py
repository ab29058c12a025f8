"""The table of tiny pipelines: their parts by the classes of diffusers, and their calls.

Parts are made in the order of the table, under one seed, so an entry's order is part of it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import (
    WIDTH,
    clip_text,
    clip_vision,
    decoder,
    qwen_vision_language,
    t5_text,
    umt5_text,
)
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.pictures import PictureProcessor, clip, mask, picture
from tests.tiny.tokenizers import byte_tokenizer, clip_tokenizer, gemma_tokenizer, t5_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

Parts = Mapping[str, Any]  # a component or an argument of a pipeline -> its value, or what makes it
CHANNELS = 4  # of latents, where nothing else is said
PACKED = 4 * CHANNELS
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}
# What is small in every part whose class has the word, unless a row says otherwise.
SMALL = {
    **HEADS,
    **dict.fromkeys(("n_heads", "n_kv_heads", "num_cross_attention_heads", "num_heads"), 2),
    "head_dim": 16,
    "cross_attention_head_dim": 16,
    "rope_axes_dim": (4, 6, 6),
    "rope_max_seq_len": 32,
    **dict.fromkeys(
        (
            "depth",
            "n_layers",
            "n_refiner_layers",
            "num_layers",
            "num_refiner_layers",
            "num_res_blocks",
            "num_single_layers",
            "num_text_blocks",
            "num_visual_blocks",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "cap_feat_dim",
            "caption_channels",
            "caption_projection_dim",
            "context_in_dim",
            "cross_attention_dim",
            "dim",
            "ff_dim",
            "ffn_dim",
            "freq_dim",
            "hidden_size",
            "in_text_dim",
            "in_text_dim2",
            "intermediate_size",
            "joint_attention_dim",
            "model_dim",
            "pooled_projection_dim",
            "text_dim",
            "text_embed_2_dim",
            "text_embed_dim",
            "text_hidden_dim",
            "time_dim",
        ),
        WIDTH,
    ),
}


def part(kind: str, **options: Any) -> Callable[..., Any]:
    """A class of diffusers, maybe in a module of it, that is made when a pipeline is."""

    def make(**changes: Any) -> Any:
        module, _, name = f"diffusers.{kind}".rpartition(".")
        part_class = getattr(importlib.import_module(module), name)
        words = inspect.signature(part_class).parameters
        small = {word: size for word, size in SMALL.items() if word in words}
        return part_class(**small | options | changes)

    return make


@seeded
def build(pipeline: str, parts: Parts, **settings: Any) -> DiffusionPipeline:
    """A pipeline of these parts; `settings` are attributes that it gets afterwards."""
    import diffusers

    pipe = getattr(diffusers, pipeline)(
        **{name: value() if callable(value) else value for name, value in parts.items()}
    )
    for name, value in settings.items():
        setattr(pipe, name, value)
    return pipe


def called(**arguments: Any) -> Callable[[], dict[str, Any]]:
    """What makes a call's arguments; pictures are drawn anew for each."""

    def call() -> dict[str, Any]:
        return {n: v() if isinstance(v, partial) else v for n, v in arguments.items()}

    return call


def sized(size: int, **arguments: Any) -> dict[str, Any]:
    """A call with the prompt, at a square size."""
    return {"prompt": PROMPT, "height": size, "width": size, **arguments}


def guided(size: int, scale: float, **arguments: Any) -> dict[str, Any]:
    """A call with a negative prompt and a guidance above one."""
    return sized(size, negative_prompt="blurry", guidance_scale=scale, **arguments)


def language(model: str, tokenizer: Callable[[], Any], **options: int) -> dict[str, Any]:
    """A decoder-only language model as the text encoder, and its tokenizer."""
    encoder = partial(lambda: decoder(model, tokenizer(), **options))
    return {"text_encoder": encoder, "tokenizer": tokenizer}


def flow_euler(**options: Any) -> Callable[..., Any]:
    """Euler over flow sigmas."""
    return part("FlowMatchEulerDiscreteScheduler", **options)


def unipc(flow_shift: float = 3.0) -> Callable[..., Any]:
    """Wan's own scheduler: second order, with integer timesteps."""
    return part(
        "UniPCMultistepScheduler",
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=flow_shift,
    )


def image_vae(channels: int = CHANNELS, levels: int = 2, **changes: Any) -> Callable[..., Any]:
    """A KL autoencoder that halves each side once per level after the first."""
    shape = {
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "block_out_channels": (4,) * levels,
        "norm_num_groups": 2,
        "latent_channels": channels,
        "sample_size": 32,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "scaling_factor": 1.5,
        "shift_factor": 0.06,
    }
    return part("AutoencoderKL", **shape | changes)


T5 = {"text_encoder": t5_text, "tokenizer": t5_tokenizer}
UMT5 = {"text_encoder": umt5_text, "tokenizer": t5_tokenizer}
CLIP = {"text_encoder": clip_text, "tokenizer": clip_tokenizer}
POOLED = partial(clip_text, pooled=True)
BY_SIZE = flow_euler(shift=3.0, use_dynamic_shifting=True)  # FLUX.1-dev's
TO_LATENTS = {"in_channels": CHANNELS, "out_channels": CHANNELS}
TO_PACKED = {"in_channels": PACKED, "out_channels": PACKED}

# FLUX and its kin; guidance is embedded in FLUX, a second pass in Chroma
FLUX_BACKBONE = {"guidance_embeds": True, "axes_dims_rope": (4, 4, 8)}
FLUX_CALL = sized(32, guidance_scale=3.5, max_sequence_length=32)
FLUX_IMAGE = FLUX_CALL | {"image": partial(picture, 32), "strength": 1.0}
FLUX_MASKED = FLUX_IMAGE | {"mask_image": partial(mask, 32)}
FILL_INPUT = 2 * PACKED + 4 * 2 * 2  # noise, masked picture, and the mask's pixels per token


def flux_parts(in_channels: int = PACKED) -> dict[str, Any]:
    """FLUX.1's; Fill has another number of input channels."""
    return {
        "scheduler": BY_SIZE,
        "vae": image_vae(),
        **CLIP,
        "text_encoder_2": t5_text,
        "tokenizer_2": t5_tokenizer,
        "transformer": part(
            "FluxTransformer2DModel",
            in_channels=in_channels,
            out_channels=PACKED,
            **FLUX_BACKBONE,
        ),
    }


BRIA_BACKBONE = {"in_channels": PACKED, "axes_dims_rope": [4, 4, 8]}
BRIA = {
    "scheduler": BY_SIZE,
    "vae": image_vae(),
    **T5,
    "transformer": part("BriaTransformer2DModel", pooled_projection_dim=None, **BRIA_BACKBONE),
}
CHROMA = BRIA | {
    "transformer": part(
        "ChromaTransformer2DModel",
        approximator_num_channels=16,
        approximator_hidden_dim=32,
        approximator_layers=1,
        **BRIA_BACKBONE | {"axes_dims_rope": (4, 4, 8)},
    )
}
DEPTHS = (1, 2)  # at which FLUX.2 reads its language model; the real ones are 10, 20 and 30
FLUX2 = {
    "scheduler": BY_SIZE,
    "vae": part(
        "AutoencoderKLFlux2",
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 4),
        layers_per_block=1,
        latent_channels=CHANNELS,
        norm_num_groups=2,
        sample_size=32,
    ),
    **language("MistralForCausalLM", byte_tokenizer),
    "transformer": part(
        "Flux2Transformer2DModel",
        in_channels=PACKED,
        joint_attention_dim=len(DEPTHS) * WIDTH,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
    ),
}

# Stable Diffusion: guidance doubles the batch; XL predicts noise, so no plan fits it
SD3_CALL = guided(16, 4.0, max_sequence_length=32)
SD3_IMAGE = SD3_CALL | {"image": partial(picture, 16), "strength": 1.0}


def sd3_parts(channels: int = CHANNELS) -> dict[str, Any]:
    """SD3's: the T5 width is that of the two CLIPs together."""
    return {
        "transformer": part(
            "SD3Transformer2DModel",
            sample_size=8,
            in_channels=channels,
            out_channels=channels,
            num_layers=2,
            joint_attention_dim=2 * WIDTH,
            pooled_projection_dim=2 * WIDTH,
            pos_embed_max_size=16,
        ),
        "scheduler": flow_euler(shift=3.0),
        "vae": image_vae(channels),
        "text_encoder": POOLED,
        "tokenizer": clip_tokenizer,
        "text_encoder_2": POOLED,
        "tokenizer_2": clip_tokenizer,
        "text_encoder_3": partial(t5_text, width=2 * WIDTH),
        "tokenizer_3": t5_tokenizer,
    }


TIME_IDS = 6  # original size, crop and target size, two numbers each
SDXL = {
    "vae": image_vae(shift_factor=None),
    "text_encoder": clip_text,
    "text_encoder_2": POOLED,
    "tokenizer": clip_tokenizer,
    "tokenizer_2": clip_tokenizer,
    "unet": part(
        "UNet2DConditionModel",
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        num_attention_heads=None,  # as the real one, which has it only by its old word
        attention_head_dim=4,
        cross_attention_dim=2 * WIDTH,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=WIDTH + TIME_IDS * 8,
    ),
    "scheduler": part(
        "EulerDiscreteScheduler",
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing="leading",
        steps_offset=1,
    ),
    "add_watermarker": False,
}

# Wan and SkyReels: UniPC over flow sigmas, guidance as a second pass
WAN_CHANNELS, WAN_FRAMES = 16, 5
TO_WAN_LATENTS = {"in_channels": WAN_CHANNELS, "out_channels": WAN_CHANNELS}
WAN_MASKED = 2 * WAN_CHANNELS + 4  # a picture's, and the mask, a channel per frame in a latent one
WAN_BACKBONE = {"attention_head_dim": 12, "num_layers": 2}
wan_transformer = part("WanTransformer3DModel", **WAN_BACKBONE)
WAN_SHARED = {
    **UMT5,
    "vae": part("AutoencoderKLWan", base_dim=3, z_dim=WAN_CHANNELS, dim_mult=[1, 1, 1, 1]),
    "scheduler": unipc(),
}
WAN = {"transformer": wan_transformer, **WAN_SHARED}
WAN_CALL = guided(16, 5.0, num_frames=WAN_FRAMES, max_sequence_length=32)
WAN_CLIP = partial(clip, 16, WAN_FRAMES)
WAN_VIDEO = {n: v for n, v in WAN_CALL.items() if n != "num_frames"}  # it is the clip's


def clip_processor() -> Any:
    """CLIP's, for pictures of 16 x 16."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(size=16, crop_size=16)


WAN_FROM_IMAGE = WAN_BACKBONE | {
    "in_channels": WAN_MASKED,
    "image_dim": WIDTH,
    "added_kv_proj_dim": 24,
}
WAN_IMAGE = {
    "transformer": part("WanTransformer3DModel", **WAN_FROM_IMAGE),
    "image_encoder": clip_vision,
    "image_processor": clip_processor,
    **WAN_SHARED,
}
WAN_VACE = {
    "transformer": part(
        "WanVACETransformer3DModel",
        vace_layers=[0],
        vace_in_channels=2 * WAN_CHANNELS + 64,
        **WAN_BACKBONE,
    ),
    **WAN_SHARED,
}
SKYREELS = {
    "transformer": part("SkyReelsV2Transformer3DModel", **WAN_BACKBONE),
    **WAN_SHARED,
    "scheduler": unipc(flow_shift=8.0),
}

# Qwen-Image: the last sigma before zero is 0.02; its own instruction would swamp the prompt
QWEN_CALL = sized(16, negative_prompt="blurry", true_cfg_scale=4.0)
QWEN_EDIT_CALL = QWEN_CALL | {"image": partial(picture, 32), "height": 256, "width": 256}
EDIT_TEMPLATE = "<|vision_start|><|image_pad|><|vision_end|>{}"


def qwen_parts(halvings: int, **more: Any) -> dict[str, Any]:
    """Qwen-Image's: the editing one enlarges its input to a megapixel, and its VAE is deep."""
    return {
        "scheduler": flow_euler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        "vae": part(
            "AutoencoderKLQwenImage",
            base_dim=2,
            z_dim=CHANNELS,
            dim_mult=[1] * (halvings + 1),
            temperal_downsample=[False] * halvings,
            latents_mean=[0.0] * CHANNELS,
            latents_std=[1.0] * CHANNELS,
        ),
        "text_encoder": lambda: qwen_vision_language(byte_tokenizer()),
        "tokenizer": byte_tokenizer,
        **more,
        "transformer": part(
            "QwenImageTransformer2DModel",
            in_channels=PACKED,
            out_channels=CHANNELS,
            axes_dims_rope=(4, 6, 6),
        ),
    }


# Videos: LTX (the first releases stop at a sigma of 0.1), LTX-2 with sound, Hunyuan, Mochi
STOPPED_EULER = flow_euler(
    use_dynamic_shifting=True,
    base_shift=0.95,
    max_shift=2.05,
    base_image_seq_len=1024,
    shift_terminal=0.1,
)
LTX_CHANNELS = 8
LTX = {
    "scheduler": STOPPED_EULER,
    "vae": part(
        "AutoencoderKLLTXVideo",
        latent_channels=LTX_CHANNELS,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8,) * 4,
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        patch_size=1,
    ),
    **T5,
    "transformer": part(
        "LTXVideoTransformer3DModel", in_channels=LTX_CHANNELS, out_channels=LTX_CHANNELS
    ),
}
LTX_CALL = guided(32, 3.0, num_frames=9, max_sequence_length=32)
AUDIO_CHANNELS, MEL_BINS = 2, 16
AUDIO_WIDTH = AUDIO_CHANNELS * MEL_BINS // 4  # of a token, and of the audio VAE's statistics
CONNECTOR = HEADS | {"num_layers": 1, "num_learnable_registers": 4}
LTX2 = {
    **language("Gemma3TextModel", gemma_tokenizer),
    "scheduler": STOPPED_EULER,
    "vae": part(
        "AutoencoderKLLTX2Video",
        latent_channels=CHANNELS,
        block_out_channels=(8,) * 4,
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 4,
        patch_size=1,
    ),
    "audio_vae": part(
        "AutoencoderKLLTX2Audio",
        base_channels=AUDIO_WIDTH,
        latent_channels=AUDIO_CHANNELS,
        resolution=32,
        mel_bins=MEL_BINS,
    ),
    "connectors": part(
        "pipelines.ltx2.LTX2TextConnectors",
        text_proj_in_factor=2 + 1,  # the language model's layers, and what they read
        connector_rope_base_seq_len=32,
        **{f"video_connector_{key}": value for key, value in CONNECTOR.items()},
        **{f"audio_connector_{key}": value for key, value in CONNECTOR.items()},
    ),
    "transformer": part(
        "LTX2VideoTransformer3DModel",
        **TO_LATENTS,
        audio_in_channels=AUDIO_WIDTH,
        audio_out_channels=AUDIO_WIDTH,
        audio_cross_attention_dim=32,
        num_layers=2,
        **{f"audio_{key}": value for key, value in HEADS.items()},
    ),
    "vocoder": part(
        "pipelines.ltx2.LTX2Vocoder",
        in_channels=2 * MEL_BINS,
        hidden_channels=8,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
    ),
}
UNPERTURBED = {"stg_scale": 0.0, "audio_stg_scale": 0.0}
LTX2_CALL = guided(
    32,
    3.0,
    num_frames=9,
    audio_guidance_scale=3.0,
    **UNPERTURBED,
    modality_scale=1.0,
    audio_modality_scale=1.0,
    max_sequence_length=32,
)
HUNYUAN = {
    **language("LlamaModel", byte_tokenizer, num_hidden_layers=3),  # it skips the last two
    "transformer": part("HunyuanVideoTransformer3DModel", **TO_LATENTS, patch_size=1),
    "vae": part(
        "AutoencoderKLHunyuanVideo",
        latent_channels=CHANNELS,
        block_out_channels=(4, 4, 4, 4),
        layers_per_block=1,
        norm_num_groups=2,
    ),
    "scheduler": flow_euler(shift=7.0),
    "text_encoder_2": clip_text,
    "tokenizer_2": clip_tokenizer,
}
# the default template is longer, in characters, than the default limit on tokens
HUNYUAN_CALL = sized(
    16,
    num_frames=5,
    guidance_scale=6.0,
    prompt_template={"template": "{}", "crop_start": 0},
    max_sequence_length=32,
)
MOCHI_CHANNELS = 12  # the VAE keeps the real factors, which the pipeline assumes
MOCHI = {
    "scheduler": flow_euler(invert_sigmas=True),
    "vae": part(
        "AutoencoderKLMochi",
        latent_channels=MOCHI_CHANNELS,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ),
    **T5,
    "transformer": part(
        "MochiTransformer3DModel",
        attention_head_dim=12,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=MOCHI_CHANNELS,
        time_embed_dim=16,
        max_sequence_length=32,
    ),
}

# Pictures by other networks
LUMINA = {
    "transformer": part(
        "Lumina2Transformer2DModel",
        sample_size=4,
        in_channels=CHANNELS,
        hidden_size=48,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(8, 8, 8),
        axes_lens=(300, 16, 16),
    ),
    "scheduler": flow_euler(shift=6.0),
    "vae": image_vae(levels=4),
    **language("Gemma2Model", gemma_tokenizer),
}
Z_IMAGE = {
    "scheduler": flow_euler(shift=3.0),
    "vae": image_vae(),
    **language("Qwen3Model", byte_tokenizer),
    "transformer": part(
        "ZImageTransformer2DModel",
        in_channels=CHANNELS,
        axes_dims=[4, 6, 6],
        axes_lens=[256, 32, 32],
    ),
}
DEEP = {"block_out_channels": (8, 8), "layers_per_block": (1, 1), "qkv_multiscales": ((), ())}
SANA_SHARED = {
    **language("Gemma2Model", gemma_tokenizer),
    "vae": part(
        "AutoencoderDC",
        latent_channels=CHANNELS,
        attention_head_dim=4,
        **{f"encoder_{key}": value for key, value in DEEP.items()},
        **{f"decoder_{key}": value for key, value in DEEP.items()},
    ),
}
SANA_CALL = sized(
    32,
    guidance_scale=4.5,
    max_sequence_length=32,
    use_resolution_binning=False,  # it would enlarge the picture
    complex_human_instruction=None,  # it would swamp the prompt
)


def sana_transformer(**options: Any) -> Callable[..., Any]:
    """Linear attention over latents, cross-attention to the text."""
    return part("SanaTransformer2DModel", **TO_LATENTS, sample_size=16, **options)


SANA = {
    "transformer": sana_transformer(),
    "scheduler": part(
        "DPMSolverMultistepScheduler",
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=3.0,
    ),
    **SANA_SHARED,
}
SPRINT = {  # it draws noise at every step: nothing a plan may skip
    "transformer": sana_transformer(guidance_embeds=True, qk_norm="rms_norm_across_heads"),
    "scheduler": part("SCMScheduler"),
    **SANA_SHARED,
}
AURAFLOW = {
    **UMT5,
    "vae": image_vae(),
    "transformer": part(
        "AuraFlowTransformer2DModel",
        sample_size=8,
        **TO_LATENTS,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        pos_embed_max_size=64,
    ),
    "scheduler": flow_euler(shift=1.73),
}
COGVIEW = {
    **language("GlmModel", byte_tokenizer),
    "vae": image_vae(),
    "transformer": part(
        "CogView4Transformer2DModel",
        **TO_LATENTS,
        num_layers=2,
        time_embed_dim=32,
        condition_dim=16,
        pos_embed_max_size=32,
        sample_size=8,
        rope_axes_dim=(8, 8),
    ),
    "scheduler": flow_euler(
        use_dynamic_shifting=True, time_shift_type="linear", base_shift=0.25, max_shift=0.75
    ),
}
HIDREAM = {
    "scheduler": unipc(),
    "vae": image_vae(),
    "text_encoder": POOLED,
    "tokenizer": clip_tokenizer,
    "text_encoder_2": POOLED,
    "tokenizer_2": clip_tokenizer,
    "text_encoder_3": t5_text,
    "tokenizer_3": t5_tokenizer,
    "text_encoder_4": language("LlamaForCausalLM", byte_tokenizer)["text_encoder"],
    "tokenizer_4": byte_tokenizer,
    "transformer": part(
        "HiDreamImageTransformer2DModel",
        patch_size=2,
        in_channels=CHANNELS,
        caption_channels=[WIDTH, WIDTH],
        text_emb_dim=2 * WIDTH,
        num_routed_experts=4,
        num_activated_experts=2,
        axes_dims_rope=(4, 4, 8),
        max_resolution=(16, 16),
        llama_layers=[0, 1],
    ),
}


def tiny(
    name: str, pipeline: str, parts: Parts, call: Mapping[str, Any], passes: int = 1, **options: Any
) -> Tiny:
    """A row of the table."""
    settings = options.pop("settings", {})
    make = partial(build, pipeline, parts, **settings)
    return Tiny(name, make, called(**call), calls_per_step=passes, **options)


TABLE = (
    tiny("flux", "FluxPipeline", flux_parts(), FLUX_CALL),
    tiny("flux-img2img", "FluxImg2ImgPipeline", flux_parts(), FLUX_IMAGE),
    tiny(
        "flux-kontext",
        "FluxKontextPipeline",
        flux_parts(),  # resizing would scale the picture to about a megapixel
        FLUX_CALL | {"image": partial(picture, 32), "max_area": 32 * 32, "_auto_resize": False},
    ),
    tiny(
        "flux-controlnet",
        "FluxControlNetPipeline",
        {
            "controlnet": part("FluxControlNetModel", in_channels=PACKED, **FLUX_BACKBONE),
            **flux_parts(),
        },
        FLUX_CALL | {"control_image": partial(picture, 32)},
    ),
    tiny("flux-inpaint", "FluxInpaintPipeline", flux_parts(), FLUX_MASKED),
    tiny("flux-fill", "FluxFillPipeline", flux_parts(FILL_INPUT), FLUX_MASKED),
    tiny("sd3", "StableDiffusion3Pipeline", sd3_parts(), SD3_CALL),
    tiny("sd3-img2img", "StableDiffusion3Img2ImgPipeline", sd3_parts(), SD3_IMAGE),
    tiny("wan", "WanPipeline", WAN, WAN_CALL, 2),
    tiny("wan-euler", "WanPipeline", WAN | {"scheduler": flow_euler(shift=3.0)}, WAN_CALL, 2),
    tiny(
        "wan-i2v",
        "WanImageToVideoPipeline",
        WAN_IMAGE,
        WAN_CALL | {"image": partial(picture, 16)},
        2,
    ),
    tiny("wan-vace", "WanVACEPipeline", WAN_VACE, WAN_CALL | {"video": WAN_CLIP}, 2),
    tiny(
        "wan-2.2",
        "WanPipeline",
        {
            "transformer": wan_transformer,
            "transformer_2": wan_transformer,
            "boundary_ratio": 0.875,
            **WAN_SHARED,
        },
        WAN_CALL,
        2,
        denoisers=("transformer", "transformer_2"),
    ),
    tiny(
        "wan-v2v",
        "WanVideoToVideoPipeline",
        WAN,
        WAN_VIDEO | {"video": WAN_CLIP, "strength": 1.0},
        2,
    ),
    tiny(
        "qwen-image",
        "QwenImagePipeline",
        qwen_parts(1),
        QWEN_CALL,
        2,
        settings={"prompt_template_encode": "{}", "prompt_template_encode_start_idx": 0},
    ),
    tiny(
        "qwen-image-edit",
        "QwenImageEditPipeline",
        qwen_parts(6, processor=lambda: PictureProcessor(byte_tokenizer())),
        QWEN_EDIT_CALL,
        2,
        settings={"prompt_template_encode": EDIT_TEMPLATE, "prompt_template_encode_start_idx": 0},
    ),
    tiny("hunyuan-video", "HunyuanVideoPipeline", HUNYUAN, HUNYUAN_CALL),
    tiny("ltx", "LTXPipeline", LTX, LTX_CALL),
    tiny(
        "ltx-condition",
        "LTXConditionPipeline",
        LTX | {"scheduler": flow_euler()},  # noise on the condition would be drawn at each step
        LTX_CALL | {"image": partial(picture, 32), "image_cond_noise_scale": 0.0},
    ),
    tiny("ltx2", "LTX2Pipeline", LTX2, LTX2_CALL),
    tiny(
        "lumina2",
        "Lumina2Pipeline",
        LUMINA,
        guided(64, 4.0, system_prompt="draw", max_sequence_length=64),
        2,
    ),
    tiny("z-image", "ZImagePipeline", Z_IMAGE, guided(16, 4.0, max_sequence_length=64)),
    tiny("sana", "SanaPipeline", SANA, SANA_CALL | {"negative_prompt": "blurry"}),
    tiny("sana-sprint", "SanaSprintPipeline", SPRINT, SANA_CALL | {"intermediate_timesteps": None}),
    tiny("auraflow", "AuraFlowPipeline", AURAFLOW, guided(16, 3.5, max_sequence_length=32)),
    tiny("chroma", "ChromaPipeline", CHROMA, guided(32, 3.0, max_sequence_length=32), 2),
    tiny("bria", "BriaPipeline", BRIA, guided(32, 3.0)),
    tiny("cogview4", "CogView4Pipeline", COGVIEW, guided(16, 5.0, max_sequence_length=64), 2),
    tiny(
        "hidream",
        "HiDreamImagePipeline",
        HIDREAM,
        guided(16, 5.0, max_sequence_length=32),
        settings={"default_sample_size": 8},  # else it enlarges to a default area
    ),
    tiny("mochi", "MochiPipeline", MOCHI, guided(32, 4.5, num_frames=7, max_sequence_length=32)),
    tiny(
        "flux2",
        "Flux2Pipeline",
        FLUX2,
        sized(32, guidance_scale=4.0, max_sequence_length=32, text_encoder_out_layers=DEPTHS),
    ),
    tiny("sdxl", "StableDiffusionXLPipeline", SDXL, guided(16, 5.0), denoisers=("unet",)),
    tiny(
        "skyreels-v2-df",
        "SkyReelsV2DiffusionForcingPipeline",
        SKYREELS,
        WAN_CALL | {"base_num_frames": WAN_FRAMES, "ar_step": 0},  # all frames share their time
        2,
    ),
)
