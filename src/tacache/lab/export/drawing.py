"""How a host draws the samples of an export: by full steps, by a plan, or by a method."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.host import Call, Request, generate, write
from tacache.lab.bench.judging import FULL
from tacache.lab.bench.methods import load_settings, resolve
from tacache.lab.bench.model_caches import within
from tacache.lab.bench.plans import Followed
from tacache.lab.bench.records import Key
from tacache.lab.bench.runner import Bench, load_prepared
from tacache.lab.bench.walks import record_walk
from tacache.lab.export.orders import Order
from tacache.plan import Plan
from tacache.prompts import Sample

# a sample and where a draft may go, without suffix -> the draft's file and the record's fields
Draws = Callable[[Sample, Path], tuple[Path, dict[str, Any]]]


class Drawing(NamedTuple):
    """A way to draw: what its records are called, what they share, and the drawing itself."""

    method: str
    evaluations: int | None
    shared: dict[str, Any]
    draw: Draws

    def key(self, sample: Sample) -> Key:
        """Of the record of a sample."""
        return Key(self.method, self.evaluations, sample.text, sample.seed)


@contextmanager
def drawing(bench: Bench, order: Order) -> Iterator[Drawing]:
    """The way to draw that is asked for, ready for the length of a `with` block."""
    host, call = bench.caller.source, dict(order.call)
    with host.quiet():
        if order.plan is not None:
            plan = order.plan[1]
            shared = {"settings": Followed().shown(plan)}
            with host.follow(plan, call) as asked:
                draw = _by_calls(bench, asked, order.fps)
                yield Drawing(order.name, plan.evaluations, shared, draw)
        elif order.method == FULL:
            with host.full():
                yield Drawing(FULL, bench.caller.steps, {}, _by_calls(bench, call, order.fps))
        else:
            yield _by_method(bench, order.method, order.fps)


def _by_calls(bench: Bench, call: Call, fps: int) -> Draws:
    """Plain calls of the host, which follows a plan if there is one."""
    caller, request = bench.caller, Request(None, call, fps=fps)

    def draw(sample: Sample, draft: Path) -> tuple[Path, dict[str, Any]]:
        output = generate(caller.source, sample, request, draft)
        followed = caller.source.run_plan or Plan.full(caller.times)
        return Path(output.file), {"seconds": output.seconds, "evaluated": anchor_times(followed)}

    return draw


def _by_method(bench: Bench, name: str, fps: int) -> Drawing:
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

    def draw(sample: Sample, draft: Path) -> tuple[Path, dict[str, Any]]:
        with within(method, caller, settings):
            made = bench.judge.sampled(sample, lambda problem: method.sample(problem, settings))
        pixels = made.result.pixels.movedim(-3, -1).numpy()
        return write(pixels, draft, fps=fps), {
            "seconds": made.seconds,
            "evaluated": tuple(round(t, 6) for t in made.evaluated),
            "noise_sha256": made.noise_sha256,
            "memory_bytes": made.memory_bytes,
            "worth": None
            if made.equivalent_evaluations is None
            else round(made.equivalent_evaluations, 3),
        }

    return Drawing(name, task.evaluations, shared, draw)


def anchor_times(plan: Plan) -> tuple[float, ...]:
    """When a plan evaluates the model, as records have it."""
    return tuple(round(plan.times[n], 6) for n in plan.anchors)
