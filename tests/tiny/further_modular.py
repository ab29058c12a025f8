"""Modular pipelines of newer models, without the blocks that encode text and decode latents.

Their text encoders have no tiny twins here, so calls bring embeddings; latents come out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tests.tiny import configurations as base
from tests.tiny.configurations import WIDTH, Parts, part
from tests.tiny.encoders import clip_vision
from tests.tiny.entry import Tiny
from tests.tiny.modular import latents
from tests.tiny.pictures import picture
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import ModularPipeline
    from torch import Tensor

LEFT_OUT = (
    "prompt_upsample",
    "prompt_upsampler",
    "prompt_enhancer",
    "text_encoder",
    "semantic_generator",
    "duration",
    "decode",
    "after_decode",
)
TOKENS = 6
AXES = {"axes_dims_rope": (4, 6, 6)}


def embeddings(*shape: int, seed: int = 0) -> Callable[[], Tensor]:
    """Numbers that stand for an encoded prompt, the same at each call."""
    return partial(_drawn, shape or (1, TOKENS, WIDTH), seed)


def _drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@seeded
def build(pipeline: str, parts: Parts, **settings: Any) -> ModularPipeline:
    """The pipeline of its own blocks, as far as they work on latents, with these settings."""
    import diffusers

    kind = getattr(diffusers, pipeline)
    blocks = getattr(diffusers, kind.default_blocks_name)()
    for name in LEFT_OUT:
        blocks.sub_blocks.pop(name, None)
    pipe = kind(blocks=blocks)
    known = {name for name in parts if name in pipe._component_specs}
    pipe.update_components(**{name: parts[name]() for name in known})
    pipe.register_to_config(**settings)
    return pipe


def cut(pipeline: str, parts: Parts, call: dict[str, Any], passes: int = 1, **options: Any) -> Tiny:
    """A row of the table, named as its class is."""
    make = partial(build, pipeline, parts, **options.pop("settings", {}))
    arguments = base.called(**{"output": ["latents"], **call})
    return Tiny(pipeline, make, arguments, calls_per_step=passes, output=latents, **options)


PROMPT = {"prompt_embeds": embeddings()}
GUIDED = PROMPT | {"negative_prompt_embeds": embeddings(seed=1)}
MASK = partial(torch.ones, 1, TOKENS, dtype=torch.bool)
NO_PICTURE = partial(torch.zeros, 1, TOKENS, dtype=torch.bool)
MASKED = {"prompt_embeds_mask": MASK}
GUIDED_MASKED = MASKED | {"negative_prompt_embeds_mask": MASK}
SIZE = {"height": 64, "width": 64}


def flux3(flow_map: bool) -> dict[str, Any]:
    """FLUX.3's; the distilled one is told where each of its steps ends."""
    return {
        "scheduler": base.flow_euler(),
        "transformer": part(
            "Flux3Transformer2DModel",
            in_channels=base.PACKED,
            cond_in_channels=base.PACKED,
            timestep_channels=32,
            axes_dims_rope=(4, 4, 4, 4),
            flow_map=flow_map,
        ),
    }


