"""Train transformer and text encoder together, in chunks that go on from each other.

    python -m training.video.flow --seconds 900

A chunk leaves ``flow.pt`` in the work folder every few minutes and at its end; the next goes on
from it. On another machine ``--start FOLDER`` begins with an exported model's weights instead. Over
the second half of ``--total`` the learning rate falls to zero; the export is of averaged weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from training.emoji import WORK as STILLS
from training.video import text, whole
from training.video.autoencoder import channels_last, prepare
from training.video.config import CHANNELS, LATENT_FRAMES, LATENT_SIDE, WORK
from training.video.corpus import Corpus, load_bank, load_corpus
from training.video.render import Bank, render, signed
from training.video.safety import TOLERANCE, LastGood, alike, checked, gradient_norm
from training.video.state import Pair, State, resume, save, update

RATE, WARM_UP, DECAY_FROM = 1e-3, 500, 0.45
# Mean and deviation of the logit of t: what moves where is settled near t = 1, where the shifted
# grid has most of its steps.
NOISY, SPREAD = 0.8, 1.2
SAVE_EVERY = 150.0  # seconds
NOTED = 100  # steps in a line of the curve
DROPPED = 0.1  # share of captions left out, for guidance
REHEARSED = 2048  # clips of noise


class Examples(NamedTuple):
    """What the model is trained on, on the device."""

    latents: Tensor  # (clips, channels, frames, side, side), of unit variance
    ids: Tensor  # (clips, captions, TOKENS)
    empty: Tensor  # (TOKENS,): no caption


def parse() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900, help="of this chunk, at most")
    parser.add_argument("--total", type=float, help="seconds of all chunks [default: this one's]")
    parser.add_argument("--until", type=float, help="stop by this time of the clock (Unix)")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=RATE, help="the highest learning rate")
    parser.add_argument("--encoding", type=float, default=90, help="seconds to encode clips in")
    parser.add_argument("--start", type=Path, help="folder of an exported model to begin with")
    parser.add_argument("--rehearse", action="store_true", help="on noise, in OUT/rehearsal")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--pictures", type=Path, default=STILLS / "emoji.npz")
    parser.add_argument("--animations", type=Path, default=WORK / "animations.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    return parser.parse_args()


def main() -> None:
    """Prepare the examples, load or make the model, train one chunk and save."""
    options = parse()
    prepare()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = load_tokenizer(options.out)
    examples = (rehearsal if options.rehearse else load_examples)(options, tokenizer, device)
    out = options.out / "rehearsal" if options.rehearse else options.out
    state = resume(out, tokenizer, device, options.start)
    torch.manual_seed(1000 + int(state.done["step"]))
    run = prepared(state.model, examples, options)
    train(state, examples, options, run, out)
    save(state, out)
    if options.rehearse:
        compare(run, state.model, draw(examples, options.batch))


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer the corpus was cut with."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")


def load_examples(options: argparse.Namespace, tokenizer: Any, device: str) -> Examples:
    """Latents of all clips, drawn and encoded on the device, and the captions' tokens."""
    started = time.monotonic()
    bank = load_bank(options.pictures, options.animations, device)
    corpus = load_corpus(options.out / "corpus.pt")
    vae = AutoencoderKLWan.from_pretrained(options.out / "vae").float().to(device).eval()
    latents = encode_clips(channels_last(vae), corpus, bank, options.encoding)
    empty = text.token_ids(tokenizer, [""])[0].to(device)
    took = time.monotonic() - started
    print(f"{len(latents)} of {len(corpus.ids)} clips encoded in {took:.0f} s", flush=True)
    return Examples(latents, corpus.ids[: len(latents)].to(device), empty)


def rehearsal(options: argparse.Namespace, tokenizer: Any, device: str) -> Examples:
    """Noise in place of latents, with the corpus's tokens."""
    ids = load_corpus(options.out / "corpus.pt").ids[:REHEARSED].to(device)
    shape = (len(ids), CHANNELS, LATENT_FRAMES, LATENT_SIDE, LATENT_SIDE)
    latents = torch.randn(shape, device=device).bfloat16()
    return Examples(latents, ids, text.token_ids(tokenizer, [""])[0].to(device))


