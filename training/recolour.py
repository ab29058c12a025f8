"""A picture of one object in another named colour, by hue, saturation and value."""

from __future__ import annotations

import torch
from torch import Tensor

# hue (degrees), saturation, value, contrast of the shading
TARGETS: dict[str, tuple[float, float, float, float]] = {
    "red": (355.0, 0.85, 0.88, 1.0),
    "orange": (27.0, 0.88, 0.98, 1.0),
    "yellow": (50.0, 0.80, 0.98, 0.8),
    "green": (125.0, 0.70, 0.70, 1.0),
    "blue": (216.0, 0.82, 0.90, 1.0),
    "purple": (272.0, 0.62, 0.74, 1.0),
    "pink": (332.0, 0.42, 1.00, 0.7),
    "brown": (22.0, 0.60, 0.48, 1.0),
    "white": (250.0, 0.03, 0.96, 0.55),
    "black": (250.0, 0.12, 0.20, 1.0),
}
NEAR, FAR = 40.0, 70.0  # degrees from the object's own hue: shifted wholly, not at all
DULL, VIVID = 0.10, 0.28  # saturations: not shifted, shifted wholly
BINS = 36


def to_hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in degrees, saturation and value of (3, ...) colours in [0, 1]."""
    red, green, blue = rgb
    value, low = rgb.amax(0), rgb.amin(0)
    chroma = (value - low).clamp(min=1e-6)
    hue = torch.where(value == green, (blue - red) / chroma + 2, (red - green) / chroma + 4)
    hue = torch.where(value == red, (green - blue) / chroma % 6, hue)
    return hue * 60, (value - low) / value.clamp(min=1e-6), value


def to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Colours (3, ...) in [0, 1] of hue in degrees, saturation and value."""
    shift = torch.tensor([5.0, 3.0, 1.0], device=hue.device).reshape(3, *[1] * hue.dim())
    k = (shift + hue / 60) % 6
    return value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1)


def ramp(values: Tensor, low: float, high: float) -> Tensor:
    """A smooth step from 0 at ``low`` to 1 at ``high``."""
    t = ((values - low) / (high - low)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def turn(hue: Tensor, origin: Tensor | float) -> Tensor:
    """Signed degrees from the origin to a hue, in [-180, 180)."""
    return (hue - origin + 180) % 360 - 180


def own_hue(hue: Tensor, weight: Tensor) -> Tensor:
    """The hue most of the object has."""
    bins = (hue / 360 * BINS).long().clamp(0, BINS - 1).flatten()
    mass = torch.zeros(BINS).index_add_(0, bins, weight.flatten())
    smooth = mass + mass.roll(1) + mass.roll(-1)
    return (smooth.argmax() + 0.5) * 360 / BINS


def recolour(picture: Tensor, colour: str) -> Tensor:
    """A straight-alpha picture (4, height, width) with its main hue turned to a named colour."""
    rgb, alpha = picture[:3], picture[3]
    hue, saturation, value = to_hsv(rgb)
    away = turn(hue, own_hue(hue, alpha * saturation * value))
    shifted = (1 - ramp(away.abs(), NEAR, FAR)) * ramp(saturation, DULL, VIVID)
    total = (shifted * alpha).sum().clamp(min=1e-6)
    usual_saturation = ((saturation * shifted * alpha).sum() / total).clamp(min=1e-3)
    usual_value = ((value * shifted * alpha).sum() / total).clamp(min=1e-3)
    new_hue, new_saturation, new_value, contrast = TARGETS[colour]
    changed = to_rgb(
        (new_hue + 0.3 * away) % 360,
        ((saturation / usual_saturation).clamp(max=1.25) * new_saturation).clamp(max=1),
        (new_value * (value / usual_value) ** contrast).clamp(0, 1),
    )
    return torch.cat([rgb + (changed - rgb) * shifted, alpha[None]])
