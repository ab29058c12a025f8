"""Where a measured rate belongs on the time axis: the start of its step, or the middle.

    python -m benchmarks.resample_nodes -o benchmarks/results/resample_nodes.jsonl

Carries a 50-step profile of a Gaussian-mixture flow to other step counts, with the rates placed at
the starts of the steps (as `Profile.resample` does) and at their middles, and writes how far each
is from a calibration on the new grid, relative to the mean rate.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tests.flows import GaussianMixtureFlow

from tacache import Profile, calibrate, time_grid
from tacache.grid import interpolate, step_lengths


def main() -> None:
    """Write one record per shift, step count and placement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    flow = GaussianMixtureFlow(torch.randn(6, 64) * 1.5, [0.2] * 6, [1 / 6] * 6)
    noise = torch.randn(32, 64)
    records = []
    for shift in (1.0, 3.0):
        measured = calibrate(flow, noise, time_grid(50, shift))
        for steps in (20, 28, 100):
            expected = calibrate(flow, noise, time_grid(steps, shift))
            for place, share in (("start", 0.0), ("middle", 0.5)):
                k, d = carried(measured, expected.times, share)
                record = {
                    "shift": shift,
                    "steps": steps,
                    "rates at": place,
                    "magnitude error": round(distance(k, expected.magnitude[:-1]), 4),
                    "direction error": round(distance(d, expected.direction[:-1]), 4),
                }
                records.append(record)
                print(record)
    options.out.write_text("".join(json.dumps(record) + "\n" for record in records))


def carried(
    profile: Profile, times: Sequence[float], share: float
) -> tuple[list[float], list[float]]:
    """Magnitude and direction on another grid, rates placed at this share of their steps."""
    lengths, new = step_lengths(profile.times), step_lengths(times)
    nodes = [t - share * dt for t, dt in zip(profile.times, lengths, strict=False)][:-1]
    at = [t - share * dt for t, dt in zip(times, new, strict=False)][:-1]
    rates = [d / dt for d, dt in zip(profile.direction, lengths, strict=True)]
    k = interpolate(at, nodes, profile.magnitude[:-1])
    d = interpolate(at, nodes, rates[:-1])
    return list(k), [rate * dt for rate, dt in zip(d, new, strict=False)]


def distance(values: Sequence[float], expected: Sequence[float]) -> float:
    """Mean absolute difference over mean absolute value."""
    return float(np.abs(np.subtract(values, expected)).mean() / np.abs(expected).mean())


if __name__ == "__main__":
    main()
