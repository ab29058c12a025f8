"""Pipelines whose parts or whose calls are like no other's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from tests.tiny import configurations as base
from tests.tiny import further_embedded as embedded
from tests.tiny.configurations import WIDTH, part
from tests.tiny.encoders import t5_text
from tests.tiny.further import pictures, variant, with_transformer
from tests.tiny.further_embedded import ATTENTION, POOLED
from tests.tiny.further_modular import GUIDED, MASK, PROMPT, SIZE, TOKENS, embeddings
from tests.tiny.modular import SILENT, modular
from tests.tiny.pictures import clip, picture


def encoding(*beside: Any) -> Any:
    """An encoder that reads no word: for each prompt the same numbers, and what goes with them."""

    def encode(*_: Any, prompts: Any = (None,), **__: Any) -> tuple[Any, ...]:
        return embeddings(len(prompts), TOKENS, WIDTH)(), *beside

    return encode


class Blind:
    """Stands for a processor of pictures that is not asked for any."""

    image_processor = None


def with_config(make: Any, **more: Any) -> Any:
    """A part whose configuration says more than its class takes."""
    made = make()
    made.register_to_config(**more)
    return made


def siglip() -> Any:
    """The first SigLIP's image tower."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    return SiglipVisionModel(
        SiglipVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
        )
    )


def siglip_processor() -> Any:
    """Its processor."""
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return SiglipImageProcessorPil(size={"height": 16, "width": 16})