FLUX2 = {name: value for name, value in base.FLUX2.items() if name not in ("vae",)}
FLUX2_PROMPT = {"prompt_embeds": embeddings(1, TOKENS, len(base.DEPTHS) * WIDTH)}
FLUX2_NEGATIVE = {"negative_prompt_embeds": embeddings(1, TOKENS, len(base.DEPTHS) * WIDTH, seed=1)}
QWEN21 = {
    "guider": part("ClassifierFreeGuidance", guidance_scale=4.0),
    "scheduler": base.flow_euler(use_dynamic_shifting=True),
    "transformer": part(
        "QwenImage21Transformer2DModel", in_channels=base.PACKED, out_channels=base.PACKED, **AXES
    ),
}
QWEN21_CALL = SIZE | PROMPT | MASKED | {"image_pad_mask": NO_PICTURE}
LAYERS = 2  # of the text encoder, as Krea 2 reads them
KREA2 = {
    "scheduler": base.flow_euler(use_dynamic_shifting=True),
    "transformer": part(
        "Krea2Transformer2DModel",
        in_channels=base.PACKED,
        num_key_value_heads=2,
        timestep_embed_dim=32,
        num_text_layers=LAYERS,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=WIDTH,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        **AXES,
    ),
}
KREA2_CALL = SIZE | MASKED | {"prompt_embeds": embeddings(1, TOKENS, LAYERS, WIDTH)}
ERNIE = {
    "scheduler": base.flow_euler(shift=3.0),
    "transformer": part(
        "ErnieImageTransformer2DModel",
        ffn_hidden_size=32,
        **base.TO_PACKED,
        text_in_dim=WIDTH,
    ),
}
HUNYUAN15_CHANNELS = 32  # where no VAE says how many
HUNYUAN15 = {
    "scheduler": base.flow_euler(shift=7.0),
    "transformer": part(
        "HunyuanVideo15Transformer3DModel",
        in_channels=2 * HUNYUAN15_CHANNELS + 1,
        out_channels=HUNYUAN15_CHANNELS,
        image_embed_dim=WIDTH,
        target_size=32,
        task_type="t2v",
    ),
}
SECOND = {
    "prompt_embeds_2": embeddings(seed=2),
    "prompt_embeds_mask_2": MASK,
    "negative_prompt_embeds_2": embeddings(seed=3),
    "negative_prompt_embeds_mask_2": MASK,
}
COSMOS_BACKBONE = {
    "adaln_lora_dim": 8,
    "max_size": (4, 16, 16),
    "encoder_hidden_states_channels": WIDTH,
    "extra_pos_embed_type": None,
    "concat_padding_mask": False,  # torchvision would resize it
}
ANIMA = {
    "scheduler": base.flow_euler(shift=3.0),
    "text_conditioner": part(
        "AnimaTextConditioner",
        source_dim=WIDTH,
        target_dim=WIDTH,
        target_vocab_size=16,
        min_sequence_length=TOKENS,
    ),
    "transformer": part("CosmosTransformer3DModel", **base.TO_LATENTS, **COSMOS_BACKBONE),
}
ANIMA_CALL = SIZE | {
    f"{sign}{name}": value
    for seed, sign in enumerate(("", "negative_"))
    for name, value in {
        "qwen_prompt_embeds": embeddings(seed=seed),
        "qwen_attention_mask": MASK,
        "t5_input_ids": partial(torch.full, (1, TOKENS), 3 + seed),
        "t5_attention_mask": MASK,
    }.items()
}
WAN22 = {
    "transformer": base.wan_transformer,
    "transformer_2": base.wan_transformer,
    "scheduler": base.unipc(),
}
WAN_SIZE = {"height": 16, "width": 16, "num_frames": base.WAN_FRAMES}
WAN_PICTURE = {"image": partial(picture, 16)}
WAN_VIDEO_INPUT = {
    "in_channels": base.WAN_MASKED,
    **base.WAN_BACKBONE,
}
WAN22_IMAGE = base.WAN_SHARED | dict.fromkeys(
    ("transformer", "transformer_2"), part("WanTransformer3DModel", **WAN_VIDEO_INPUT)
)
WAN22_VACE = base.WAN_VACE | {"transformer_2": base.WAN_VACE["transformer"]}
TWO_EXPERTS = ("transformer", "transformer_2")
QWEN_EDIT = base.qwen_parts(6)
QWEN_EDIT_CALL = GUIDED | GUIDED_MASKED | {"image": partial(picture, 32)}
LAYERS_READ = 2 * WIDTH  # what Ideogram 4 reads of its language model
IDEOGRAM_BACKBONE = part(
    "Ideogram4Transformer2DModel",
    in_channels=base.PACKED,
    adaln_dim=16,
    llm_features_dim=LAYERS_READ,
    mrope_section=(2, 1, 1),
)
IDEOGRAM = {
    "scheduler": base.flow_euler(),
    "transformer": IDEOGRAM_BACKBONE,
    "unconditional_transformer": IDEOGRAM_BACKBONE,
}
IDEOGRAM_CALL = SIZE | {
    "text_features": embeddings(1, TOKENS, LAYERS_READ),
    "text_lengths": partial(list, (TOKENS,)),
    "guidance_schedule": (4.0,) * 8,
}
MUSIC3 = {
    "scheduler": base.flow_euler(invert_sigmas=True),
    "condition_encoder": part(
        "MiniMaxMusic3ConditionEncoder",
        condition_hidden_dim=8,
        num_condition_layers=2,
        out_dim=WIDTH,
    ),
    "transformer": part(
        "MiniMaxMusic3Transformer1DModel",
        in_channels=base.CHANNELS,
        condition_dim=WIDTH,
        ff_inner_dim=32,
        rotary_dim=8,
        fourier_embedding_dim=16,
    ),
}
MINIMAX_H3 = {
    "scheduler": part("MiniMaxH3Scheduler", shift=12.0),
    "audio_scheduler": part("MiniMaxH3Scheduler", shift=3.0),  # another grid
    "transformer": part(
        "MiniMaxH3Transformer3DModel",
        attention_head_dim=24,
        freq_dim=16,
        time_embed_hidden_dim=16,
        time_embed_dim=16,
        rope_freq_dim=4,
    ),
}
MINIMAX_H3_CALL = PROMPT | {
    "text_token_tags": partial(torch.ones, TOKENS, dtype=torch.long),
    "height": 32,
    "width": 32,
    "num_frames": 124,
    "num_inference_steps": 13,  # noise levels, which are one more than the steps
    "output": ["latents", "audio_latents"],
}
HELIOS = {
    "scheduler": part("HeliosScheduler", stages=1, stage_range=[0, 1]),
    "transformer": part("HeliosTransformer3DModel", attention_head_dim=12, rope_dim=(4, 4, 4)),
    "vae": base.WAN_SHARED["vae"],
}
COSMOS3 = {
    "scheduler": base.unipc(),
    "vae": base.WAN_SHARED["vae"],
    "transformer": part(
        "Cosmos3OmniTransformer",
        dtype="float32",
        latent_channel=base.WAN_CHANNELS,
        num_hidden_layers=1,
        num_key_value_heads=2,
        patch_latent_dim=4 * base.WAN_CHANNELS,
        vocab_size=64,
        rope_axes_dim=(2, 3, 3),
    ),
}
COSMOS3_CALL = {
    "height": 32,
    "width": 32,
    "num_frames": 5,
    "cond_input_ids": partial(list, range(3, 9)),
    "uncond_input_ids": partial(list, range(3, 7)),
}
ANIMATE2 = base.WAN_SHARED | {
    "scheduler": base.flow_euler(shift=5.0),  # its step is given a generator
    "guider": part("ClassifierFreeGuidance", guidance_scale=1.0),  # a second pass takes long
    "image_encoder": partial(clip_vision, 1280, 224, 56),  # the transformer knows no others
    "transformer": part(
        "WanAnimate2Transformer3DModel",
        text_len=TOKENS,
        in_dim=base.WAN_MASKED,
        dim=24,
        out_dim=base.WAN_CHANNELS,
    ),
}
ANIMATE2_CALL = {
    "height": 16,
    "width": 16,
    "image": partial(picture, 16),
    "driving_video": base.WAN_CLIP,
    "segment_frame_length": base.WAN_FRAMES,
    "prompt_ref_embeds": embeddings(seed=2),
    "output": ["segment_frames"],
}

