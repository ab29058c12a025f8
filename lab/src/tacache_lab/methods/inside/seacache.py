"""SeaCache (2026, arXiv:2602.18993), by the hook of diffusers 0.42 and later.

A sum over the steps of mean|m_i - m_{i-1}| / mean|m_{i-1}| is held against a threshold, where m is
the latent after a Wiener filter for its noise level: gain a S / (a^2 S + b^2) with S = f^-p. While
the sum is lower, all blocks are left out, and what they add is kept (order 0) or extrapolated in
the step index (order 1). The paper filters the first block's modulated input instead.

diffusers knows the latents of Wan, and its pipeline says which step it is at. For FLUX both are
given to the hook here.
"""

import importlib.util
from collections import Counter
from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import Annotated, Any

import diffusers.hooks
from pydantic import Field
from torch import Tensor

from tacache.errors import HostError
from tacache.storage.files import Frozen
from tacache_lab.methods.inside.attaching import Site
from tacache_lab.methods.inside.families import FLUX, family_of
from tacache_lab.methods.inside.inside_cache import Thresholded
from tacache_lab.methods.tuning import MAX_THRESHOLD

ORDERS = (0, 1)
POWERS = (2.0, 3.0)
PATCH = 2  # side of the squares of latents that FLUX has in a token


class SeaCacheSettings(Frozen):
    """The threshold, how residuals are continued, the filter's power, and the longest skip.

    No step more than `max_skip` is left out in a row; 0: as many as there are.
    """

    threshold: Annotated[float, Field(ge=0)] = 0.25
    order: Annotated[int, Field(ge=0, le=1)] = 0
    power: Annotated[float, Field(gt=0)] = 3.0
    max_skip: Annotated[int, Field(ge=0)] = 0


class SeaCache(Thresholded[SeaCacheSettings]):
    """diffusers' SeaCache; the first and the last step are always evaluated."""

    name = "diffusers-seacache"
    citation = "SeaCache, arXiv:2602.18993, 2026, as in diffusers"
    published = MappingProxyType(
        {
            "flux": SeaCacheSettings(threshold=0.3, power=2.0),
            "flux-fast": SeaCacheSettings(threshold=0.6, power=2.0),
            "wan": SeaCacheSettings(threshold=0.2),
            "wan-fast": SeaCacheSettings(threshold=0.35),
            "wan-library": SeaCacheSettings(order=1, max_skip=2),
        }
    )

    def variants(self, steps: int, evaluations: int) -> Sequence[SeaCacheSettings]:
        """Return both orders with both powers."""
        return [
            SeaCacheSettings(threshold=MAX_THRESHOLD, order=order, power=power)
            for order, power in product(ORDERS, POWERS)
        ]

    def available(self) -> None:
        """Refuse a diffusers that has no SeaCache."""
        if importlib.util.find_spec("diffusers.hooks.sea_cache") is None:
            raise HostError(f"{self.name} needs diffusers 0.42 or later: pip install -U diffusers")

    def install(self, site: Site, settings: SeaCacheSettings) -> None:
        """Install it by diffusers' own function."""
        flux = family_of(site.transformer) is FLUX
        config = diffusers.hooks.SeaCacheConfig(
            threshold=settings.threshold,
            residual_order=settings.order,
            max_consecutive_cached=settings.max_skip,
            power_exp=settings.power,
            raw_vision_callback=flux_latents if flux else None,
        )
        diffusers.hooks.apply_sea_cache(site.transformer, config)
        if flux:
            _tell_steps(site)


def flux_latents(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor]:
    """Return the latents of a call of FLUX, each shaped (channels, 1, height, width)."""
    height, width = (int(side) + 1 for side in named["img_ids"][:, 1:].amax(dim=0))
    return [unpacked(tokens, height, width) for tokens in named["hidden_states"]]


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """Return the latent whose squares are the tokens, in rows."""
    squares = tokens.reshape(height, width, -1, PATCH, PATCH)
    return squares.permute(2, 0, 3, 1, 4).reshape(-1, 1, height * PATCH, width * PATCH)


def _tell_steps(site: Site) -> None:
    """Give the hook the step and the noise level of every call, which FLUX's pipeline does not."""
    from diffusers.hooks.hooks import CacheContext, _set_cache_context

    transformer, calls = site.transformer, Counter[str]()
    hooked = transformer.forward

    def forward(*args: Any, **named: Any) -> Any:
        branch = site.meter.branch
        context = CacheContext(
            branch,
            step_index=calls[branch],
            num_inference_steps=site.steps,
            sigma=float(named["timestep"][0]),
        )
        calls[branch] += 1
        _set_cache_context(transformer, context)
        return hooked(*args, **named)

    transformer.forward = forward
