import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import (
    DTYPES,
    PROFILE_RULES,
    RULES,
    SHAPE,
    euler_run,
    mixture,
    noise_of,
    plan_with,
    profile_from,
    rotating,
)

from tacache import HostError, Plan, Stepper, make_plan, sample, time_grid
from tacache.plan import row_sums
from tacache.stepper import (
    average_of,
    basis_of,
    carry,
    memory_of,
    memory_rate,
    memory_sums,
    weighted_sum,
)

ANCHORS = (0, 1, 4, 5, 8, 13, 19)


class Recorder:
    """A velocity function that notes the times it was called at."""

    def __init__(self, flow):
        self.flow, self.times, self.batches = flow, [], []

    def __call__(self, x, t):
        """The flow's velocity."""
        self.times.append(t)
        self.batches.append(len(x))
        return self.flow(x, t)


def algorithm_1(velocity, x, times, k, d, table):
    """The paper's Algorithm 1, line by line, on a batch of flat samples; also its velocities."""
    dots = lambda a, b: (a * b).sum(dim=1, keepdim=True)  # noqa: E731
    project = lambda a, b: dots(a, b) / dots(b, b) * b  # noqa: E731
    n, steps, v_last, walked = 0, len(times) - 1, None, []
    while n < steps:
        h = min(table[n], steps - n)
        v = velocity(x, times[n])
        if h == 1 or n == 0:
            walked.append(v)
            x = x - (times[n] - times[n + 1]) * v
            n, v_last = n + 1, v
            continue
        p = (v - v_last) - project(v - v_last, v_last)
        v_last, v_hat = v, v
        for j in range(n, n + h):
            residual = p - project(p, v_hat)
            u = residual / dots(residual, residual).sqrt()
            dt = times[j] - times[j + 1]
            v_next = math.exp(k[j] * dt) * v_hat + d[j] * dots(v_hat, v_hat).sqrt() * u
            walked.append(v_hat)
            x = x - dt * v_hat
            v_hat = v_next
        n += h
    return x, walked


# --- against the paper and against plain Euler


@pytest.mark.parametrize("max_skip", [3, 12])
@pytest.mark.parametrize(
    ("tau_k", "tau_d"), [(0.0, 0.0), (0.1, 0.1), (0.3, 0.2), (0.5, 1.0), (5.0, 5.0)]
)
def test_sample_is_algorithm_1(tau_k, tau_d, max_skip):
    flow, times = mixture((6,)), time_grid(24, shift=2.0)
    x = noise_of(5, (6,))
    k = [1.5 * math.cos(n) for n in range(24)]
    d = [0.02 + 0.1 * math.sin(n) ** 2 for n in range(24)]
    profile = profile_from(k, d, shift=2.0)
    plan = make_plan(profile, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip)
    table = []
    for n in range(24):
        fits = [
            h
            for h in range(1, min(max_skip, 24 - n) + 1)
            if h == 1
            or (
                sum(abs(k[m]) * (times[m] - times[m + 1]) for m in range(n, n + h)) <= tau_k
                and sum(d[n : n + h]) <= tau_d
            )
        ]
        table.append(max(fits))
    expected, walked = algorithm_1(flow, x, times, k, d, table)
    torch.testing.assert_close(sample(flow, x, plan), expected, rtol=1e-10, atol=1e-10)
    assert len(walked) == 24
    assert tau_k == 0.0 or plan.evaluations < 24


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_all_anchor_plan_is_plain_euler_bit_for_bit(dtype, flow, profile):
    x = noise_of(4, dtype=dtype)
    expected = euler_run(flow, x, profile.times)
    assert expected.dtype == dtype
    for rule in PROFILE_RULES:
        plan = plan_with(rule, profile, tuple(range(profile.steps)))
        assert torch.equal(sample(flow, x, plan), expected)
    assert torch.equal(sample(flow, x, Plan.full(profile.times)), expected)
    assert torch.equal(sample(flow, x, make_plan(profile, tau_k=0.0, tau_d=0.0)), expected)


