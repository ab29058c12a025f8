"""Means over samples with 95 % confidence intervals by Student's t."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

from tacache.prompts import Sample
from tacache.storage.files import Frozen

LEVEL = 0.95


class Estimate(Frozen):
    """A mean over samples; `margin` is half its interval's width, unknown for a single one."""

    mean: float
    margin: float | None
    samples: int

    @property
    def low(self) -> float | None:
        """Where the interval begins."""
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        """Where the interval ends."""
        return None if self.margin is None else self.mean + self.margin


def estimate(values: Mapping[Sample, float]) -> Estimate:
    """The mean of some samples and how sure it is.

    Seeds of one prompt are alike, so that prompts are what is counted: their means over seeds are
    taken as independent. Of a single prompt, the seeds are.
    """
    units = independent(values)
    margin = None
    if len(units) > 1:
        margin = student_t(len(units) - 1) * stdev(units) / math.sqrt(len(units))
    return Estimate(mean=fmean(units), margin=margin, samples=len(values))


def difference(values: Mapping[Sample, float], others: Mapping[Sample, float]) -> Estimate:
    """The mean of value - other, pair by pair, over the samples that both have."""
    return estimate({key: values[key] - others[key] for key in values if key in others})


def independent(values: Mapping[Sample, float]) -> list[float]:
    """One number a prompt; one a seed where there is one prompt."""
    by_prompt: dict[str, list[float]] = {}
    for subject, value in values.items():
        by_prompt.setdefault(subject.text, []).append(value)
    groups: Sequence[Sequence[float]] = list(by_prompt.values())
    return list(groups[0]) if len(groups) == 1 else [fmean(group) for group in groups]


@cache
def student_t(freedom: int) -> float:
    """How many standard errors reach to either side for 95 %, with so many degrees of freedom."""
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|t| < tan(angle) sqrt(freedom)): a finite sum for whole degrees of freedom."""
    cosine, odd = math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= k / (k + 1) * cosine**2
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
