"""The reference of a fit: full-step runs of its samples, and how errors made on the way grow."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from torch import Tensor

from tacache.decomposition import norm
from tacache.fitting.aiming import aimed_at_flow
from tacache.fitting.anchors import growth_between, inner_products, local_errors, pooled
from tacache.fitting.flow import Target
from tacache.fitting.full_runs import held_out_of, retraced, walked_in_full
from tacache.fitting.lockstep import Reference
from tacache.fitting.samples import Runs
from tacache.fitting.walking import Moves
from tacache.grid import break_steps
from tacache.work.progress import track

PROBES, PROBED = (0.1, 0.3, 0.55, 0.8), 4  # where, and on how many samples, growth is measured
PROBE_SKIP = 0.06  # of the steps: the probed error is that of reusing a velocity for so long


def record(
    runs: Runs,
    *,
    target: Target = "run",
    reference_steps: int | None = None,
    resume: Path | None = None,
    progress: bool = False,
) -> Reference:
    """Run all samples with full steps, and measure how errors made on the way grow.

    With the target "flow", the states to fit to are those of the flow, from further runs with up to
    `reference_steps`. `resume` names a file that keeps the runs as far as they are.
    """
    steps = len(runs.times) - 1
    recorded, walked = walked_in_full(runs, resume=resume, progress=progress)
    aim = None
    if target == "flow":
        aim = aimed_at_flow(runs, recorded, reference_steps, resume, progress)
    grams = runs.gathered({i: inner_products(walked[:, k]) for k, i in enumerate(runs.numbers)})
    held_out = held_out_of(runs.total)
    kept = [grams[i] for i in sorted(grams) if i >= held_out]
    parts = break_steps(runs.times, runs.breaks)
    return Reference(
        states=recorded if aim is None else aim.states,
        errors=local_errors(pooled(kept), runs.times, parts),
        growth=_growth(runs, recorded, walked, progress),
        held_out=held_out,
        spent=runs.total * steps + probe_cost(runs) + (0 if aim is None else aim.spent),
        run_ends=recorded[-1],
        euler={} if aim is None else aim.euler,
        flow_floor=0.0 if aim is None else aim.floor,
    )


def _growth(runs: Runs, states: Tensor, velocities: Tensor, progress: bool) -> list[float]:
    """How errors grow: at a few steps, make the one that reuse makes, run on, and compare."""
    steps, found = len(runs.times) - 1, []
    chosen = [k for k, i in enumerate(runs.numbers) if runs.together or i >= runs.total - PROBED]
    for n in track(_probed(steps), "probing", progress):
        grown = {}
        if chosen:
            walk = retraced(runs, chosen, states, velocities[: _probed_from(steps, n)])
            on_device = states[:, chosen].to(runs.noise.device)
            error, result = _probe(runs, walk, on_device, n, chosen)
            numbers = [runs.numbers[k] for k in chosen]
            grown = dict(zip(numbers, (result / error).flatten().tolist(), strict=True))
        everyone = runs.gathered(grown).values()
        found.append(math.exp(fmean([math.log(max(g, 1e-3)) for g in everyone])))
    return growth_between(steps, _probed(steps), found)


def _probe(
    runs: Runs, walk: Moves, states: Tensor, n: int, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The size of an error made at step n, and of what becomes of it."""
    times, tiny = runs.times, 1e-12 * norm(states[n])
    before = _probed_from(len(times) - 1, n)
    v = (states[before] - states[before + 1]) / (times[before] - times[before + 1])
    if before == n - 1:  # one step makes no error: go a little too far
        v = 1.1 * v
    x = walk.move(states[before], v, before, n)
    error = norm(x - states[n]) + tiny
    for i in range(n, len(times) - 1):
        x = walk.move(x, runs.evaluate(x, i, chosen), i, i + 1)
    return error, norm(x - states[-1]) + tiny


def _probed_from(steps: int, n: int) -> int:
    """The step whose velocity is reused up to step n."""
    return max(0, n - max(1, round(PROBE_SKIP * steps)))


def _probed(steps: int) -> list[int]:
    return sorted({min(steps - 1, max(1, round(share * steps))) for share in PROBES if steps > 1})


def probe_cost(runs: Runs) -> int:
    """Evaluations that measuring growth takes."""
    steps = len(runs.times) - 1
    samples = runs.total if runs.together else min(PROBED, runs.total)
    return samples * sum(steps - n for n in _probed(steps))
