"""A demo's parts: the same prompts by an embedded model at one number of steps after another."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
    """Run the embedded models, and write record, strip, table and page beside their pictures."""
    first, *others = (
        draw_run(
            run,
            request._replace(part=f"{run.model}-{run.steps}" if n else ""),
            out,
            calibrate=calibrate,
            progress=progress,
        )
        for n, run in enumerate(runs)
    )
    result = first.model_copy(update={"others": tuple(others)})
    if progress:
        tell(f"Writing {out / 'index.html'} ...")
    write_files(result, out)
    return result


def draw_run(
    run: DemoRun, request: DemoRequest, out: Path, *, calibrate: bool, progress: bool
) -> ModelDemo:
    """Run one model at one number of steps, and write its pictures."""
    if progress:
        tell(f"Loading {run.model} ...")
    shipped = models.embedded(run.model)
    profile = Profile.load(shipped.profile) if shipped.profile.is_file() and not calibrate else None
    pipe = models.load(run.model)
    pipe.set_progress_bar_config(disable=True)
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
