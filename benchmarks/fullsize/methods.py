"""Our plans and the rivals' caches, each at a schedule that evaluates as often as it is told.

A method is a context manager: within it the pipeline is accelerated; it yields the steps that are
evaluated and the setting that goes into the records. With random weights thresholds on residuals
mean nothing, so every rival is told its steps by what its library offers for that.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.fullsize.models import Built
from benchmarks.fullsize.timing import Position

from tacache import Plan, Profile, instant_plan, make_plan
from tacache.diffusers import applied
from tacache.diffusers.calls import run_breaks
from tacache.errors import HostError
from tacache.moving import with_breaks
from tacache.plan import LatentPlan

ATTENTION = r"^(blocks|transformer_blocks|single_transformer_blocks)\.\d+\.attn\d?$"
ROWS = ((1.0,), (1.25, -0.25), (1.6, -0.9, -0.4))


class Task(NamedTuple):
    """What a method is to accelerate: a run of these levels, by this many evaluations."""

    built: Built
    times: tuple[float, ...]
    budget: int
    position: Position
    further: Mapping[str, tuple[float, ...]] = {}  # levels of a joint model's other latents

    @property
    def steps(self) -> int:
        """N."""
        return len(self.times) - 1


class Share(NamedTuple):
    """A transformer's part of a run: the steps that are its own, and how many it evaluates."""

    transformer: Any
    steps: range
    budget: int


class Engaged(NamedTuple):
    """The evaluated steps of a run, and how the method was set."""

    anchors: tuple[int, ...]
    setting: dict[str, Any]


Engage = Callable[[Task], AbstractContextManager[Engaged]]


def even_anchors(steps: int, evaluations: int) -> tuple[int, ...]:
    """Step 0 and 1, and the others spread evenly over the rest."""
    if not 2 <= evaluations <= steps:
        raise HostError(f"{evaluations} of {steps} steps: a budget is 2 up to the steps")
    rest = [1 + round(i * (steps - 1) / (evaluations - 1)) for i in range(evaluations - 1)]
    return (0, *rest)


def shares(task: Task) -> list[Share]:
    """Each transformer's part, of as many evaluations as a fitted plan makes of the budget."""
    plan = with_breaks(
        fitted_plan(task.times, task.budget), run_breaks(task.built.pipe, task.built.call)
    )
    spans = [range(a, b) for a, b in pairwise((0, *plan.break_steps, task.steps))]
    budgets = [sum(n in span for n in plan.anchors) for span in spans]
    return [Share(*part) for part in zip(task.built.transformers, spans, budgets, strict=True)]


def spread_anchors(parts: list[Share]) -> tuple[int, ...]:
    """Evenly spread over each transformer's steps."""
    return tuple(
        part.steps.start + n for part in parts for n in even_anchors(len(part.steps), part.budget)
    )


# --- ours -------------------------------------------------------------------------------------


@contextmanager
def full(task: Task) -> Iterator[Engaged]:
    """Every step evaluated: the pipeline as it is."""
    yield Engaged(tuple(range(task.steps)), {})


def tasu_plan(times: tuple[float, ...], budget: int) -> Plan:
    """The paper's rule at rates that stay the same: speed does not depend on them."""
    steps = len(times) - 1
    zeros, magnitude, direction = (0.0,) * steps, (0.3,) * steps, (0.02,) * steps
    profile = Profile(
        times=times,
        samples=1,
        magnitude=magnitude,
        magnitude_std=zeros,
        direction=direction,
        direction_std=zeros,
    )
    return make_plan(profile, evaluations=budget, max_skip=steps)


def fitted_plan(times: tuple[float, ...], budget: int) -> Plan:
    """A fitted plan that carries a memory all the way, on even anchors."""
    anchors = even_anchors(len(times) - 1, budget)
    weights = tuple(ROWS[min(i, 2)] for i in range(budget))
    return Plan(rule="fitted", times=times, anchors=anchors, weights=weights)


def joint_plan(plan: Plan, further: Mapping[str, tuple[float, ...]]) -> Plan:
    """A fitted plan with an entry for each further latent, of the same weights."""
    entries = {n: LatentPlan(times=times, weights=plan.weights) for n, times in further.items()}
    return plan.model_copy(update={"latents": entries or None})


