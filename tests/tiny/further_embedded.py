"""Pipelines of newer models that are called with embeddings, in place of large text encoders."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from tests.tiny import configurations as base
from tests.tiny import further_modular as cut
from tests.tiny.configurations import WIDTH, part
from tests.tiny.encoders import clip_vision, qwen_vision_language, siglip_vision, t5_text
from tests.tiny.further import Z_CALL, pictures, variant, with_transformer
from tests.tiny.further_modular import AXES, GUIDED, GUIDED_MASKED, MASK, SIZE, TOKENS, embeddings

QWEN_VAE = {"vae": base.qwen_parts(1)["vae"]}
PACKED_VAE = {"vae": base.image_vae()}
GUIDER = {"guider": part("ClassifierFreeGuidance", guidance_scale=4.0)}
ATTENTION = {"prompt_attention_mask": MASK, "negative_prompt_attention_mask": MASK}
OVIS = PACKED_VAE | {
    "scheduler": base.BY_SIZE,
    "transformer": part("OvisImageTransformer2DModel", **base.TO_PACKED, **AXES),
}
LONGCAT = (
    base.qwen_parts(1)
    | PACKED_VAE
    | {
        "scheduler": base.BY_SIZE,
        "transformer": part(
            "LongCatImageTransformer2DModel", in_channels=64, axes_dims_rope=[4, 6, 6]
        ),
    }
)
GLM = PACKED_VAE | {
    "scheduler": base.BY_SIZE,
    **base.T5,
    "transformer": part(
        "GlmImageTransformer2DModel",
        **base.TO_LATENTS,
        time_embed_dim=32,
        condition_dim=16,
        prior_vq_quantizer_codebook_size=16,
    ),
}


def as_list(make: Any) -> list[Any]:
    """One embedding, where a list has one for each prompt."""
    return list(make())


ERNIE = base.FLUX2 | cut.ERNIE
HUNYUAN_IMAGE = {
    "scheduler": base.flow_euler(shift=5.0),
    "vae": part(
        "AutoencoderKLHunyuanImage",
        in_channels=3,
        out_channels=3,
        latent_channels=base.CHANNELS,
        block_out_channels=(32, 32),
        layers_per_block=1,
        spatial_compression_ratio=2,
        sample_size=16,
    ),
    "transformer": part("HunyuanImageTransformer2DModel", **base.TO_LATENTS, rope_axes_dim=(8, 8)),
    **GUIDER,
}


HUNYUAN15_VAE = {
    "vae": part(
        "AutoencoderKLHunyuanVideo15",
        latent_channels=cut.HUNYUAN15_CHANNELS,
        block_out_channels=(16, 16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
    )
}


class Permissive:
    """Stands for Cosmos' safety checker, which is a package of its own."""

    def to(self, device: Any) -> Permissive:
        """It lies nowhere."""
        return self

    def check_text_safety(self, prompt: str) -> bool:
        """Let every prompt through."""
        return True

    def check_video_safety(self, video: Any) -> Any:
        """Let every video through."""
        return video


def cosmos(**changes: Any) -> dict[str, Any]:
    """Cosmos Predict 2's."""
    return {
        **base.T5,
        "vae": base.WAN_SHARED["vae"],
        "transformer": part(
            "CosmosTransformer3DModel", **base.TO_WAN_LATENTS | cut.COSMOS_BACKBONE | changes
        ),
        "scheduler": base.flow_euler(use_karras_sigmas=True),
        "safety_checker": Permissive,
    }


COSMOS_CALL = base.guided(32, 7.0, max_sequence_length=32)
QUARTER = partial(torch.tensor, [0, TOKENS], dtype=torch.int32)
KANDINSKY_CALL = {
    f"{sign}{name}": value
    for seed, sign in enumerate(("", "negative_"))
    for name, value in {
        "prompt_embeds_qwen": embeddings(TOKENS, WIDTH, seed=seed),
        "prompt_embeds_clip": embeddings(1, WIDTH, seed=seed),
        "prompt_cu_seqlens": QUARTER,
    }.items()
}