TABLE = [
    cut("WanAnimate2ModularPipeline", ANIMATE2, ANIMATE2_CALL | PROMPT, calls_before=1),
    cut("WanAnimate2DistilledModularPipeline", ANIMATE2, ANIMATE2_CALL | PROMPT, calls_before=1),
    cut("WanImage2VideoModularPipeline", base.WAN_IMAGE, WAN_SIZE | GUIDED | WAN_PICTURE, 2),
    cut(
        "Wan22Image2VideoModularPipeline",
        WAN22_IMAGE,
        WAN_SIZE | GUIDED | WAN_PICTURE,
        2,
        denoisers=TWO_EXPERTS,
    ),
    cut("Wan22VaceModularPipeline", WAN22_VACE, WAN_SIZE | GUIDED, 2, denoisers=TWO_EXPERTS),
    cut("QwenImageEditModularPipeline", QWEN_EDIT, QWEN_EDIT_CALL, 2),
    cut("QwenImageEditPlusModularPipeline", QWEN_EDIT, QWEN_EDIT_CALL, 2),
    cut("QwenImageLayeredModularPipeline", QWEN_EDIT, QWEN_EDIT_CALL | {"layers": 2}, 2),
    cut(
        "Ideogram4ModularPipeline",
        IDEOGRAM,
        IDEOGRAM_CALL,
        2,
        denoisers=("transformer", "unconditional_transformer"),
    ),
    cut(
        "MiniMaxMusic3ModularPipeline",
        MUSIC3,
        {"frame_hiddens": embeddings(1, 4, 16), "output": ["latent_chunks"]},
        2,
    ),
    cut("MiniMaxH3ModularPipeline", MINIMAX_H3, MINIMAX_H3_CALL),
    cut("HeliosModularPipeline", HELIOS, WAN_SIZE | GUIDED, 2),
    cut("HeliosPyramidModularPipeline", HELIOS | {"scheduler": part("HeliosScheduler")}, {}),
    cut(
        "HeliosPyramidDistilledModularPipeline",
        HELIOS | {"scheduler": part("HeliosDMDScheduler")},
        {},
    ),
    cut("Cosmos3OmniModularPipeline", COSMOS3, COSMOS3_CALL, 2),
    cut(
        "Cosmos3DistilledModularPipeline",
        COSMOS3 | {"scheduler": base.flow_euler()},
        COSMOS3_CALL,
        settings={"distilled_sigmas": [1 - n / 8 for n in range(8)]},
    ),
    cut("EchoModularPipeline", {}, {}),
    cut("Flux3ModularPipeline", flux3(flow_map=False), SIZE | GUIDED, 2),
    cut("Flux3DistilledModularPipeline", flux3(flow_map=True), SIZE | PROMPT),
    cut("Flux2KleinModularPipeline", FLUX2, SIZE | FLUX2_PROMPT),
    cut("Flux2KleinBaseModularPipeline", FLUX2, SIZE | FLUX2_PROMPT | FLUX2_NEGATIVE, 2),
    cut(
        "QwenImage21ModularPipeline",
        QWEN21,
        QWEN21_CALL | GUIDED | GUIDED_MASKED | {"negative_image_pad_mask": NO_PICTURE},
        2,
    ),
    cut("QwenImage21TurboModularPipeline", QWEN21, QWEN21_CALL),
    cut(
        "Krea2ModularPipeline",
        KREA2,
        KREA2_CALL
        | GUIDED_MASKED
        | {"negative_prompt_embeds": embeddings(1, TOKENS, LAYERS, WIDTH, seed=1)},
        2,
    ),
    cut("Krea2TurboModularPipeline", KREA2, KREA2_CALL),
    cut("ErnieImageModularPipeline", ERNIE, SIZE | GUIDED, 2),
    cut(
        "HunyuanVideo15ModularPipeline",
        HUNYUAN15,
        SIZE | GUIDED | GUIDED_MASKED | SECOND | {"num_frames": 5, "batch_size": 1},
        2,
    ),
    cut("AnimaModularPipeline", ANIMA, ANIMA_CALL | {"strength": 1.0}, 2),
    cut("Wan22ModularPipeline", WAN22, WAN_SIZE | GUIDED, 2, denoisers=TWO_EXPERTS),
]
