"""Train the autoencoder on clips: `python -m training.video.autoencoder --seconds 200`.

With ``--start FOLDER`` an exported model's autoencoder is trained further.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from torch.nn import functional

from training.emoji import WORK as STILLS
from training.video import whole
from training.video.config import AUTOENCODER, WORK
from training.video.corpus import load_bank, make_arrays, names_of
from training.video.muon import Both
from training.video.render import Arrays, Bank, render, signed
from training.video.safety import LastGood, checked, gradient_norm
from training.video.sheets import save_frames, to_pixels

RATE, WARM_UP = 2e-3, 200
# Squared errors: of absolute ones the flat background, right to a shade, has as large a gradient as
# an object that is missing, and there is far more of it.
ERROR_WEIGHT, EDGE_WEIGHT, KL_WEIGHT = 3.0, 3.0, 1e-4
ENDS = ("encoder.conv_in", "decoder.conv_out")  # AdamW's; all other kernels are Muon's
SHOWN = 8
NOTED = 50  # steps from line to line of the curve


def main() -> None:
    """Train for some time, measure the latents, save the model and a sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--until", type=float, help="stop by this time of the clock (Unix)")
    parser.add_argument("--least", type=int, default=3000, help="steps; up to half more time")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--clips", type=int, default=24_000, help="0.47 MB each on the device")
    parser.add_argument("--measured", type=int, default=512, help="clips the PSNR is of")
    parser.add_argument("--rate", type=float, default=RATE, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of the clips")
    parser.add_argument("--start", type=Path, help="folder of an exported model to go on from")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--pictures", type=Path, default=STILLS / "emoji.npz")
    parser.add_argument("--animations", type=Path, default=WORK / "animations.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    prepare()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bank = load_bank(options.pictures, options.animations, device)
    arrays = make_arrays(options.clips, options.seed, names_of(bank)).to(device)
    model = channels_last(begin(options.start).to(device).train())
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    train(model, draw_all(arrays, bank), options)
    finish(model, make_arrays(options.measured, 3, names_of(bank)).to(device), bank, options.out)


def begin(start: Path | None) -> Any:
    """A new autoencoder, or an exported model's in full precision."""
    if start is None:
        return AutoencoderKLWan(**AUTOENCODER)
    return AutoencoderKLWan.from_pretrained(start / "vae").float()


def prepare() -> None:
    """Seeds and switches all training shares."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass fails at small sizes


def channels_last(model: Any) -> Any:
    """The convolutions' weights in the order tensor cores like."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for weight in model.parameters():
        if weight.dim() in formats:
            weight.data = weight.data.contiguous(memory_format=formats[weight.dim()])
    return model


def train(model: Any, clips: Tensor, options: argparse.Namespace) -> None:
    """Muon, and Adam for the rest, with a learning rate that falls to zero over the given time."""
    device = model.device.type
    rate = options.rate
    optimizer = Both(model, ENDS, lr=rate, betas=(0.9, 0.99), weight_decay=1e-4)
    trial = partial(try_step, model, draw(clips, options.batch))
    step_losses = checked(losses, trial, device == "cuda" and not options.no_compile)
    good = LastGood(model, optimizer)
    started, step, done = time.monotonic(), 0, 0.0  # the clock starts after compilation
    limit = most = allowed(options)
    with (options.out / "autoencoder.jsonl").open("w") as curve:
        while done < 1:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step + 1) / WARM_UP) * (1 - done)
            parts = make_step(model, optimizer, draw(clips, options.batch), step_losses)
            step += 1
            if step % NOTED == 0:  # waits for the device
                note(curve, step, time.monotonic() - started, parts)
                good.settle(torch.stack(list(parts.values())))
            if step == NOTED:
                pace = step / (time.monotonic() - started)
                limit = min(allotted(options.seconds, pace, options.least), most)
            done = (time.monotonic() - started) / limit
    good.settle(torch.stack(list(parts.values())))


def allowed(options: argparse.Namespace) -> float:
    """Seconds until the time of the clock that was given, half more than asked for at most."""
    left = math.inf if options.until is None else options.until - time.time()
    return max(1e-6, min(1.5 * options.seconds, left))