def kandinsky(channels: int, vae: Any, conditioned: bool) -> dict[str, Any]:
    """Kandinsky 5's, whose input has the latents, a condition and a mask of it."""
    return {
        "scheduler": base.flow_euler(shift=5.0),
        "vae": vae,
        "transformer": part(
            "Kandinsky5Transformer3DModel",
            in_visual_dim=channels,
            out_visual_dim=channels,
            axes_dims=(4, 4, 8),
            visual_cond=conditioned,
            attention_type="regular",
        ),
    }


PRX = {
    "scheduler": base.flow_euler(shift=3.0),
    "vae": base.image_vae(),
    "transformer": part("PRXTransformer2DModel", in_channels=base.CHANNELS, axes_dim=[8, 8]),
}
SANA_VIDEO = {
    **base.language("Gemma2Model", base.gemma_tokenizer),
    "vae": base.WAN_SHARED["vae"],
    "transformer": part(
        "SanaVideoTransformer3DModel",
        **base.TO_WAN_LATENTS,
        attention_head_dim=12,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        sample_size=8,
    ),
    "scheduler": base.flow_euler(shift=8.0),
}
SANA_VIDEO_CALL = base.SANA_CALL | pictures(32) | {"frames": 5, "negative_prompt": "blurry"}
NUCLEUS = QWEN_VAE | {
    "scheduler": base.BY_SIZE,
    "transformer": part(
        "NucleusMoEImageTransformer2DModel",
        in_channels=base.PACKED,
        out_channels=base.CHANNELS,
        **AXES,
        moe_enabled=False,
    ),
}
LUMINA_NEXT = {
    **base.language("GemmaModel", base.gemma_tokenizer),
    "vae": base.image_vae(),
    "scheduler": base.flow_euler(),
    "transformer": part(
        "LuminaNextDiT2DModel",
        sample_size=8,
        in_channels=base.CHANNELS,
        num_kv_heads=1,
        multiple_of=16,
        learn_sigma=True,
    ),
}
FIBO = {
    **base.language("SmolLM3ForCausalLM", base.byte_tokenizer),
    "scheduler": base.flow_euler(shift=3.0),
    "vae": base.WAN_SHARED["vae"],
    "transformer": part(
        "BriaFiboTransformer2DModel",
        pooled_projection_dim=None,
        in_channels=base.WAN_CHANNELS,
        joint_attention_dim=2 * WIDTH,
        text_encoder_dim=WIDTH,
        axes_dims_rope=[4, 6, 6],
    ),
}
MOTIF = {
    "scheduler": base.flow_euler(shift=5.0),
    "vae": base.WAN_SHARED["vae"],
    "transformer": part(
        "MotifVideoTransformer3DModel",
        in_channels=2 * base.WAN_CHANNELS + 1,
        out_channels=base.WAN_CHANNELS,
    ),
    **GUIDER,
}
JOY = {
    "scheduler": base.flow_euler(shift=3.0),
    "vae": base.WAN_SHARED["vae"],
    "transformer": part(
        "JoyImageEditTransformer3DModel", in_channels=base.WAN_CHANNELS, rope_dim_list=[4, 6, 6]
    ),
}

