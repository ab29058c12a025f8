"""Means over samples with 95 % confidence intervals by Student's t, and the worst pictures.

One picture that is lost in twenty is what people notice, and a mean hides it.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

import numpy as np

from tacache.prompts import Sample
from tacache.storage.files import Frozen

LEVEL = 0.95
LOST = 25.0  # dB; below, a picture is another one
WORST = 5  # the percentile that is reported
FIFTH, SHARE = f"psnr-{WORST}th", "psnr-lost"  # the quantities, behind `full.` or `fine.`
REFERENCES = ("full", "fine")


class Estimate(Frozen):
    """A mean over samples; `margin` is half its interval's width, unknown for a single one."""

    mean: float
    margin: float | None = None
    samples: int

    @property
    def low(self) -> float | None:
        """Return where the interval begins."""
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """Return where the interval ends."""
        return None if self.margin is None else self.mean + self.margin


def estimate(values: Mapping[Sample, float]) -> Estimate:
    """Return the mean of some samples and how sure it is.

    Seeds of one prompt are alike, so that prompts are what is counted: their means over seeds are
    taken as independent. Of a single prompt, the seeds are.
    """
    units = independent(values)
    margin = None
    if len(units) > 1:
        margin = student_t(len(units) - 1) * stdev(units) / math.sqrt(len(units))
    return Estimate(mean=fmean(units), margin=margin, samples=len(values))


def difference(values: Mapping[Sample, float], baseline: Mapping[Sample, float]) -> Estimate:
    """Return the mean of value - other, pair by pair, over the samples that both have."""
    return estimate({key: values[key] - baseline[key] for key in values if key in baseline})


def independent(values: Mapping[Sample, float]) -> list[float]:
    """Return one number a prompt; one a seed where there is one prompt."""
    by_prompt: dict[str, list[float]] = {}
    for subject, value in values.items():
        by_prompt.setdefault(subject.text, []).append(value)
    groups: Sequence[Sequence[float]] = list(by_prompt.values())
    return list(groups[0]) if len(groups) == 1 else [fmean(group) for group in groups]


@cache
def student_t(freedom: int) -> float:
    """Return how many standard errors reach to either side for 95 %."""
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(|t| < tan(angle) sqrt(freedom)): a finite sum for whole degrees of freedom."""
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def percentile(values: Sequence[float]) -> float:
    """Return what 5 % of the pictures are below, with linear interpolation between two."""
    return float(np.percentile(np.asarray(values, dtype=float), WORST))


def lost(values: Sequence[float]) -> float:
    """Return how many of a hundred pictures are below 25 dB."""
    return 100 * sum(value < LOST for value in values) / len(values)


def tail(samples: Mapping[str, Mapping[Sample, float]]) -> dict[str, Estimate]:
    """Return the 5th percentile of PSNR and the share of lost pictures, to each reference there is.

    Both are over pictures, seeds of a prompt included; neither has an interval.
    """
    estimates: dict[str, Estimate] = {}
    for group in REFERENCES:
        values = list(samples.get(f"{group}.psnr", {}).values())
        if values:
            for name, measure in ((FIFTH, percentile), (SHARE, lost)):
                estimates[f"{group}.{name}"] = Estimate(
                    mean=measure(values), margin=None, samples=len(values)
                )
    return estimates
