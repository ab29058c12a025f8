"""Tiny text and vision encoders from transformers, one function per architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.tiny.tokenizers import clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from transformers import (
        CLIPTextModel,
        CLIPTextModelWithProjection,
        CLIPVisionModel,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        Siglip2VisionModel,
        T5EncoderModel,
        UMT5EncoderModel,
    )

WIDTH = 32


def clip_text(pooled: bool = False) -> CLIPTextModel | CLIPTextModelWithProjection:
    """CLIP's text tower; `pooled` adds the projection SD3, SDXL and HiDream read."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        projection_dim=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if pooled else CLIPTextModel)(config)


def t5_shape(width: int) -> dict[str, int]:
    """The sizes shared by T5 and UMT5."""
    return {
        "vocab_size": len(t5_tokenizer()),
        "d_model": width,
        "d_kv": 16,
        "d_ff": width,
        "num_layers": 1,
        "num_heads": 2,
    }


def t5_text(width: int = WIDTH) -> T5EncoderModel:
    """T5's encoder, gated as in version 1.1."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **t5_shape(width)))


def umt5_text() -> UMT5EncoderModel:
    """The multilingual T5 of Wan and AuraFlow."""
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(UMT5Config(**t5_shape(WIDTH)))


def clip_vision(width: int = WIDTH, size: int = 16, patch: int = 8) -> CLIPVisionModel:
    """CLIP's image tower, as Wan's image-to-video reads pictures of this size."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=size,
            patch_size=patch,
        )
    )


def siglip_vision() -> Siglip2VisionModel:
    """SigLIP 2's image tower, for pictures cut into 16 patches at most."""
    from transformers import Siglip2VisionConfig, Siglip2VisionModel

    return Siglip2VisionModel(
        Siglip2VisionConfig(
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_patches=16,
            patch_size=8,
        )
    )


def decoder_shape(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The sizes shared by the decoder-only language models."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // 2,
        "max_position_embeddings": 1024,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def decoder(model: str, tokenizer: PreTrainedTokenizerBase, **overrides: int) -> PreTrainedModel:
    """A decoder-only language model by its class name, read for its hidden states."""
    import transformers

    model_class = getattr(transformers, model)
    return model_class(model_class.config_class(**decoder_shape(tokenizer) | overrides))


def qwen_vision_language(tokenizer: PreTrainedTokenizerBase, layers: int = 2) -> PreTrainedModel:
    """Qwen 2.5 VL, with a vision tower of one block."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}
    vision = {
        "depth": 1,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "out_hidden_size": WIDTH,
        "num_heads": 2,
        "fullatt_block_indexes": [0],
    }
    marks = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    text = {"rope_parameters": rope, "num_hidden_layers": layers}
    config = Qwen2_5_VLConfig(
        text_config=decoder_shape(tokenizer) | text,
        vision_config=vision,
        **{name: tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()},
    )
    return Qwen2_5_VLForConditionalGeneration(config)
