import logging
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import RULES, euler_run, mixture, noise_of, plan_with

from tacache import (
    HostError,
    Plan,
    PlanError,
    TACacheError,
    instant_plan,
    make_plan,
    sample,
    time_grid,
)
from tacache.calibration import calibrate as calibrate_function
from tacache.kdiffusion import (
    calibrate,
    fit_plan,
    plan_for_sigmas,
    plan_from_profile,
    sample_recorded,
    sample_tacache,
    velocity_of,
    with_parts,
)
from tacache.ssc import MAX_SKIP
from tacache.storage.origin import Origin

SHAPE = (4, 3, 3)
STEPS = 20


class Model:
    """A flow as k-diffusion calls it: (x, sigma a sample) -> denoised."""

    def __init__(self, shape=SHAPE):
        self.flow, self.calls = mixture(shape), []

    def __call__(self, x, sigma, **extra_args):  # noqa: D102
        assert sigma.shape == (len(x),)
        self.calls.append((float(sigma[0]), extra_args))
        return x - sigma.reshape(-1, *[1] * (x.ndim - 1)) * self.flow(x, float(sigma[0]))


def sigmas_of(steps=STEPS, shift=3.0, dtype=torch.float32):
    return torch.tensor(time_grid(steps, shift), dtype=dtype)


def euler(model, x, sigmas):
    """k-diffusion's Euler, written out."""
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * x.new_ones([len(x)]))
        x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
    return x


@pytest.fixture(scope="module")
def profile():
    noise = noise_of(4, SHAPE, seed=3)
    return calibrate_function(mixture(SHAPE), noise, sigmas_of().tolist())


@pytest.fixture(scope="module")
def fitted_plan():
    x = noise_of(8, SHAPE, seed=5)
    return fit_plan(Model(), x, sigmas_of(dtype=torch.float64), evaluations=7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_plan_of_anchors_alone_is_plain_euler_to_the_bit(dtype):
    sigmas, x = sigmas_of(), noise_of(2, SHAPE, dtype)
    found = sample_tacache(Model(), x, sigmas, plan=Plan.full(sigmas.tolist()))
    assert found.dtype == dtype
    assert torch.equal(found, euler(Model(), x, sigmas))


@pytest.mark.parametrize("rule", RULES)
def test_it_does_what_sample_does(rule, profile):
    plan = plan_with(rule, profile, (0, 1, 4, 9, 15))
    model, x = Model(), noise_of(3, SHAPE)
    found = sample_tacache(model, x, sigmas_of(dtype=torch.float64), plan=plan)
    assert torch.allclose(found, sample(mixture(SHAPE), x, plan), atol=1e-6)
    assert [t for t, _ in model.calls] == pytest.approx([plan.times[n] for n in plan.anchors])


@pytest.mark.parametrize("evaluations", [4, 7, 13, 20])
def test_the_model_is_called_as_often_as_the_plan_says(evaluations, profile):
    model, plan = Model(), make_plan(profile, evaluations=evaluations)
    sample_tacache(model, noise_of(5, SHAPE), sigmas_of(), plan=plan)
    assert len(model.calls) == evaluations


def test_extra_arguments_reach_the_model(profile):
    model, plan = Model(), make_plan(profile, evaluations=7)
    sample_tacache(model, noise_of(1, SHAPE), sigmas_of(), {"seed": 3}, plan=plan)
    assert all(extra == {"seed": 3} for _, extra in model.calls)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 99), rule=st.sampled_from(RULES))
