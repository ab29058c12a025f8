"""What stepping must not do: wait for the device, or hold more than a few latents."""

import gc

import pytest
import torch
from tests.support import RULES, SHAPE, mixture, noise_of, plan_with
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tacache import Stepper, sample
from tacache.stepper import weighted_sum
from tacache.tasu import start_arc

ANCHORS = (0, 1, 4, 5, 8, 13, 19)
# What starts no kernel: views, and memory that is not filled.
FREE = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "_unsafe_view", "unsqueeze", "expand", "alias", "detach", "select", "slice"),
        *("empty", "empty_like", "promote_types"),
    )
)
WAITING = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")


class NoWaiting(TorchDispatchMode):
    """Fails on what makes the host wait for a number from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run `func` unless it waits."""
        if func._schema.name in WAITING:
            raise AssertionError(f"{func._schema.name} waits for the device")
        return func(*args, **(kwargs or {}))


class LiveMemory(TorchDispatchMode):
    """Bytes of tensors made inside the mode and still alive, at most."""

    def __init__(self, at_least: int):
        super().__init__()
        self.at_least, self.peak, self.made = at_least, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run `func` and count what lives after it."""
        known = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for made in torch.utils._pytree.tree_leaves(result):
            if isinstance(made, torch.Tensor):
                storage = made.untyped_storage()
                if storage._cdata not in known and storage.nbytes() >= self.at_least:
                    reference = StorageWeakRef(storage)
                    self.made[reference.cdata] = (reference, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    @property
    def live(self) -> int:
        """Bytes alive now."""
        self.made = {key: kept for key, kept in self.made.items() if not kept[0].expired()}
        return sum(size for _, size in self.made.values())


# --- waiting


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stepping_does_not_wait_for_the_device(rule, dtype, flow, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(2, dtype=dtype)
    stepper = Stepper(plan)
    with NoWaiting():
        for t in plan.times[:-1]:
            stepper.velocity(x, lambda t=t: flow(x, t))


@pytest.mark.parametrize("rule", RULES)
def test_a_run_waits_once_at_its_end(rule, flow, profile, monkeypatch):
    plan, x, ends = plan_with(rule, profile, ANCHORS), noise_of(2, dtype=torch.float32), []
    monkeypatch.setattr("tacache.stepper.check_finite", lambda x: ends.append(x) or x)
    with NoWaiting():
        result = sample(flow, x, plan)
    assert len(ends) == 1
    assert ends[0] is result


@pytest.mark.parametrize("rule", RULES)
def test_stepping_needs_no_values_at_all(rule, profile):
    # Tensors of the meta device have no values: tolist(), numpy() and the like fail on them too.
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(2, device="meta").tolist()
    x = torch.empty(2, *SHAPE, device="meta")
    result = sample(lambda x, t: x * t, x, plan_with(rule, profile, ANCHORS))
    assert (result.shape, result.device.type) == (x.shape, "meta")


# --- memory


def peak_of_stepping(plan, velocities):
    """Peak bytes of a stepper's run beyond the one or two velocities it keeps."""
    size = velocities[0].nbytes
    stepper, kept = Stepper(plan), 2 if plan.weights is None else 1
    with LiveMemory(at_least=size // 2) as memory:
        for v in velocities:
            taken = stepper.velocity(v, lambda v=v: v)
            del taken
    return memory.peak - kept * size


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_stepping_holds_at_most_four_latents_beyond_what_it_keeps(rule, dtype, layout, profile):
    latent = (3, 8, 16, 16)
    velocities = [noise_of(*latent[:1], latent[1:], dtype, seed) for seed in range(profile.steps)]
    if layout == "channels last":
        velocities = [v.contiguous(memory_format=torch.channels_last) for v in velocities]
    gc.collect()
    extra = peak_of_stepping(plan_with(rule, profile, ANCHORS), velocities)
    assert extra <= 4 * 4 * velocities[0].numel()


def test_a_skipped_step_holds_its_result_and_one_direction():
    v, v_previous = noise_of(1, (4096,), torch.float32), noise_of(1, (4096,), torch.float32, 1)
    arc = start_arc(v, v_previous)
    with LiveMemory(at_least=v.nbytes // 2) as memory:
        for _ in range(5):
            arc = arc.advance(1.01, 0.1)
            arc.velocity()
    assert memory.peak == v.nbytes


@pytest.mark.slow
def test_history_does_not_grow_with_the_steps(profile):
    flow, x = mixture(), noise_of(2, dtype=torch.float32)
    for rule in RULES:
        plan = plan_with(rule, profile, tuple(range(profile.steps)))
        stepper = Stepper(plan)
        with LiveMemory(at_least=x.nbytes // 2) as memory:
            for t in plan.times[:-1]:
                stepper.velocity(x, lambda t=t: flow(x, t))
            gc.collect()
            assert memory.live <= (5 if rule == "fitted" else 2) * x.nbytes
            if rule == "fitted":
                assert memory.live == 0


# --- launches


class Launches(TorchDispatchMode):
    """Counts the operations that start a kernel on a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run `func` and count it."""
        if func._schema.name not in FREE:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def launches_of(call):
    with Launches() as seen:
        call()
    return len(seen.names)


# Half precision adds the conversions to float32 and back.
@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, 0), (torch.bfloat16, 1)])
def test_a_skip_takes_few_launches(dtype, more):
    v, v_previous = noise_of(2, (64,), dtype), noise_of(2, (64,), dtype, 1)
    arc = start_arc(v, v_previous).advance(1.01, 0.1)
    later = launches_of(lambda: arc.advance(1.01, 0.1).velocity().to(dtype))
    assert later <= 8 + more
    start = launches_of(lambda: start_arc(v, v_previous))
    assert start <= 17 + more


@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, 0), (torch.bfloat16, 2)])
def test_a_weighted_sum_is_a_launch_a_velocity(dtype, more):
    velocities = [noise_of(2, (64,), dtype, seed) for seed in range(4)]
    weights = (1.6, -0.9, 0.4, -0.1)
    assert launches_of(lambda: weighted_sum(velocities, weights).to(dtype)) <= 4 + more


@pytest.mark.parametrize(("dtype", "more"), [(torch.float32, 0), (torch.bfloat16, 4)])
def test_a_fitted_interval_is_two_sums(dtype, more, profile):
    """Its average velocity and what is carried on; the skipped steps cost nothing at all."""
    stepper, x = Stepper(plan_with("fitted", profile, ANCHORS)), noise_of(2, (64,), dtype)
    for _ in range(3):
        stepper.jump(x, lambda: x)
    assert launches_of(lambda: stepper.jump(x, lambda: x)) <= 1 + 2 + more
    assert stepper.step == 8


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_while_the_model_runs_only_what_is_used_later_is_held(rule, profile):
    # Arcs, averages and the oldest velocity are gone when a diffusers pipeline runs its model.
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(2, dtype=torch.float32)
    stepper, held = Stepper(plan), []
    kept = {"tasu": 1, "direction": 1, "fitted": 1}.get(rule, 0)
    gc.collect()
    with LiveMemory(at_least=x.nbytes // 2) as memory:
        while stepper.step < plan.steps:
            if stepper.evaluates:
                held.append(memory.live)
            stepper.velocity(x, lambda: x)
        assert max(held) == kept * x.nbytes
        assert memory.live == 0  # and nothing is held when a decoder runs
