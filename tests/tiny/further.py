"""Variants of the pipelines in `configurations`, of the same parts and arguments.

A variant takes the parts that its class has, and the arguments that its call knows. Encoders that
are not given are None.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.tiny import configurations as base
from tests.tiny.configurations import Parts, part
from tests.tiny.entry import Tiny
from tests.tiny.pictures import clip, mask, picture


def variant(
    pipeline: str, parts: Parts, call: Mapping[str, Any], passes: int = 1, **options: Any
) -> Tiny:
    """A row of the table, named as its class is."""
    settings = options.pop("settings", {})
    make = partial(_build, pipeline, parts, settings)
    arguments = partial(_call, pipeline, call)
    return Tiny(pipeline, make, arguments, calls_per_step=passes, **options)


def _build(pipeline: str, parts: Parts, settings: Mapping[str, Any]) -> Any:
    import diffusers

    known = inspect.signature(getattr(diffusers, pipeline)).parameters.values()
    own = {
        one.name: parts.get(one.name)
        for one in known
        if one.name in parts or one.default is one.empty
    }
    return base.build(pipeline, own, **settings)


def _call(pipeline: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    import diffusers

    known = inspect.signature(getattr(diffusers, pipeline).__call__).parameters
    return base.called(**{n: v for n, v in arguments.items() if n in known})()


def pictures(size: int) -> dict[str, Any]:
    """What variants may ask for beside the prompt: a start, a control, a mask."""
    return {
        "image": partial(picture, size),
        "control_image": partial(picture, size, 1),
        "mask_image": partial(mask, size),
        "strength": 1.0,
    }


def also(name: str, base_parts: Parts, kind: str, **changes: Any) -> dict[str, Any]:
    """These parts with one more, or another one."""
    return {**base_parts, name: part(kind, **changes)}


def with_transformer(base_parts: Parts, **changes: Any) -> dict[str, Any]:
    """These parts, and the transformer with other sizes."""
    return {**base_parts, "transformer": partial(base_parts["transformer"], **changes)}


# FLUX and its kin
FLUX = base.flux_parts()
FLUX_CALL = base.FLUX_CALL | pictures(32)
FLUX_CONTROLLED = also(
    "controlnet", FLUX, "FluxControlNetModel", in_channels=base.PACKED, **base.FLUX_BACKBONE
)
CONTROL = base.flux_parts(2 * base.PACKED)
CHROMA_CALL = base.guided(32, 3.0, max_sequence_length=32) | pictures(32)
KLEIN = base.FLUX2 | base.language("Qwen3ForCausalLM", base.byte_tokenizer)
KLEIN_CALL = base.sized(
    32, guidance_scale=4.0, max_sequence_length=32, text_encoder_out_layers=base.DEPTHS
)

# Stable Diffusion 3
SD3 = base.sd3_parts()
SD3_CALL = base.SD3_CALL | pictures(16)
SD3_CONTROL = {
    "sample_size": 8,
    **base.TO_LATENTS,
    "joint_attention_dim": 2 * base.WIDTH,
    "pooled_projection_dim": 2 * base.WIDTH,
    "pos_embed_max_size": 16,
}

# Qwen-Image
QWEN = base.qwen_parts(1)
QWEN_CALL = base.QWEN_CALL | pictures(16)
QWEN_PLAIN = {"prompt_template_encode": "{}", "prompt_template_encode_start_idx": 0}
QWEN_CONTROL = {
    "in_channels": base.PACKED,
    "out_channels": base.CHANNELS,
    "axes_dims_rope": (4, 6, 6),
}
QWEN_CONTROLLED = also("controlnet", QWEN, "QwenImageControlNetModel", **QWEN_CONTROL)
QWEN_REPAINTED = also(  # the mask is one more channel of a token's four pixels
    "controlnet", QWEN, "QwenImageControlNetModel", **QWEN_CONTROL, extra_condition_channels=4
)
QWEN_DEEP = base.qwen_parts(6, processor=lambda: base.PictureProcessor(base.byte_tokenizer()))
QWEN_EDIT = {"prompt_template_encode": base.EDIT_TEMPLATE, "prompt_template_encode_start_idx": 0}

LTX2_CALL = base.LTX2_CALL | pictures(32) | {"image_crf": 0}
LTX2_IMAGE = base.LTX2 | {"vae": partial(base.LTX2["vae"], spatial_compression_ratio=8)}
Z_CALL = base.guided(16, 4.0, max_sequence_length=64) | pictures(16)
WAN_I2V_CALL = base.WAN_CALL | pictures(16)
SKYREELS_IMAGE = base.WAN_IMAGE | {
    "transformer": part("SkyReelsV2Transformer3DModel", **base.WAN_FROM_IMAGE),
    "scheduler": base.unipc(flow_shift=8.0),
}

TABLE = [
    variant("FluxControlPipeline", CONTROL, FLUX_CALL),
    variant("FluxControlImg2ImgPipeline", CONTROL, FLUX_CALL),
    variant("FluxControlInpaintPipeline", CONTROL, FLUX_CALL),
    variant("FluxControlNetImg2ImgPipeline", FLUX_CONTROLLED, FLUX_CALL),
    variant("FluxControlNetInpaintPipeline", FLUX_CONTROLLED, FLUX_CALL),
    variant("FluxKontextInpaintPipeline", FLUX, FLUX_CALL | {"_auto_resize": False}),
    variant("ChromaImg2ImgPipeline", base.CHROMA, CHROMA_CALL, 2),
    variant("Flux2KleinPipeline", KLEIN, KLEIN_CALL, 2),
    variant("Flux2KleinInpaintPipeline", KLEIN, KLEIN_CALL | pictures(32), 2),
    variant("Flux2KleinKVPipeline", KLEIN, KLEIN_CALL),
    variant("StableDiffusion3InpaintPipeline", base.sd3_parts(16), SD3_CALL),
    variant("StableDiffusion3PAGPipeline", SD3, SD3_CALL),
    variant("StableDiffusion3PAGImg2ImgPipeline", SD3, SD3_CALL),
    variant(
        "StableDiffusion3ControlNetPipeline",
        also("controlnet", SD3, "SD3ControlNetModel", **SD3_CONTROL),
        SD3_CALL,
    ),
    variant(
        "StableDiffusion3ControlNetInpaintingPipeline",
        also("controlnet", SD3, "SD3ControlNetModel", extra_conditioning_channels=1, **SD3_CONTROL),
        SD3_CALL | {"control_mask": partial(mask, 16)},
    ),
    variant("QwenImageImg2ImgPipeline", QWEN, QWEN_CALL, 2, settings=QWEN_PLAIN),
    variant("QwenImageInpaintPipeline", QWEN, QWEN_CALL, 2, settings=QWEN_PLAIN),
    variant("QwenImageControlNetPipeline", QWEN_CONTROLLED, QWEN_CALL, 2, settings=QWEN_PLAIN),
    variant(
        "QwenImageControlNetInpaintPipeline",
        QWEN_REPAINTED,
        QWEN_CALL | {"control_mask": partial(mask, 16)},
        2,
        settings=QWEN_PLAIN,
    ),
    variant(
        "QwenImageEditInpaintPipeline",
        QWEN_DEEP,
        base.QWEN_EDIT_CALL | {"mask_image": partial(mask, 32), "strength": 1.0},
        2,
        settings=QWEN_EDIT,
    ),
    variant(
        "QwenImageEditPlusPipeline",
        QWEN_DEEP,
        base.QWEN_EDIT_CALL,
        2,
        settings=QWEN_PLAIN,  # it puts the picture's mark before the prompt itself
    ),
    variant(
        "QwenImageLayeredPipeline",
        QWEN_DEEP,
        base.QWEN_EDIT_CALL | {"layers": 2},
        2,
        settings=QWEN_PLAIN,
        latent_output="pt",  # it has no other
    ),
    variant("ZImageImg2ImgPipeline", base.Z_IMAGE, Z_CALL),
    variant("ZImageInpaintPipeline", base.Z_IMAGE, Z_CALL),
    variant("LTXImageToVideoPipeline", base.LTX, base.LTX_CALL | pictures(32)),
    variant("LTX2ImageToVideoPipeline", LTX2_IMAGE, LTX2_CALL | {"num_frames": 33}),
    variant("LTX2HDRPipeline", base.LTX2, LTX2_CALL | {"video": partial(clip, 32, 9)}),
    variant("LTX2ConditionPipeline", base.LTX2, LTX2_CALL),
    variant("LTX2InContextPipeline", base.LTX2, LTX2_CALL),
    variant("SkyReelsV2Pipeline", base.SKYREELS, base.WAN_CALL, 2),
    variant("SkyReelsV2ImageToVideoPipeline", SKYREELS_IMAGE, WAN_I2V_CALL, 2),
    variant(
        "SkyReelsV2DiffusionForcingImageToVideoPipeline",
        base.SKYREELS,
        WAN_I2V_CALL | {"base_num_frames": base.WAN_FRAMES, "ar_step": 0},
        2,
    ),
    variant(
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
        base.SKYREELS,
        base.WAN_VIDEO | {"video": base.WAN_CLIP, "base_num_frames": base.WAN_FRAMES, "ar_step": 0},
        2,
    ),
    variant(
        "LucyEditPipeline",
        with_transformer(base.WAN, in_channels=2 * base.WAN_CHANNELS),
        base.WAN_CALL | {"video": base.WAN_CLIP},
        2,
    ),
    variant(
        "ChronoEditPipeline",
        also("transformer", base.WAN_IMAGE, "ChronoEditTransformer3DModel", **base.WAN_FROM_IMAGE),
        WAN_I2V_CALL,
        2,
    ),
    variant(
        "SanaPAGPipeline",
        base.SANA | {"scheduler": base.flow_euler(shift=3.0)},
        base.SANA_CALL | {"negative_prompt": "blurry"},
    ),
    variant(
        "SanaControlNetPipeline",
        also("controlnet", base.SANA, "SanaControlNetModel", **base.TO_LATENTS, sample_size=16),
        base.SANA_CALL | pictures(32) | {"negative_prompt": "blurry"},
    ),
    variant(
        "SanaSprintImg2ImgPipeline",
        base.SPRINT,
        base.SANA_CALL | pictures(32) | {"intermediate_timesteps": None},
    ),
    variant("VisualClozePipeline", base.flux_parts(base.FILL_INPUT), {}),
    variant(
        "CogView4ControlPipeline",
        with_transformer(base.COGVIEW, in_channels=2 * base.CHANNELS),
        base.guided(16, 5.0, max_sequence_length=64) | pictures(16),
        2,
    ),
]
