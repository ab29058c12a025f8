"""Following a plan inside BAGEL: its own loop runs, and only its velocities come from us.

Two methods are shadowed on the instance, until `remove` or for the length of a `with` block:
`generate_image`, which starts a run, and `_forward_flow`, which gives the velocity of a step.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tacache.bagel.matching import check_host, fit_to_run
from tacache.bagel.runs import BagelRun, changes_at, images_of, run_of
from tacache.errors import HostError
from tacache.plan import Plan, as_plan
from tacache.stepper import Stepper
from tacache.velocity import check_finite, check_velocity

METHODS = ("generate_image", "_forward_flow")
PLAIN = "_tacache_plain"  # on a shadow: the method it stands before
WATCHER = "_tacache_watcher"  # on a shadow: who is asked for its velocities
FLAG = "enable_taylorseer"

# BAGEL's evaluation of a step, its arguments bound; `evaluate(x_t=x)` is that of another state
Evaluate = Callable[..., Tensor]


class Watcher(Protocol):
    """Who is asked for the velocities of BAGEL's runs."""

    def start(self, run: BagelRun) -> None:
        """Begin a run."""

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Return the velocity of the next step, at state x."""


class Following:
    """Makes a model's runs follow a plan; `run_plan` is the plan as its latest run took it."""

    def __init__(self, plan: Plan | None) -> None:
        self.plan = self.run_plan = plan
        self._run: BagelRun | None = None
        self._steppers: list[Stepper] = []
        self._average = torch.empty(0)  # up to the next of the plan's own times

    def start(self, run: BagelRun) -> None:
        """Fit the plan to the run, unless it is one like the last."""
        if run != self._run and self.plan is not None:
            self.run_plan = fit_to_run(self.plan, run)
        self.follow(run, self.run_plan)

    def follow(self, run: BagelRun, plan: Plan | None) -> None:
        """Begin a run under a plan that was fitted to it; None for full steps."""
        self._run, self.run_plan = run, plan
        self._steppers = [] if plan is None else [Stepper(plan) for _ in run.lengths]
        self._number = 0  # of the loop's step, where the plan has times of its own

    def leave(self) -> None:
        """Let go of what is kept, as the model gets its own methods back."""

    def velocity(self, x: Tensor, evaluate: Evaluate) -> Tensor:
        """Evaluate at anchors, all images at once; between them rebuild image by image."""
        assert self._run is not None
        assert self.run_plan is not None
        if self.run_plan.has_own_times:
            return self._across_nodes(x, evaluate, self._run, self.run_plan)
        states = images_of(x, self._run)
        evaluates = self._steppers[0].evaluates
        known = images_of(check_velocity(evaluate(), x), self._run) if evaluates else states
        with without_autocast():
            velocities = [
                stepper.velocity(state[None], functools.partial(_as_sample, v))[0]
                for stepper, state, v in zip(self._steppers, states, known, strict=True)
            ]
        if self._steppers[0].is_done:
            for part in (x, *velocities):  # on two devices, maybe
                check_finite(part)
        return velocities[0] if len(velocities) == 1 else torch.cat(velocities)

    def _across_nodes(self, x: Tensor, evaluate: Evaluate, run: BagelRun, plan: Plan) -> Tensor:
        """Return the velocity of a step of the loop, evaluated at the plan's own times within it.

        The loop makes its own steps; between two of the plan's times it moves in a straight line.
        """
        t, end = run.times[self._number : self._number + 2]
        length, state, stepper = t - end, x, self._steppers[0]
        while t > end:
            if not stepper.is_done and t <= plan.times[stepper.step]:
                v = check_velocity(evaluate(x_t=state, **changes_at(t, evaluate, run)), x)
                self._average = self._jumped(state, v, run)
            stop = end if stepper.is_done else max(end, plan.times[stepper.step])
            state, t = state - (t - stop) * self._average, stop
        self._number += 1
        return check_finite((x - state) / length).to(self._average.dtype)

    def _jumped(self, x: Tensor, v: Tensor, run: BagelRun) -> Tensor:
        """Return the average velocity up to the plan's next time, image by image."""
        with without_autocast():
            averages = [
                stepper.jump(state[None], functools.partial(_as_sample, part))[0]
                for stepper, state, part in zip(
                    self._steppers, images_of(x, run), images_of(v, run), strict=True
                )
            ]
        return torch.cat(averages)


def apply(model: Any, plan: Plan | str | Path) -> None:
    """Make `model` (a Bagel or its inferencer) follow a plan, or the plan of a file.

    Call the model as before. A plan that is already applied is replaced.

    Args:
        model: A Bagel or its inferencer.
        plan: The plan, or the path of its file.

    Raises:
        HostError: The model is no BAGEL, or the plan is for another model.
        PlanError: The plan is none.

    """
    bagel, plan = model_of(model), as_plan(plan)
    check_host(bagel, plan)
    put(bagel, Following(plan))


