"""Clips drawn in batches on any device.

Every frame of every object is one affine resampling of its picture, drawn at twice the size and
averaged, so that edges are smooth and small objects do not alias; the only Python loop is over the
at most two objects of a clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from training.emoji import Thing, join_code
from training.render import build_bank
from training.video.config import FRAMES, SIZE
from training.video.emoji import Animations
from training.video.motions import NUMBERS, track
from training.video.scenes import Clip

MAX_OBJECTS = 2  # objects in a clip
FINER = 2  # drawn at so many times the size


@dataclass(frozen=True)
class Bank:
    """Every drawable picture, premultiplied uint8, and where each object's lies."""

    stills: Tensor  # (rows, 4, side, side)
    moving: Tensor  # (animations, FRAMES, 4, side, side)
    rows: dict[tuple[int, str | None], int]
    animations: dict[int, int]  # object -> its animation

    def to(self, device: torch.device | str) -> Bank:
        """The same bank on another device."""
        return replace(self, stills=self.stills.to(device), moving=self.moving.to(device))


@dataclass(frozen=True)
class Arrays:
    """A batch of clips as tensors; ``row`` is -1 where a clip has no second object."""

    row: Tensor  # (count, 2) int64, of the stills, or of the animations where animated
    animated: Tensor  # (count, 2) bool
    paths: Tensor  # (count, 2, NUMBERS)
    shades: Tensor  # (count, 2, 3)
    angle: Tensor  # (count,)

    def __getitem__(self, chosen: Tensor | slice) -> Arrays:
        return Arrays(*(getattr(self, field.name)[chosen] for field in fields(Arrays)))

    def __len__(self) -> int:
        return len(self.row)

    def to(self, device: torch.device | str) -> Arrays:
        """The same clips on another device."""
        return Arrays(*(getattr(self, field.name).to(device) for field in fields(Arrays)))


def make_bank(
    pictures: NDArray[np.uint8], things: Sequence[Thing], moving: Animations | None = None
) -> Bank:
    """Stills with their other colours, and animations, ready to draw."""
    stills = build_bank(pictures, things)
    if moving is None:
        return Bank(stills.sprites, torch.empty(0, FRAMES, 4, 1, 1), stills.rows, {})
    straight = torch.from_numpy(moving.frames).permute(0, 1, 4, 2, 3).float()
    alpha = straight[:, :, 3:]
    premultiplied = torch.cat([straight[:, :, :3] * alpha / 255, alpha], dim=2)
    places = {join_code(thing.code.split("-")): i for i, thing in enumerate(things)}
    animations = {places[code]: n for n, code in enumerate(moving.codes)}
    return Bank(stills.sprites, premultiplied.round().to(torch.uint8), stills.rows, animations)


def pack(clips: Sequence[Clip], bank: Bank) -> Arrays:
    """Tensors of clips, on the CPU."""
    row = np.full((len(clips), MAX_OBJECTS), -1, dtype=np.int64)
    animated = np.zeros((len(clips), MAX_OBJECTS), dtype=bool)
    paths = np.zeros((len(clips), MAX_OBJECTS, NUMBERS), dtype=np.float32)
    paths[..., 2] = 1.0  # a size that divides
    for n, clip in enumerate(clips):
        for layer, actor in enumerate(clip.actors):
            animated[n, layer] = actor.animated
            still = bank.rows[actor.thing, actor.colour]
            row[n, layer] = bank.animations[actor.thing] if actor.animated else still
            paths[n, layer] = actor.path.numbers()
    shades = np.array([(c.background.first, c.background.second) for c in clips], np.float32)
    angle = np.array([c.background.angle for c in clips], np.float32)
    return Arrays(*(torch.from_numpy(a) for a in (row, animated, paths, shades, angle)))


def render(arrays: Arrays, bank: Bank) -> Tensor:
    """Clips, uint8 (count, 3, FRAMES, SIZE, SIZE), on the device of the bank."""
    arrays = arrays.to(bank.stills.device)
    canvas = gradients(arrays.shades, arrays.angle)[:, None].repeat(1, FRAMES, 1, 1, 1)
    for layer in range(MAX_OBJECTS):
        for animated in (False, True):
            here = (arrays.row[:, layer] >= 0) & (arrays.animated[:, layer] == animated)
            chosen = here.nonzero()[:, 0]
            if len(chosen):
                row, place = arrays.row[chosen, layer], track(arrays.paths[chosen, layer])
                pictures = bank.moving[row] if animated else bank.stills[row][:, None]
                drawn = draw(pictures.float() / 255, place)
                canvas[chosen] = canvas[chosen] * (1 - drawn[:, :, 3:]) + drawn[:, :, :3]
    pixels = (canvas.clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels.transpose(1, 2).contiguous()


def draw(pictures: Tensor, place: Tensor) -> Tensor:
    """Pictures (count, 1 or frames, 4, side, side) at places (count, frames, 4)."""
    count, frames = place.shape[:2]
    pictures = pictures.expand(-1, frames, -1, -1, -1).flatten(0, 1)
    x, y, size, angle = place.flatten(0, 1).unbind(-1)
    cos, sin = torch.cos(angle) * SIZE / size, torch.sin(angle) * SIZE / size
    # from the frame's coordinates in [-1, 1] back to the picture's
    away_x, away_y = 1 - 2 * x / SIZE, 1 - 2 * y / SIZE
    rows = [cos, sin, cos * away_x + sin * away_y, -sin, cos, cos * away_y - sin * away_x]
    back = torch.stack(rows, dim=-1).reshape(-1, 2, 3)
    side = FINER * SIZE
    grid = functional.affine_grid(back, [len(back), 4, side, side], align_corners=False)
    fine = functional.grid_sample(pictures, grid, align_corners=False)
    return functional.avg_pool2d(fine, FINER).reshape(count, frames, 4, SIZE, SIZE)


def gradients(shades: Tensor, angle: Tensor) -> Tensor:
    """Backgrounds (count, 3, SIZE, SIZE) running from the first to the second shade."""
    line = (torch.arange(SIZE, device=shades.device) + 0.5) / SIZE - 0.5
    along = torch.cos(angle)[:, None, None] * line + torch.sin(angle)[:, None, None] * line[:, None]
    weight = (along / 2**0.5 + 0.5)[:, None]
    first, second = shades[:, 0, :, None, None], shades[:, 1, :, None, None]
    return first + (second - first) * weight


def signed(pixels: Tensor) -> Tensor:
    """Bytes as numbers in [-1, 1]."""
    return pixels.float() / 127.5 - 1
