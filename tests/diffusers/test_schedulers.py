"""Schedulers that carry a plan: alone in a loop written by hand, and swapped into pipelines."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import pickle
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import diffusers
import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux import retrieve_timesteps
from tests.diffusers_support import (
    EVALUATIONS,
    STEPS,
    Velocities,
    counted,
    fed,
    fitted,
    plan_of,
    profile_of,
    recorded,
    run,
)
from tests.tiny import PIPELINES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tacache import HostError, Plan, Profile, instant_plan, make_plan, time_grid
from tacache.diffusers import applied, apply, plan_scheduler, schedulers
from tacache.diffusers.calls import RunningCall
from tacache.diffusers.checks import check_call
from tacache.diffusers.stepping import run_times
from tacache.moving import replan
from tacache.storage.origin import Origin
from tacache.tasu import start_arc

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
# Every class the factory is made for, with its flow settings.
SOLVERS: dict[str, Callable[[], Any]] = {
    "euler": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    "euler, inverted": lambda: diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
    "euler, karras": lambda: diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True),
    "unipc": lambda: diffusers.UniPCMultistepScheduler(**FLOW),
    "unipc, order 3": lambda: diffusers.UniPCMultistepScheduler(**FLOW, solver_order=3),
    "dpm++": lambda: diffusers.DPMSolverMultistepScheduler(**FLOW),
    "dpm++, order 3": lambda: diffusers.DPMSolverMultistepScheduler(**FLOW, solver_order=3),
    "dpm++, single": lambda: diffusers.DPMSolverSinglestepScheduler(**FLOW),
    "deis": lambda: diffusers.DEISMultistepScheduler(**FLOW),
}
SHAPE = (2, 3, 4)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers")


def velocity(x: Tensor, t: Tensor) -> Tensor:
    """A velocity that turns and grows along the way."""
    return torch.tanh(x.roll(1, -1) + t / 500) * (1 + t / 1000) - x / 2


def noise(shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def walk(
    scheduler: Any, *, seen: list[Tensor] | None = None, begin: int | None = None, **grid: Any
) -> Tensor:
    """The loop of every pipeline, without one."""
    scheduler.set_timesteps(**({"num_inference_steps": STEPS} | grid))
    if begin is not None:
        scheduler.set_begin_index(begin)
    x = noise()
    for t in scheduler.timesteps:
        v = velocity(x, t)
        if seen is not None:
            seen.append(v.clone())
        x = scheduler.step(v, t, x, return_dict=False)[0]
    return x


def times_of(scheduler: Any, **grid: Any) -> tuple[float, ...]:
    """The grid of a run of the plain scheduler."""
    plain = copy.deepcopy(scheduler)
    plain.set_timesteps(**({"num_inference_steps": STEPS} | grid))
    return run_times(plain)


def rated(times: tuple[float, ...], **fields: Any) -> Profile:
    """A profile on this grid whose rates change along the way."""
    steps = len(times) - 1
    direction = tuple(0.1 + 0.02 * n for n in range(steps))
    return Profile(
        times=times,
        samples=1,
        magnitude=tuple(0.5 - 0.05 * n for n in range(steps)),
        magnitude_std=(0.0,) * steps,
        direction=direction,
        direction_std=(0.0,) * steps,
        **fields,
    )


SAID = {"strength": 1.0, "breaks": ()}  # what a loop without a pipeline has to say


def carrying(plain: Any, plan: Plan, **fields: Any) -> Any:
    """The plain scheduler's class with a plan, made as `from_pretrained` makes it."""
    carrier = plan_scheduler(type(plain))
    return carrier.from_config(plain.config, plan=json.loads(plan.to_json()), **fields)


@pytest.fixture(params=SOLVERS)
def plain(request) -> Any:
    return SOLVERS[request.param]()


@pytest.fixture
def euler() -> Any:
    return SOLVERS["euler"]()


@pytest.fixture(scope="module")
def flux() -> Any:
    return PIPELINES["flux"].build()


@pytest.fixture(scope="module")
def flux_plan(flux) -> Plan:
    return plan_of(PIPELINES["flux"], flux)


# --- the contract every scheduler has to keep -------------------------------------------------


@pytest.mark.parametrize("begin", [None, 0])
def test_a_full_plan_is_the_parent_bit_for_bit(plain, begin):
    full = carrying(plain, Plan.full(times_of(plain)))
    assert torch.equal(walk(full, begin=begin), walk(plain, begin=begin))