KANDINSKY6 = {
    "scheduler": base.flow_euler(shift=5.0),
    "vae": base.HUNYUAN["vae"],
    "transformer": part(
        "Kandinsky6Transformer3DModel",
        in_visual_dim=base.CHANNELS,
        out_visual_dim=base.CHANNELS,
        axes_dims=(4, 4, 8),
        visual_cond=True,
        in_audio_dim=base.CHANNELS,
        out_audio_dim=base.CHANNELS,
    ),
    "audio_vae": part(
        "MMAudioVAE",
        mel_bins=8,
        latent_channels=base.CHANNELS,
        hidden_channels=8,
        channel_multipliers=(1, 1, 1),
        layers_per_block=1,
    ),
    "vocoder": part(
        "MMAudioVocoder",
        num_mels=8,
        upsample_initial_channel=8,
        upsample_rates=(2, 2),
        upsample_kernel_sizes=(4, 4),
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1, 3),),
    ),
}
POOLED = {
    "pooled_prompt_embeds": embeddings(1, WIDTH, seed=2),
    "negative_pooled_prompt_embeds": embeddings(1, WIDTH, seed=3),
}
STABLE_AUDIO = {
    "scheduler": base.flow_euler(),
    "vae": part(
        "AutoencoderSAME",
        patch_size=16,
        encoder_channels=16,
        encoder_c_mults=(1,),
        encoder_strides=(4,),
        encoder_transformer_depths=(1,),
        latent_dim=8,
        dim_heads=8,
        sampling_rate=640,
    ),
    "duration_embedder": part("StableAudio3DurationEmbedder", output_dim=WIDTH, fourier_dim=16),
    "transformer": part(
        "StableAudio3DiTModel",
        io_channels=8,
        embed_dim=32,
        cond_token_dim=WIDTH,
        global_cond_dim=WIDTH,
        local_add_cond_dim=9,
        timestep_features_dim=16,
        num_memory_tokens=2,
    ),
}
STABLE_AUDIO_CALL = GUIDED | {
    "duration": 2.0,
    "guidance_scale": 4.0,
    "encoder_attention_mask": MASK,
    "negative_encoder_attention_mask": MASK,
}
WAN_ANIMATE = base.WAN_IMAGE | {
    "transformer": part(
        "WanAnimateTransformer3DModel",
        **base.WAN_BACKBONE,
        in_channels=base.WAN_MASKED,
        image_dim=WIDTH,
        motion_encoder_channel_sizes={"4": 16, "8": 16, "16": 16},
        motion_encoder_size=16,
        motion_style_dim=8,
        motion_dim=4,
        motion_encoder_dim=16,
        face_encoder_hidden_dim=16,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=2,
    ),
}
ANYFLOW = base.WAN | {
    "transformer": part("AnyFlowTransformer3DModel", **base.WAN_BACKBONE),
    "scheduler": part("FlowMapEulerDiscreteScheduler"),
}

EASY = {
    **base.language("Qwen2Model", base.byte_tokenizer),
    "scheduler": base.flow_euler(shift=3.0),
    "vae": part(
        "AutoencoderKLMagvit",
        in_channels=3,
        latent_channels=base.CHANNELS,
        out_channels=3,
        block_out_channels=(8, 8),
        down_block_types=("SpatialDownBlock3D", "SpatialTemporalDownBlock3D"),
        up_block_types=("SpatialUpBlock3D", "SpatialTemporalUpBlock3D"),
        layers_per_block=1,
        norm_num_groups=2,
    ),
    "transformer": part(
        "EasyAnimateTransformer3DModel",
        **base.TO_LATENTS,
        patch_size=2,
        sample_width=16,
        sample_height=16,
        mmdit_layers=1,
        time_embed_dim=16,
    ),
}
HELIOS = cut.HELIOS | base.UMT5


def controlled_z(channels: int, refined: str | None) -> dict[str, Any]:
    """Z-Image's, with a controlnet that reads a picture of so many channels."""
    control = part(
        "ZImageControlNetModel",
        control_layers_places=[0],
        control_refiner_layers_places=[0],
        control_in_dim=channels,
        add_control_noise_refiner=refined,
    )
    return base.Z_IMAGE | {"controlnet": control}


