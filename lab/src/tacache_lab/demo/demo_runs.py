"""A demo's parts: the same prompts by an embedded model at one number of steps after another."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tacache import models
from tacache.cli.printing import tell
from tacache.plan import Plan
from tacache.profile import Profile
from tacache_lab.demo.demo_page import write_files
from tacache_lab.demo.demo_plans import plans_for
from tacache_lab.demo.demo_request import DemoRequest
from tacache_lab.demo.measured import equivalent_steps, measured_for
from tacache_lab.demo.record import ModelDemo
from tacache_lab.demo.run import run_model_demo


class DemoRun(NamedTuple):
    """One part of a demo: a model, its steps and the budgets that are compared."""

    model: str
    steps: int
    budgets: Sequence[int]


def draw(
    runs: Sequence[DemoRun],
    request: DemoRequest,
    out: Path,
    *,
    calibrate: bool,
    progress: bool,
) -> ModelDemo:
    """Run the embedded models, and write record, strip, table and page beside their pictures.

    Parts run side by side, each on one core. The first takes longest, and alone shows its progress.
    """
    requests = [
        request._replace(part=f"{run.model}-{run.steps}" if n else "") for n, run in enumerate(runs)
    ]
    pipes = [load(run.model, progress=progress) for run in runs]
    cores = min(len(runs), os.cpu_count() or 1)
    shown = [progress and (n == 0 or cores == 1) for n in range(len(runs))]
    with models.steady_threads(pipes[0]), ThreadPoolExecutor(cores) as pool:
        draw_one = partial(draw_run, out=out, calibrate=calibrate)
        first, *others = pool.map(draw_one, runs, pipes, requests, shown)
    result = first.model_copy(update={"others": tuple(others)})
    if progress:
        tell(f"Writing {out / 'index.html'} ...")
    write_files(result, out)
    return result


def load(model: str, *, progress: bool) -> Any:
    """Load an embedded model, one pipeline for each part, since a pipeline runs one call."""
    if progress:
        tell(f"Loading {model} ...")
    pipe = models.load(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw_run(
    run: DemoRun, pipe: Any, request: DemoRequest, progress: bool, *, out: Path, calibrate: bool
) -> ModelDemo:
    """Run one model at one number of steps, and write its pictures."""
    shipped = models.embedded(run.model)
    profile = Profile.load(shipped.profile) if shipped.profile.is_file() and not calibrate else None
    planned = partial(plans_for, shipped, budgets=run.budgets)
    call = {**models.default_call(run.model), "num_inference_steps": run.steps}
    request = request._replace(call=call, plain=run.budgets)
    result = run_model_demo(pipe, out, request, planned, profile, progress=progress)
    plans = [Plan.load(out / budget.plan) for budget in result.budgets if budget.plan is not None]
    update = {
        "model": run.model,
        "equivalent_steps": equivalent_steps(run.model),
        "measured": measured_for(run.model, run.steps, plans),
    }
    return result.model_copy(update=update)
