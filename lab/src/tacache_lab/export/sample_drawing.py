"""How a host draws the samples of an export: by full steps, by a plan, or by a method."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.hosts import Call, Request, generate, write
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache_lab.bench.judging import FULL
from tacache_lab.bench.model_caches import within
from tacache_lab.bench.named_methods import load_settings, resolve
from tacache_lab.bench.plan_methods import Followed
from tacache_lab.bench.recorded_runs import record_full_run
from tacache_lab.bench.records import Key
from tacache_lab.bench.runner import Bench
from tacache_lab.bench.tuning_journal import TuningJournal
from tacache_lab.export.export_request import ExportRequest

# a sample and where a draft may go, without suffix -> the draft's file and the record's fields
Draws = Callable[[Sample, Path], tuple[Path, dict[str, Any]]]


class Drawing(NamedTuple):
    """A way to draw: what its records are called, what they share, and the drawing itself."""

    method: str
    evaluations: int | None
    shared: dict[str, Any]
    draw: Draws

    def key(self, sample: Sample) -> Key:
        """Return of the record of a sample."""
        return Key(self.method, self.evaluations, sample.text, sample.seed)


@contextmanager
def drawing(bench: Bench, request: ExportRequest) -> Iterator[Drawing]:
    """Open the way to draw that is asked for, for the length of a `with` block."""
    host, call = bench.caller.source, dict(request.call)
    with host.quiet():
        if request.plan is not None:
            plan = request.plan[1]
            shared = {"settings": Followed().shown(plan)}
            with host.follow(plan, call) as planned_call:
                draw = _by_calls(bench, planned_call, request.fps)
                yield Drawing(request.name, plan.evaluations, shared, draw)
        elif request.method == FULL:
            with host.full():
                yield Drawing(FULL, bench.caller.steps, {}, _by_calls(bench, call, request.fps))
        else:
            yield _by_method(bench, request.method, request.fps)


def _by_calls(bench: Bench, call: Call, fps: int) -> Draws:
    """Return plain calls of the host, which follows a plan if there is one."""
    caller, generation = bench.caller, Request(None, call, fps=fps)

    def draw(sample: Sample, draft: Path) -> tuple[Path, dict[str, Any]]:
        output = generate(caller.source, sample, generation, draft)
        followed = caller.source.run_plan or Plan.full(caller.times)
        return Path(output.file), {"seconds": output.seconds, "evaluated": anchor_times(followed)}

    return draw


def _by_method(bench: Bench, name: str, fps: int) -> Drawing:
    """Return a method of the benchmark, made ready on the calibration prompts by all processes."""
    (task,) = bench.tasks([resolve(name)])
    caller, method = bench.caller, task.chosen.method
    learned = task.calibration_set.subjects if task.calibrated else []
    bench.share(learned, "calibrating", lambda s: record_full_run(caller, bench.folder, s))
    bench.share([task], "tuning", bench.prepare)
    with bench.processes.failing_together():
        ready = bench.prepared(task)
    if ready.kind is None or ready.settings is None:
        TuningJournal(bench.tuning_file(task)).retry()  # the next run goes on from there
        raise TACacheError(f"{name} cannot be made ready: {ready.reason}")
    settings = load_settings(ready.kind, ready.settings)
    shared = {
        "settings": method.shown(settings),
        "prepare_seconds": ready.seconds,
        "prepare_evaluations": ready.evaluations,
        "tuned_on": task.calibration_set.tuned_on if task.calibrated else None,
    }

    def draw(sample: Sample, draft: Path) -> tuple[Path, dict[str, Any]]:
        with within(method, caller, settings):
            run = bench.judge.sampled(sample, lambda problem: method.sample(problem, settings))
        pixels = run.result.pixels.movedim(-3, -1).numpy()
        return write(pixels, draft, fps=fps), {
            "seconds": run.seconds,
            "evaluated": tuple(round(t, 6) for t in run.evaluated),
            "noise_sha256": run.noise_sha256,
            "memory_bytes": run.memory_bytes,
            "equivalent_evaluations": None
            if run.equivalent_evaluations is None
            else round(run.equivalent_evaluations, 3),
        }

    return Drawing(name, task.evaluations, shared, draw)


def anchor_times(plan: Plan) -> tuple[float, ...]:
    """Return when a plan evaluates the model, as records have it."""
    return tuple(round(plan.times[n], 6) for n in plan.anchors)
