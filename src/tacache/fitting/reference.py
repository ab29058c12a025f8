"""The reference of a fit: full-step runs of its samples, and how errors made on the way grow."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from torch import Tensor

from tacache.fitting.aiming import Walked, aimed_at_flow, flow_cost
from tacache.fitting.anchors import Floats, growth_between, inner_products, local_errors, pooled
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.full_runs import held_out_of, retraced, walked_in_full
from tacache.fitting.integrators import Moves
from tacache.fitting.latents import indices, rate
from tacache.fitting.lockstep import Reference
from tacache.fitting.samples import FitSamples
from tacache.grid import break_steps
from tacache.tasu import norm
from tacache.work.progress import track

PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 4  # where, and on how many samples, growth is measured
# The logarithm of how many times an error of the first step grows, for fits to the flow; it falls
# to 0 in a straight line over the steps (docs/decisions/0049-nodes-at-free-times.md).
LOG_GROWTH = 2.6
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long


def record(
    runs: FitSamples,
    options: FitOptions = FitOptions(),  # noqa: B008
) -> Reference:
    """Run all samples with full steps, and measure how errors made on the way grow.

    With the target "flow", the states to fit to are those of the flow, from further runs with up to
    `options.reference_steps`. How errors grow is then not measured: a usual growth is taken.
    """
    recorded, walked = walked_in_full(runs, resume=options.resume, progress=options.progress)
    if options.target == "run":
        return Reference(
            states=recorded,
            errors=_errors(runs, runs.times, walked),
            growth=_growth(runs, recorded, walked, options.progress),
            held_out=held_out_of(runs.total),
            spent=reference_cost(runs, options),
            run_ends=recorded[-1],
        )
    aim = aimed_at_flow(runs, Walked(runs.times, recorded, walked), options)
    levels, velocities = aim.finer.coarser()
    steps = len(velocities)
    return Reference(
        states=aim.states_at(runs.times),
        errors=_errors(runs, levels, velocities),
        growth=[math.exp(LOG_GROWTH * (1 - n / steps)) for n in range(steps + 1)],
        held_out=held_out_of(runs.total),
        spent=runs.total * (len(runs.times) - 1) + aim.spent,
        run_ends=recorded[-1],
        aim=aim,
    )


def reference_cost(runs: FitSamples, options: FitOptions) -> int:
    """Return evaluations that it takes at most to record what a fit starts from."""
    beside = probe_cost(runs) if options.target == "run" else flow_cost(runs, options)
    return runs.total * (len(runs.times) - 1) + beside


def _errors(runs: FitSamples, levels: tuple[float, ...], velocities: Tensor) -> Floats:
    """Return local errors of the samples that are fitted, those of all processes and latents."""
    each, held_out = indices(runs.latents), held_out_of(runs.total)
    grams = runs.gathered(
        {
            i: [inner_products(velocities[:, k][index]) for index in each]
            for k, i in enumerate(runs.numbers)
        }
    )
    kept = zip(*(grams[i] for i in sorted(grams) if i >= held_out), strict=True)
    parts = break_steps(levels, runs.breaks)
    grids = [latent.times for latent in runs.latents] or [levels]
    errors = [
        local_errors(pooled(own), times, parts) for own, times in zip(kept, grids, strict=True)
    ]
    total: Floats = np.sum(errors, axis=0)
    return total


def _growth(runs: FitSamples, states: Tensor, velocities: Tensor, progress: bool) -> list[float]:
    """Measure how errors grow: at a few steps, make the one that reuse makes, and run on."""
    steps, growths = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            integrator = retraced(runs, chosen, states, velocities[: _probed_from(steps, n)])
            on_device = states[:, chosen].to(runs.noise.device)
            error, result = _probe(runs, integrator, on_device, n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        growths.append(math.exp(fmean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), growths)


def _probe(
    runs: FitSamples, integrator: Moves, states: Tensor, n: int, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = _probed_from(len(times) - 1, n)
    v = rate(runs.latents, times, states, before)
    if before == n - 1:  # one step makes no error: go a little too far
        v = 1.1 * v
    x = integrator.move(states[before], v, before, n)
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = integrator.move(x, runs.evaluate(x, i, chosen), i, i + 1)
    return error, norm(x - states[-1]) + tiny


def _probed_from(steps: int, n: int) -> int:
    """Return the step whose velocity is reused up to step n."""
    return max(0, n - max(1, round(PROBE_SKIP * steps)))


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def probe_cost(runs: FitSamples) -> int:
    """Return evaluations that measuring growth takes."""
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))
