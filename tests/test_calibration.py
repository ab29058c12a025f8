import math
import weakref
from itertools import pairwise

import pytest
import torch
from tests.flows import GaussianFlow, picture_flow
from tests.support import SHAPE, euler_run, mixture, noise_of, rotating

from tacache import (
    HostError,
    Origin,
    Plan,
    Profile,
    ProfileError,
    calibrate,
    make_plan,
    sample,
    time_grid,
)
from tacache.calibration import measure
from tacache.tasu import relative_distance

STATISTICS = ("magnitude", "magnitude_std", "direction", "direction_std")


def assert_close(a, b, rel):
    assert (a.times, a.samples, a.origin) == (b.times, b.samples, b.origin)
    for name in STATISTICS:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=rel, abs=rel)


# --- what it measures


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize(("rate", "growth"), [(1.5, -0.4), (-3.0, 1.0), (0.5, 0.0)])
def test_a_rotating_flow_gives_back_its_k_and_d(rate, growth, shift):
    flow, times = rotating(rate, growth), time_grid(12, shift)
    made = calibrate(flow, noise_of(4), times)
    lengths = [times[n] - times[n + 1] for n in range(11)]
    k, d = [flow.magnitude(dt) for dt in lengths], [flow.direction(dt) for dt in lengths]
    assert made.magnitude == pytest.approx([*k, k[-1]], rel=1e-9)
    assert made.direction == pytest.approx([*d, d[-1]], rel=1e-9)
    assert made.magnitude_std == made.direction_std == pytest.approx([0.0] * 12, abs=1e-9)
    assert (made.samples, made.times) == (4, tuple(times))


def test_the_last_step_repeats_the_one_before_it(profile):
    for name in STATISTICS:
        assert getattr(profile, name)[-1] == getattr(profile, name)[-2]
        assert len(getattr(profile, name)) == profile.steps


def test_indicators_are_means_over_the_full_step_run(flow):
    x, times = noise_of(3), time_grid(6, shift=2.0)
    made = calibrate(flow, x, times)
    states = [euler_run(flow, x, times[: n + 1]) for n in range(6)]
    v = [flow(state, t).reshape(3, -1) for state, t in zip(states, times[:-1], strict=True)]
    for n in range(5):
        dt = times[n] - times[n + 1]
        a = (v[n + 1] - v[n]) / dt  # eq. 2
        k = (a * v[n]).sum(dim=1) / v[n].square().sum(dim=1)  # eq. 3
        residual = a - k[:, None] * v[n]
        d = residual.norm(dim=1) / v[n].norm(dim=1) * dt  # eq. 4
        assert made.magnitude[n] == pytest.approx(k.mean().item(), rel=1e-12)
        assert made.direction[n] == pytest.approx(d.mean().item(), rel=1e-12)
        assert made.magnitude_std[n] == pytest.approx(k.std().item(), rel=1e-10)
        assert made.direction_std[n] == pytest.approx(d.std().item(), rel=1e-10)


def test_the_host_is_described():
    made = calibrate(mixture(), noise_of(1, dtype=torch.bfloat16), time_grid(3))
    assert (made.origin.kind, made.origin.latent_shape, made.origin.dtype) == (
        "function",
        SHAPE,
        "bfloat16",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 2, 2, 2)])
def test_coarse_latents_of_any_shape_are_measured(dtype, shape):
    flow, times = mixture(shape), time_grid(8)
    coarse = calibrate(flow, noise_of(4, shape, dtype), times)
    fine = calibrate(flow, noise_of(4, shape), times)
    tolerance = 200 * torch.finfo(dtype).eps
    assert coarse.magnitude == pytest.approx(fine.magnitude, abs=tolerance, rel=tolerance)
    assert coarse.direction == pytest.approx(fine.direction, abs=tolerance, rel=tolerance)


# --- in batches, in parts, in little memory


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 50])
def test_the_batch_size_does_not_change_the_profile(flow, batch_size):
    x, times = noise_of(7), time_grid(8)
    assert_close(calibrate(flow, x, times, batch_size=batch_size), calibrate(flow, x, times), 1e-12)


def test_the_profile_of_two_parts_merged_is_the_whole(flow):
    x, times = noise_of(7), time_grid(8)
    parts = [calibrate(flow, x[:3], times), calibrate(flow, x[3:], times)]
    assert_close(Profile.merge(parts), calibrate(flow, x, times), 1e-12)


def live_at_most(samples):
    """The most velocities and states of `samples` runs that are alive at one time."""
    flow, seen, most = mixture(), [], 0

    def velocity(x, t):
        nonlocal most
        v = flow(x, t)
        seen.extend((weakref.ref(v), weakref.ref(x)))
        most = max(most, sum(reference() is not None for reference in seen))
        return v

    calibrate(velocity, noise_of(samples), time_grid(6), batch_size=1)
    return most


def test_memory_does_not_grow_with_the_number_of_samples():
    few, many = live_at_most(2), live_at_most(10)
    # This step's state and velocity, the last step's; and the noise, a view for every batch.
    assert few - 2 <= 6
    assert many - 10 <= few - 2


