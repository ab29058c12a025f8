"""When requests arrive: seconds from the start, in order."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
BUSY, SHARE = 2.5, 0.3  # a burst has so many times the mean rate, for this share of the time
PERIOD = 40  # requests of the mean rate in one burst and the calm after it


def poisson(count: int, rate: float, seed: int) -> Times:
    """Arrivals that know nothing of each other."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def bursty(count: int, rate: float, seed: int, gpus: int = 1) -> Times:
    """Poisson arrivals whose rate changes between bursts and calm, the same on average.

    A burst lasts as long for many GPUs as for one: `rate` is that of all of them.
    """
    period = PERIOD * gpus / rate
    calm = (1 - BUSY * SHARE) / (1 - SHARE)
    even = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    # `even` counts time as the arrivals see it: a burst has BUSY * SHARE of each period's
    whole, part = np.divmod(even, period)
    in_burst = BUSY * SHARE * period
    inside = np.where(part < in_burst, part / BUSY, SHARE * period + (part - in_burst) / calm)
    return np.asarray(whole * period + inside)


ARRIVALS: dict[str, Callable[..., Times]] = {
    "poisson": lambda count, rate, seed, gpus=1: poisson(count, rate, seed),
    "bursty": bursty,
}