def test_a_sample_does_not_depend_on_its_batch(seed, rule, profile):
    plan, x = plan_with(rule, profile, (0, 1, 5, 12)), noise_of(3, SHAPE, seed=seed)
    together = sample_tacache(Model(), x, sigmas_of(), plan=plan)
    alone = sample_tacache(Model(), x[1:2], sigmas_of(), plan=plan)
    assert torch.allclose(together[1:2], alone, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_every_step_calls_back_with_what_it_steps_by(rule, profile):
    plan, seen, sigmas = plan_with(rule, profile, (0, 1, 5, 12)), [], sigmas_of()
    x = noise_of(2, SHAPE)
    found = sample_tacache(Model(), x, sigmas, callback=seen.append, plan=plan)
    assert [one["i"] for one in seen] == list(range(STEPS))
    assert all(set(one) == {"x", "i", "sigma", "sigma_hat", "denoised"} for one in seen)
    assert torch.equal(torch.stack([one["sigma"] for one in seen]), sigmas[:-1])
    assert torch.equal(seen[0]["x"], x)
    for one, following in pairwise(seen):
        if plan.weights is not None and one["i"] in plan.anchors:
            continue  # there the model's own answer is shown, the step goes by the average
        v = (one["x"] - one["denoised"]) / one["sigma"]
        stepped = one["x"] + v * (following["sigma"] - one["sigma"])
        assert torch.allclose(stepped, following["x"], atol=1e-6)
    assert torch.allclose(seen[-1]["denoised"], found, atol=1e-6)  # the last step goes to 0


@pytest.mark.slow
def test_at_anchors_the_callback_gets_the_models_own_answer(fitted_plan):
    seen, model, sigmas = [], Model(), sigmas_of()
    sample_tacache(model, noise_of(2, SHAPE), sigmas, callback=seen.append, plan=fitted_plan)
    for n in fitted_plan.anchors:
        denoised = Model()(seen[n]["x"], sigmas[n] * torch.ones(2, dtype=torch.float64))
        assert torch.equal(seen[n]["denoised"], denoised)


@pytest.mark.parametrize("where", [0, 7, 19])
def test_what_the_callback_raises_ends_the_run(where, profile):
    class CancelError(Exception):
        pass

    def callback(seen):
        if seen["i"] == where:
            raise CancelError

    model, plan = Model(), make_plan(profile, evaluations=7)
    with pytest.raises(CancelError):
        sample_tacache(
            model, noise_of(1, SHAPE), sigmas_of(), callback=callback, disable=False, plan=plan
        )
    assert len(model.calls) == sum(n <= where for n in plan.anchors)
    sample_tacache(model, noise_of(1, SHAPE), sigmas_of(), disable=False, plan=plan)


@pytest.mark.parametrize("sigmas", [torch.zeros(0), torch.ones(1)])
def test_without_a_step_nothing_happens(sigmas, profile):
    x = noise_of(1, SHAPE)
    assert sample_tacache(Model(), x, sigmas, plan=make_plan(profile, evaluations=7)) is x


@pytest.mark.parametrize(
    ("sigmas", "message"),
    [
        ([0.0, 0.5, 1.0], "times must decrease"),
        ([1.0, 0.5, 0.5], "times must decrease"),
        ([1.0, 0.0, -0.5], "end at 0 or above"),
    ],
)
def test_sigmas_that_do_not_fall_are_refused(sigmas, message, profile):
    plan = make_plan(profile, evaluations=7)
    with pytest.raises(TACacheError, match=message):
        sample_tacache(Model(), noise_of(1, SHAPE), torch.tensor(sigmas), plan=plan)


def test_a_model_that_answers_in_another_shape_is_refused(profile):
    plan = make_plan(profile, evaluations=7)
    with pytest.raises(HostError, match="shape"):
        sample_tacache(lambda x, s: x[:, :1], noise_of(1, SHAPE), sigmas_of(), plan=plan)


# Other sigmas


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 10, 28])
@pytest.mark.parametrize("start", [1.0, 0.6])
def test_a_plan_of_rates_runs_on_any_sigmas(steps, start, profile):
    sigmas, model = sigmas_of(steps, shift=2.0) * start, Model()
    plan = make_plan(profile, evaluations=8)
    x = noise_of(2, SHAPE)
    found = sample_tacache(model, x, sigmas, plan=plan)
    assert len(model.calls) == plan_for_sigmas(plan, sigmas.tolist()).evaluations <= steps
    if steps == 28:
        assert len(model.calls) < 20
    full = euler_run(mixture(SHAPE), x, tuple(sigmas.tolist()))
    assert (found - full).norm() < 0.2 * full.norm()


