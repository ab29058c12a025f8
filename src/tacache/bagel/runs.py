"""One run of BAGEL's `generate_image`: its noise levels, guidance and packed images."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacache.grid import as_times
from tacache.hosts.weights_hash import fingerprint
from tacache.storage.origin import Origin

EDGES = 2  # tokens around an image that mark its start and end
SCALES = ("cfg_text_scale", "cfg_img_scale")
# what velocities depend on beside model and prompt, by the names of `generate_image`
SETTINGS = (
    "num_timesteps",
    "timestep_shift",
    "cfg_text_scale",
    "cfg_img_scale",
    "cfg_interval",
    "cfg_renorm_min",
    "cfg_renorm_type",
)


class BagelRun(NamedTuple):
    """What is known of a run before its first step."""

    times: tuple[float, ...]
    breaks: tuple[float, ...]  # where guidance switches
    lengths: tuple[int, ...]  # tokens of each packed image
    channels: int
    shapes: tuple[tuple[int, int] | None, ...]  # height and width of each image, where known
    settings: dict[str, Any]

    @property
    def alike(self) -> bool:
        """Return whether all packed images have one size."""
        return len(set(self.shapes)) == len(set(self.lengths)) == 1


def run_of(model: Any, call: Mapping[str, Any]) -> BagelRun:
    """Return the run that `generate_image` makes of these arguments; reads the device once."""
    noise: Tensor = call["packed_init_noises"]
    lengths = tuple(n - EDGES for n in call["packed_seqlens"].tolist())
    positions = call["packed_vae_position_ids"].cpu().split(lengths)
    return BagelRun(
        times=run_times(call["num_timesteps"], call["timestep_shift"], noise.device),
        breaks=guidance_breaks(call["cfg_interval"], call["cfg_text_scale"]),
        lengths=lengths,
        channels=noise.shape[-1],
        shapes=tuple(_image_shape(model, ids) for ids in positions),
        settings={name: _plain(call[name]) for name in SETTINGS},
    )


def images_of(packed: Tensor, run: BagelRun) -> tuple[Tensor, ...]:
    """Return the packed images of a state or velocity, (tokens, channels) each."""
    return torch.split(packed, list(run.lengths))


def run_times(number: int, shift: float, device: torch.device | str = "cpu") -> tuple[float, ...]:
    """Return a run's `number` noise levels, one more than its steps, rounded as its own are."""
    levels = torch.linspace(1, 0, number, device=device)
    return as_times((shift * levels / (1 + (shift - 1) * levels)).tolist())


def guidance_breaks(interval: tuple[float, float], text_scale: float) -> tuple[float, ...]:
    """Return the levels below which guidance, on where low < t <= high, begins and ends.

    A break is the first float32 above its level, since a step that starts on the level is below it.
    """
    low, high = interval
    if text_scale <= 1 or low >= high:
        return ()
    above = np.float32(2)
    return tuple(float(np.nextafter(np.float32(b), above)) for b in (high, low) if 0 < b < 1)


def scales_at(t: float, run: BagelRun) -> dict[str, float]:
    """Return the scales of guidance at a time, as BAGEL's loop compares it: in float32."""
    low, high = (np.float32(end) for end in run.settings["cfg_interval"])
    guided = bool(low < np.float32(t) <= high)
    return {name: run.settings[name] if guided else 1.0 for name in SCALES}


def bound_arguments(step: Any) -> dict[str, Any]:
    """Return what a step of BAGEL's loop is bound to."""
    assert isinstance(step, functools.partial)
    return step.keywords


def changes_at(t: float, step: Any, run: BagelRun) -> dict[str, Any]:
    """Return the arguments that evaluate a step of BAGEL's loop at another time."""
    return {"timestep": torch.full_like(bound_arguments(step)["timestep"], t), **scales_at(t, run)}


def describe(
    model: Any,
    run: BagelRun,
    *,
    dtype: str | None = None,
    called_with: Mapping[str, Any] | None = None,
) -> Origin:
    """Return the origin of a run whose images have one size.

    `called_with` are arguments of the inferencer; the plan store is asked without them.
    """
    shape = run.shapes[0]
    size: dict[str, Any] = {"image_shapes": None if shape is None else list(shape)}
    return Origin(
        kind="bagel",
        pipeline=type(model).__name__,
        model=model_name(model),
        denoiser=denoiser_name(model),
        latent_shape=(run.lengths[0], run.channels),
        dtype=dtype,
        call={**(called_with or {}), **run.settings, **size},
        weights=fingerprint({"model": model}),
    )


def model_name(model: Any) -> str | None:
    """Return where the weights came from, if the model says."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return str(name) if name else None


def denoiser_name(model: Any) -> str:
    """Return the class of the network that gives the velocity."""
    return type(model.language_model).__name__


def device_of(model: Any) -> torch.device:
    """Return where the model computes; what accelerate keeps elsewhere lies on no device."""
    places = (parameter.device for parameter in model.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


def _image_shape(model: Any, positions: Tensor) -> tuple[int, int] | None:
    """Return height and width in pixels, by the tokens' places; None where interpolated."""
    rows = int(positions.max()) // model.max_latent_size + 1
    columns = len(positions) // rows
    if rows * columns != len(positions) or getattr(model.config, "interpolate_pos", False):
        return None
    return rows * model.latent_downsample, columns * model.latent_downsample


def _plain(value: Any) -> Any:
    return [float(part) for part in value] if isinstance(value, list | tuple) else value
