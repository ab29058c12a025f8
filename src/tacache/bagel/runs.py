"""One run of BAGEL's `generate_image`: its noise levels, guidance and packed images."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacache.grid import as_times
from tacache.host.weights import fingerprint
from tacache.profile import Origin

EDGES = 2  # tokens around an image that mark its start and end
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


class Run(NamedTuple):
    """What is known of a run before its first step."""

    times: tuple[float, ...]
    breaks: tuple[float, ...]  # where guidance switches
    lengths: tuple[int, ...]  # tokens of each packed image
    channels: int
    shapes: tuple[tuple[int, int] | None, ...]  # height and width of each image, where known
    settings: dict[str, Any]

    @property
    def alike(self) -> bool:
        """Whether all packed images have one size."""
        return len(set(self.shapes)) == len(set(self.lengths)) == 1


def run_of(model: Any, call: Mapping[str, Any]) -> Run:
    """The run that `generate_image` makes of these arguments; reads from the device once."""
    noise: Tensor = call["packed_init_noises"]
    lengths = tuple(n - EDGES for n in call["packed_seqlens"].tolist())
    positions = call["packed_vae_position_ids"].cpu().split(lengths)
    return Run(
        times=run_times(call["num_timesteps"], call["timestep_shift"], noise.device),
        breaks=guidance_breaks(call["cfg_interval"], call["cfg_text_scale"]),
        lengths=lengths,
        channels=noise.shape[-1],
        shapes=tuple(_image_shape(model, ids) for ids in positions),
        settings={name: _plain(call[name]) for name in SETTINGS},
    )


def images_of(packed: Tensor, run: Run) -> tuple[Tensor, ...]:
    """The packed images of a state or velocity, (tokens, channels) each."""
    return torch.split(packed, list(run.lengths))


def run_times(number: int, shift: float, device: torch.device | str = "cpu") -> tuple[float, ...]:
    """The `number` noise levels of a run, one more than its steps, rounded as the run's own are."""
    levels = torch.linspace(1, 0, number, device=device)
    return as_times((shift * levels / (1 + (shift - 1) * levels)).tolist())


def guidance_breaks(interval: tuple[float, float], text_scale: float) -> tuple[float, ...]:
    """The levels below which guidance, on where low < t <= high, begins and ends.

    A break is the first float32 above its level, since a step that starts on the level is below it.
    """
    low, high = interval
    if text_scale <= 1 or low >= high:
        return ()
    above = np.float32(2)
    return tuple(float(np.nextafter(np.float32(b), above)) for b in (high, low) if 0 < b < 1)


def describe(
    model: Any, run: Run, *, dtype: str | None = None, called_with: Mapping[str, Any] | None = None
) -> Origin:
    """The origin of a run whose images have one size.

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
    """Where the weights came from, if the model says."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return str(name) if name else None


def denoiser_name(model: Any) -> str:
    """The class of the network that gives the velocity."""
    return type(model.language_model).__name__


def device_of(model: Any) -> torch.device:
    """Where the model computes; what accelerate keeps elsewhere lies on no device."""
    places = (parameter.device for parameter in model.parameters())
    return next((place for place in places if place.type != "meta"), torch.device("cpu"))


def _image_shape(model: Any, positions: Tensor) -> tuple[int, int] | None:
    """Height and width in pixels, read off the tokens' places; None where they are interpolated."""
    rows = int(positions.max()) // model.max_latent_size + 1
    columns = len(positions) // rows
    if rows * columns != len(positions) or getattr(model.config, "interpolate_pos", False):
        return None
    return rows * model.latent_downsample, columns * model.latent_downsample


def _plain(value: Any) -> Any:
    return [float(part) for part in value] if isinstance(value, list | tuple) else value