@pytest.mark.parametrize("rule", RULES)
def test_a_stretch_of_the_plans_sigmas_keeps_its_anchors(rule, profile):
    plan = plan_with(rule, profile, (0, 1, 5, 9, 14))
    levels = sigmas_of().tolist()
    late = plan_for_sigmas(plan, levels[5:])
    assert late.anchors == (0, 1, 4, 9)  # 5, one more to learn from, 9, 14
    early = plan_for_sigmas(plan, levels[:12])
    assert early.anchors == (0, 1, 5, 9)
    assert early.steps == 11
    middle = plan_for_sigmas(plan, levels[5:10])
    assert middle.anchors == (0, 1)
    if plan.weights is not None:
        assert early.weights == (*plan.weights[:3], (1.0,))  # its interval was cut short
        assert plan_for_sigmas(plan, levels[:10]).weights == plan.weights[:3]
    assert plan_for_sigmas(plan, levels) is plan


def test_two_halves_follow_one_another(profile):
    plan, sigmas, x = make_plan(profile, evaluations=13), sigmas_of(), noise_of(2, SHAPE)
    half = sample_tacache(Model(), x, sigmas[:11], plan=plan)
    found = sample_tacache(Model(), half, sigmas[10:], plan=plan)
    full = euler(Model(), x, sigmas)
    assert (found - full).norm() < 0.1 * full.norm()


@pytest.mark.slow
def test_a_fitted_plan_takes_another_shift_with_a_warning(fitted_plan, caplog):
    with caplog.at_level(logging.WARNING, logger="tacache.kdiffusion"):
        moved = plan_for_sigmas(fitted_plan, time_grid(STEPS, 2.5))
    assert moved.times == tuple(time_grid(STEPS, 2.5))
    assert "another shift" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("sigmas", [time_grid(28, 3.0), [0.6 * t for t in time_grid(STEPS, 3.0)]])
def test_a_fitted_plan_refuses_what_it_was_not_fitted_for(sigmas, fitted_plan):
    with pytest.raises(HostError, match="fit one for these sigmas"):
        plan_for_sigmas(fitted_plan, sigmas)


@pytest.fixture(scope="module")
def flow_plan():
    x = noise_of(8, SHAPE, seed=5)
    sigmas = sigmas_of(dtype=torch.float64)
    return fit_plan(Model(), x, sigmas, evaluations=5, target="flow", max_evaluations=1200)


@pytest.mark.parametrize("steps", [STEPS, 9])
def test_a_plan_for_the_flow_runs_at_its_own_times_whatever_the_sigmas(steps, flow_plan):
    model, x, seen = Model(), noise_of(2, SHAPE), []
    found = sample_tacache(
        model, x, sigmas_of(steps, dtype=torch.float64), plan=flow_plan, callback=seen.append
    )
    assert [t for t, _ in model.calls] == list(flow_plan.times[:-1])
    assert [one["i"] for one in seen] == [*range(5)]
    torch.testing.assert_close(found, sample(mixture(SHAPE), x, flow_plan))


def test_a_stretch_of_the_sigmas_has_its_share_of_a_plan_for_the_flow(flow_plan):
    sigmas = sigmas_of(dtype=torch.float64)
    later = plan_for_sigmas(flow_plan, sigmas[8:].tolist())
    assert later == instant_plan(sigmas[8:].tolist(), 3, target="flow").model_copy(
        update={"origin": flow_plan.origin}
    )
    with pytest.raises(HostError, match="times of its own"):
        plan_for_sigmas(flow_plan, [0.9, 0.4, 0.0])