@pytest.mark.parametrize("begin", [None, 0])
def test_recorded_velocities_give_the_full_run(plain, begin):
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    seen: list[Tensor] = []
    reference = walk(plain, seen=seen, begin=begin)
    evaluated: list[Tensor] = []
    with fed({SHAPE: seen}) as skipped:
        found = walk(carrying(plain, plan), seen=evaluated, begin=begin)
    assert torch.equal(found, reference)
    assert (len(evaluated), len(skipped)) == (EVALUATIONS, STEPS - EVALUATIONS)


@pytest.mark.parametrize("method", ["set_timesteps", "step"])
def test_signatures_stay_the_parents(plain, method):
    carrier = plan_scheduler(type(plain))
    expected = inspect.signature(getattr(type(plain), method))
    assert inspect.signature(getattr(carrier, method)) == expected


def test_the_constructor_adds_three_keywords(plain):
    parent = inspect.signature(type(plain).__init__).parameters
    found = dict(inspect.signature(plan_scheduler(type(plain)).__init__).parameters)
    for name in ("plan", "strength", "breaks"):
        added = found.pop(name)
        assert (added.kind, added.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert found == dict(parent)


def test_without_a_plan_it_is_its_parent(plain):
    carrier = plan_scheduler(type(plain)).from_config(plain.config)
    assert carrier.plan is None
    assert carrier.run_plan is None
    assert torch.equal(walk(carrier, begin=0), walk(plain, begin=0))
    carrier.set_timesteps(STEPS)
    carrier.set_begin_index(3)  # a parent may start anywhere
    assert carrier.begin_index == 3


def test_the_factory_gives_one_class_a_parent(plain):
    carrier = plan_scheduler(type(plain))
    assert carrier is plan_scheduler(type(plain))
    assert issubclass(carrier, type(plain))
    assert carrier.__name__ == f"Plan{type(plain).__name__}"
    assert getattr(schedulers, carrier.__name__) is carrier


def test_the_module_has_no_other_names():
    with pytest.raises(AttributeError, match="PlanNoSuchScheduler"):
        schedulers.PlanNoSuchScheduler  # noqa: B018
    with pytest.raises(AttributeError, match="PlanFluxPipeline"):
        schedulers.PlanFluxPipeline  # noqa: B018


def test_copies_keep_their_own_place(plain):
    """LTX2 steps its sound with a deep copy of the scheduler, between the steps of the pictures."""
    scheduler = carrying(plain, make_plan(rated(times_of(plain)), evaluations=EVALUATIONS))
    expected = walk(scheduler)
    scheduler.set_timesteps(STEPS)
    x = noise()
    first = scheduler.timesteps[0]
    x = scheduler.step(velocity(x, first), first, x, return_dict=False)[0]
    twin = copy.deepcopy(scheduler)
    results = []
    for one in (scheduler, twin):
        y = x
        for t in one.timesteps[1:]:
            y = one.step(velocity(y, t), t, y, return_dict=False)[0]
        results.append(y)
    assert torch.equal(results[0], expected)
    assert torch.equal(results[1], expected)


def test_pickling_keeps_the_plan(plain):
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan)
    loaded = pickle.loads(pickle.dumps(scheduler))
    assert loaded.plan == plan
    assert torch.equal(walk(loaded), walk(scheduler))


def test_the_configuration_file_carries_the_plan(plain, tmp_path):
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan)
    scheduler.save_pretrained(tmp_path)
    loaded = type(scheduler).from_pretrained(tmp_path)
    assert (loaded.plan, loaded.strength) == (plan, None)
    assert torch.equal(walk(loaded), walk(scheduler))


def test_the_configuration_file_carries_the_start(plain, tmp_path):
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan, strength=0.5)
    scheduler.save_pretrained(tmp_path)
    loaded = type(scheduler).from_pretrained(tmp_path)
    for one in (scheduler, loaded):
        one.set_timesteps(STEPS)
    assert loaded.strength == 0.5
    assert loaded.run_plan == scheduler.run_plan
    assert loaded.timesteps.tolist() == scheduler.timesteps.tolist()


def test_push_to_hub_uploads_the_plan(euler, monkeypatch):
    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    uploaded = []

    def upload(self: Any, folder: str, *args: Any, **kwargs: Any) -> None:
        uploaded.append(json.loads((Path(folder) / "scheduler_config.json").read_text()))

    for name in ("create_repo", "load_or_create_model_card", "populate_model_card"):
        monkeypatch.setattr(f"diffusers.utils.hub_utils.{name}", mock.MagicMock())
    monkeypatch.setattr(diffusers.utils.PushToHubMixin, "_upload_folder", upload)
    carrying(euler, plan).push_to_hub("someone/something")
    assert [Plan.from_json(json.dumps(config["plan"])) for config in uploaded] == [plan]


