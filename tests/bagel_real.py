"""The real BAGEL of a user's checkout with tiny random weights, on a CPU.

`BAGEL_PATH` names the checkout. It needs transformers 4.49 to 4.57; flash attention is replaced by
PyTorch's own, and the autoencoder by the stand-in's.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import types
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bagel_stand_in import WORDS, Autoencoder, Config, Qwen2Tokenizer, add_special_tokens
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

PATH = os.environ.get("BAGEL_PATH")
needs_checkout = pytest.mark.skipif(not PATH, reason="BAGEL_PATH names no checkout")


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    """Attention within each packed sequence; a causal mask is aligned at the end."""
    found, groups = [], q.shape[1] // k.shape[1]
    spans = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    for (q0, k0), (q1, k1) in pairwise(spans):
        mask = None
        if causal:
            mask = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        one = scaled_dot_product_attention(
            q[q0:q1].transpose(0, 1)[None],
            k[k0:k1].repeat_interleave(groups, 1).transpose(0, 1)[None].to(q.dtype),
            v[k0:k1].repeat_interleave(groups, 1).transpose(0, 1)[None].to(q.dtype),
            attn_mask=mask,
        )
        found.append(one[0].transpose(0, 1))
    return torch.cat(found)


def stand_before_flash_attention() -> None:
    """Put the stand-in where BAGEL imports it from, after transformers has looked for it."""
    importlib.import_module("transformers.utils")
    if "flash_attn" not in sys.modules:
        module: Any = types.ModuleType("flash_attn")
        module.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
        module.flash_attn_varlen_func = flash_attn_varlen_func
        sys.modules["flash_attn"] = module


def import_bagel() -> tuple[Any, Any]:
    """`modeling.bagel` and `inferencer` of the checkout."""
    stand_before_flash_attention()
    path = str(Path(str(PATH)).resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    return importlib.import_module("modeling.bagel"), importlib.import_module("inferencer")


def tiny_configs(bagel: Any) -> tuple[Any, Any]:
    """Of the language model and the vision encoder."""
    llm = bagel.Qwen2Config(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        qk_norm=True,
        tie_word_embeddings=False,
        layer_module="Qwen2MoTDecoderLayer",
        pad_token_id=0,
    )
    vit = bagel.SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
        rope=False,
    )
    return llm, vit


def _with_velocity(bagel: Any, llm: Any, vit: Any, config: Any) -> Any:
    """The model, with random numbers where BAGEL starts at zero."""
    model = bagel.Bagel(bagel.Qwen2ForCausalLM(llm), bagel.SiglipVisionModel(vit), config)
    torch.nn.init.normal_(model.llm2vae.weight, std=0.2)
    return model


def inferencer() -> Any:
    """The checkout's own inferencer around a tiny random model, under bfloat16 on the CPU."""
    bagel, inference = import_bagel()

    class OnCPU(inference.InterleaveInferencer):  # the original asks for CUDA's autocast only
        def __call__(self, *args: Any, **call: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return super().__call__(*args, **call)

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        llm, vit = tiny_configs(bagel)
        config = bagel.BagelConfig(
            llm_config=llm,
            vit_config=vit,
            vae_config=Config(downsample=8, z_channels=16),
            latent_patch_size=2,
            max_latent_size=64,
            _name_or_path="tiny-bagel",
        )
        model = _with_velocity(bagel, llm, vit, config)
        vae = Autoencoder()
    tokenizer, ids, _ = add_special_tokens(Qwen2Tokenizer())
    return OnCPU(model.eval(), vae, tokenizer, None, None, ids)


def write_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny weights in BAGEL's files; its autoencoder is made tiny too, and torchvision stood in."""
    from safetensors.torch import save_file

    stand_before_flash_attention()
    _stand_before_torchvision(monkeypatch)
    bagel, _ = import_bagel()
    autoencoder = importlib.import_module("modeling.autoencoder")
    full = autoencoder.AutoEncoderParams
    small = {"ch": 32, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    monkeypatch.setattr(autoencoder, "AutoEncoderParams", lambda **fields: full(**fields | small))
    vae, vae_config = autoencoder.load_ae(None)
    llm, vit = tiny_configs(bagel)
    config = bagel.BagelConfig(
        llm_config=llm, vit_config=vit, vae_config=vae_config, max_latent_size=64
    )
    model = _with_velocity(bagel, llm, vit, config)
    model.vit_model.vision_model.embeddings.convert_conv2d_to_linear(vit)
    folder.mkdir()
    vit.num_hidden_layers += 1  # the file's has the layer that BAGEL leaves out
    llm.to_json_file(folder / "llm_config.json")
    vit.to_json_file(folder / "vit_config.json")
    words = {chr(33 + i): i for i in range(WORDS - 5)} | {"<|endoftext|>": WORDS - 5}
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    save_file(vae.state_dict(), folder / "ae.safetensors")
    save_file(model.state_dict(), folder / "ema.safetensors")
    return folder


def _stand_before_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What BAGEL's picture transforms name at import; no picture is transformed here."""
    vision, transforms = types.ModuleType("torchvision"), types.ModuleType("torchvision.transforms")
    functional: Any = types.ModuleType("torchvision.transforms.functional")
    transforms.functional = functional  # type: ignore[attr-defined]
    transforms.InterpolationMode = types.SimpleNamespace(BICUBIC=3)  # type: ignore[attr-defined]
    for name in ("ToTensor", "Normalize"):
        setattr(transforms, name, lambda **_: None)
    vision.transforms = transforms  # type: ignore[attr-defined]
    for module in (vision, transforms, functional):
        monkeypatch.setitem(sys.modules, module.__name__, module)
