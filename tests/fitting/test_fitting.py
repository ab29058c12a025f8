"""Fitted plans: exact answers, what is spent, what judges, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import Counted, euler_run, mixture, noise_of, seeds

from tacache import (
    HostError,
    Plan,
    PlanError,
    TACacheError,
    calibrate,
    fit_plan,
    make_plan,
    sample,
    time_grid,
)
from tacache import fitting as module
from tacache.fitting import fit_budget
from tacache.fitting import search as searching
from tacache.fitting.fit_options import MAX_QUICK_EVALUATIONS, FitOptions
from tacache.fitting.lockstep import (
    Fit,
    Problem,
    is_better,
    lock_step,
)
from tacache.fitting.reference import probe_cost, record
from tacache.fitting.samples import FunctionSamples
from tacache.instant import instant_plan

TIMES = tuple(time_grid(16, shift=2.0))
SHAPE = (2, 3)


def drift(flow, x, plan):
    """Mean relative distance of the plan's samples to the full-step ones."""
    full = euler_run(flow, x, plan.times).flatten(1)
    return float(((sample(flow, x, plan).flatten(1) - full).norm(dim=1) / full.norm(dim=1)).mean())


def problem_of(flow, noise, times=TIMES, history=3, condition=None, breaks=()):
    runs = FunctionSamples(flow, noise, times, condition)
    runs.breaks = breaks
    return Problem(runs, record(runs), history, list(range(len(noise))))


# --- exact answers ----------------------------------------------------------------------------


def linear(x, t):
    """The same for every state of a sample, linear in time, and another line for each sample."""
    start = noise_of(8, SHAPE, seed=3)[: len(x)]
    return start + (1 - t) * noise_of(8, SHAPE, seed=4)[: len(x)]


@pytest.mark.slow
@pytest.mark.parametrize(("evaluations", "most"), [(2, 1e-5), (3, 1e-9)])
def test_a_velocity_linear_in_time_is_fitted_from_two_anchors_on(evaluations, most):
    """But for the ridge: the second velocity also repairs what the first interval left."""
    x = noise_of(8, SHAPE)
    plan = fit_plan(linear, x, TIMES, evaluations=evaluations)
    assert drift(linear, x, plan) < 10 * most
    assert plan.certificate.drift < 10 * most
    fit = lock_step(problem_of(linear, x), (0, 1, 6))
    assert max(fit.drift.values()) < 1e-4
    reused = Plan(rule="reuse", times=TIMES, anchors=(0, 1, 6))
    assert drift(linear, x, reused) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("evaluations", [1, 2, 5, 16])
def test_a_constant_velocity_is_exact_at_any_budget(evaluations, dtype):
    """Without an error there is nothing to weigh samples by: no division by it."""
    constant = 3 * noise_of(6, SHAPE, dtype, seed=3)
    x = noise_of(6, SHAPE, dtype)
    plan = fit_plan(lambda x, t: constant[: len(x)], x, TIMES, evaluations=evaluations)
    assert plan.certificate.drift < 10 * torch.finfo(dtype).eps
    assert all(math.isfinite(w) for row in plan.weights for w in row)
    assert [sum(row) for row in plan.weights] == pytest.approx([1.0] * evaluations)


def test_no_velocity_at_all_is_exact():
    plan = fit_plan(lambda x, t: torch.zeros_like(x), noise_of(4, SHAPE), TIMES, evaluations=3)
    assert plan.certificate.drift == 0


def test_all_steps_are_the_full_run(flow):
    x = noise_of(6, SHAPE)
    plan = fit_plan(flow, x, TIMES, evaluations=16)
    assert plan.anchors == tuple(range(16))
    assert plan.certificate.drift < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("evaluations", [4, 7])
def test_it_beats_the_paper_and_reuse_on_noise_it_has_not_seen(evaluations):
    flow, times = mixture(), time_grid(30, shift=2.0)
    x, unseen = noise_of(8, SHAPE), noise_of(32, SHAPE, seed=9)
    profile = calibrate(flow, x, times)
    found = drift(flow, unseen, fit_plan(flow, x, times, evaluations=evaluations))
    quick = drift(flow, unseen, fit_plan(flow, x, times, evaluations=evaluations, search=False))
    for rule in ("tasu", "reuse"):
        other = drift(flow, unseen, make_plan(profile, evaluations=evaluations, rule=rule))
        assert found < other
        assert quick < other


