"""Previews of a run: where its latest velocity leads, decoded if that is quick, else by colours."""

import inspect
from typing import Any

import torch
from torch import Tensor

from tacache.hosts import Pixels

QUICK = 32 * 32  # places of a latent picture that is decoded; larger ones show their colours
PLACED = ("latents", "height", "width", "vae_scale_factor")  # what unpacking latents takes


def destination(before: Tensor, after: Tensor, t: float, t_next: float) -> Tensor:
    """Return where a straight line through two states of a run reaches the data, t = 0."""
    return after + (after - before) * (t_next / (t - t_next))


@torch.no_grad()
def preview(pipe: Any, latents: Tensor, height: int | None, width: int | None) -> Pixels | None:
    """Return a small picture of latents or a clip's first ones; None if their order is unknown.

    Small latents are decoded. Of large ones the three main components are shown as colours.
    """
    x = _unpacked(pipe, latents, height, width)
    if x is None:
        return None
    vae = getattr(pipe, "vae", None)
    if vae is not None and x.shape[-1] * x.shape[-2] <= QUICK:
        decoded = vae.decode(_scaled(vae, x).to(vae.dtype), return_dict=False)[0]
        return _pixels((_first_frame(decoded)[0] / 2 + 0.5).float())
    return _pixels(main_colours(_first_frame(x)[0].float()))


def main_colours(x: Tensor) -> Tensor:
    """Return three main components of a latent picture (channels, height, width), from 0 to 1."""
    flat = x.flatten(1) - x.flatten(1).mean(dim=1, keepdim=True)
    _, axes = torch.linalg.eigh(flat @ flat.T)
    components = axes[:, -3:].T @ flat
    low, high = components.quantile(0.02, dim=1), components.quantile(0.98, dim=1)
    shown = (components - low[:, None]) / (high - low).clamp(min=1e-6)[:, None]
    colours: Tensor = shown.clamp(0, 1).reshape(-1, *x.shape[1:])
    return colours


def _unpacked(pipe: Any, latents: Tensor, height: int | None, width: int | None) -> Tensor | None:
    """Return latents as (samples, channels, [frames,] height, width), where it is known how."""
    if latents.ndim in (4, 5):
        return latents[:1]
    unpack = getattr(pipe, "_unpack_latents", None)
    if latents.ndim != 3 or unpack is None or height is None or width is None:
        return None
    if tuple(inspect.signature(unpack).parameters)[:4] != PLACED:
        return None
    unpacked: Tensor = unpack(latents[:1], height, width, pipe.vae_scale_factor)
    return unpacked


def _scaled(vae: Any, x: Tensor) -> Tensor:
    """Return latents on the scale that the decoder reads, by either convention of diffusers."""
    x = x[:, :, :1] if x.ndim == 5 else x
    mean, deviation = (getattr(vae.config, f"latents_{name}", None) for name in ("mean", "std"))
    if mean is not None and deviation is not None:
        shape = (1, -1, *[1] * (x.ndim - 2))
        return x * x.new_tensor(deviation).view(shape) + x.new_tensor(mean).view(shape)
    shift = getattr(vae.config, "shift_factor", None) or 0.0
    return x / (getattr(vae.config, "scaling_factor", None) or 1.0) + shift


def _first_frame(x: Tensor) -> Tensor:
    return x[:, :, 0] if x.ndim == 5 else x


def _pixels(x: Tensor) -> Pixels:
    shown: Pixels = x.clamp(0, 1).movedim(0, -1).cpu().numpy()
    return shown
