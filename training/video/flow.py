"""Train transformer and text encoder together, in chunks that go on from each other.

    python -m training.video.flow --seconds 900

A chunk leaves ``flow.pt`` in the work folder every few minutes and at its end; the next goes on
from it. On another machine ``--start FOLDER`` begins with an exported model's weights instead. Over
the second half of ``--total`` the learning rate falls to zero; the export is of averaged weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor, nn

from training.emoji import WORK as STILLS
from training.flow import Clock
from training.video import text, whole
from training.video.autoencoder import prepare
from training.video.config import TRANSFORMER, WORK
from training.video.corpus import Corpus, load_bank, load_corpus
from training.video.render import Bank, render, signed

RATE, WARM_UP, DECAY_FROM = 1e-3, 500, 0.45
NOISY = 0.5  # mean of the logit of t: what moves where is settled near t = 1
EMA = 0.9995
SAVE_EVERY = 240.0  # seconds
NOTED = 100  # steps in a line of the curve
DROPPED = 0.1  # share of captions left out, for guidance


class Examples(NamedTuple):
    """What the model is trained on, on the device."""

    latents: Tensor  # (clips, channels, frames, side, side), of unit variance
    ids: Tensor  # (clips, captions, TOKENS)
    empty: Tensor  # (TOKENS,): no caption


class Pair(nn.Module):
    """Transformer and text encoder, whose weights are trained and averaged as one."""

    def __init__(self, transformer: Any, encoder: Any) -> None:
        super().__init__()
        self.transformer, self.encoder = transformer, encoder


class State(NamedTuple):
    """The models, what trains them, and how far they are."""

    model: Pair
    average: Pair
    optimizer: torch.optim.Optimizer
    done: dict[str, float]  # step, seconds
    curve: list[dict[str, float]]


def main() -> None:
    """Prepare the examples, load or make the model, train one chunk and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900, help="of this chunk, at most")
    parser.add_argument("--total", type=float, help="seconds of all chunks [default: this one's]")
    parser.add_argument("--until", type=float, help="stop by this time of the clock (Unix)")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--start", type=Path, help="folder of an exported model to begin with")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--pictures", type=Path, default=STILLS / "emoji.npz")
    parser.add_argument("--animations", type=Path, default=WORK / "animations.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    prepare()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = load_tokenizer(options.start or options.out)
    examples = load_examples(options, tokenizer, device)
    state = resume(options, tokenizer, device)
    torch.manual_seed(1000 + int(state.done["step"]))
    train(state, examples, options)
    save(state, options.out)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer the corpus was cut with."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")


def load_examples(options: argparse.Namespace, tokenizer: Any, device: str) -> Examples:
    """Latents of all clips, drawn and encoded on the device, and the captions' tokens."""
    started = time.monotonic()
    bank = load_bank(options.pictures, options.animations, device)
    corpus = load_corpus(options.out / "corpus.pt")
    vae = AutoencoderKLWan.from_pretrained(options.out / "vae").to(device).eval()
    latents = encode_clips(vae, corpus, bank)
    empty = text.token_ids(tokenizer, [""])[0].to(device)
    print(f"{len(latents)} clips encoded in {time.monotonic() - started:.0f} s", flush=True)
    return Examples(latents, corpus.ids.to(device), empty)


@torch.no_grad()
def encode_clips(vae: Any, corpus: Corpus, bank: Bank, batch: int = 128) -> Tensor:
    """Latents of unit variance, in bfloat16, of every clip of the corpus."""
    mean, deviation = (
        torch.tensor(values, device=vae.device).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    parts = []
    for n in range(0, len(corpus.arrays), batch):
        clip = signed(render(corpus.arrays[slice(n, n + batch)], bank))
        with torch.autocast(vae.device.type, torch.bfloat16):
            latents, _ = whole.encode(vae, clip.contiguous(memory_format=torch.channels_last_3d))
        parts.append(((latents.float() - mean) / deviation).bfloat16().contiguous())
    return torch.cat(parts)


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
    from transformers import UMT5EncoderModel

    transformer = WanTransformer3DModel.from_pretrained(folder / "transformer")
    encoder = UMT5EncoderModel.from_pretrained(folder / "text_encoder")
    return Pair(transformer.float(), encoder.float())


def resume(options: argparse.Namespace, tokenizer: Any, device: str) -> State:
    """The state of the last chunk, of an exported model, or a new one."""
    model = exported(options.start) if options.start else fresh(tokenizer)
    model = model.to(device).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=device == "cuda"
    )
    state = State(model, average, optimizer, {"step": 0, "seconds": 0.0}, [])
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f}M parameters", flush=True)
    path = options.out / "flow.pt"
    if path.exists():
        kept = torch.load(path, map_location=device, weights_only=True)
        for part in ("model", "average", "optimizer"):
            getattr(state, part).load_state_dict(kept[part])
        state.done.update(kept["done"])
        state.curve.extend(kept["curve"])
    return state