@contextmanager
def instant(task: Task) -> Iterator[Engaged]:
    """An instant plan, which is made without a run of the model."""
    plan = instant_plan(task.times, task.budget, latents=task.further or None)
    with _followed(task, plan, {}) as engaged:
        yield engaged


@contextmanager
def tasu(task: Task) -> Iterator[Engaged]:
    """SSC + TASU, applied as a user does."""
    with _followed(task, tasu_plan(task.times, task.budget), {"rates": "made up"}) as engaged:
        yield engaged


@contextmanager
def fitted(task: Task) -> Iterator[Engaged]:
    """A fitted plan, applied as a user does."""
    setting = {"weights": "made up"}
    plan = joint_plan(fitted_plan(task.times, task.budget), task.further)
    with _followed(task, plan, setting) as engaged:
        yield engaged


@contextmanager
def _followed(task: Task, plan: Plan, setting: dict[str, Any]) -> Iterator[Engaged]:
    with applied(task.built.pipe, plan):
        yield Engaged(plan.anchors, {"anchors": list(plan.anchors), **setting})


# --- the rivals -------------------------------------------------------------------------------


class Forced:
    """In the place of a threshold: a change is too large at the evaluated steps, else never."""

    def __init__(self, anchors: tuple[int, ...], position: Position) -> None:
        self._anchors, self._position = frozenset(anchors), position

    def __lt__(self, change: float) -> bool:
        return self._position.step in self._anchors


@contextmanager
def first_block_cache(task: Task) -> Iterator[Engaged]:
    """First Block Cache of diffusers; it still compares and waits, only the verdict is given."""
    from diffusers import FirstBlockCacheConfig

    anchors = spread_anchors(shares(task))
    config = FirstBlockCacheConfig(threshold=Forced(anchors, task.position))
    with _hooked(task, lambda part: config):
        yield Engaged(anchors, {"threshold": "forced", "anchors": list(anchors)})


def mag_cache_rhythm(steps: int, budget: int) -> tuple[int, int]:
    """Retained first steps and most skips in a row, for this many evaluations."""
    for skips in range(1, steps):
        for retained in range(1, budget + 1):
            if retained + (steps - retained) // (skips + 1) == budget:
                return retained, skips
    raise HostError(f"MagCache cannot evaluate {budget} of {steps} steps")


@contextmanager
def mag_cache(task: Task) -> Iterator[Engaged]:
    """MagCache of diffusers with ratios of one: it skips as many in a row as it may."""
    from diffusers import MagCacheConfig

    def config(part: Share) -> Any:
        steps = len(part.steps)
        retained, skips = mag_cache_rhythm(steps, part.budget)
        return MagCacheConfig(
            threshold=1e9,
            max_skip_steps=skips,
            retention_ratio=retained / steps,
            num_inference_steps=steps,
            mag_ratios=[1.0] * steps,
        )

    parts = shares(task)
    rhythms = [mag_cache_rhythm(len(part.steps), part.budget) for part in parts]
    anchors = tuple(
        n
        for (retained, skips), part in zip(rhythms, parts, strict=True)
        for n in (*part.steps[:retained], *part.steps[retained + skips :: skips + 1])
    )
    setting = {
        "max_skip_steps": _single([skips for _, skips in rhythms]),
        "retained": _single([retained for retained, _ in rhythms]),
    }
    with _hooked(task, config):
        yield Engaged(anchors, setting)