def test_a_profile_gives_the_evaluations_asked_for_on_any_sigmas(profile):
    for steps in (10, 28):
        plan = plan_from_profile(profile, time_grid(steps, 2.0), 7)
        assert (plan.steps, plan.evaluations) == (steps, 7)
    assert plan_from_profile(profile, time_grid(5), 7).evaluations == 5
    assert plan_from_profile(profile, [0.4, 0.0], 7).evaluations == 1
    with pytest.raises(PlanError, match="1 evaluation cannot be made"):
        plan_from_profile(profile, time_grid(50), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "evaluations"), [(50, 2), (50, 5), (200, 13), (1000, 13)])
def test_a_budget_that_needs_longer_intervals_than_the_papers_is_met(profile, steps, evaluations):
    plan = plan_from_profile(profile, time_grid(steps, 3.0), evaluations)
    assert plan.evaluations == evaluations
    assert plan.max_skip > MAX_SKIP
    shorter = plan.max_skip - 1
    with pytest.raises(PlanError, match="a larger max_skip"):
        make_plan(profile.resample(plan.times), evaluations=evaluations, max_skip=shorter)


def test_a_budget_that_the_papers_intervals_meet_keeps_them(profile):
    assert plan_from_profile(profile, time_grid(50, 3.0), 13).max_skip == MAX_SKIP


@pytest.mark.slow
def test_parts_count_where_a_budget_needs_longer_intervals(profile):
    level = 0.5
    plan = plan_from_profile(profile, time_grid(200, 3.0), 9, [level])
    assert plan.evaluations == 9
    assert plan.break_steps
    with pytest.raises(PlanError, match="3 evaluations cannot be made"):
        plan_from_profile(profile, time_grid(200, 3.0), 3, [level])


def test_a_change_of_guidance_starts_a_new_part(profile):
    plan, level = make_plan(profile, evaluations=6), profile.times[10]
    changed = with_parts(plan, [level, 2.0])
    assert set(changed.anchors) == {*plan.anchors, 11, 12}
    assert with_parts(plan, [2.0, -1.0]) is plan
    budget = plan_from_profile(profile, profile.times, 8, [level])
    assert {0, 11, 12} <= set(budget.anchors)
    assert budget.evaluations == 8


# Other latents


def test_another_size_runs_and_another_kind_is_refused():
    profile = calibrate(Model(), noise_of(2, SHAPE), sigmas_of())
    plan = make_plan(profile, evaluations=7)
    assert plan.origin.latent_shape == SHAPE
    large = (4, 6, 5)
    model = Model(large)
    found = sample_tacache(model, noise_of(2, large), sigmas_of(), plan=plan)
    assert found.shape == (2, *large)
    assert len(model.calls) == 7
    for other in ((16, 3, 3), (4, 2, 3, 3)):
        with pytest.raises(HostError, match="calibrate this model"):
            sample_tacache(Model(other), noise_of(1, other), sigmas_of(), plan=plan)


def test_a_plan_of_another_host_serves_where_latents_are_packed_otherwise(profile):
    host = Origin(kind="diffusers", latent_shape=(4096, 64))
    plan = make_plan(profile, evaluations=7).model_copy(update={"origin": host})
    sample_tacache(Model(), noise_of(1, SHAPE), sigmas_of(), plan=plan)


# What is known of the result


