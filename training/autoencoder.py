"""Train the autoencoder on scenes: `python -m training.autoencoder --minutes 4`."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from training.config import AUTOENCODER, WORK
from training.corpus import load_bank, make_corpus, select, signed
from training.render import render_arrays
from training.sheets import save_sheet

KL_WEIGHT = 2e-4
EDGE_WEIGHT = 1.0


def main() -> None:
    """Train for some minutes, measure the latents' scale, save the model and a sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--scenes", type=int, default=150_000)
    parser.add_argument("--pictures", type=Path, default=WORK / "emoji.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.suppress_errors = True  # eager is slower, not wrong
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bank = load_bank(options.pictures, device)
    arrays = make_corpus(options.scenes, seed=1, bank=bank, captions=0).arrays
    model = AutoencoderKL(**AUTOENCODER).to(device, memory_format=torch.channels_last)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    pictures = draw_all(arrays, bank)
    train(model, pictures, options)
    finish(model, pictures[:1024], options.out)


def draw_all(arrays: Any, bank: Any, batch: int = 1024) -> Tensor:
    """All pictures once, uint8, on the bank's device."""
    parts = torch.arange(len(arrays.row)).split(batch)
    return torch.cat([render_arrays(select(arrays, chosen), bank.sprites) for chosen in parts])


def train(model: Any, pictures: Tensor, options: argparse.Namespace) -> None:
    """Adam with a learning rate that falls to zero over the given time."""
    device, limit = model.device.type, options.minutes * 60
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    step_loss = torch.compile(losses) if device == "cuda" else losses
    options.out.mkdir(parents=True, exist_ok=True)
    started, step, curve = None, 0, (options.out / "autoencoder.jsonl").open("w")
    while started is None or time.monotonic() - started < limit:
        chosen = torch.randint(len(pictures), (options.batch,), device=device)
        picture = signed(pictures[chosen]).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16):
            error, edge, kl = step_loss(model, picture)
            loss = error + EDGE_WEIGHT * edge + KL_WEIGHT * kl
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        started = started or time.monotonic()  # the clock starts after compilation
        done = (time.monotonic() - started) / limit
        rate = 1e-3 * min(1.0, (step + 1) / 200) * max(0.0, 1 - done) ** 0.7
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:
            record = {"step": step, "error": error.item(), "edge": edge.item(), "kl": kl.item()}
            curve.write(json.dumps(record) + "\n")
            if step % 500 == 0:
                print(json.dumps({**record, "seconds": round(time.monotonic() - started)}))
    curve.close()


def losses(model: Any, picture: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean absolute error of pixels and of their differences, and the latents' divergence."""
    posterior = model.encode(picture).latent_dist
    decoded = model.decode(posterior.sample()).sample.float()
    edges = sum(
        functional.l1_loss(decoded.diff(dim=dim), picture.diff(dim=dim)) for dim in (-1, -2)
    )
    error = functional.l1_loss(decoded, picture) + 0.5 * functional.mse_loss(decoded, picture)
    return error, edges, posterior.kl().mean() / posterior.mean[0].numel()


@torch.no_grad()
def finish(model: Any, sample: Tensor, out: Path) -> None:
    """Set the latents' scale and shift to unit variance, save, and show reconstructions."""
    model.eval()
    pictures = signed(sample)
    latents = torch.cat([model.encode(part).latent_dist.mode() for part in pictures.split(256)])
    model.register_to_config(
        scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item()
    )
    decoded = torch.cat([model.decode(part).sample for part in latents.split(256)]).clamp(-1, 1)
    error = (decoded - pictures).square().mean(dim=(1, 2, 3)) / 4
    print(f"PSNR {(-10 * error.log10()).mean().item():.2f} dB, std {latents.std().item():.3f}")
    model.save_pretrained(out / "vae")
    save_sheet(torch.cat([pictures[:24], decoded[:24]]), out / "autoencoder.png", columns=12)


if __name__ == "__main__":
    main()
