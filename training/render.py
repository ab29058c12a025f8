"""Pictures of scenes, drawn in batches on any device.

Every sprite is resampled by two batched matrix products (a separable triangle filter whose
width follows the scale, so that small objects do not alias) and laid over the canvas; the
only Python loop is over the at most four layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.emoji import Thing
from training.recolour import recolour
from training.scenes import CANVAS, COLOURS, MAX_OBJECTS, MIN_SIDE, Scene

SHADOW_BLUR = 5.0  # pixels of the canvas
SHADOW_OFFSET = (1.5, 4.0)


@dataclass(frozen=True)
class Bank:
    """Every drawable picture: premultiplied uint8 (rows, 4, 96, 96), rows by (object, colour)."""

    sprites: Tensor
    rows: dict[tuple[int, str | None], int]

    def to(self, device: torch.device | str) -> Bank:
        """The same bank on another device."""
        return replace(self, sprites=self.sprites.to(device))


@dataclass(frozen=True)
class Arrays:
    """A batch of scenes as tensors; ``row`` is -1 where a scene has no further object."""

    row: Tensor  # (count, 4) int64
    place: Tensor  # (count, 4, 3) x, y, size
    shades: Tensor  # (count, 2, 3)
    angle: Tensor  # (count,)
    shadow: Tensor  # (count,)


def build_bank(pictures: NDArray[np.uint8], things: Sequence[Thing]) -> Bank:
    """The pictures and the colours of the recolourable ones, ready to draw."""
    straight = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    rows: dict[tuple[int, str | None], int] = {(i, None): i for i in range(len(things))}
    extra: list[Tensor] = []
    for index, thing in enumerate(things):
        for colour in COLOURS if thing.recolour else ():
            if colour in thing.colors:
                rows[index, colour] = index
                continue
            rows[index, colour] = len(things) + len(extra)
            extra.append(recolour(straight[index], colour))
    every = torch.cat([straight, torch.stack(extra)]) if extra else straight
    premultiplied = torch.cat([every[:, :3] * every[:, 3:], every[:, 3:]], dim=1)
    return Bank((premultiplied * 255).round().to(torch.uint8), rows)


def pack(scenes: Sequence[Scene], bank: Bank) -> Arrays:
    """Tensors of scenes, on the CPU."""
    row = np.full((len(scenes), MAX_OBJECTS), -1, dtype=np.int64)
    place = np.zeros((len(scenes), MAX_OBJECTS, 3), dtype=np.float32)
    for n, scene in enumerate(scenes):
        for layer, placed in enumerate(scene.objects):
            row[n, layer] = bank.rows[placed.thing, placed.colour]
            place[n, layer] = placed.x, placed.y, placed.size
    shades = np.array([(s.background.first, s.background.second) for s in scenes], np.float32)
    angle = np.array([s.background.angle for s in scenes], np.float32)
    shadow = np.array([s.shadow for s in scenes], np.float32)
    return Arrays(*(torch.from_numpy(a) for a in (row, place, shades, angle, shadow)))


def gradients(shades: Tensor, angle: Tensor) -> Tensor:
    """Backgrounds (count, 3, 128, 128) running from the first to the second shade."""
    line = (torch.arange(CANVAS, device=shades.device) + 0.5) / CANVAS - 0.5
    along = torch.cos(angle)[:, None, None] * line + torch.sin(angle)[:, None, None] * line[:, None]
    weight = (along / 2**0.5 + 0.5)[:, None]
    first, second = shades[:, 0, :, None, None], shades[:, 1, :, None, None]
    return first + (second - first) * weight


def filters(centre: Tensor, size: Tensor, side: int, blur: float = 0.0) -> Tensor:
    """Weights (count, 128, side) that bring a line of ``side`` pixels to its place and size."""
    beyond = (
        int(side / MIN_SIDE * max(1.0, blur)) + 2
    )  # virtual pixels, so that all weights sum to 1
    scale = (side / size)[:, None, None]
    pixel = torch.arange(CANVAS, device=size.device)[None, :, None] + 0.5
    source = torch.arange(-beyond, side + beyond, device=size.device)[None, None, :] + 0.5
    wanted = (pixel - (centre - size / 2)[:, None, None]) * scale
    width = (scale * max(1.0, blur)).clamp(min=1.0)
    weights = (1 - (wanted - source).abs() / width).clamp(min=0.0)
    total = weights.sum(-1, keepdim=True).clamp(min=1e-6)
    return (weights / total)[..., beyond:-beyond].contiguous()


def resample(sprites: Tensor, place: Tensor, blur: float = 0.0) -> Tensor:
    """Sprites (count, channels, side, side) at their places on (count, channels, 128, 128)."""
    count, channels, side, _ = sprites.shape
    across = filters(place[:, 0], place[:, 2], side, blur)
    down = filters(place[:, 1], place[:, 2], side, blur)
    wide = torch.bmm(sprites.reshape(count, channels * side, side), across.transpose(1, 2))
    columns = wide.reshape(count, channels, side, CANVAS).permute(0, 2, 1, 3)
    drawn = torch.bmm(down, columns.reshape(count, side, channels * CANVAS))
    return drawn.reshape(count, CANVAS, channels, CANVAS).permute(0, 2, 1, 3)


def cast_shadow(canvas: Tensor, sprites: Tensor, place: Tensor, strength: Tensor) -> Tensor:
    """The canvas darkened softly below the sprites."""
    offset = torch.tensor([*SHADOW_OFFSET, 0.0], device=place.device)
    cover = resample(sprites[:, 3:], place + offset, SHADOW_BLUR)
    return canvas * (1 - strength[:, None, None, None] * cover)


def render_arrays(arrays: Arrays, sprites: Tensor) -> Tensor:
    """Pictures, uint8 (count, 3, 128, 128), on the device of the sprites."""
    device = sprites.device
    place, shadow = arrays.place.to(device), arrays.shadow.to(device)
    canvas = gradients(arrays.shades.to(device), arrays.angle.to(device))
    for layer in range(MAX_OBJECTS):
        present = (arrays.row[:, layer] >= 0).nonzero()[:, 0]
        if len(present) == 0:
            break
        rows, here = arrays.row[present, layer].to(device), present.to(device)
        chosen = sprites[rows].float() / 255
        spots, under = place[here, layer], canvas[here]
        if bool((arrays.shadow > 0).any()):
            under = cast_shadow(under, chosen, spots, shadow[here])
        drawn = resample(chosen, spots)
        canvas[here] = under * (1 - drawn[:, 3:]) + drawn[:, :3]
    return (canvas.clamp(0, 1) * 255).round().to(torch.uint8)


def render(scenes: Sequence[Scene], bank: Bank, device: torch.device | str = "cpu") -> Tensor:
    """Pictures of scenes, uint8 (count, 3, 128, 128); bring the bank to the device once."""
    return render_arrays(pack(scenes, bank), bank.sprites.to(device))