@pytest.mark.parametrize("rule", RULES)
def test_what_is_kept_is_exact_at_rebuilt_steps(rule, profile):
    noise, data = noise_of(2, SHAPE), noise_of(2, SHAPE, seed=9)
    inside = torch.zeros(SHAPE, dtype=torch.float64)
    inside[:, 1:] = 1

    def keep(denoised, sigma):
        assert sigma.shape == (2,)
        return denoised * inside + data * (1 - inside)

    free = Model()

    def masked(x, sigma):
        return keep(free(x, sigma), sigma)

    plan = plan_with(rule, profile, (0, 1, 4, 9, 15))
    seen = []
    found = sample_tacache(masked, noise, sigmas_of(), callback=seen.append, plan=plan, keep=keep)
    outside = inside == 0
    assert torch.allclose(found[:, outside], data[:, outside], atol=1e-6)
    for one in seen:
        path = one["sigma"] * noise + (1 - one["sigma"]) * data
        assert torch.allclose(one["x"][:, outside], path[:, outside], atol=1e-5)
    assert len(free.calls) == 5


# Recording and fitting


def test_a_recorded_run_is_plain_euler_and_measures_what_calibrate_does(profile):
    found, seen, sigmas, x = [], [], sigmas_of(), noise_of(4, SHAPE, seed=3)
    result = sample_recorded(
        Model(), x, sigmas, callback=seen.append, disable=False, record=found.append
    )
    assert torch.equal(result, euler(Model(), x, sigmas))
    assert [one["i"] for one in seen] == list(range(STEPS))
    assert found[0].magnitude == pytest.approx(profile.magnitude, abs=1e-5)
    assert found[0].direction == pytest.approx(profile.direction, abs=1e-5)
    assert found[0].origin == Origin(kind="k-diffusion", latent_shape=SHAPE, dtype="float64")


def test_a_calibration_says_where_it_comes_from_and_knows_breaks():
    host = Origin(kind="comfyui", denoiser="Flux")
    found = calibrate(Model(), noise_of(2, SHAPE), sigmas_of(), origin=host, breaks=(0.5,))
    assert found.origin.denoiser == "Flux"
    assert found.breaks == (0.5,)


def test_a_cancelled_recording_records_nothing():
    def callback(seen):
        if seen["i"] == 5:
            raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        sample_recorded(
            Model(), noise_of(1, SHAPE), sigmas_of(), callback=callback, record=found.append
        )
    assert not found


@pytest.mark.slow
def test_a_fitted_plan_does_better_than_one_by_rates(profile, fitted_plan):
    x, sigmas = noise_of(8, SHAPE, seed=21), sigmas_of()
    full = euler(Model(), x, sigmas)
    assert fitted_plan.origin.kind == "k-diffusion"
    assert fitted_plan.certificate is not None
    drift = {}
    for plan in (make_plan(profile, evaluations=7), fitted_plan):
        model = Model()
        drift[plan.rule] = float((sample_tacache(model, x, sigmas, plan=plan) - full).norm())
        assert len(model.calls) == 7
    assert drift["fitted"] < drift["tasu"]


def test_a_model_as_a_velocity_function():
    x, model = noise_of(2, SHAPE), Model()
    found = velocity_of(model, {"seed": 1})(x, 0.7)
    assert torch.allclose(found, mixture(SHAPE)(x, 0.7))
    assert model.calls == [(0.7, {"seed": 1})]


@pytest.mark.slow
def test_the_example_of_the_documentation_runs():
    page = (Path(__file__).parent.parent / "docs" / "reference" / "comfyui.md").read_text(
        encoding="utf-8"
    )
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    steps, names = [], {"model": Model(), "x": noise_of(2, SHAPE), "sigmas": sigmas_of()}
    names |= {"extra_args": {"seed": 1}, "print_progress": lambda seen: steps.append(seen["i"])}
    exec(example, names)
    assert steps == list(range(STEPS))
    assert names["plan"].evaluations == names["fitted"].evaluations == 7
    assert names["x0"].shape == (2, *SHAPE)


def test_a_result_that_is_not_finite_is_an_error():
    sigmas = sigmas_of()
    plan = Plan.full(sigmas.tolist())
    with pytest.raises(HostError, match="is not finite"):
        sample_tacache(lambda x, sigma: x * float("nan"), torch.ones(1, 2), sigmas, plan=plan)