# --- a carried memory -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_stepper_follows_a_fit_to_the_bit(dtype):
    flow, x, anchors = mixture(), noise_of(8, SHAPE, dtype), (0, 1, 3, 5, 7, 9, 12)
    fit = lock_step(problem_of(flow, x), anchors)
    assert sum(len(row) == 3 for row in fit.weights) >= 2
    fields = {"rule": "fitted", "times": TIMES, "anchors": anchors, "weights": fit.weights}
    assert torch.equal(sample(flow, x, Plan(**fields)), fit.states[-1])


@pytest.mark.slow
def test_a_memory_helps_beyond_two_velocities():
    flow, times, anchors = mixture(), time_grid(30, shift=2.0), tuple(range(0, 30, 3))
    x, unseen = noise_of(16, SHAPE), noise_of(64, SHAPE, seed=9)
    two, memory = (
        lock_step(problem_of(flow, x, times, history), anchors).weights for history in (2, 3)
    )
    fields = {"rule": "fitted", "times": times, "anchors": anchors}
    drifts = [drift(flow, unseen, Plan(**fields, weights=rows)) for rows in (two, memory)]
    assert drifts[1] < 0.7 * drifts[0]


# --- lock-step --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("condition", [None, {}])
def test_a_known_beginning_changes_nothing(condition):
    problem = problem_of(mixture(), noise_of(6, SHAPE), condition=condition)
    known = lock_step(problem, (0, 1, 4, 8, 12))
    for first, anchors in ((0, (0, 2, 4, 8, 12)), (2, (0, 1, 4, 7, 12)), (3, (0, 1, 4, 8, 14))):
        counted = Counted(mixture())
        problem.runs.velocity = counted
        again = lock_step(problem, anchors, known, first)
        assert len(counted.sizes) == len(anchors) - first - 1
        fresh = lock_step(problem, anchors)
        assert again.weights == fresh.weights
        assert again.drift == fresh.drift
        for name in ("states", "velocities"):
            pairs = zip(getattr(again, name), getattr(fresh, name), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_the_fits_drift_is_that_of_its_plan(flow):
    x = noise_of(8, SHAPE)
    plan = fit_plan(flow, x, TIMES, evaluations=5)
    held = plan.certificate.held_out
    assert held == 2
    assert plan.samples == 6
    assert drift(flow, x[:held], plan) == pytest.approx(plan.certificate.drift, rel=1e-9)
    assert drift(flow, x[held:], plan) == pytest.approx(plan.certificate.fit_drift, rel=1e-9)


def test_held_out_samples_change_no_weight():
    flow, x = mixture(), noise_of(8, SHAPE)
    other = x.clone()
    other[:2] = 2 * noise_of(2, SHAPE, seed=77)
    one, two = problem_of(flow, x), problem_of(flow, other)
    assert np.array_equal(one.reference.errors, two.reference.errors)
    first, second = (lock_step(problem, (0, 1, 5, 10)) for problem in (one, two))
    # the flow's matrix products may round otherwise in another batch
    assert np.concatenate(first.weights) == pytest.approx(np.concatenate(second.weights), rel=1e-9)
    assert first.drift[0] != second.drift[0]
    other = x.clone()
    other[2:] = noise_of(6, SHAPE, seed=78)
    assert lock_step(problem_of(flow, other), (0, 1, 5, 10)).weights != first.weights


@pytest.mark.slow
def test_no_velocity_from_before_a_break_is_used():
    times = TIMES
    middle = (times[6] + times[5]) / 2  # step 6 is the first below it

    def parted(x, t):
        return mixture()(x, t) if t > middle else -3 * torch.tanh(x.flip(-1))

    runs = FunctionSamples(parted, noise_of(8, SHAPE), times, {})
    runs.breaks = (middle,)
    reference = record(runs)
    for most in (0, 3000):
        plan = fit_budget(runs, reference, 6, FitOptions(max_evaluations=most))
        assert plan.break_steps == (6,)
        assert 6 in plan.anchors
        at = plan.anchors.index(6)
        assert all(len(row) <= i - at + 1 for i, row in enumerate(plan.weights) if i >= at)
    with pytest.raises(PlanError, match="1 evaluation cannot be made: 16 steps take 2 to 16"):
        module.check_budget(runs, 1, FitOptions())
    problem = Problem(runs, reference, 3, list(range(8)))
    moves = [searching._moved((0, 3, 6, 7), j, by, problem) for j in (1, 2, 3) for by in (1, -1)]
    assert moves == [(0, 4, 6, 7), (0, 2, 6, 7), None, None, (0, 3, 6, 8), None]


@pytest.mark.slow
@pytest.mark.parametrize("history", [1, 2, 3])
def test_no_row_is_longer_than_the_history(flow, history):
    plan = fit_plan(flow, noise_of(6, SHAPE), TIMES, evaluations=7, history=history)
    assert max(map(len, plan.weights)) <= history


@pytest.mark.slow
def test_low_precision_samples_are_fitted_in_their_own_dtype(flow):
    x = noise_of(8, SHAPE, torch.bfloat16)
    seen = Counted(flow)
    plan = fit_plan(seen, x, TIMES, evaluations=6)
    assert {state.dtype for state in seen.states} == {torch.bfloat16}
    assert plan.origin.dtype == "bfloat16"
    assert plan.origin.latent_shape == SHAPE
    assert plan.certificate.drift < 0.2


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=15)
@given(
    steps=st.integers(1, 12),
    samples=st.integers(2, 9),
    share=st.floats(0, 1),
    spare=st.integers(0, 400),
    parts=st.booleans(),
    batch_size=st.sampled_from([None, 3]),
    seed=seeds,
)
def test_what_is_spent_is_counted_and_stays_within_the_limit(
    steps, samples, share, spare, parts, batch_size, seed
):
    evaluations = 1 + round(share * (steps - 1))
    condition = {} if parts else None
    x, times = noise_of(samples, (4,), seed=seed), time_grid(steps, shift=2.0)
    flow = mixture((4,))
    runs = FunctionSamples(flow, x, times, condition)
    least = samples * (steps + evaluations) + probe_cost(runs)
    with pytest.raises(PlanError, match=rf"max_evaluations={least - 1} is too few: .* {least};"):
        fit_plan(
            flow, x, times, evaluations=evaluations, condition=condition, max_evaluations=least - 1
        )
    counted = Counted(flow)
    plan = fit_plan(
        counted,
        x,
        times,
        evaluations=evaluations,
        condition=condition,
        batch_size=batch_size,
        max_evaluations=least + spare,
    )
    assert counted.evaluations == plan.certificate.evaluations_spent <= least + spare
    assert plan.evaluations == evaluations
    if not parts and batch_size is None:
        assert set(counted.sizes) == {samples}