def test_a_corrupt_plan_in_the_configuration_is_an_error(euler, tmp_path):
    scheduler = carrying(euler, Plan.full(times_of(euler)))
    scheduler.save_pretrained(tmp_path)
    file = tmp_path / "scheduler_config.json"
    config = json.loads(file.read_text())
    config["plan"]["anchors"] = [1, 2]
    file.write_text(json.dumps(config))
    with pytest.raises(Exception, match="anchors must begin with step 0"):
        type(scheduler).from_pretrained(tmp_path)


# --- what the pipeline and the parent see -----------------------------------------------------


class Watched(diffusers.FlowMatchEulerDiscreteScheduler):
    """Notes what a parent's step finds, and fails when told to."""

    fail_at: int | None = None

    def step(self, *args, **kwargs):  # noqa: D102
        if not hasattr(self, "found"):
            self.found = []
        self.found.append((len(self.timesteps), len(self.sigmas), self.step_index))
        if self.fail_at is not None and self.fail_at == self.step_index:
            raise RuntimeError("the parent's step failed")
        return super().step(*args, **kwargs)


def shown(scheduler: Any) -> tuple[Any, ...]:
    return len(scheduler.timesteps), len(scheduler.sigmas), scheduler.num_inference_steps


def test_the_pipeline_sees_anchors_and_the_parent_all_steps():
    plain = Watched(shift=3.0)
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan)
    plain.set_timesteps(STEPS)
    scheduler.set_timesteps(STEPS)
    scheduler.set_begin_index(0)
    x = noise()
    assert shown(scheduler) == (EVALUATIONS, EVALUATIONS + 1, EVALUATIONS)
    assert scheduler.timesteps.tolist() == [plain.timesteps[n].item() for n in plan.anchors]
    assert scheduler.sigmas.tolist() == [plain.sigmas[n].item() for n in (*plan.anchors, STEPS)]
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(velocity(x, t), t, x, return_dict=False)[0]
        assert shown(scheduler) == (EVALUATIONS, EVALUATIONS + 1, EVALUATIONS)
        assert (scheduler.step_index, scheduler.begin_index) == (i + 1, 0)
    assert scheduler.found == [(STEPS, STEPS + 1, n) for n in range(STEPS)]


def test_a_failing_step_leaves_the_pipelines_view_and_the_next_run_is_clean():
    plain = Watched(shift=3.0)
    scheduler = carrying(plain, make_plan(rated(times_of(plain)), evaluations=EVALUATIONS))
    expected = walk(scheduler)
    scheduler.fail_at = 7
    with pytest.raises(RuntimeError, match="the parent's step failed"):
        walk(scheduler)
    assert shown(scheduler) == (EVALUATIONS, EVALUATIONS + 1, EVALUATIONS)
    scheduler.fail_at = None
    assert torch.equal(walk(scheduler), expected)


def test_results_come_as_the_parent_gives_them(plain):
    scheduler = carrying(plain, make_plan(rated(times_of(plain)), evaluations=EVALUATIONS))

    def first_step(one: Any, **kwargs: Any) -> Any:
        one.set_timesteps(STEPS)
        t = one.timesteps[0]
        return one.step(velocity(noise(), t), t, noise(), **kwargs)

    as_tuple = first_step(scheduler, return_dict=False)
    as_output = first_step(scheduler)
    assert type(as_tuple) is type(first_step(plain, return_dict=False)) is tuple
    assert type(as_output) is type(first_step(plain, return_dict=True))
    assert torch.equal(as_output.prev_sample, as_tuple[0])


