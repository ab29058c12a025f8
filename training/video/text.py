"""Tokenizer and text encoder: byte-pair pieces of our captions, and a small UMT5 trained along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.text import token_ids as padded_ids
from training.video.config import TEXT_ENCODER, TOKENS

PIECES = 2400
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
# On some devices and releases the faster attention wants the learned bias in another order.
ATTENTION = "eager"
ALPHABET = list("abcdefghijklmnopqrstuvwxyz0123456789-',.")


def make_tokenizer(captions: Iterable[str], pieces: int = PIECES) -> Any:
    """Lower-case byte-pair pieces; words of the captions are mostly whole, others fall apart."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = BpeTrainer(
        vocab_size=pieces,
        special_tokens=[PAD, END, UNKNOWN],
        initial_alphabet=[*ALPHABET, "▁"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=TOKENS,
    )


def token_ids(tokenizer: Any, captions: Sequence[str]) -> Tensor:
    """Return token ids (captions, TOKENS) in as few bytes as a corpus needs."""
    return padded_ids(tokenizer, captions, TOKENS).to(torch.int16)


def make_encoder(tokenizer: Any, **overrides: Any) -> Any:
    """A fresh encoder for the tokenizer's pieces."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{**TEXT_ENCODER, **overrides},
    )
    encoder = UMT5EncoderModel(config)
    encoder.set_attn_implementation(ATTENTION)
    return encoder


def load_encoder(folder: Path) -> Any:
    """A saved encoder, in full precision."""
    from transformers import UMT5EncoderModel

    return UMT5EncoderModel.from_pretrained(folder, attn_implementation=ATTENTION).float()


def encode(encoder: Any, ids: Tensor) -> Tensor:
    """States of the tokens, zero beyond a prompt's end, as WanPipeline gives them."""
    ids = ids.long()
    mask = ids != encoder.config.pad_token_id
    states: Tensor = encoder(ids, mask).last_hidden_state
    return states * mask[..., None]