CONTROLLED_Z = controlled_z(base.CHANNELS, None)
REPAINTED_Z = controlled_z(2 * base.CHANNELS + 1, "control_noise_refiner")
ACE = {
    "scheduler": base.flow_euler(),
    **base.language("Qwen3Model", base.byte_tokenizer),
    "vae": part(
        "AutoencoderOobleck",
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        channel_multiples=[1, 2],
        decoder_channels=8,
        decoder_input_channels=8,
        sampling_rate=800,
    ),
    "transformer": part(
        "AceStepTransformer1DModel",
        num_hidden_layers=2,
        num_key_value_heads=2,
        in_channels=24,
        audio_acoustic_hidden_dim=8,
        encoder_hidden_size=32,
    ),
    "condition_encoder": part(
        "pipelines.ace_step.AceStepConditionEncoder",
        timbre_hidden_dim=8,
        num_lyric_encoder_hidden_layers=1,
        num_timbre_encoder_hidden_layers=1,
        num_key_value_heads=2,
    ),
}

QWEN21_VAE = {
    "vae": part(
        "AutoencoderKLQwenImage21",
        base_dim=2,
        decoder_base_dim=2,
        z_dim=base.PACKED,
        dim_mult=[1] * 5,
        temperal_downsample=[False] * 4,
        latents_mean=[0.0] * base.PACKED,
        latents_std=[1.0] * base.PACKED,
    )
}


class SilentProcessor:
    """What Qwen-Image-2.1 asks of its processor before it has read a word."""

    tokenizer = SimpleNamespace(encode=lambda mark: [0])

    def apply_chat_template(self, messages: Any, **options: Any) -> list[list[int]]:
        """One token for the system's message."""
        return [[0]]


def seeing_text() -> Any:
    """A text encoder with a vision tower, as Motif Video's is."""
    encoder = t5_text()
    encoder.vision_tower = clip_vision()
    return encoder


IDEOGRAM_LAYERS = 13  # of 36, that it reads
IDEOGRAM = (
    cut.IDEOGRAM
    | {
        "vae": base.FLUX2["vae"],
        "text_encoder": lambda: qwen_vision_language(base.byte_tokenizer(), layers=36).model,
        "tokenizer": base.byte_tokenizer,
    }
    | dict.fromkeys(
        ("transformer", "unconditional_transformer"),
        partial(cut.IDEOGRAM_BACKBONE, llm_features_dim=IDEOGRAM_LAYERS * WIDTH),
    )
)