def test_velocities_keep_the_models_dtype(euler):
    scheduler = carrying(euler, make_plan(rated(times_of(euler)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    x = noise().bfloat16()
    for t in scheduler.timesteps:
        x = scheduler.step(velocity(x, t).bfloat16(), t, x, return_dict=False)[0]
        assert x.dtype == torch.bfloat16


def test_a_time_per_token_follows_the_walk(euler):
    """LTX's kept frames lie at a level of their own until the run has come down to it."""
    held = torch.tensor([[0.0, 300.0, 700.0, 1000.0]]).repeat(SHAPE[0], 1)
    seen: list[Tensor] = []

    def loop(scheduler: Any) -> Tensor:
        scheduler.set_timesteps(STEPS)
        x = noise((2, 4, 3))
        for t in scheduler.timesteps:
            tokens = torch.minimum(t, held)
            v = -velocity(x, t)
            seen.append(v)
            x = scheduler.step(v, t, x, per_token_timesteps=tokens, return_dict=False)[0]
        return x

    reference, full_run = loop(euler), list(seen)
    with fed({(2, 4, 3): full_run}):
        plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
        assert torch.equal(loop(carrying(euler, plan)), reference)


class Waits(TorchDispatchMode):
    """Counts the operations that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count += 1
        return func(*args, **(kwargs or {}))


def waits_of(scheduler: Any) -> int:
    scheduler.set_timesteps(STEPS)
    scheduler.set_begin_index(0)
    x, count = noise(), 0
    for t in scheduler.timesteps:
        v = velocity(x, t)
        with Waits() as waits:
            x = scheduler.step(v, t, x, return_dict=False)[0]
        count += waits.count
    return count


@pytest.mark.parametrize("rule", ["tasu", "magnitude", "direction", "reuse"])
def test_a_run_waits_for_the_device_once_more_than_the_parents(plain, rule):
    with Waits() as guard:
        torch.ones(1).item()
    assert guard.count == 1
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS, rule=rule)
    assert waits_of(carrying(plain, plan)) == waits_of(plain) + 1  # whether its end is finite


def test_euler_waits_at_its_end_alone(euler):
    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    assert waits_of(carrying(euler, plan)) == 1
    assert waits_of(carrying(euler, fitted(times_of(euler), (0, 1, 4, 8)))) == 1


def test_a_result_that_is_not_finite_is_an_error(euler):
    scheduler = carrying(euler, make_plan(rated(times_of(euler)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    x = noise()
    for t in scheduler.timesteps[:-1]:
        x = scheduler.step(x * float("nan"), t, x, return_dict=False)[0]
    with pytest.raises(HostError, match="is not finite"):
        scheduler.step(x, scheduler.timesteps[-1], x, return_dict=False)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device to wait for")
@pytest.mark.parametrize("name", ["euler", "unipc"])
def test_a_step_does_not_wait_for_cuda(name):
    """Where the parent does not; UniPC's builds small tensors on the host."""
    plain = SOLVERS[name]()
    scheduler = carrying(plain, make_plan(rated(times_of(plain)), evaluations=EVALUATIONS))

    def waits(one: Any) -> int:
        one.set_timesteps(STEPS, device="cuda")
        one.set_begin_index(0)
        x, count = noise().cuda(), 0
        for t in one.timesteps[:-1]:  # at the last one the result is looked at
            v = velocity(x, t)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                x = one.step(v, t, x, return_dict=False)[0]
                torch.cuda.set_sync_debug_mode("default")
            count += sum("synchroniz" in str(w.message) for w in caught)
        return count

    assert waits(scheduler) <= waits(plain)
    if name == "euler":
        assert waits(scheduler) == 0


# --- the grid of the run ----------------------------------------------------------------------

GRIDS = {
    "sigmas": {"sigmas": [1.0, 0.9, 0.75, 0.5, 0.3, 0.1]},
    "timesteps": {"timesteps": [1000, 900, 750, 500, 300, 100]},
    "steps": {"num_inference_steps": 9},
}


@pytest.mark.parametrize("grid", GRIDS)
def test_retrieve_timesteps_takes_every_kind_of_grid(euler, grid, caplog):
    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    scheduler = carrying(euler, plan)
    timesteps, count = retrieve_timesteps(scheduler, **GRIDS[grid])
    plain_timesteps, _ = retrieve_timesteps(euler, **GRIDS[grid])
    moved = replan(plan, euler.sigmas.tolist())
    assert scheduler.run_plan == moved
    assert (count if grid != "steps" else len(timesteps)) == moved.evaluations
    assert timesteps.tolist() == plain_timesteps[list(moved.anchors)].tolist()


def test_dynamic_shifting_reaches_the_plan(caplog):
    plain = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    grid = {"sigmas": torch.linspace(1, 1 / STEPS, STEPS).tolist()}
    times = {mu: times_of(plain, num_inference_steps=None, mu=mu, **grid) for mu in (0.6, 1.15)}
    plan = make_plan(rated(times[0.6]), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan, **SAID)
    retrieve_timesteps(scheduler, mu=0.6, **grid)
    assert scheduler.run_plan == plan
    assert not caplog.records
    retrieve_timesteps(scheduler, mu=1.15, **grid)
    moved = replan(plan, times[1.15])
    assert scheduler.run_plan == moved
    assert f"{moved.evaluations} evaluations" in caplog.text


@pytest.mark.parametrize("change", [{"steps": 20}, {"shift": 6.0}])
def test_another_grid_is_planned_with_the_stored_rates(euler, change, caplog):
    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    run_with = diffusers.FlowMatchEulerDiscreteScheduler(shift=change.get("shift", 3.0))
    steps = change.get("steps", STEPS)
    scheduler = carrying(run_with, plan)
    evaluated: list[Tensor] = []
    walk(scheduler, num_inference_steps=steps, seen=evaluated)
    moved = replan(plan, times_of(run_with, num_inference_steps=steps))
    assert len(evaluated) == moved.evaluations == EVALUATIONS
    assert f"this run has {steps} " in caplog.text
    assert f"{moved.evaluations} evaluations" in caplog.text


def test_each_run_is_planned_from_the_plan_itself(euler, caplog):
    """Not from the plan of the run before it."""
    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    scheduler = carrying(euler, plan)
    first = walk(scheduler)
    walk(scheduler, num_inference_steps=31)
    assert torch.equal(walk(scheduler), first)
    assert scheduler.run_plan == plan


def test_one_step_is_one_evaluation(euler):
    """As in a first call with num_inference_steps=1, to compile the model."""
    scheduler = carrying(euler, make_plan(rated(times_of(euler)), evaluations=EVALUATIONS))
    evaluated: list[Tensor] = []
    found = walk(scheduler, num_inference_steps=1, seen=evaluated)
    assert len(evaluated) == 1
    assert torch.equal(found, walk(euler, num_inference_steps=1))


def test_a_fitted_plan_warns_at_another_shift(caplog):
    plan = fitted(tuple(time_grid(STEPS, shift=3.0)), (0, 1, 4, 8))
    other = diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0)
    scheduler = carrying(other, plan, **SAID)
    evaluated: list[Tensor] = []
    found = walk(scheduler, seen=evaluated)
    assert len(evaluated) == 4
    assert found.isfinite().all()
    assert "another shift" in caplog.text
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_a_fitted_plan_is_an_error_at_another_step_count(euler):
    scheduler = carrying(euler, fitted(times_of(euler), (0, 1, 4, 8)))
    with pytest.raises(HostError, match="fitted plan has 12 steps, this run has 20"):
        scheduler.set_timesteps(20)


def test_a_fitted_plan_on_euler_is_one_step_an_interval(euler):
    anchors = (0, 1, 4, 8)
    plan = fitted(times_of(euler), anchors)
    found = walk(carrying(euler, plan))
    euler.set_timesteps(STEPS)
    x, memory, before = noise(), torch.zeros(SHAPE), torch.zeros(SHAPE)
    for row, (n, end) in zip(plan.weights, pairwise((*anchors, STEPS)), strict=True):
        a, b, r = (*row, 0.0, 0.0)[:3]
        v, memory = velocity(x, euler.timesteps[n]), before + r * memory
        x, before = x + (euler.sigmas[end] - euler.sigmas[n]) * (a * v + b * memory), v
    torch.testing.assert_close(found, x, rtol=1e-5, atol=1e-5)


NODES = (1.0, 0.93, 0.8, 0.55, 0.2, 0.0)
OWN_ROWS = ((1.0,), (1.5, -0.5), (1.4, -0.4), (1.6, -0.6), (1.5, -0.5))


def own_times(nodes: tuple[float, ...] = NODES) -> Plan:
    """A plan whose times are its own, as for the flow: all evaluated, weighted with history."""
    anchors = tuple(range(len(nodes) - 1))
    return Plan(rule="fitted", times=nodes, anchors=anchors, weights=OWN_ROWS, grid=nodes)


@pytest.mark.parametrize("solver", ["euler", "euler, inverted", "unipc", "dpm++"])
@pytest.mark.parametrize("steps", [STEPS, 28])
def test_times_of_a_plans_own_are_shown_on_any_grid(solver, steps):
    """Whatever the solver, the walk is the core's: Euler's steps from node to node."""
    import tacache

    plain = SOLVERS[solver]()
    ends = times_of(plain)[0], times_of(plain)[-1]
    plan = own_times((ends[0], *NODES[1:-1], ends[1]))
    scheduler, evaluated = carrying(plain, plan, **SAID), []
    sign = -1 if plain.config.get("invert_sigmas") else 1

    def at(x: Tensor, t: float) -> Tensor:
        return velocity(x, torch.tensor(1000 * t))

    scheduler.set_timesteps(steps)
    x = noise()
    for i, t in enumerate(scheduler.timesteps):
        level = plan.times[i]
        shown = 1 - float(t) / 1000 if sign < 0 else float(t) / 1000
        assert shown == pytest.approx(level, abs=1e-3)  # some count timesteps in whole numbers
        evaluated.append(level)
        x = scheduler.step(sign * at(x, level), t, x, return_dict=False)[0]
    assert len(evaluated) == plan.evaluations
    assert scheduler.run_plan == plan
    torch.testing.assert_close(x, tacache.sample(at, noise(), plan), rtol=1e-4, atol=1e-4)


def test_times_of_a_plans_own_need_a_run_with_the_same_ends(euler):
    scheduler = carrying(euler, own_times((0.95, *NODES[1:])), **SAID)
    with pytest.raises(HostError, match="times of its own"):
        scheduler.set_timesteps(STEPS)


def test_a_plan_with_times_of_its_own_starts_midway_with_its_share_of_them(euler):
    whole = times_of(euler)
    midway = carrying(
        euler, own_times((whole[0], *NODES[1:-1], whole[-1])), strength=0.5, breaks=()
    )
    midway.set_timesteps(STEPS)
    start = STEPS - STEPS // 2
    assert midway.run_plan == instant_plan(whole[start:], 2, target="flow")
    assert len(midway.timesteps) == 2
    assert float(midway.timesteps[0]) == pytest.approx(1000 * whole[start], abs=0.1)


@pytest.mark.parametrize("name", ["flux", "wan", "sd3"])
def test_a_pipeline_is_shown_the_times_of_a_plans_own(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    times = profile_of(tiny, pipe).times
    plan = own_times((times[0], *NODES[1:-1], times[-1]))
    untouched = run(tiny, pipe)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        drawn = run(tiny, pipe)
        assert pipe.scheduler.run_plan == plan
        with pytest.raises(HostError, match="loop iterations"):
            check_call(RunningCall(pipe, {"cfg_trunc_ratio": 0.5}), plan)
    assert len(calls) == plan.evaluations * tiny.calls_per_step
    assert drawn.isfinite().all()
    assert not torch.equal(drawn, untouched)


def test_a_profiles_plan_on_euler_is_the_cores_own(euler):
    """The same trajectory as `tacache.sample`, whose loop is ours."""
    import tacache

    plan = make_plan(rated(times_of(euler)), evaluations=EVALUATIONS)
    expected = tacache.sample(lambda x, t: velocity(x, torch.tensor(1000 * t)), noise(), plan)
    torch.testing.assert_close(walk(carrying(euler, plan)), expected, rtol=1e-4, atol=1e-4)


def test_breaks_drop_the_history(euler, monkeypatch):
    times = times_of(euler)
    at = (times[6] + times[5]) / 2
    made = make_plan(rated(times, breaks=(at,)), evaluations=EVALUATIONS)
    assert made.break_steps == (6,)
    plan = made.model_copy(update={"anchors": (0, 3, 6, 9)})  # with skips right after the break
    turned = {}  # anchor -> whether an earlier velocity was known

    def noted(v, previous):
        turned[scheduler._run.stepper.step - 1] = previous is not None
        return start_arc(v, previous)

    monkeypatch.setattr("tacache.stepper.start_arc", noted)
    scheduler = carrying(euler, plan)
    walk(scheduler)
    assert turned == {0: False, 3: True, 6: False, 9: True}


def test_an_inverted_grid_is_read_from_noise_to_data():
    """Mochi counts its noise levels from data to noise."""
    plain, inverted = SOLVERS["euler, inverted"](), diffusers.FlowMatchEulerDiscreteScheduler()
    plain.set_timesteps(STEPS)
    scheduler = carrying(plain, make_plan(rated(times_of(inverted)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    assert scheduler.run_plan.times == pytest.approx(
        [1 - s for s in plain.sigmas.tolist()], abs=1e-6
    )
    assert scheduler.run_plan.times == pytest.approx(times_of(inverted), abs=1e-6)


# --- starts -----------------------------------------------------------------------------------


def test_a_start_in_mid_run_is_stopped(plain):
    scheduler = carrying(plain, make_plan(rated(times_of(plain)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    with pytest.raises(HostError, match="strength"):
        scheduler.set_begin_index(2)


def test_a_step_from_another_level_is_stopped(euler):
    scheduler = carrying(euler, make_plan(rated(times_of(euler)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    t = scheduler.timesteps[2]
    with pytest.raises(HostError, match="starts at timestep"):
        scheduler.step(velocity(noise(), t), t, noise())


def test_frames_with_times_of_their_own_are_refused(euler):
    scheduler = carrying(euler, make_plan(rated(times_of(euler)), evaluations=EVALUATIONS))
    scheduler.set_timesteps(STEPS)
    with pytest.raises(HostError, match="diffusion forcing"):
        scheduler.step(noise(), scheduler.timesteps[:2], noise())


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.6, 0.5, 0.37, 0.99])
def test_a_start_without_a_pipeline_is_the_usual_one(plain, strength):
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan, strength=strength)
    scheduler.set_timesteps(STEPS)
    plain.set_timesteps(STEPS)
    start = int(max(STEPS - min(STEPS * strength, STEPS), 0))
    assert scheduler.timesteps[0] == plain.timesteps[start]
    assert scheduler.run_plan.steps == STEPS - start


# --- whom the plan is for ---------------------------------------------------------------------


def test_another_architecture_is_an_error(flux, flux_plan):
    wan = PIPELINES["wan"].build()
    before = wan.scheduler
    with pytest.raises(HostError, match=r"FluxTransformer2DModel.*WanTransformer3DModel"):
        apply(wan, flux_plan)
    assert wan.scheduler is before


def test_another_architecture_is_an_error_for_a_scheduler_put_in_by_hand(flux):
    """As one loaded with `from_pretrained` and given to another pipeline is."""
    plan = Plan.full(time_grid(STEPS)).model_copy(
        update={"origin": Origin(kind="diffusers", denoiser="WanTransformer3DModel")}
    )
    before = flux.scheduler
    flux.scheduler = carrying(before, plan)
    try:
        with pytest.raises(HostError, match="WanTransformer3DModel"):
            run(PIPELINES["flux"], flux)
    finally:
        flux.scheduler = before


def test_other_latents_are_an_error(flux, flux_plan):
    shape = (*flux_plan.origin.latent_shape[:-1], 64)
    host = flux_plan.origin.model_copy(update={"latent_shape": shape})
    with (
        applied(flux, flux_plan.model_copy(update={"origin": host})),
        pytest.raises(HostError, match="latents of shape"),
    ):
        run(PIPELINES["flux"], flux)


def test_another_size_of_the_same_latents_is_a_warning(flux, flux_plan, caplog):
    with applied(flux, flux_plan), counted(flux, ("transformer",)) as calls:
        run(PIPELINES["flux"], flux, height=64, width=32)
        planned = flux.scheduler.run_plan.evaluations
    assert len(calls) == planned
    assert "latents of shape" in caplog.text


def test_other_latents_are_an_error_in_a_loop_without_a_pipeline(euler):
    host = Origin(kind="diffusers", latent_shape=(16, 64))
    plan = make_plan(rated(times_of(euler), origin=host), evaluations=EVALUATIONS)
    with pytest.raises(HostError, match="latents of shape"):
        walk(carrying(euler, plan))


@pytest.mark.parametrize(("model", "expected"), [("other/fine-tune", 1), (None, 0)])
def test_another_model_name_is_a_warning(flux, flux_plan, model, expected, caplog):
    flux.register_to_config(_name_or_path=model)
    try:
        host = flux_plan.origin.model_copy(update={"model": "some/model"})
        with applied(flux, flux_plan.model_copy(update={"origin": host})):
            pass
    finally:
        flux.register_to_config(_name_or_path=None)
    found = [r for r in caplog.records if "some/model" in r.getMessage()]
    assert len(found) == expected


# --- refusals ---------------------------------------------------------------------------------

REFUSALS = {
    "heun": (lambda: diffusers.FlowMatchHeunDiscreteScheduler(), "2 times a step"),
    "flow lcm": (lambda: diffusers.FlowMatchLCMScheduler(), "new noise"),
    "lcm": (lambda: diffusers.LCMScheduler(), "new noise"),
    "scm": (lambda: diffusers.SCMScheduler(), "new noise"),
    "stochastic euler": (
        lambda: diffusers.FlowMatchEulerDiscreteScheduler(stochastic_sampling=True),
        "new noise",
    ),
    "sde dpm++": (
        lambda: diffusers.DPMSolverMultistepScheduler(**FLOW, algorithm_type="sde-dpmsolver++"),
        "new noise",
    ),
    "sa": (lambda: diffusers.SASolverScheduler(**FLOW), "new noise"),
    "euler": (lambda: diffusers.EulerDiscreteScheduler(), "does not sample a flow"),
    "unipc of noise": (lambda: diffusers.UniPCMultistepScheduler(), "does not sample a flow"),
    "flow sigmas, noise": (
        lambda: diffusers.UniPCMultistepScheduler(use_flow_sigmas=True),
        "does not sample a flow",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_apply_refuses_what_a_plan_cannot_ride_in(flux, name):
    build, reason = REFUSALS[name]
    before, flux.scheduler = flux.scheduler, build()
    try:
        with pytest.raises(HostError, match=f"cannot carry a plan: .*{reason}"):
            apply(flux, Plan.full(time_grid(STEPS)))
    finally:
        flux.scheduler = before


@pytest.mark.parametrize("name", REFUSALS)
def test_the_factory_refuses_with_the_same_reason(name):
    build, reason = REFUSALS[name]
    with pytest.raises(HostError, match=f"cannot carry a plan: .*{reason}"):
        carrying(build(), Plan.full(time_grid(STEPS)))


# --- in pipelines -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", ["wan", "sana"])
@pytest.mark.parametrize("solver", ["unipc", "dpm++", "deis", "dpm++, single"])
def test_multistep_solvers_in_pipelines(family, solver):
    tiny = PIPELINES[family]
    pipe = tiny.build()
    pipe.scheduler = SOLVERS[solver]()
    profile = profile_of(tiny, pipe)
    untouched = run(tiny, pipe)
    with applied(pipe, Plan.full(profile.times)):
        assert torch.equal(run(tiny, pipe), untouched)
    velocities: Velocities
    with recorded(pipe) as velocities:
        run(tiny, pipe)
    plan = make_plan(profile, evaluations=EVALUATIONS)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls, fed(velocities):
        assert torch.equal(run(tiny, pipe), untouched)
    assert len(calls) == EVALUATIONS * tiny.calls_per_step


# --- traps seen in pipelines that have no tiny twin -------------------------------------------


def test_a_last_level_written_in_place_is_followed(euler):
    """Cosmos 2 ends its runs at the last level but one: sigmas[-1] = sigmas[-2]."""

    def loop(scheduler: Any) -> Tensor:
        scheduler.set_timesteps(STEPS)
        scheduler.sigmas[-1] = scheduler.sigmas[-2]
        x = noise()
        for t in scheduler.timesteps:
            x = scheduler.step(velocity(x, t), t, x, return_dict=False)[0]
        return x

    full = carrying(euler, Plan.full(times_of(euler)))
    assert torch.equal(loop(full), loop(euler))


@pytest.mark.parametrize("last", [None, 0.05])
def test_a_last_level_written_in_place_is_followed_by_a_jump(euler, last):
    """One step across the last interval ends where the walk through its steps ends."""
    times = times_of(euler)
    fit = fitted(times, (0, 1, 4, 8))
    reuse = Plan(rule="reuse", times=times, anchors=fit.anchors)

    def loop(plan: Plan) -> Tensor:
        scheduler = carrying(euler, plan)
        scheduler.set_timesteps(STEPS)
        scheduler.sigmas[-1] = scheduler.sigmas[-2] if last is None else last
        x = noise()
        for t in scheduler.timesteps:
            x = scheduler.step(velocity(x, t), t, x, return_dict=False)[0]
        return x

    constant = fit.model_copy(update={"weights": ((1.0,),) * 4})
    assert torch.allclose(loop(constant), loop(reuse), atol=1e-5)


def test_a_jump_leaves_the_pipelines_view_and_the_next_run_is_the_same(euler):
    scheduler = carrying(euler, fitted(times_of(euler), (0, 1, 4, 8)))
    first, second = walk(scheduler), walk(scheduler)
    assert torch.equal(first, second)
    assert len(scheduler.timesteps) == 4
    assert len(scheduler.sigmas) == 5
    assert scheduler.step_index == 4


def test_a_damped_plan_on_euler_is_the_cores_own(euler):
    times = times_of(euler)
    tasu = make_plan(rated(times), evaluations=EVALUATIONS)
    halves = tuple(d / 2 for d in tasu.direction)
    damped = tasu.model_copy(update={"rule": "damped", "direction": halves})
    same = tasu.model_copy(update={"direction": halves})
    assert torch.equal(walk(carrying(euler, damped)), walk(carrying(euler, same)))


class Own(diffusers.FlowMatchEulerDiscreteScheduler):
    """A class of the user's, which is not in diffusers."""


def test_a_class_of_the_users_own_is_pickled_and_has_no_name():
    own = Own(shift=3.0)
    scheduler = carrying(own, Plan.full(times_of(own)))
    loaded = pickle.loads(pickle.dumps(scheduler))
    assert type(loaded) is type(scheduler)
    assert torch.equal(walk(loaded), walk(own))
    with pytest.raises(AttributeError, match=r"PlanOwn.* apply the plan again"):
        schedulers.PlanOwn  # noqa: B018


class Eager(diffusers.FlowMatchEulerDiscreteScheduler):
    """Prepares a run when it is made, as the scheduler of AnyFlow does."""

    @diffusers.configuration_utils.register_to_config
    def __init__(self, num_train_timesteps: int = 1000, shift: float = 3.0) -> None:
        super().__init__(num_train_timesteps, shift)
        self.set_timesteps(STEPS)


def test_a_parent_may_prepare_a_run_when_it_is_made():
    plain = Eager()
    plan = make_plan(rated(times_of(plain)), evaluations=EVALUATIONS)
    scheduler = carrying(plain, plan)
    evaluated: list[Tensor] = []
    walk(scheduler, seen=evaluated)
    assert len(evaluated) == EVALUATIONS