def test_without_a_condition_the_whole_batch_arrives_in_its_order():
    """Each sample has a velocity of its own, known by its place only."""
    own = noise_of(6, SHAPE, seed=5)
    x = noise_of(6, SHAPE)

    def placed(states, t):
        assert states.shape == own.shape
        moved = (x - states) / own  # probes go too far, but on the same lines
        assert torch.allclose(moved, moved[0, 0, 0].expand_as(moved))
        return own

    plan = fit_plan(placed, x, TIMES, evaluations=4, search=False)
    assert plan.certificate.drift < 1e-9


def test_a_condition_may_be_an_array_and_noise_flat():
    noise, labels = noise_of(6, (4,))[:, 0].contiguous(), np.linspace(0.5, 1.0, 6)

    def velocity(x, t, label):
        return x * torch.from_numpy(label) * (1 + t)

    plan = fit_plan(velocity, noise, TIMES, evaluations=4, condition={"label": labels})
    assert sample(velocity, noise, plan, condition={"label": labels}).shape == (6,)


@pytest.mark.slow
def test_a_condition_goes_with_its_samples():
    labels = torch.arange(9)
    own = noise_of(9, SHAPE, seed=5)
    names = [f"s{k}" for k in range(9)]
    x = noise_of(9, SHAPE)
    seen = []

    def labelled(states, t, label, name):
        assert name == [f"s{k}" for k in label.tolist()]
        seen.append(len(states))
        return own[label] * (1 + t) + 0.1 * states

    plan = fit_plan(
        labelled, x, TIMES, evaluations=4, condition={"label": labels, "name": names}, batch_size=4
    )
    assert max(seen) == 4
    assert sum(seen) == plan.certificate.evaluations_spent
    full = euler_run(labelled, x, TIMES, label=labels, name=names)
    found = sample(labelled, x, plan, condition={"label": labels, "name": names})
    held = plan.certificate.held_out
    drifts = (found - full).flatten(1).norm(dim=1) / full.flatten(1).norm(dim=1)
    assert float(drifts[:held].mean()) == pytest.approx(plan.certificate.drift, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("tries", [0, 2, 30])
def test_without_a_search_only_the_power_of_growth_is_chosen(tries, flow):
    """Each try beyond the program's own anchors is a fit of all samples."""
    x = noise_of(8, SHAPE)
    runs = FunctionSamples(flow, x, TIMES, {})
    reference, once = record(runs), 8 * (16 + 5) + probe_cost(runs)
    counted, limit = Counted(flow), once + tries * 8 * 5
    options = {"search": False, "max_evaluations": limit}
    plan = fit_plan(counted, x, TIMES, evaluations=5, condition={}, **options)
    assert plan.certificate.evaluations_spent == counted.evaluations
    assert once <= counted.evaluations <= limit
    assert (counted.evaluations == once) == (tries == 0)
    powers = [0.0] if tries == 0 else np.arange(-3, 3.01, searching.FINEST)
    growths = [np.power(reference.growth, 2.0**octave).tolist() for octave in powers]
    assert plan.anchors in {module.best_anchors(reference.errors, growth, 5) for growth in growths}


@pytest.mark.slow
def test_what_measuring_takes_is_left_for_it(flow):
    runs = FunctionSamples(flow, noise_of(8, SHAPE), TIMES, {})
    reference = record(runs)
    for search, most in ((True, 600), (False, MAX_QUICK_EVALUATIONS)):
        for measuring in (0, 40):
            plan = fit_budget(
                runs,
                reference,
                5,
                FitOptions(max_evaluations=most, search=search),
                measuring=measuring,
            )
            assert plan.certificate.evaluations_spent + measuring <= most


@pytest.mark.slow
def test_a_search_does_not_lose_to_its_start(flow):
    x = noise_of(16, SHAPE)
    plans = [fit_plan(flow, x, TIMES, evaluations=5, search=search) for search in (True, False)]
    searched, quick = (plan.certificate for plan in plans)
    assert searched.evaluations_spent > quick.evaluations_spent
    assert searched.drift <= quick.drift * 1.05


def test_a_move_must_help_held_out_samples():
    fits = [
        Fit((0,), ((1.0,),), (), (), dict(enumerate(drifts)))
        for drifts in ([1.0, 1.0, 1.0, 1.0], [1.1, 0.5, 0.5, 0.5], [0.9, 0.5, 0.5, 0.6])
    ]
    assert not is_better(fits[1], fits[0], held_out=1)
    assert is_better(fits[2], fits[0], held_out=1)
    noisy = fits[0]._replace(drift={0: 0.5, 1: 1.9, 2: 0.8, 3: 1.1})
    assert not is_better(noisy, fits[0], held_out=1)  # less than chance


@pytest.mark.slow
def test_the_same_again(flow):
    x = noise_of(6, SHAPE)
    first, second = (fit_plan(flow, x, TIMES, evaluations=4) for _ in range(2))
    assert first == second


# --- files and refusals -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_plan_gives_the_same_samples(flow, tmp_path):
    x = noise_of(6, SHAPE)
    plan = fit_plan(flow, x, TIMES, evaluations=5)
    loaded = Plan.load(plan.save(tmp_path / "fitted.plan.json"))
    assert loaded == plan
    assert loaded.certificate == plan.certificate
    assert torch.equal(sample(flow, x, loaded), sample(flow, x, plan))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": noise_of(1, SHAPE)}, "at least two samples"),
        ({"evaluations": 17}, "17 evaluations cannot be made: 16 steps take 1 to 16"),
        ({"evaluations": 0}, "0 evaluations cannot be made"),
        ({"history": 0}, r"history is 1 \(the newest velocity\), 2 .* or 3 .*, not 0"),
        ({"history": 4}, r"or 3 \(a memory of all before the newest\), not 4"),
        ({"max_evaluations": 50}, r"max_evaluations=50 is too few: .* or give fewer samples$"),
        (
            {"noise": noise_of(2, SHAPE), "max_evaluations": 50},
            r"max_evaluations=50 is too few: .* 2 samples take \d+; allow that many$",
        ),
        ({"noise": torch.ones(4, 2, dtype=torch.int64)}, "floating-point"),
        ({"times": [0.0, 1.0]}, "decreas"),
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"condition": {"label": [1, 2, 3]}}, "one entry a sample"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_any_evaluation(flow, changes, message):
    counted = Counted(flow)
    arguments = {"noise": noise_of(4, SHAPE), "times": TIMES, "evaluations": 5} | changes
    with pytest.raises(TACacheError, match=message):
        fit_plan(counted, **arguments)
    assert counted.evaluations == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_velocity_that_is_no_number_names_sample_and_step(flow, bad):
    def broken(x, t):
        v = flow(x, t)
        if t == TIMES[3]:
            v[2] = bad
        return v

    with pytest.raises(HostError, match=r"sample 2: the velocity at step 3 is infinite or not"):
        fit_plan(broken, noise_of(4, SHAPE), TIMES, evaluations=5)