def try_step(model: Any, clip: Tensor, step_losses: Any) -> list[float]:
    """The parts of the loss and the gradients' norm of a fixed draw of noise."""
    noise = torch.randn(latent_shape(model, clip), generator=torch.Generator().manual_seed(0))
    with torch.autocast(clip.device.type, torch.bfloat16):
        error, edge, kl = step_losses(model, clip, noise.to(clip.device))
    total(error, edge, kl).backward()
    return [error.item(), edge.item(), kl.item(), gradient_norm(model)]


def note(curve: TextIO, step: int, seconds: float, parts: dict[str, Tensor]) -> None:
    """One line of the loss curve; printed now and then."""
    values = {name: part.item() for name, part in parts.items()}
    line = json.dumps({"step": step, "seconds": round(seconds, 1), **values})
    curve.write(line + "\n")
    if step % (5 * NOTED) == 0:
        print(line, flush=True)


def allotted(seconds: float, rate: float, least: int) -> float:
    """The seconds asked for, or up to half more where these steps a second make too few."""
    return min(max(seconds, least / rate), 1.5 * seconds)


@torch.no_grad()
def draw_all(arrays: Arrays, bank: Bank, batch: int = 128) -> Tensor:
    """All clips once, as bytes, on the bank's device: steps then wait for nothing."""
    starts = range(0, len(arrays), batch)
    return torch.cat([render(arrays[slice(n, n + batch)], bank) for n in starts])


def draw(clips: Tensor, count: int) -> Tensor:
    """Some clips, in [-1, 1]."""
    return signed(clips[torch.randint(len(clips), (count,), device=clips.device)])


def make_step(model: Any, optimizer: Any, clip: Tensor, step_losses: Any) -> dict[str, Tensor]:
    """One step of the optimizer; the parts of the loss before it."""
    noise = torch.randn(latent_shape(model, clip), device=clip.device)
    with torch.autocast(clip.device.type, torch.bfloat16):
        error, edge, kl = step_losses(model, clip, noise)
    total(error, edge, kl).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"error": error.detach(), "edge": edge.detach(), "kl": kl.detach()}


def latent_shape(model: Any, clip: Tensor) -> tuple[int, ...]:
    """Of the latents of a clip (count, 3, frames, height, width)."""
    count, _, frames, height, width = clip.shape
    return count, model.config.z_dim, 1 + (frames - 1) // 4, height // 8, width // 8


def losses(model: Any, clip: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Error of pixels, of their differences in space and time, and the latents' divergence."""
    mean, log_variance = whole.encode(model, clip)
    decoded = whole.decode(model, mean + noise * (0.5 * log_variance).exp())
    edges = sum(
        functional.mse_loss(decoded.diff(dim=dim), clip.diff(dim=dim)) for dim in (-1, -2, -3)
    )
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return functional.mse_loss(decoded, clip), torch.as_tensor(edges), kl


def total(error: Tensor, edge: Tensor, kl: Tensor) -> Tensor:
    """The loss of its parts."""
    return ERROR_WEIGHT * error + EDGE_WEIGHT * edge + KL_WEIGHT * kl


@torch.no_grad()
def finish(model: Any, arrays: Arrays, bank: Bank, out: Path) -> float:
    """Store mean and deviation of the latents, save, show reconstructions, and tell their PSNR."""
    model.eval()
    latents, errors = [], []
    shown: list[Tensor] = []
    for n in range(0, len(arrays), 32):
        clip = signed(render(arrays[slice(n, n + 32)], bank))
        mean, _ = whole.encode(model, clip)
        decoded = whole.decode(model, mean).clamp(-1, 1)
        latents.append(mean.transpose(0, 1).flatten(1))
        errors.append((decoded - clip).square().mean(dim=(1, 2, 3, 4)) / 4)
        if not shown:
            shown = [clip[:SHOWN], decoded[:SHOWN]]
    values, fidelity = torch.cat(latents, dim=1), -10 * torch.cat(errors).log10()
    model.register_to_config(
        latents_mean=values.mean(dim=1).tolist(), latents_std=values.std(dim=1).tolist()
    )
    model.save_pretrained(out / "vae")
    result = float(fidelity.mean())
    (out / "autoencoder.json").write_text(json.dumps({"psnr": result, "clips": len(fidelity)}))
    print(f"PSNR {result:.2f} dB, deviations {values.std(dim=1).cpu().numpy().round(2)}")
    pixels = to_pixels(torch.stack(shown, dim=1).flatten(0, 1))
    save_frames(pixels, ["drawn", "decoded"] * (len(pixels) // 2), out / "autoencoder.png")
    return result


if __name__ == "__main__":
    main()