DREAM = {
    "scheduler": base.flow_euler(),
    "text_encoder": t5_text,  # whose dtype is asked for
    "vae": part(
        "AutoencoderTiny",
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    "unet": part(
        "DreamLiteUNetModel",
        sample_size=8,
        down_block_types=(
            "DreamLiteCrossAttnNoSelfAttnDownBlock2D",
            "DreamLiteCrossAttnDownBlock2D",
        ),
        up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"),
        block_out_channels=(16, 32),
        attention_head_dim=8,
        num_attention_heads=None,
        layers_per_block=1,
        norm_num_groups=8,
    ),
}
PROTEIN = {
    "nlayers": 1,
    "nheads": 2,
    **dict.fromkeys(("token_dim", "dim_cond", "pair_repr_dim", "latent_dim"), 16),
}
BY_UNET = {"denoisers": ("unet",)}

TABLE = [
    variant(
        "LongCatImageEditPipeline",
        embedded.LONGCAT | {"text_processor": Blind, "vae": base.image_vae(16)},
        {"prompt": base.PROMPT, "guidance_scale": 4.0} | pictures(64),
        2,
        settings={"encode_prompt": encoding(torch.zeros(TOKENS, 3))},
    ),
    variant(
        "JoyImageEditPlusPipeline",
        embedded.JOY
        | {
            "transformer": part(
                "JoyImageEditPlusTransformer3DModel",
                in_channels=base.WAN_CHANNELS,
                rope_dim_list=[4, 6, 6],
            )
        },
        base.guided(64, 4.0, images=partial(lambda: [[picture(64)]])),
        settings={"encode_prompt_multiple_images": encoding(MASK())},
    ),
    variant(
        "Kandinsky6SRPipeline",
        {
            "scheduler": base.flow_euler(shift=5.0),
            "vae": part(
                "Kandinsky6SRVAE",
                latent_channels=base.CHANNELS,
                encoder_block_out_channels=(16, 16),
                decoder_block_out_channels=(16, 16),
                layers_per_block=1,
                temporal_compression_ratio=1,
                temporal_compression_start_level=0,
            ),
            "transformer": part(
                "Kandinsky6SRTransformer3DModel",
                in_visual_dim=base.CHANNELS,
                out_visual_dim=base.CHANNELS,
                axes_dims=(4, 4, 8),
                tile_sizes=((16, 16),),
            ),
        },
        {"video": partial(clip, 8, 1), "resolution_scale": 2},
        latent_output="pt",
    ),
    modular("LTX25ModularPipeline", "LTX25AutoBlocks", "ltx2", 4, **SILENT),
    variant(
        "HunyuanVideoImageToVideoPipeline",
        with_transformer(
            base.HUNYUAN,
            in_channels=2 * base.CHANNELS + 1,
            image_condition_type="latent_concat",
            guidance_embeds=False,
        ),
        {"height": 16, "width": 16, "num_frames": 5} | GUIDED | POOLED | ATTENTION | pictures(16),
    ),
    variant(
        "EasyAnimateControlPipeline",
        with_transformer(embedded.EASY, in_channels=3 * base.CHANNELS),
        SIZE | GUIDED | ATTENTION | {"num_frames": 5, "control_video": embeddings(1, 3, 5, 64, 64)},
        settings={"encode_prompt": encoding(embeddings(seed=1)(), MASK(), MASK())},
    ),
    variant(
        "EasyAnimateInpaintPipeline",
        with_transformer(embedded.EASY, in_channels=2 * base.CHANNELS + 1),
        SIZE | GUIDED | ATTENTION | {"num_frames": 5},
    ),
    variant(
        "ChromaInpaintPipeline",
        base.CHROMA
        | {"transformer": partial(with_config, base.CHROMA["transformer"], guidance_embeds=False)},
        base.guided(32, 3.0, max_sequence_length=32) | pictures(32),
        2,
    ),
    variant(
        "Cosmos2_5_PredictBasePipeline",
        embedded.cosmos(in_channels=base.WAN_CHANNELS + 1) | {"scheduler": base.unipc()},
        base.guided(32, 3.0, num_frames=5) | GUIDED | {"prompt": None, "negative_prompt": None},
        2,
    ),
    variant(
        "VisualClozeGenerationPipeline",
        base.flux_parts(base.FILL_INPUT) | {"resolution": 32},
        {
            "task_prompt": "edges to a picture",
            "content_prompt": base.PROMPT,
            "image": partial(lambda: [[picture(32), picture(32, 1)], [picture(32, 2), None]]),
            "guidance_scale": 5.0,
            "max_sequence_length": 32,
        },
    ),
    variant(
        "DreamLitePipeline",
        DREAM,
        base.guided(32, 3.5),
        settings={"encode_prompt": encoding(torch.ones(2, TOKENS))},
        **BY_UNET,
    ),
    variant(
        "DreamLiteMobilePipeline",
        DREAM,
        base.sized(32),
        settings={"encode_prompt": encoding(MASK())},
        **BY_UNET,
    ),
    variant(
        "BriaFibo2Pipeline",
        {
            "scheduler": base.BY_SIZE,
            "vae": base.FLUX2["vae"],
            "transformer": part(
                "BriaFibo2Transformer2DModel",
                in_channels=base.CHANNELS,
                injection_layer_ids=(0,),
                perceiver_num_layers=1,
                min_num_gist_tokens=4,
                max_num_gist_tokens=8,
                gist_step=4,
                gist_min_text_len=4,
                gist_max_text_len=32,
                axes_dims=(4, 6, 6),
                axes_lens=(64, 32, 32),
            ),
        },
        SIZE
        | {"guidance_scale": 4.0, "prompt_embeds": embeddings(1, 2, TOKENS, WIDTH)}
        | {"negative_prompt_embeds": embeddings(1, 2, TOKENS, WIDTH, seed=1)},
        2,
    ),
    variant(
        "AnyFlowFARPipeline",
        base.WAN
        | {
            "scheduler": part("FlowMapEulerDiscreteScheduler"),
            "transformer": part(
                "AnyFlowFARTransformer3DModel", **base.WAN_BACKBONE, chunk_partition=(2,)
            ),
        },
        base.WAN_CALL,
    ),
    variant(
        "HunyuanImageRefinerPipeline",
        {
            "scheduler": base.flow_euler(shift=4.0),
            "vae": part(
                "AutoencoderKLHunyuanImageRefiner",
                latent_channels=base.CHANNELS,
                block_out_channels=(32, 32, 32),
                layers_per_block=1,
                spatial_compression_ratio=4,
                temporal_compression_ratio=4,
            ),
            "transformer": part(
                "HunyuanImageTransformer2DModel",
                in_channels=4 * base.CHANNELS,  # two frames of the picture, and of noise
                out_channels=2 * base.CHANNELS,
                patch_size=(1, 1, 1),
                guidance_embeds=True,
            ),
        },
        {"height": 32, "width": 32} | PROMPT | {"prompt_embeds_mask": MASK} | pictures(32),
    ),
    variant(
        "HunyuanVideoFramepackPipeline",
        base.HUNYUAN
        | {
            "transformer": part(
                "HunyuanVideoFramepackTransformer3DModel",
                **base.TO_LATENTS,
                has_image_proj=True,
                image_proj_dim=WIDTH,
                has_clean_x_embedder=True,
            ),
            "image_encoder": siglip,
            "feature_extractor": siglip_processor,
        },
        base.HUNYUAN_CALL
        | pictures(32)
        | {"height": 32, "width": 32, "num_frames": 9, "latent_window_size": 3},
    ),
    variant(
        "LongCatAudioDiTPipeline",
        {
            **base.UMT5,
            "vae": part(
                "LongCatAudioDiTVae",
                channels=8,
                c_mults=[1, 2],
                strides=[2],
                latent_dim=8,
                encoder_latent_dim=16,
                downsampling_ratio=2,
            ),
            "transformer": part(
                "LongCatAudioDiTTransformer",
                dit_dim=WIDTH,
                dit_depth=1,
                dit_heads=2,
                dit_text_dim=WIDTH,
                latent_dim=8,
                text_conv=False,
            ),
        },
        {"prompt": base.PROMPT, "audio_duration_s": 0.01, "guidance_scale": 4.0},
        2,
    ),
    variant(
        "PRXPixelPipeline",
        {
            "scheduler": base.flow_euler(),
            "transformer": part(
                "PRXTransformer2DModel",
                patch_size=4,
                in_channels=3,
                axes_dim=[8, 8],
                bottleneck_size=8,
                resolution_embeds=True,
            ),
        },
        {"height": 32, "width": 32}
        | GUIDED
        | ATTENTION
        | {"negative_prompt": None, "use_resolution_binning": False},
        latent_output="pt",
    ),
    variant("SanaWMLTX2Refiner", {"scheduler": base.flow_euler()}, {}),
    variant(
        "SanaWMPipeline",
        {
            "scheduler": base.flow_euler(shift=5.0),
            "vae": partial(
                base.LTX2["vae"], spatial_compression_ratio=8, temporal_compression_ratio=8
            ),
            "transformer": part(
                "SanaWMTransformer3DModel",
                in_channels=base.CHANNELS,
                linear_head_dim=16,
                softmax_every_n=1,
                chunk_plucker_post_attn_blocks=1,
                mixed_precision="fp32",
            ),
        },
        base.sized(64, num_frames=9)
        | GUIDED
        | ATTENTION
        | {
            "image": partial(picture, 64),
            "c2w": partial(lambda: np.tile(np.eye(4, dtype=np.float32), (9, 1, 1))),
            "intrinsics": partial(lambda: np.tile([64.0, 64.0, 32.0, 32.0], (9, 1))),
            "guidance_scale": 4.0,
        },
    ),
    variant("LTX2VideoDiffusionDecodePipeline", {"scheduler": base.flow_euler()}, {}),
    variant(
        "RFD4ProteinaPipeline",
        {
            "transformer": part("RFD4ProteinaTransformer", **PROTEIN, tri_mult_c=16),
            "vae": part(
                "RFD4ProteinaAutoencoder",
                **PROTEIN,
                atom37_mask=[[True] * 37] * 147,
                allowed_residue_types=[[True] * 147] * 7,
            ),
            **dict.fromkeys(
                ("bb_ca_scheduler", "local_latents_scheduler"),
                part(
                    "RFD4ProteinaScheduler",
                    schedule_mode="log",
                    noise_mode="tan",
                    tsr_k=1.0,
                    tsr_sigma=1.0,
                ),
            ),
        },
        {},
    ),
    variant(
        "LTX2DFRPipeline",
        with_transformer(base.LTX2, use_keyframes_abs_pos_embedding=True)
        | {"scheduler": base.flow_euler()},
        base.LTX2_CALL
        | {"num_frames": 17, "sigmas": partial(lambda: [1 - n / 8 for n in range(8)])},
        takes_steps=False,
    ),
]