def taylorseer_rhythm(steps: int, budget: int) -> tuple[int, int]:
    """Evaluated first steps and interval, for this many evaluations."""
    for first in range(min(3, budget - 1), 0, -1):
        for interval in range(2, steps):
            if first + -(-(steps - first - 1) // interval) == budget:
                return first, interval
    raise HostError(f"TaylorSeer cannot evaluate {budget} of {steps} steps")


def _taylorseer(lite: bool) -> Engage:
    @contextmanager
    def engage(task: Task) -> Iterator[Engaged]:
        from diffusers import TaylorSeerCacheConfig

        def config(part: Share) -> Any:
            first, interval = taylorseer_rhythm(len(part.steps), part.budget)
            return TaylorSeerCacheConfig(
                cache_interval=interval,
                disable_cache_before_step=first,
                max_order=1,
                use_lite_mode=lite,
                cache_identifiers=None if lite else [ATTENTION],
            )

        parts = shares(task)
        rhythms = [taylorseer_rhythm(len(part.steps), part.budget) for part in parts]
        anchors = tuple(
            n
            for (first, interval), part in zip(rhythms, parts, strict=True)
            for n in (*part.steps[:first], *part.steps[first + 1 :: interval])
        )
        setting = {
            "interval": _single([interval for _, interval in rhythms]),
            "first": _single([first for first, _ in rhythms]),
        }
        with _hooked(task, config):
            yield Engaged(anchors, {**setting, "lite": lite, "order": 1})

    return engage


def _single(values: list[int]) -> int | list[int]:
    """The setting of the only transformer, or those of both."""
    return values[0] if len(values) == 1 else values


@contextmanager
def _hooked(task: Task, config: Callable[[Share], Any]) -> Iterator[None]:
    """One of diffusers' caches on each transformer."""
    with ExitStack() as engaged:
        for part in shares(task):
            if not hasattr(part.transformer, "enable_cache"):
                name = type(part.transformer).__name__
                raise HostError(f"{name} has none of diffusers' caches")
            part.transformer.enable_cache(config(part))
            engaged.callback(part.transformer.disable_cache)
        yield


def _db_cache(taylorseer: bool) -> Engage:
    @contextmanager
    def engage(task: Task) -> Iterator[Engaged]:
        import cache_dit

        def config(part: Share) -> Any:
            evaluated = even_anchors(len(part.steps), part.budget)
            return cache_dit.DBCacheConfig(
                Fn_compute_blocks=1,
                Bn_compute_blocks=0,
                num_inference_steps=len(part.steps),
                steps_computation_mask=[int(n in evaluated) for n in range(len(part.steps))],
                steps_computation_policy="static",
            )

        parts = shares(task)
        calibrator = cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=1)
        extra: dict[str, Any] = {"calibrator_config": calibrator if taylorseer else None}
        if len(parts) > 1:
            extra["params_modifiers"] = [
                cache_dit.ParamsModifier(cache_config=config(part)) for part in parts
            ]
        cache_dit.enable_cache(task.built.pipe, cache_config=config(parts[0]), **extra)
        try:
            setting = {"Fn": 1, "Bn": 0, "mask": "static", "taylorseer": taylorseer}
            yield Engaged(spread_anchors(parts), setting)
        finally:
            cache_dit.disable_cache(task.built.pipe)
            _unpatch(task.built)

    return engage


def _unpatch(built: Built) -> None:
    """The classes' own forward again: cache-dit leaves its own on the model when it is disabled."""
    for module in (*built.transformers, *built.blocks):
        module.__dict__.pop("forward", None)
        module.__dict__.pop("_is_patched", None)


OURS: dict[str, Engage] = {"instant": instant, "tasu": tasu, "fitted": fitted}
RIVALS: dict[str, Engage] = {
    "first-block-cache": first_block_cache,
    "magcache": mag_cache,
    "taylorseer": _taylorseer(lite=False),
    "taylorseer-lite": _taylorseer(lite=True),
    "dbcache": _db_cache(taylorseer=False),
    "dbcache-taylorseer": _db_cache(taylorseer=True),
}
METHODS: dict[str, Engage] = {"full": full, **OURS, **RIVALS}


# --- counting ---------------------------------------------------------------------------------


@dataclasses.dataclass
class Count:
    """How often the last block's attention ran."""

    calls: int = 0


@contextmanager
def counted(built: Built) -> Iterator[Count]:
    """Counts evaluations of each transformer's last block: what is skipped does not reach it."""
    count = Count()

    def called(module: Any, arguments: Any) -> None:
        count.calls += 1

    handles = [
        (getattr(block, "attn", None) or block.attn1).to_q.register_forward_pre_hook(called)
        for block in built.last_blocks
    ]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
