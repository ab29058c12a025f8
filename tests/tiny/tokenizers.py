"""Character-level tokenizers built in code: any prompt works and no file is read."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from tokenizers.pre_tokenizers import ByteLevel

if TYPE_CHECKING:
    from transformers import CLIPTokenizer, GemmaTokenizer, Qwen2Tokenizer, T5Tokenizer

BYTES = sorted(ByteLevel.alphabet())
# Only the user's words: a system message would swamp a prompt of some twenty characters.
CHAT = (
    "{% for message in messages if message.role == 'user' %}<|im_start|>"
    "{{ message.content if message.content is string else message.content[0].text }}"
    "<|im_end|>{% endfor %}"
)
VISION = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
LETTERS = string.ascii_letters + string.digits + string.punctuation


def numbered(tokens: list[str]) -> dict[str, int]:
    """A vocabulary: each token and its place."""
    return {token: index for index, token in enumerate(tokens)}


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's, with the end token last, where CLIP's pooling expects the largest id."""
    from transformers import CLIPTokenizer

    word_ends = [byte + "</w>" for byte in BYTES]
    vocab = numbered([*BYTES, *word_ends, "<|startoftext|>", "<|endoftext|>"])
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)


def t5_tokenizer() -> T5Tokenizer:
    """T5's unigram model, also good for UMT5, with one piece per character."""
    from transformers import T5Tokenizer

    pieces = [(letter, -1.0) for letter in LETTERS]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *pieces]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def byte_tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE with Qwen's marks, good for every decoder-only text encoder."""
    from transformers import Qwen2Tokenizer

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISION]
    tokenizer = Qwen2Tokenizer(
        vocab=numbered([*BYTES, *marks]), merges=[], chat_template=CHAT, model_max_length=1024
    )
    tokenizer.add_tokens(marks, special_tokens=True)
    return tokenizer


def gemma_tokenizer() -> GemmaTokenizer:
    """Gemma's, with one piece per character."""
    from transformers import GemmaTokenizer

    vocab = numbered(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *LETTERS])
    return GemmaTokenizer(vocab=vocab, merges=[], model_max_length=512)