def siglip_processor() -> Any:
    """SigLIP 2's, for 16 patches at most."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    return Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16)


Z_OMNI = with_transformer(base.Z_IMAGE, siglip_feat_dim=WIDTH) | {
    "vae": lambda: base.image_vae()().to(torch.bfloat16),  # it is handed pictures in bfloat16
    "siglip": siglip_vision,
    "siglip_processor": siglip_processor,
}
PROMPTED = {"prompt": base.PROMPT, "negative_prompt": "blurry"}

TABLE = [
    variant(
        "QwenImage21Pipeline",
        cut.QWEN21 | QWEN21_VAE | {"processor": SilentProcessor},
        SIZE | GUIDED | GUIDED_MASKED | {"true_cfg_scale": 4.0},
        2,
    ),
    variant(
        "Cosmos3OmniPipeline",
        with_transformer(cut.COSMOS3, vocab_size=512)
        | {"text_tokenizer": base.byte_tokenizer, "safety_checker": Permissive},
        base.sized(
            32,
            negative_prompt="blurry",
            num_frames=5,
            add_resolution_template=False,
            add_duration_template=False,
            use_system_prompt=False,
        ),
        2,
    ),
    variant(
        "Ideogram4Pipeline",
        IDEOGRAM,
        base.sized(64, guidance_schedule=None, guidance_scale=4.0, max_sequence_length=64),
        2,
        denoisers=("transformer", "unconditional_transformer"),
    ),
    variant(
        "Kandinsky5I2VPipeline",
        kandinsky(base.CHANNELS, base.HUNYUAN["vae"], conditioned=True),
        SIZE | KANDINSKY_CALL | pictures(64) | {"num_frames": 21},
        2,
    ),
    variant(
        "Kandinsky5I2IPipeline",
        kandinsky(base.CHANNELS, base.image_vae(levels=4), conditioned=True),
        SIZE | KANDINSKY_CALL | pictures(64) | {"prompt": base.PROMPT},  # how many prompts
        2,
        settings={"resolutions": [(64, 64)]},
    ),
    variant(
        "MotifVideoImage2VideoPipeline",
        with_transformer(MOTIF, image_embed_dim=WIDTH)
        | {
            "text_encoder": seeing_text,
            "tokenizer": base.t5_tokenizer,
            "feature_extractor": base.clip_processor,
        },
        SIZE | PROMPTED | pictures(64) | {"max_sequence_length": 32, "num_frames": 5},
        2,
    ),
    variant(
        "HunyuanVideo15ImageToVideoPipeline",
        with_transformer(cut.HUNYUAN15, task_type="i2v", target_size=16)
        | GUIDER
        | {
            "vae": partial(HUNYUAN15_VAE["vae"], block_out_channels=(64, 64, 64)),
            "image_encoder": clip_vision,
            "feature_extractor": base.clip_processor,
        },
        GUIDED | GUIDED_MASKED | cut.SECOND | pictures(16) | {"num_frames": 5},
        2,
        settings={"vision_num_semantic_tokens": 5},
    ),
    variant(
        "AceStepPipeline",
        ACE,
        {
            "prompt": base.PROMPT,
            "lyrics": "la",
            "audio_duration": 1.0,
            "max_text_length": 64,
            "guidance_scale": 3.0,
        },
    ),
    variant("ZImageOmniPipeline", Z_OMNI, Z_CALL | pictures(64)),
    variant("ZImageControlNetPipeline", CONTROLLED_Z, Z_CALL),
    variant("ZImageControlNetInpaintPipeline", REPAINTED_Z, Z_CALL),
    variant(
        "LTX2DFRTemporalRefinePipeline",
        base.LTX2 | {"scheduler": part("LTXEulerAncestralRFScheduler")},
        {},
    ),
    variant(
        "StableAudio3AudioToAudioPipeline",
        STABLE_AUDIO,
        STABLE_AUDIO_CALL | {"audio": embeddings(1, 2, 1280), "strength": 1.0},
    ),
    variant(
        "StableAudio3InpaintPipeline",
        STABLE_AUDIO,
        STABLE_AUDIO_CALL
        | {"audio": embeddings(1, 2, 1280), "mask_start_seconds": 0.5, "mask_end_seconds": 1.0},
    ),
    variant("EasyAnimatePipeline", EASY, SIZE | GUIDED | ATTENTION | {"num_frames": 5}),
    variant(
        "BriaFiboEditPipeline",
        FIBO,
        base.guided(32, 4.0, max_sequence_length=64)
        | pictures(32)
        | {"prompt": '{"edit_instruction": "make the fox blue"}'},
    ),
    variant("HeliosPipeline", HELIOS, base.WAN_CALL, 2),
    variant(
        "HeliosPyramidPipeline", HELIOS | {"scheduler": part("HeliosScheduler")}, base.WAN_CALL
    ),
    variant(
        "PixArtAlphaPipeline",
        {
            **base.T5,
            "vae": base.image_vae(),
            "scheduler": part("DPMSolverMultistepScheduler"),
            "transformer": part("PixArtTransformer2DModel", sample_size=8),
        },
        {},
    ),
    variant(
        "HunyuanSkyreelsImageToVideoPipeline",
        with_transformer(base.HUNYUAN, in_channels=2 * base.CHANNELS),
        base.HUNYUAN_CALL | pictures(16),
    ),
    variant("AnyFlowPipeline", ANYFLOW, base.WAN_CALL),
    variant(
        "Kandinsky6TI2VAPipeline",
        KANDINSKY6,
        SIZE | GUIDED | POOLED | {"num_frames": 5},
        2,
    ),
    variant("StableAudio3Pipeline", STABLE_AUDIO, STABLE_AUDIO_CALL),
    variant(
        "WanAnimatePipeline",
        WAN_ANIMATE,
        base.WAN_CALL
        | {
            "image": partial(base.picture, 16),
            "pose_video": base.WAN_CLIP,
            "face_video": base.WAN_CLIP,
            "segment_frame_length": base.WAN_FRAMES,
        },
        2,
    ),
    variant("LTXI2VLongMultiPromptPipeline", base.LTX, base.LTX_CALL),
    variant(
        "Krea2Pipeline",
        cut.KREA2 | QWEN_VAE,
        cut.KREA2_CALL
        | GUIDED_MASKED
        | {"negative_prompt_embeds": embeddings(1, TOKENS, cut.LAYERS, WIDTH, seed=1)},
        2,
    ),
    variant("OvisImagePipeline", OVIS, SIZE | GUIDED | {"negative_prompt": None}, 2),
    variant(
        "LongCatImagePipeline",
        LONGCAT,
        base.guided(64, 4.0, enable_prompt_rewrite=False),
        2,
        settings={"tokenizer_max_length": 32},
    ),
    variant(
        "GlmImagePipeline",
        GLM,
        SIZE | GUIDED | {"prior_token_ids": partial(torch.zeros, 1, 256, dtype=torch.long)},
        2,
    ),
    variant(
        "ErnieImagePipeline",
        ERNIE,
        SIZE | {"prompt_embeds": partial(as_list, cut.PROMPT["prompt_embeds"])},
    ),
    variant(
        "HunyuanVideo15Pipeline",
        cut.HUNYUAN15 | GUIDER | HUNYUAN15_VAE,
        SIZE | GUIDED | GUIDED_MASKED | cut.SECOND | {"num_frames": 5},
        2,
        settings={"vision_num_semantic_tokens": 4},
    ),
    variant(
        "HunyuanImagePipeline",
        HUNYUAN_IMAGE,
        {"height": 16, "width": 16} | GUIDED | GUIDED_MASKED | cut.SECOND,
        2,
    ),
    variant("Cosmos2TextToImagePipeline", cosmos(), COSMOS_CALL, 2),
    variant(
        "Cosmos2VideoToWorldPipeline",
        cosmos(in_channels=base.WAN_CHANNELS + 1),
        COSMOS_CALL | pictures(32) | {"num_frames": 5},
        2,
    ),
    variant(
        "Kandinsky5T2IPipeline",
        kandinsky(base.CHANNELS, base.image_vae(), conditioned=False),
        SIZE | KANDINSKY_CALL,
        2,
        settings={"resolutions": [(64, 64)]},
    ),
    variant(
        "Kandinsky5T2VPipeline",
        kandinsky(base.CHANNELS, base.HUNYUAN["vae"], conditioned=False),
        SIZE | KANDINSKY_CALL | {"num_frames": 5},
        2,
    ),
    variant("PRXPipeline", PRX, SIZE | GUIDED | ATTENTION | {"use_resolution_binning": False}),
    variant("SanaVideoPipeline", SANA_VIDEO, SANA_VIDEO_CALL),
    variant("SanaImageToVideoPipeline", SANA_VIDEO, SANA_VIDEO_CALL),
    variant("NucleusMoEImagePipeline", NUCLEUS, SIZE | GUIDED | GUIDED_MASKED, 2),
    variant("LuminaPipeline", LUMINA_NEXT, base.guided(32, 4.0, max_sequence_length=32)),
    variant("BriaFiboPipeline", FIBO, base.guided(32, 4.0, max_sequence_length=64)),
    variant("MotifVideoPipeline", MOTIF, SIZE | GUIDED | ATTENTION | {"num_frames": 5}, 2),
    variant("JoyImageEditPipeline", JOY, SIZE | GUIDED | GUIDED_MASKED | pictures(64), 2),
]