@torch.no_grad()
def encode_clips(
    vae: Any, corpus: Corpus, bank: Bank, seconds: float = math.inf, batch: int = 128
) -> Tensor:
    """Latents of unit variance, in bfloat16, of as many clips as the time allows, in order."""
    mean, deviation = (
        torch.tensor(values, device=vae.device).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    parts: list[Tensor] = []
    started = time.monotonic()
    for n in range(0, len(corpus.arrays), batch):
        if parts and time.monotonic() - started > seconds:
            break
        clip = signed(render(corpus.arrays[slice(n, n + batch)], bank))
        with torch.autocast(vae.device.type, torch.bfloat16):
            latents, _ = whole.encode(vae, clip)
        parts.append(((latents.float() - mean) / deviation).bfloat16().contiguous())
    return torch.cat(parts)


def prepared(model: Pair, examples: Examples, options: argparse.Namespace) -> Any:
    """`velocity`, compiled where that works and is right."""
    trial = partial(try_step, model, draw(examples, options.batch))
    return checked(velocity, trial, examples.latents.is_cuda and not options.no_compile)


def try_step(model: Pair, batch: tuple[Tensor, Tensor], run: Any) -> list[float]:
    """Loss and gradients' norm of a fixed draw of noise and times."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loss = flow_loss(run, model, batch)
    loss.backward()
    return [loss.item(), gradient_norm(model)]


def compare(run: Any, model: Pair, batch: tuple[Tensor, Tensor]) -> None:
    """Fail where the compiled step gives other numbers than the plain one after some training."""
    found, expected = (try_step(model, batch, one) for one in (run, velocity))
    print(f"after the rehearsal: {found}, plain: {expected}", flush=True)
    if not alike(found, expected, 2 * TOLERANCE):  # of noise little can be learnt: small gradients
        raise SystemExit("the compiled step gives other numbers than the plain one")


def train(
    state: State, examples: Examples, options: argparse.Namespace, run: Any, out: Path
) -> None:
    """One chunk; the clock runs while steps are made, not while the model compiles."""
    end, total = limits(options, state.done["seconds"])
    started = time.monotonic() - state.done["seconds"]
    good, saved = LastGood(state.model, state.average, state.optimizer), state.done["seconds"]
    recent: list[Tensor] = []
    while state.done["seconds"] < end:
        loss = flow_loss(run, state.model, draw(examples, options.batch))
        done = state.done["seconds"] / total
        update(state, loss, rate_at(int(state.done["step"]), done, options.rate))
        recent.append(loss.detach())
        state.done["seconds"] = time.monotonic() - started
        if len(recent) < NOTED:
            continue
        note(state, recent, options.batch, len(examples.latents))
        if good.settle(torch.stack(recent)) and state.done["seconds"] - saved > SAVE_EVERY:
            save(state, out)
            saved = state.done["seconds"]
        recent = []
    if recent:
        good.settle(torch.stack(recent))


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
    if step % (10 * NOTED) == 0:
        print(json.dumps(state.curve[-1]), flush=True)


def rate_at(step: int, done: float, most: float = RATE) -> float:
    """Warm-up, then constant, then linear to zero over the last part of the total."""
    return most * min(1.0, (step + 1) / WARM_UP) * min(1.0, max(0.0, (1 - done) / (1 - DECAY_FROM)))


def draw(examples: Examples, count: int) -> tuple[Tensor, Tensor]:
    """A batch: latents with the tokens of one of their captions, some of them left out."""
    latents, ids, empty = examples
    chosen = torch.randint(len(latents), (count,), device=latents.device)
    which = torch.randint(ids.shape[1], (count,), device=latents.device)
    dropped = torch.rand(count, device=latents.device) < DROPPED
    words = torch.where(dropped[:, None], empty, ids[chosen, which])
    return latents[chosen].float(), words


def times(count: int, device: torch.device) -> Tensor:
    """Logit-normal times in (0, 1), 1 being noise."""
    return torch.sigmoid(NOISY + SPREAD * torch.randn(count, device=device))


def velocity(model: Pair, x: Tensor, t: Tensor, words: Tensor) -> Tensor:
    """What the pipeline's transformer says of these latents, times and tokens."""
    found: Tensor = model.transformer(
        hidden_states=x,
        timestep=1000 * t,
        encoder_hidden_states=text.encode(model.encoder, words),
        return_dict=False,
    )[0]
    return found


def flow_loss(run: Any, model: Pair, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared error of the velocity noise - data at logit-normal times."""
    data, words = batch
    noise, t = torch.randn_like(data), times(len(data), data.device)
    x = torch.lerp(data, noise, t[:, None, None, None, None])
    with torch.autocast(data.device.type, torch.bfloat16):
        v = run(model, x, t, words)
    return (v.float() - (noise - data)).square().mean()


if __name__ == "__main__":
    main()