@pytest.mark.parametrize("rule", RULES)
def test_the_model_runs_at_the_anchors_and_nowhere_else(rule, flow, profile):
    velocity, plan = Recorder(flow), plan_with(rule, profile, ANCHORS)
    sample(velocity, noise_of(3), plan)
    assert velocity.times == [plan.times[n] for n in plan.anchors]
    assert len(velocity.times) == plan.evaluations
    assert velocity.batches == [3] * plan.evaluations
    assert {type(t) for t in velocity.times} == {float}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_sample_alone_is_the_same_as_in_a_batch(rule, dtype, shape, profile):
    flow, x = mixture(shape), noise_of(4, shape, dtype)
    plan = plan_with(rule, profile, ANCHORS)
    together = sample(flow, x, plan)
    eps = torch.finfo(dtype).eps
    assert (together.dtype, together.shape) == (dtype, x.shape)
    for i in range(4):
        alone = sample(flow, x[i : i + 1], plan)
        torch.testing.assert_close(alone[0], together[i], rtol=64 * eps, atol=64 * eps)


def test_a_rotating_flow_is_rebuilt_exactly_in_direction():
    # With the rates of its own turning, every skip of the rotating flow turns as the flow does.
    flow, times = rotating(rate=1.5, growth=0.0), time_grid(20)
    k = math.log(math.cos(1.5 / 20)) * 20  # exp(k dt) = cos, d = sin: a pure turn
    profile = profile_from([k] * 20, [math.sin(1.5 / 20)] * 20)
    plan = plan_with("tasu", profile, (0, 1, 11))
    stepper, x = Stepper(plan), noise_of(2)
    for t in times[:-1]:
        v = stepper.velocity(x, lambda t=t: flow(x, t))
        torch.testing.assert_close(v, flow(x, t), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_callers_dtype(rule, dtype, flow, profile):
    plan = plan_with(rule, profile, ANCHORS)
    stepper, x = Stepper(plan), noise_of(2, dtype=dtype)
    for t in plan.times[:-1]:
        v = stepper.velocity(x, lambda t=t: flow(x, t))
        assert (v.dtype, v.device, v.shape) == (dtype, x.device, x.shape)
    assert sample(flow, x, plan).dtype == dtype


@pytest.mark.parametrize("rule", PROFILE_RULES)
def test_coarse_latents_follow_the_fine_run(rule, flow, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(4)
    fine = sample(flow, x, plan)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        coarse = sample(flow, x.to(dtype), plan).double()
        assert (coarse - fine).norm() <= 60 * torch.finfo(dtype).eps * fine.norm()


# --- each rule by hand


def walk_of(plan, velocities):
    """The velocities a stepper gives where the model gives these, at whatever state."""
    stepper = Stepper(plan)
    return [stepper.velocity(v, lambda v=v: v) for v in velocities]


def test_reuse_repeats_the_last_evaluated_velocity(profile):
    plan = plan_with("reuse", profile, ANCHORS)
    velocities = list(noise_of(20, (1, 4)))
    given = walk_of(plan, velocities)
    latest = [max(a for a in ANCHORS if a <= n) for n in range(20)]
    assert all(torch.equal(given[n], velocities[latest[n]]) for n in range(20))


def test_magnitude_only_scales_the_anchor(profile):
    plan = plan_with("magnitude", profile, ANCHORS)
    velocities = list(noise_of(20, (1, 4)))
    given = walk_of(plan, velocities)
    for n in (2, 3):  # skipped after the anchor at 1: rates and lengths of the steps before
        growth = math.exp(
            sum(profile.magnitude[m] * (plan.times[m] - plan.times[m + 1]) for m in range(1, n))
        )
        torch.testing.assert_close(given[n], growth * velocities[1])


def turned(v, before, turn):
    """v, turned by eq. 11-13 with no growth."""
    dot = lambda a, b: (a * b).sum()  # noqa: E731
    p = (v - before) - dot(v - before, before) / dot(before, before) * before
    residual = p - dot(p, v) / dot(v, v) * v
    return v + turn * v.norm() * residual / residual.norm()


@pytest.mark.parametrize(("anchor", "earlier"), [(1, 0), (5, 4), (8, 5), (13, 8)])
def test_direction_only_turns_away_from_the_last_evaluated_velocity(anchor, earlier, profile):
    # Before the anchor at 8, steps 6 and 7 were rebuilt: the history is the velocity of step 5.
    plan = plan_with("direction", profile, ANCHORS)
    velocities = list(noise_of(20, (1, 4)))
    expected = turned(velocities[anchor], velocities[earlier], profile.direction[anchor])
    torch.testing.assert_close(walk_of(plan, velocities)[anchor + 1], expected)


def test_an_interval_has_one_average_velocity_of_its_anchor_and_the_memory(profile):
    plan = plan_with("fitted", profile, ANCHORS)
    velocities = list(noise_of(20, (1, 4)))
    given, v = walk_of(plan, velocities), velocities
    memory = {4: v[1] - 0.5 * v[0]}
    memory[5] = v[4] - 0.5 * memory[4]
    memory[8] = v[5] - 0.5 * memory[5]
    torch.testing.assert_close(given[0], v[0])
    for n in (1, 2, 3):
        torch.testing.assert_close(given[n], 1.25 * v[1] - 0.25 * v[0])
    for anchor, length in ((4, 1), (5, 3), (8, 5)):
        for n in range(anchor, anchor + length):
            torch.testing.assert_close(given[n], 1.5 * v[anchor] - 0.75 * memory[anchor])


def expanded(rows):
    """The weights of all velocities, oldest first, that rows (a, b, r) stand for."""
    found, memory = [], torch.zeros(len(rows)).double()
    for i, row in enumerate(rows):
        a, b, rate = (*row, 0.0, 0.0)[:3]
        memory = rate * memory
        if i:
            memory[i - 1] += 1
        found.append(b * memory)
        found[-1][i] += a
    return torch.stack(found)


@st.composite
def carried_rows(draw, intervals=6):
    weight = st.floats(-2, 2)
    lengths = [draw(st.integers(1, min(3, i + 1))) for i in range(intervals)]
    rows = [[draw(weight) for _ in range(length)] for length in lengths]
    for row, total in zip(rows, row_sums(rows), strict=True):
        row[0] += draw(st.floats(0.1, 1.8)) - total  # rows of a plan add up to about 1
    return tuple(map(tuple, rows))


@given(carried_rows())
def test_a_carried_memory_is_a_sum_of_all_velocities(rows):
    plan = Plan(
        rule="fitted",
        times=time_grid(12),
        anchors=tuple(range(0, 12, 2)),
        weights=rows,
    )
    velocities, stepper = noise_of(6, (1, 4)), Stepper(plan)
    given_ = torch.stack([stepper.jump(v, lambda v=v: v) for v in velocities])
    expected = torch.einsum("ij,jkl->ikl", expanded(rows), velocities)
    torch.testing.assert_close(given_, expected, rtol=1e-9, atol=1e-9)


def test_a_fitted_interval_is_one_jump(flow, profile):
    plan, x = plan_with("fitted", profile, ANCHORS), noise_of(3)
    walked = sample(flow, x, plan)
    known = []
    for i, (n, length) in enumerate(zip(plan.anchors, plan.intervals, strict=True)):
        known.append(flow(x, plan.times[n]))
        average = average_of(known, plan.weights, i)
        x = x - (plan.times[n] - plan.times[n + length]) * average
    torch.testing.assert_close(walked, x, rtol=1e-12, atol=1e-12)


# --- the condition


def test_the_condition_reaches_the_velocity_whole(flow, profile):
    seen = []

    def velocity(x, t, label, names):
        seen.append((label, names))
        return flow(x, t) + label[:, None, None]

    plan, label = make_plan(profile, evaluations=5), torch.arange(3.0)
    condition = {"label": label, "names": ["a", "b", "c"]}
    found = sample(velocity, noise_of(3), plan, condition=condition)
    assert len(seen) == 5
    assert all(torch.equal(one, label) and names == ["a", "b", "c"] for one, names in seen)
    assert not torch.allclose(found, sample(flow, noise_of(3), plan))


# --- whose loop it is


def test_the_step_to_come_is_announced(profile):
    stepper, x = Stepper(plan_with("tasu", profile, ANCHORS)), noise_of(1)
    announced = []
    for _ in range(20):
        announced.append(stepper.evaluates)
        stepper.velocity(x, lambda: x)
    assert [n for n, evaluates in enumerate(announced) if evaluates] == list(ANCHORS)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("failing", [0, 4, 5])
def test_an_exception_in_evaluate_leaves_the_stepper_where_it_was(rule, failing, flow, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(2)
    stepper, undisturbed = Stepper(plan), Stepper(plan)

    def out_of_memory():
        raise MemoryError("once")

    for n, t in enumerate(plan.times[:-1]):
        if n == failing:
            with pytest.raises(MemoryError, match="once"):
                stepper.velocity(x, out_of_memory)
            assert stepper.step == n
        v, w = (one.velocity(x, lambda t=t: flow(x, t)) for one in (stepper, undisturbed))
        assert torch.equal(v, w)


def test_a_velocity_of_another_shape_is_an_error_and_no_step(profile):
    stepper = Stepper(plan_with("tasu", profile, ANCHORS))
    with pytest.raises(HostError, match=r"velocity has shape \(3,\), but the state \(2, 2, 3\)"):
        stepper.velocity(noise_of(2), lambda: torch.ones(3))
    assert stepper.step == 0


def test_a_state_that_changes_shape_in_an_interval_is_an_error(profile):
    stepper, x = Stepper(plan_with("tasu", profile, (0, 1))), noise_of(2)
    for _ in range(3):
        stepper.velocity(x, lambda: x)
    with pytest.raises(HostError, match=r"shape \(2, 2, 3\), but the state \(1, 2, 3\)"):
        stepper.velocity(x[:1], lambda: x[:1])
    assert stepper.step == 3


def test_a_state_that_changes_shape_between_anchors_is_an_error(profile):
    for rule in ("tasu", "direction", "fitted"):  # those that use two velocities
        stepper = Stepper(plan_with(rule, profile, ANCHORS))
        x, fewer = noise_of(2), noise_of(1)
        stepper.velocity(x, lambda x=x: x)
        with pytest.raises(HostError, match=r"shape \(1, 2, 3\) at step 1, and had \(2, 2, 3\)"):
            stepper.velocity(fewer, lambda fewer=fewer: fewer)


def test_a_velocity_that_is_no_tensor_is_an_error(profile):
    with pytest.raises(HostError, match="tuple"):
        sample(lambda x, t: (x,), noise_of(2), plan_with("tasu", profile, ANCHORS))


def test_a_step_too_many_is_an_error(flow):
    stepper, x = Stepper(Plan.full(time_grid(3))), noise_of(1)
    for _ in range(3):
        stepper.velocity(x, lambda: x)
    assert not stepper.evaluates
    with pytest.raises(HostError, match=r"all 3 steps of the plan are done: call reset\(\)"):
        stepper.velocity(x, lambda: x)


@pytest.mark.parametrize("rule", RULES)
def test_after_reset_a_run_is_the_first_one_again(rule, profile):
    stepper = Stepper(plan_with(rule, profile, ANCHORS))
    velocities = list(noise_of(20, (1, 4)))
    for stop in (20, 3, 20):
        stepper.reset()
        given = [stepper.velocity(v, lambda v=v: v) for v in velocities[:stop]]
        expected = walk_of(stepper.plan, velocities)[:stop]
        assert all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))


def test_without_history_the_next_step_must_be_an_anchor(profile):
    stepper, x = Stepper(plan_with("tasu", profile, ANCHORS)), noise_of(1)
    stepper.velocity(x, lambda: x)
    stepper.velocity(x, lambda: x)
    stepper.forget()
    with pytest.raises(HostError, match="step 2 is no anchor and no velocity was evaluated"):
        stepper.velocity(x, lambda: x)
    assert stepper.step == 2


def test_forgotten_history_gives_no_direction(profile):
    stepper = Stepper(plan_with("tasu", profile, ANCHORS))
    velocities = list(noise_of(20, (1, 4)))
    for n in range(10):
        if n == 8:
            stepper.forget()
        v = stepper.velocity(velocities[n], lambda n=n: velocities[n])
    growth, turn = stepper.plan.update(8)
    torch.testing.assert_close(v, growth * velocities[8])
    assert turn > 0


def test_a_fitted_plan_reuses_until_its_history_is_back(profile):
    stepper = Stepper(plan_with("fitted", profile, ANCHORS))
    velocities = list(noise_of(20, (1, 4)))
    given = []
    for n in range(20):
        if n == 5:
            stepper.forget()
        given.append(stepper.velocity(velocities[n], lambda n=n: velocities[n]))
    for n in (5, 6, 7):
        assert torch.equal(given[n], velocities[5])
    for n in (8, 12):
        assert torch.equal(given[n], velocities[8])


def test_a_carried_memory_is_used_again_where_three_velocities_are_known(profile):
    stepper = Stepper(plan_with("fitted", profile, ANCHORS))
    v = list(noise_of(20, (1, 4)))
    given = []
    for n in range(20):
        if n == 5:
            stepper.forget()
        given.append(stepper.velocity(v[n], lambda n=n: v[n]))
    for n in (5, 8):
        assert torch.equal(given[n], v[n])
    whole = memory_sums(stepper.plan.weights)[ANCHORS.index(8)]  # v[5] stands for all before
    assert whole not in (0, 1)
    torch.testing.assert_close(given[13], 1.5 * v[13] - 0.75 * (v[8] - 0.5 * whole * v[5]))


def test_equal_velocities_have_their_average_again_after_a_carried_memory_was_dropped(profile):
    plan = plan_with("fitted", profile, ANCHORS)
    kept, dropped, v = Stepper(plan), Stepper(plan), noise_of(1, (1, 4))[0]
    for n in range(20):
        if n == 5:
            dropped.forget()
        found = [one.velocity(v, lambda: v) for one in (kept, dropped)]
        if n >= 13:
            torch.testing.assert_close(*found)


@pytest.mark.parametrize("rule", RULES)
def test_history_starts_anew_at_a_break(rule, profile):
    plan = plan_with(rule, profile, ANCHORS)
    broken = plan.model_copy(update={"breaks": (plan.times[7],)})  # step 8 is the first below
    velocities, stepper = list(noise_of(20, (1, 4))), Stepper(plan)
    assert broken.break_steps == (8,)
    for n, found in enumerate(walk_of(broken, velocities)):
        if n == 8:
            stepper.forget()
        assert torch.equal(found, stepper.velocity(velocities[n], lambda n=n: velocities[n]))


@pytest.mark.parametrize("rule", RULES)
def test_writing_into_a_returned_velocity_spoils_nothing(rule, flow, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(2)
    careful, careless = Stepper(plan), Stepper(plan)
    for t in plan.times[:-1]:
        expected = careful.velocity(x, lambda t=t: flow(x, t)).clone()
        v = careless.velocity(x, lambda t=t: flow(x, t))
        assert torch.equal(v, expected)
        v.fill_(math.nan)


@pytest.mark.parametrize("rule", RULES)
def test_a_model_that_reuses_its_output_buffer_spoils_nothing(rule, flow, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(2)
    expected, buffer = sample(flow, x, plan), torch.empty(2, *SHAPE).double()
    assert torch.equal(sample(lambda x, t: buffer.copy_(flow(x, t)), x, plan), expected)


def test_sampling_leaves_the_noise_alone(flow, profile):
    x = noise_of(2)
    before = x.clone()
    sample(flow, x, make_plan(profile, evaluations=5))
    assert torch.equal(x, before)


def test_sampling_keeps_no_graph(flow, profile):
    x = noise_of(2).requires_grad_()
    assert not sample(flow, x, make_plan(profile, evaluations=5)).requires_grad


def test_jumps_are_the_walk_step_by_step(flow, profile):
    plan, x = plan_with("fitted", profile, ANCHORS), noise_of(3)
    walked, stepper = x, Stepper(plan)
    for n in range(plan.steps):
        t = plan.times[n]
        v = stepper.velocity(walked, lambda x=walked, t=t: flow(x, t))
        walked = walked - (t - plan.times[n + 1]) * v
    calls = Recorder(flow)
    found = sample(calls, x, plan)
    assert torch.allclose(found, walked, rtol=1e-12, atol=1e-12)
    assert calls.times == [plan.times[n] for n in ANCHORS]


def test_a_jump_ends_at_the_next_anchor_and_needs_one(profile):
    stepper, x = Stepper(plan_with("fitted", profile, ANCHORS)), noise_of(2)
    stops = []
    while stepper.step < stepper.plan.steps:
        stepper.jump(x, lambda: x)
        stops.append(stepper.step)
    assert stops == [*ANCHORS[1:], stepper.plan.steps]
    with pytest.raises(HostError, match="only from an anchor"):
        stepper.jump(x, lambda: x)
    stepper.reset()
    stepper.jump(x, lambda: x)
    stepper.velocity(x, lambda: x)
    stepper.velocity(x, lambda: x)  # step 2, a skip; 3 is one as well
    with pytest.raises(HostError, match="only from an anchor"):
        stepper.jump(x, lambda: x)


@pytest.mark.parametrize("rule", PROFILE_RULES)
def test_a_profiles_plan_does_not_jump(rule, profile):
    with pytest.raises(HostError, match="only a fitted plan jumps"):
        Stepper(plan_with(rule, profile, ANCHORS)).jump(noise_of(1), lambda: noise_of(1))


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (torch.tensor(1.0), "samples along dim 0"),
        (torch.empty(0, 3), "samples along dim 0"),
        (torch.ones(2, 3, dtype=torch.int64), "must be floating-point, not torch.int64"),
    ],
)
def test_noise_without_samples_is_an_error(noise, message):
    with pytest.raises(HostError, match=message):
        sample(lambda x, t: x, noise, Plan.full(time_grid(3)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_result_that_is_not_finite_is_an_error(value):
    def velocity(x, t):
        v = torch.ones_like(x)
        v[0, 0] = value if t < 0.5 else 1.0
        return v

    plan = Plan.full(time_grid(6))
    with pytest.raises(HostError, match="the run's result in float32 is not finite"):
        sample(velocity, torch.randn(2, 3), plan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weighted_sum_by_hand(dtype):
    velocities = [torch.tensor([[1.0, 2.0]], dtype=dtype), torch.tensor([[4.0, -8.0]], dtype=dtype)]
    total = weighted_sum(velocities, [1.5, -0.5])
    assert total.tolist() == [[-0.5, 7.0]]
    assert total.dtype == torch.promote_types(dtype, torch.float32)
    assert velocities[0].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_memory_is_summed_in_working_precision_and_rounded_once(dtype):
    v, memory = noise_of(2, (64,), dtype), noise_of(2, (64,), dtype, 1)
    found = carry(v, memory, rate=-0.7)
    exact = v.double() - 0.7 * memory.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7)
    for same in (carry(v, rate=-0.7), carry(v, memory, rate=0.0)):
        assert torch.equal(same, v)
        assert same.data_ptr() != v.data_ptr()  # the caller may write into v
    assert [memory_rate(row) for row in ((1.0,), (1.5, -0.5), (1.5, -0.5, 0.25))] == [
        0.0,
        0.0,
        0.25,
    ]


def test_memory_and_average_by_hand():
    rows = [(1.0,), (1.5, -0.5), (1.8, -1.2, -0.5), (1.6, -0.9, 0.25), (1.4, -0.4)]
    v = list(noise_of(5, (2, 3)))
    third = v[1] - 0.5 * v[0]
    fourth = v[2] + 0.25 * third
    for i, expected in ((1, v[0]), (2, third), (3, fourth), (4, v[3])):
        torch.testing.assert_close(memory_of(v, rows, i), expected)
        torch.testing.assert_close(
            average_of(v, rows, i), rows[i][0] * v[i] + rows[i][1] * expected
        )
    assert torch.equal(average_of(v, rows, 0), v[0])
    for i, expected in ((0, [v[0]]), (1, [v[1], v[0]]), (3, [v[3], v[2], third])):
        torch.testing.assert_close(basis_of(v, rows, i), expected)


def test_a_memory_of_equal_velocities_is_its_sum_times_them():
    rows = ((1.0,), (1.5, -0.5), (1.2, -0.2, -0.5), (1.2, -0.2, 0.4), (1.1,))
    v = torch.ones(1, 3, dtype=torch.float64)
    found = [float(memory_of([v] * 5, rows, i)[0, 0]) for i in range(1, 5)]
    assert memory_sums(rows)[1:] == pytest.approx(found)
    assert memory_sums(rows) == pytest.approx([1.0, 1.0, 0.5, 1.2, 1.0])