@pytest.mark.slow
def test_no_gradient_is_kept(flow):
    x = noise_of(4, SHAPE).requires_grad_()
    plan = fit_plan(flow, x, TIMES, evaluations=5)
    assert plan.evaluations == 5


@pytest.mark.slow
def test_progress_is_shown_on_request(flow, capsys):
    fit_plan(flow, noise_of(4, SHAPE), TIMES, evaluations=5)
    shown = capsys.readouterr()
    assert shown.out + shown.err == ""
    fit_plan(flow, noise_of(4, SHAPE), TIMES, evaluations=5, progress=True)
    shown = capsys.readouterr()
    assert "full steps" in shown.out + shown.err


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "said"), [(4, 1), (8, 0)])
def test_a_fit_on_few_samples_warns(caplog, samples, said):
    fit_plan(linear, noise_of(samples, SHAPE, seed=1), TIMES, evaluations=4)
    assert caplog.text.count("may lead single pictures elsewhere") == said


@pytest.mark.slow
def test_the_bar_of_a_fit_counts_its_evaluations(capsys):
    fit_plan(linear, noise_of(8, SHAPE, seed=1), TIMES, evaluations=4, progress=True)
    assert "fitting 4 of 16 steps" in capsys.readouterr().err


def test_the_instant_plan_is_kept_where_it_does_better(flow, monkeypatch):
    """Weights that were fitted to nothing: the instant plan of as many evaluations wins."""
    options = FitOptions(search=False, keep_better=True)
    runs = FunctionSamples(flow, noise_of(8, SHAPE), TIMES, {})
    reference = record(runs)
    fitted = fit_budget(runs, reference, 5, options)
    assert fitted.rule == "fitted"
    monkeypatch.setattr("tacache.fitting.lockstep.choose_row", lambda products: (0.5,))
    kept = fit_budget(runs, reference, 5, options)
    instant = instant_plan(TIMES, 5)
    assert (kept.rule, kept.anchors, kept.weights) == ("fitted", instant.anchors, instant.weights)
    judged = kept.certificate
    assert judged.drift <= judged.worst_drift
    assert judged.evaluations_spent > fitted.certificate.evaluations_spent - 5 * 8