def put(bagel: Any, following: Following) -> None:
    """Let the model's runs follow this in place of what they followed before."""
    _leave(bagel)
    for name, shadow in shadows(bagel, following).items():
        setattr(bagel, name, shadow)


def _leave(bagel: Any) -> None:
    watcher = getattr(bagel.generate_image, WATCHER, None)
    if isinstance(watcher, Following):
        watcher.leave()


def remove(model: Any) -> None:
    """Give the model back the methods it had before `apply` or `accelerate`.

    Args:
        model: A Bagel or its inferencer.

    Raises:
        HostError: The model is no BAGEL.

    """
    bagel = model_of(model)
    _leave(bagel)
    for name in METHODS:
        plain = plain_method(bagel, name)
        if getattr(plain, "__func__", None) is not getattr(type(bagel), name):
            setattr(bagel, name, plain)  # a method of the user's own
        elif name in bagel.__dict__:
            delattr(bagel, name)


@contextmanager
def applied(model: Any, plan: Plan | str | Path) -> Iterator[Following]:
    """Apply a plan for the length of a `with` block; then the former plan is put back, if any.

    The block's value says in `run_plan` how the latest run was planned.

    Args:
        model: A Bagel or its inferencer.
        plan: The plan, or the path of its file.

    Yields:
        What follows the plan.

    Raises:
        HostError: The model is no BAGEL, or the plan is for another model.

    """
    bagel, plan = model_of(model), as_plan(plan)
    following = Following(plan)
    check_host(bagel, plan)
    with watching(bagel, following):
        yield following


@contextmanager
def without_plan(model: Any) -> Iterator[None]:
    """Make full steps for the length of a `with` block, whatever plan was applied before."""
    bagel = model_of(model)
    with replaced(bagel, **{name: plain_method(bagel, name) for name in METHODS}):
        yield


@contextmanager
def watching(model: Any, watcher: Watcher) -> Iterator[None]:
    """Ask `watcher` for the velocities of the model's runs, and no plan meanwhile."""
    with replaced(model, **shadows(model, watcher)):
        yield


def shadows(model: Any, watcher: Watcher) -> dict[str, Any]:
    """Return what stands before the model's methods, by name, to ask `watcher` for velocities."""
    check_taylorseer(model)
    whole, flow = (plain_method(model, name) for name in METHODS)
    running = threading.Lock()

    @functools.wraps(whole)
    def generate_image(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(whole).bind(*args, **kwargs)
        bound.apply_defaults()
        check_taylorseer(model, bound.arguments.get(FLAG, False))
        if not running.acquire(blocking=False):
            raise HostError("another run of this model is under way: one at a time, please")
        try:
            watcher.start(run_of(model, bound.arguments))
            return whole(*args, **kwargs)
        finally:
            running.release()

    @functools.wraps(flow)
    def forward_flow(**arguments: Any) -> Tensor:
        evaluate = functools.partial(flow, **arguments)
        return watcher.velocity(arguments["x_t"], evaluate) if running.locked() else evaluate()

    for shadow, plain in ((generate_image, whole), (forward_flow, flow)):
        setattr(shadow, PLAIN, plain)
        setattr(shadow, WATCHER, watcher)
    return dict(zip(METHODS, (generate_image, forward_flow), strict=True))


def followed_plan(model: Any) -> Plan | None:
    """Return the plan as the model's latest run took it; None where no plan is in force."""
    watcher = getattr(model_of(model).generate_image, WATCHER, None)
    return watcher.run_plan if isinstance(watcher, Following) else None


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch autocast off on all devices that x and v may be on: we calculate in float32."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object itself for the length of a `with` block."""
    before = {name: owner.__dict__[name] for name in values if name in owner.__dict__}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            elif name in owner.__dict__:
                delattr(owner, name)


def model_of(host: Any) -> Any:
    """Return the Bagel itself, of a Bagel or of an inferencer that has one."""
    for candidate in (host, getattr(host, "model", None)):
        if all(callable(getattr(candidate, name, None)) for name in METHODS):
            return candidate
    raise HostError(
        f"{type(host).__name__} is no BAGEL: give a Bagel, or the InterleaveInferencer that has one"
    )


def plain_method(model: Any, name: str) -> Any:
    """Return the model's method as it is without us."""
    method = getattr(model, name)
    return getattr(method, PLAIN, method)


def check_taylorseer(model: Any, asked: bool = False) -> None:
    """Refuse a model whose own cache TaylorSeer is on: it stays in the layers after a run."""
    if asked:
        raise HostError("enable_taylorseer=True does not go with a plan or a calibration: leave it")
    if any(getattr(module, FLAG, False) for module in model.language_model.modules()):
        raise HostError(
            "BAGEL's TaylorSeer is on, and stays on in its layers after a run: first `for module "
            "in model.language_model.modules(): module.enable_taylorseer = False`"
        )


def _as_sample(v: Tensor) -> Tensor:
    """Give one image's velocity a dim of samples: norms run over all of its tokens."""
    return v[None]