def test_a_model_that_reuses_its_output_buffer_is_measured_right(flow):
    x, times, buffer = noise_of(2), time_grid(6), torch.empty(2, *SHAPE).double()
    reused = calibrate(lambda x, t: buffer.copy_(flow(x, t)), x, times)
    assert reused == calibrate(flow, x, times)


def test_the_condition_is_sliced_with_the_samples(flow):
    x, times, label = noise_of(5), time_grid(6), torch.arange(5.0).double()
    seen = []

    def velocity(x, t, label, name):
        seen.append((label.tolist(), name))
        return flow(x, t) + label[:, None, None]

    condition = {"label": label, "name": list("abcde")}
    made = calibrate(velocity, x, times, condition=condition, batch_size=2)
    assert seen[::6] == [([0, 1], ["a", "b"]), ([2, 3], ["c", "d"]), ([4], ["e"])]
    whole = calibrate(lambda x, t: flow(x, t) + label[:, None, None], x, times)
    assert_close(made, whole, 1e-12)


def test_progress_is_shown_on_standard_error(flow, capsys):
    calibrate(flow, noise_of(3), time_grid(4), batch_size=1, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "calibrating" in err
    assert "100%" in err
    calibrate(flow, noise_of(3), time_grid(4), batch_size=1)
    assert capsys.readouterr() == ("", "")


# --- what stops it


def broken(value, step, sample, times):
    """The mixture's velocity, but for one sample at one step; samples know their number."""
    flow = mixture()

    def velocity(x, t, number):
        v = flow(x, t)
        if t == times[step]:
            v[number == sample] = value
        return v

    return velocity


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_velocity_without_a_direction_is_named_by_step_and_sample(value, step, batch_size):
    times = time_grid(8)
    with pytest.raises(ProfileError, match=f"step {step} of sample 3.*zero, infinite or not a"):
        calibrate(
            broken(value, step, 3, times),
            noise_of(5),
            times,
            condition={"number": torch.arange(5)},
            batch_size=batch_size,
        )


def test_a_velocity_of_another_shape_is_an_error():
    with pytest.raises(HostError, match=r"velocity has shape \(2, 3\), but the state \(4, 2, 3\)"):
        calibrate(lambda x, t: x[0], noise_of(4), time_grid(4))


def test_a_run_with_too_few_velocities_is_an_error():
    with pytest.raises(ProfileError, match="3 steps gave 2 velocities"):
        measure(iter([noise_of(1), noise_of(1, seed=1)]), (1.0, 0.6, 0.3, 0.0), Origin())


def test_only_the_last_velocity_may_be_zero(flow):
    times = tuple(time_grid(4))
    made = calibrate(lambda x, t: flow(x, t) * (t > times[3]), noise_of(2), times)
    assert made.magnitude[-1] == pytest.approx(-4.0)  # all of it went in a quarter
    assert made.direction[-1] == pytest.approx(0.0, abs=1e-12)


def test_one_step_cannot_be_calibrated(flow):
    with pytest.raises(ProfileError, match="at least two steps"):
        calibrate(flow, noise_of(1), [1.0, 0.0])


# --- where it leads: a Gaussian flow, whose answer is known


@pytest.fixture(scope="module")
def gaussian():
    return GaussianFlow(2 * noise_of(1, (8,), seed=5)[0], 0.3)


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def test_the_reference_converges_to_the_closed_form(gaussian):
    x = noise_of(4, (8,))
    exact = gaussian.solution(x, 0.0)
    errors = [
        distance(sample(gaussian, x, Plan.full(time_grid(steps))), exact) for steps in (200, 400)
    ]
    assert errors[1] < 0.01
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)  # Euler is of first order


def test_tasu_converges_to_the_reference_as_thresholds_go_to_zero(gaussian):
    times = time_grid(50, shift=2.0)
    made = calibrate(gaussian, noise_of(8, (8,), seed=1), times)
    x = noise_of(4, (8,))
    reference = sample(gaussian, x, Plan.full(times))
    errors, evaluations = [], []
    for scale in (1.0, 0.5, 0.25, 0.12, 0.06, 0.0):
        plan = make_plan(made, tau_k=scale, tau_d=scale)
        evaluations.append(plan.evaluations)
        errors.append(distance(sample(gaussian, x, plan), reference))
    assert evaluations == sorted(evaluations)
    assert evaluations[0] < 25
    assert errors[-1] == 0.0
    assert all(later <= earlier for earlier, later in pairwise(errors))
    assert errors[0] < 0.2
    assert errors[-2] < errors[0] / 5


def test_reconstructed_pictures_end_nearer_than_reused_ones():
    """The whole way on pictures: calibrate on one set of noise, compare on another."""
    flow, times = picture_flow(), time_grid(16, 3.0)
    calibration, noise = torch.randn(2, 4, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    profile = calibrate(flow, calibration, times)
    full = sample(flow, noise, Plan.full(times))

    def distance(plan):
        return float(relative_distance(sample(flow, noise, plan), full).mean())

    plans = [make_plan(profile, evaluations=k) for k in (8, 5)]
    rebuilt = [distance(plan) for plan in plans]
    reused = [distance(plan.model_copy(update={"rule": "reuse"})) for plan in plans]
    assert 0 < rebuilt[0] < reused[0]
    assert rebuilt[0] < rebuilt[1] < reused[1]
