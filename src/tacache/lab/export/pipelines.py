"""How a pipeline of diffusers draws: by full steps, by a plan, or by a benchmark's method."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacache.diffusers.generation import Request, generate, write
from tacache.diffusers.host import applied, without_plan
from tacache.errors import TACacheError
from tacache.lab.bench.calibration_sets import record_walk
from tacache.lab.bench.calls import Caller
from tacache.lab.bench.jobs import Job
from tacache.lab.bench.judging import FULL
from tacache.lab.bench.methods import Followed, load_settings, resolve
from tacache.lab.bench.model_caches import within
from tacache.lab.bench.runner import Bench, load_prepared
from tacache.lab.bench.seam import Subject
from tacache.lab.export.drawing import Drawing, Draws, anchor_times
from tacache.lab.export.orders import Order
from tacache.plan import Plan


class PipelineStudio(NamedTuple):
    """A pipeline of diffusers."""

    pipe: Any

    def caller(self, job: Job) -> Caller:
        """Its calls, with the job's arguments."""
        return Caller(self.pipe, dict(job.call), job.subjects[0])

    def drawing(self, bench: Bench, order: Order) -> AbstractContextManager[Drawing]:
        """By a plan where one is given, else by full steps or another method."""
        if order.plan is not None:
            return _by_plan(bench, order.name, order.plan[1], order.fps)
        if order.method == FULL:
            return _by_full_steps(bench, order.fps)
        return _by_method(bench, order.method, order.fps)


@contextmanager
def _by_full_steps(bench: Bench, fps: int) -> Iterator[Drawing]:
    with without_plan(bench.caller.pipe):
        yield Drawing(FULL, bench.caller.steps, {}, _through_the_pipeline(bench, fps))


@contextmanager
def _by_plan(bench: Bench, name: str, plan: Plan, fps: int) -> Iterator[Drawing]:
    shared = {"settings": Followed().shown(plan)}
    with applied(bench.caller.pipe, plan):
        draw = _through_the_pipeline(bench, fps)
        yield Drawing(name, plan.evaluations, shared, draw)


def _through_the_pipeline(bench: Bench, fps: int) -> Draws:
    """Plain calls of the pipeline, whose scheduler carries the plan if there is one."""
    pipe, caller = bench.caller.pipe, bench.caller
    request = Request(None, dict(bench.job.call), fps=fps)

    def draw(subject: Subject, draft: Path) -> tuple[Path, dict[str, Any]]:
        output = generate(pipe, *subject, request, draft)
        followed = getattr(pipe.scheduler, "run_plan", None) or Plan.full(caller.times)
        return Path(output.file), {"seconds": output.seconds, "evaluated": anchor_times(followed)}

    return draw


@contextmanager
def _by_method(bench: Bench, name: str, fps: int) -> Iterator[Drawing]:
    """A method of the benchmark, made ready on the calibration prompts by all processes."""
    (task,) = bench.tasks([resolve(name)])
    caller, method = bench.caller, task.asked.method
    learned = task.calibration_set.subjects if task.calibrated else []
    bench.share(learned, "calibrating", lambda s: record_walk(caller, bench.folder, s))
    bench.share([task], "tuning", bench.prepare)
    with bench.processes.failing_together():
        ready = load_prepared(bench.prepared_file(task))
    if ready.kind is None or ready.settings is None:
        bench.prepared_file(task).unlink(missing_ok=True)  # the next run tries again
        raise TACacheError(f"{name} cannot be made ready: {ready.reason}")
    settings = load_settings(ready.kind, ready.settings)
    shared = {
        "settings": method.shown(settings),
        "prepare_seconds": ready.seconds,
        "prepare_evaluations": ready.evaluations,
        "taught": task.calibration_set.tuned_on if task.calibrated else None,
    }

    def draw(subject: Subject, draft: Path) -> tuple[Path, dict[str, Any]]:
        with within(method, caller, settings):
            made = bench.judge.sampled(subject, lambda problem: method.sample(problem, settings))
        pixels = made.result.pixels.movedim(-3, -1).numpy()
        file = write(pixels, draft, Request(None, {}, fps=fps))
        return file, {
            "seconds": made.seconds,
            "evaluated": tuple(round(t, 6) for t in made.evaluated),
            "noise_sha256": made.noise_sha256,
            "memory_bytes": made.memory_bytes,
            "worth": None
            if made.equivalent_evaluations is None
            else round(made.equivalent_evaluations, 3),
        }

    yield Drawing(name, task.evaluations, shared, draw)
