"""The worst pictures: one that is lost in twenty is what people notice, and a mean hides it."""

from collections.abc import Mapping, Sequence

import numpy as np

from tacache.lab.report.estimates import Estimate
from tacache.prompts import Sample

LOST = 25.0  # dB; below, a picture is another one
WORST = 5  # the percentile that is reported
FIFTH, SHARE = f"psnr-{WORST}th", "psnr-lost"  # the quantities, behind `full.` or `fine.`
REFERENCES = ("full", "fine")


def percentile(values: Sequence[float]) -> float:
    """What 5 % of the pictures are below, with linear interpolation between two."""
    return float(np.percentile(np.asarray(values, dtype=float), WORST))


def lost(values: Sequence[float]) -> float:
    """How many of a hundred pictures are below 25 dB."""
    return 100 * sum(value < LOST for value in values) / len(values)


def tail(samples: Mapping[str, Mapping[Sample, float]]) -> dict[str, Estimate]:
    """The 5th percentile of PSNR and the share of lost pictures, to each reference there is.

    Both are over pictures, seeds of a prompt included; neither has an interval.
    """
    found: dict[str, Estimate] = {}
    for group in REFERENCES:
        values = list(samples.get(f"{group}.psnr", {}).values())
        if values:
            for name, measure in ((FIFTH, percentile), (SHARE, lost)):
                found[f"{group}.{name}"] = Estimate(
                    mean=measure(values), margin=None, samples=len(values)
                )
    return found