def save(state: State, out: Path) -> None:
    """The state to go on from, the averaged weights and the loss curve."""
    parts = ("model", "average", "optimizer")
    kept = {part: getattr(state, part).state_dict() for part in parts}
    torch.save({**kept, "done": state.done, "curve": state.curve}, out / "flow.part")
    (out / "flow.part").replace(out / "flow.pt")
    state.average.transformer.save_pretrained(out / "transformer")
    state.average.encoder.save_pretrained(out / "text_encoder")
    (out / "flow.jsonl").write_text("".join(json.dumps(r) + "\n" for r in state.curve))


def train(state: State, examples: Examples, options: argparse.Namespace) -> None:
    """One chunk; the clock runs while steps are made, not while the model compiles."""
    compiled = examples.latents.device.type == "cuda" and not options.no_compile
    run = torch.compile(state.model.transformer) if compiled else state.model.transformer
    flow_loss(run, state.model.encoder, draw(examples, options.batch)).backward()  # compiles
    state.optimizer.zero_grad(set_to_none=True)
    end, total = limits(options, state.done["seconds"])
    clock, saved, recent = Clock(state.done["seconds"]), state.done["seconds"], []
    clock.restart()
    while state.done["seconds"] < end:
        loss = flow_loss(run, state.model.encoder, draw(examples, options.batch))
        update(state, loss, rate_at(int(state.done["step"]), state.done["seconds"] / total))
        recent.append(loss.detach())
        if len(recent) == NOTED:
            note(state, recent, options.batch, len(examples.latents))
            recent = []
        state.done["seconds"] = clock.read()
        if state.done["seconds"] - saved > SAVE_EVERY:
            save(state, options.out)
            saved = state.done["seconds"]


def limits(options: argparse.Namespace, done: float) -> tuple[float, float]:
    """Counted seconds at which this chunk ends, and at which the last one will."""
    left = options.seconds if options.until is None else options.until - time.time()
    end = done + max(0.0, min(options.seconds, left))
    total = max(end, options.total) if options.total and options.until is None else end
    return end, max(total, 1e-6)


def note(state: State, recent: list[Tensor], batch: int, clips: int) -> None:
    """One line of the loss curve; printed now and then."""
    step, seconds = int(state.done["step"]), round(state.done["seconds"], 1)
    loss = torch.stack(recent).mean().item()  # waits for the device, so that seconds are true
    record = {"step": step, "seconds": seconds, "loss": loss}
    state.curve.append({**record, "samples": step * batch, "clips": clips})
    if step % 1000 == 0:
        print(json.dumps(state.curve[-1]), flush=True)


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
        averages, weights = list(state.average.parameters()), list(state.model.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)
    state.done["step"] = step + 1


def rate_at(step: int, done: float) -> float:
    """Warm-up, then constant, then linear to zero over the last part of the total."""
    return RATE * min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.0, (1 - done) / (1 - DECAY_FROM)))


def draw(examples: Examples, count: int) -> tuple[Tensor, Tensor]:
    """A batch: latents with the tokens of one of their captions, some of them left out."""
    latents, ids, empty = examples
    chosen = torch.randint(len(latents), (count,), device=latents.device)
    which = torch.randint(ids.shape[1], (count,), device=latents.device)
    dropped = torch.rand(count, device=latents.device) < DROPPED
    words = torch.where(dropped[:, None], empty, ids[chosen, which])
    return latents[chosen].float(), words


def flow_loss(transformer: Any, encoder: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared error of the velocity noise - data at logit-normal times."""
    data, words = batch
    device = data.device.type
    noise = torch.randn_like(data)
    t = torch.sigmoid(NOISY + torch.randn(len(data), device=device))
    x = torch.lerp(data, noise, t[:, None, None, None, None])
    with torch.autocast(device, torch.bfloat16):
        states = text.encode(encoder, words)
        v = transformer(
            hidden_states=x,
            timestep=1000 * t,
            encoder_hidden_states=states,
            return_dict=False,
        )[0]
    return (v.float() - (noise - data)).square().mean()


if __name__ == "__main__":
    main()
