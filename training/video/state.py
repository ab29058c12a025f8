"""The flow's training state: made new, read from an exported model, gone on from, and saved."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from training.video import text
from training.video.config import TRANSFORMER
from training.video.muon import Both

EMA = 0.9995  # at most; early on a ninth of the steps so far
PARTS = ("model", "average", "optimizer")
# AdamW's: what numbers enter and leave by, and tables; all other matrices are Muon's.
APART = (
    "patch_embedding",
    "proj_out",
    "condition_embedder",
    "scale_shift_table",
    "shared",
    "relative_attention_bias",
)


class Pair(nn.Module):
    """Transformer and text encoder, whose weights are trained and averaged as one."""

    def __init__(self, transformer: Any, encoder: Any) -> None:
        super().__init__()
        self.transformer, self.encoder = transformer, encoder


class State(NamedTuple):
    """The models, what trains them, and how far they are."""

    model: Pair
    average: Pair
    optimizer: Both
    done: dict[str, float]  # step, seconds
    curve: list[dict[str, float]]


def fresh(tokenizer: Any) -> Pair:
    """New models; the last layer and the modulation by time start at nothing, as in DiT."""
    torch.manual_seed(0)
    transformer = WanTransformer3DModel(**TRANSFORMER)
    time_proj = transformer.condition_embedder.time_proj
    for weight in (transformer.proj_out.weight, transformer.proj_out.bias, time_proj.weight):
        nn.init.zeros_(weight)
    encoder = text.make_encoder(tokenizer)
    with torch.no_grad():
        encoder.shared.weight.mul_(0.1)  # so that steps of Adam's size move it
    return Pair(transformer, encoder)


def exported(folder: Path) -> Pair:
    """The models of an exported folder, in full precision."""
    transformer = WanTransformer3DModel.from_pretrained(folder / "transformer")
    return Pair(transformer.float(), text.load_encoder(folder / "text_encoder"))


def resume(out: Path, tokenizer: Any, device: str, start: Path | None = None) -> State:
    """The state of the last chunk, of an exported model, or a new one."""
    model = exported(start) if start else fresh(tokenizer)
    model = model.to(device).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = Both(model, APART, betas=(0.9, 0.98), weight_decay=0.01)
    state = State(model, average, optimizer, {"step": 0, "seconds": 0.0}, [])
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f}M parameters", flush=True)
    path = out / "flow.pt"
    if path.exists():
        kept = torch.load(path, map_location=device, weights_only=True)
        for part in PARTS:
            getattr(state, part).load_state_dict(kept[part])
        state.done.update(kept["done"])
        state.curve.extend(kept["curve"])
        print(f"going on from step {state.done['step']:.0f}", flush=True)
    return state


def save(state: State, out: Path) -> None:
    """The averaged weights in half precision, the loss curve, and the state to go on from."""
    out.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(state.average).half()
    replace(half.transformer, out / "transformer")
    replace(half.encoder, out / "text_encoder")
    (out / "flow.jsonl").write_text("".join(json.dumps(r) + "\n" for r in state.curve))
    kept = {part: getattr(state, part).state_dict() for part in PARTS}
    torch.save({**kept, "done": state.done, "curve": state.curve}, out / "flow.part")
    (out / "flow.part").replace(out / "flow.pt")


def replace(model: Any, folder: Path) -> None:
    """Save a model so that its folder is whole at any time but for an instant."""
    draft = folder.with_name(folder.name + ".part")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def update(state: State, loss: Tensor, rate: float) -> None:
    """One step of the optimizer and of the average."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    step = state.done["step"]
    decay = min(EMA, (step + 1) / (step + 10))
    with torch.no_grad():
        averages, weights = (tuple(one.parameters()) for one in (state.average, state.model))
        torch._foreach_lerp_(averages, weights, 1 - decay)
    state.done["step"] = step + 1
