import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support import (
    PROFILE_RULES,
    carried,
    fitted,
    mixture,
    noise_of,
    profile_from,
    rotating,
    tasu,
    variations,
)

from tacache import (
    Origin,
    Plan,
    PlanError,
    Profile,
    TACacheError,
    calibrate,
    instant_plan,
    make_plan,
    sample,
    time_grid,
)
from tacache.models import embedded
from tacache.moving import replan
from tacache.plan import Certificate, as_plan, step_variation
from tacache.ssc import interval_table, walk, warn_of_even_steps
from tacache.stepper import Stepper

# --- making one


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "give exactly one of tau_k and tau_d, evaluations, speedup: none was given"),
        ({"tau_k": 0.1}, "thresholds come as a pair: tau_d is missing"),
        ({"tau_d": 0.1}, "thresholds come as a pair: tau_k is missing"),
        ({"evaluations": 5, "speedup": 2.0}, "exactly one .*: evaluations, speedup were given"),
        (
            {"tau_k": 0.1, "tau_d": 0.1, "evaluations": 5},
            "exactly one .*: tau_k and tau_d, evaluations were given",
        ),
        ({"tau_k": 0.1, "tau_d": 0.1, "speedup": 2.0}, "exactly one of"),
        ({"tau_k": 0.1, "tau_d": 0.1, "ratio": 10.0}, "ratio goes with evaluations or speedup"),
        ({"evaluations": 5, "ratio": -1.0}, "ratio .* positive number, not -1.0"),
        (
            {"evaluations": 1},
            "1 evaluation cannot be made: 20 steps .* take 3 to 20",
        ),
        ({"evaluations": 21}, "21 evaluations cannot be made: .* take 3 to 20"),
        ({"speedup": 20.0}, "1 evaluation cannot be made: .* take 3 to 20"),
        ({"speedup": 0.5}, r"speedup is a number from 1 \(no step skipped\) up, not 0.5"),
        ({"speedup": math.nan}, "speedup is a number from 1"),
        ({"speedup": math.inf}, "speedup is a number from 1"),
        ({"tau_k": -0.1, "tau_d": 0.1}, "tau_k is a finite number from 0 up"),
        ({"evaluations": 5, "max_skip": 0}, "max_skip is at least 1"),
        ({"evaluations": 5, "rule": "tazu"}, "unknown rule 'tazu' .*: choose from tasu, magnitude"),
        ({"evaluations": 5, "rule": "fitted"}, "unknown rule 'fitted' for a profile"),
    ],
)
def test_exactly_one_sound_way_to_choose_the_anchors(profile, given_, message):
    with pytest.raises(PlanError, match=message):
        make_plan(profile, **given_)


def test_thresholds_lead_to_the_papers_walk(profile):
    plan = make_plan(profile, tau_k=0.06, tau_d=0.6, max_skip=5)
    table = interval_table(*step_variation(profile), tau_k=0.06, tau_d=0.6, max_skip=5)
    assert plan.anchors == walk(table)
    assert (plan.tau_k, plan.tau_d, plan.max_skip, plan.rule) == (0.06, 0.6, 5, "tasu")
    assert (plan.times, plan.samples, plan.origin) == (profile.times, 6, profile.origin)
    assert (plan.magnitude, plan.direction) == (profile.magnitude, profile.direction)


def test_magnitude_varies_by_its_size_times_the_step():
    varied = step_variation(profile_from([-2.0, 1.0, 1.0, 1.0], [0.1, 0.2, 0.3, 0.3]))
    assert varied == ((0.5, 0.25, 0.25, 0.25), (0.1, 0.2, 0.3, 0.3))


def test_zero_thresholds_evaluate_every_step(profile):
    assert make_plan(profile, tau_k=0.0, tau_d=0.0).evaluations == profile.steps


@given(st.lists(variations, min_size=2, max_size=30), st.floats(1.0, 12.0))
def test_a_speedup_is_the_nearest_number_of_evaluations(direction, speedup):
    made = profile_from([0.0] * len(direction), direction)
    budget = max(1, math.floor(made.steps / speedup + 0.5))
    if budget < 1 + math.ceil((made.steps - 1) / 12):
        with pytest.raises(PlanError, match=f"{budget} evaluations? cannot be made"):
            make_plan(made, speedup=speedup)
    else:
        assert make_plan(made, speedup=speedup).evaluations == budget


@pytest.mark.parametrize(("speedup", "budget"), [(4.0, 13), (50 / 13, 13), (1.0, 50), (50 / 7, 7)])
def test_a_speedup_that_is_a_quotient_gives_its_divisor(speedup, budget):
    assert make_plan(profile_from([0.1] * 50, [0.1] * 50), speedup=speedup).evaluations == budget


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [None, 10.0])
def test_every_budget_of_a_measured_profile_is_met(profile, ratio):
    for budget in range(3, profile.steps + 1):
        plan = make_plan(profile, evaluations=budget, ratio=ratio)
        assert plan.evaluations == len(plan.anchors) == budget
        if ratio is not None:
            assert plan.tau_d == pytest.approx(ratio * plan.tau_k)


@pytest.mark.parametrize("rule", PROFILE_RULES)
def test_the_rule_does_not_move_the_anchors(profile, rule):
    plan = make_plan(profile, evaluations=7, rule=rule)
    assert plan.rule == rule
    assert plan.anchors == make_plan(profile, evaluations=7).anchors


# --- what it states


@pytest.mark.parametrize(
    ("rule", "growth", "turn"),
    [
        ("tasu", math.exp(-0.25), 0.1),
        ("magnitude", math.exp(-0.25), 0.0),
        ("direction", 1.0, 0.1),
        ("reuse", 1.0, 0.0),
    ],
)
def test_each_rule_takes_its_own_part_of_the_update(rule, growth, turn):
    assert tasu(rule=rule).update(0) == (growth, turn)


def test_rules_need_only_the_numbers_they_use():
    assert tasu(rule="magnitude", direction=None).update(0)[1] == 0.0
    assert tasu(rule="direction", magnitude=None).update(0)[0] == 1.0
    assert tasu(rule="reuse", direction=None, magnitude=None).update(1) == (1.0, 0.0)


def test_the_numbers_of_a_plan_follow_from_its_anchors():
    plan = tasu()
    assert (plan.steps, plan.evaluations, plan.speedup) == (4, 3, 4 / 3)
    assert plan.intervals == (1, 2, 1)


@given(st.sets(st.integers(1, 29)))
def test_intervals_add_up_to_the_steps(later):
    anchors = (0, *sorted(later))
    plan = Plan(rule="reuse", times=tuple(time_grid(30)), anchors=anchors)
    assert sum(plan.intervals) == plan.steps == 30
    assert len(plan.intervals) == plan.evaluations == len(anchors)


def test_the_full_plan_evaluates_every_step():
    plan = Plan.full(time_grid(7, shift=3.0))
    assert plan.anchors == tuple(range(7))
    assert (plan.speedup, plan.times) == (1.0, tuple(time_grid(7, shift=3.0)))
    with pytest.raises(TACacheError, match="must decrease"):
        Plan.full([0.0, 1.0])


# --- what it refuses


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rule": "reuse", "weights": None}, "fitted or linear"),
        ({"grid": time_grid(20, shift=3.0)[:-1]}, "leave the grid"),
        ({"anchors": (0, 1, 3), "weights": ((1.0,),) * 3}, "evaluates all"),
    ],
)
def test_a_plan_with_times_of_its_own_has_weights_for_all_of_them(changes, field):
    own = instant_plan(time_grid(20, shift=3.0), 4, target="flow").model_dump()
    with pytest.raises(PlanError, match=field):
        Plan(**{**own, **changes})


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        ((), r"anchors must begin with step 0, not \[\]"),
        ((1, 2), r"anchors must begin with step 0, not \[1, 2\]"),
        ((0, 2, 2), r"anchors must increase and lie within the 4 steps .* not \[0, 2, 2\]"),
        ((0, 3, 1), "anchors must increase"),
        ((0, 4), "within the 4 steps"),
        ((-1, 0), "begin with step 0"),
    ],
)
def test_anchors_start_at_0_and_increase_within_the_steps(anchors, message):
    with pytest.raises(PlanError, match=message):
        tasu(anchors=anchors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "one row of weights an interval, 2; it has none"),
        ({"weights": ((1.0,),)}, "one row of weights an interval, 2; it has 1 rows"),
        ({"weights": ((1.0, 0.0), (1.0,))}, "row 0 of weights has 2 numbers; 1 velocities"),
        ({"weights": ((1.0,), ())}, "row 1 of weights has 0 numbers; 2 velocities"),
        ({"weights": ((1.0,), (1.0, -1e300))}, "row 1 of weights has -1e\\+300: none is beyond"),
        ({"weights": ((1.0,), (0.0, 0.0))}, "row 1 of weights adds up to 0"),
        ({"weights": ((2.0,), (3.0, -1.0))}, "row 0 of weights adds up to 2"),
        ({"weights": ((1.0,), (1.5, -2.5))}, "row 1 of weights adds up to -1"),
        ({"magnitude": (1.0,)}, "'magnitude' has 1 numbers, but times have 4 steps"),
    ],
)
def test_fitted_weights_fit_the_anchors(changes, message):
    with pytest.raises(PlanError, match=message):
        fitted(**changes)


def test_rows_with_a_memory_have_three_numbers_at_most():
    rows = (*carried().weights, (1.0, -0.5, 0.2, 0.1))
    with pytest.raises(PlanError, match="row 3 of weights has 4 numbers; it has at most 3"):
        carried(anchors=(0, 1, 2, 3), weights=rows)
    with pytest.raises(PlanError, match="row 1 of weights has 3 numbers; 2 velocities are known"):
        carried(weights=((1.0,), (1.5, -0.5, 0.1), (1.0,)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magnitude": None}, "the rule 'tasu' needs 'magnitude', one number a step"),
        ({"direction": None}, "the rule 'tasu' needs 'direction'"),
        ({"direction": (0.1,) * 3}, "'direction' has 3 numbers, but times have 4 steps"),
        ({"direction": (0.1, -0.2, 0, 0)}, "'direction' has a negative number, -0.2"),
        ({"rule": "reuse", "magnitude": (1.0,)}, "'magnitude' has 1 numbers"),
        ({"weights": ((1.0,),) * 3}, "only a fitted or linear plan has weights, .* 'tasu'"),
    ],
)
def test_the_numbers_fit_the_rule_and_the_steps(changes, message):
    with pytest.raises(PlanError, match=message):
        tasu(**changes)


def test_plans_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        tasu().anchors = (0,)


# --- files


@pytest.mark.slow
@given(
    st.lists(variations, min_size=3, max_size=9),
    st.sampled_from(PROFILE_RULES),
    st.text("ab/-é", max_size=5),
)
def test_saving_and_loading_is_the_identity(tmp_path_factory, direction, rule, model):
    source = profile_from([-d for d in direction], direction)
    source = source.model_copy(update={"origin": Origin(model=model, latent_shape=(2, 3))})
    path = tmp_path_factory.mktemp("saved") / "x.plan.json"
    for plan in (
        make_plan(source, evaluations=3, rule=rule),
        Plan.full(source.times),
        fitted(samples=3),
        carried(),
    ):
        plan.save(path)
        assert Plan.load(path) == plan
        assert Plan.load(path).to_json() == plan.to_json()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"anchors": [0, 9, 3]}, ["anchors must increase"]),
        ({"anchors": [0, 1.5]}, ["'anchors.1'", "integer"]),
        ({"anchor": [0]}, ["unknown field 'anchor'", "meant 'anchors'"]),
        ({"rule": "magic"}, ["'rule'", "tasu"]),
        ({"memory": "carried"}, ["unknown field 'memory'"]),
        ({"tau_k": -1.0}, ["'tau_k'", "greater than or equal to 0"]),
        ({"direction": [0.1, math.nan, 0.1, 0.1]}, ["'direction.1'", "finite"]),
        ({"times": [1.0, 0.5, 0.5, 0.2, 0.0]}, ["times must decrease"]),
        ({"magnitude": [1e6, 0.0, 0.0, 0.0]}, ["'magnitude' has 1e+06 for a step of"]),
        ({"direction": [0.1, 1e20, 0.1, 0.1]}, ["'direction' has 1e+20", "no velocity changes"]),
        ({"magnitude": [-1e7, 0.0, 0.0, 0.0]}, ["'magnitude' has -1e+07"]),
    ],
)
def test_a_bad_plan_file_says_what_and_what_to_do(changes, parts):
    text = json.dumps({**json.loads(tasu().to_json()), **changes})
    with pytest.raises(PlanError) as caught:
        Plan.from_json(text, name="bad.plan.json")
    for part in ("bad.plan.json", *parts, "Make the plan again, or restore the file"):
        assert part in str(caught.value)


def test_what_json_has_not_is_refused():
    text = tasu(origin={"call": {"scale": 1.5}}).to_json()
    with pytest.raises(PlanError, match=r"field .origin\.call\.scale. is not a finite number"):
        Plan.from_json(text.replace("1.5", "NaN"))
    with pytest.raises(PlanError, match="is not JSON"):
        Plan.from_json(text.replace("1.5", "1" * 5000))


def test_a_profile_is_not_a_plan(profile):
    with pytest.raises(PlanError, match="not a tacache-plan file: its format is 'tacache-profile'"):
        Plan.from_json(profile.to_json())
    assert Profile.from_json(profile.to_json()) == profile


# --- moved to other grids and parts


def test_breaks_are_anchors():
    assert tasu(breaks=(0.8,)).break_steps == (1,)
    with pytest.raises(PlanError, match="2"):
        tasu(breaks=(0.6,))


def test_a_profile_with_breaks_gives_a_plan_with_breaks(profile):
    parted = profile.model_copy(update={"breaks": (profile.times[9],)})
    for wish in ({"evaluations": 6}, {"tau_k": 9.0, "tau_d": 9.0}):
        plan = make_plan(parted, **wish)
        assert plan.breaks == parted.breaks
        assert {0, 1, 10, 11} <= set(plan.anchors)


@pytest.mark.parametrize("given", ["a.plan.json", None])
def test_what_is_no_plan_is_named_with_the_way_to_one(given, profile):
    for value in (given, profile):
        with pytest.raises(PlanError, match=r"a plan is needed, not a .*: Plan\.load reads one"):
            Stepper(value)
    with pytest.raises(PlanError, match=r"a profile is needed, not a .*: Profile\.load"):
        make_plan(given, evaluations=3)


def test_a_plan_is_taken_as_it_is_or_by_its_path(profile, tmp_path):
    plan = make_plan(profile, evaluations=5)
    plan.save(tmp_path / "a.plan.json")
    assert as_plan(plan) is plan
    assert as_plan(tmp_path / "a.plan.json") == as_plan(str(tmp_path / "a.plan.json")) == plan
    with pytest.raises(PlanError, match="a plan is needed, not a Profile"):
        as_plan(profile)


# Where as many plain steps are expected to do better


class Jumping:
    """A straight flow with a part that is another one at every time: no step resolves it."""

    def __init__(self, size):
        self.size, self.to = size, noise_of(1, (64,), seed=1)

    def __call__(self, x, t):  # noqa: D102
        seed = round(t * 1e9)
        jump = noise_of(1, (64,), seed=seed) * (1 + 0.3 * math.sin(seed))
        return self.to + self.size * jump + 0.01 * x


def drift_of(velocity, plan, full):
    found = sample(velocity, noise_of(4, (64,), seed=9), plan)
    return float((found - full).norm() / full.norm())


@pytest.fixture
def said(caplog):
    warn_of_even_steps.cache_clear()
    yield caplog
    warn_of_even_steps.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_a_rule_that_loses_to_plain_steps_is_said_once(said, shift):
    velocity, times = Jumping(0.1), time_grid(50, shift)
    measured = calibrate(velocity, noise_of(4, (64,)), times)
    full = sample(velocity, noise_of(4, (64,), seed=9), Plan.full(times))
    plan = make_plan(measured, evaluations=13)
    few = Plan.full(time_grid(13, shift))
    assert drift_of(velocity, plan, full) > drift_of(velocity, few, full)
    assert "13 of 50 steps evaluated is expected to do worse than 13 plain steps" in said.text
    make_plan(measured, evaluations=13)
    assert len(said.records) == 1
    make_plan(measured, evaluations=13, rule="reuse")
    make_plan(measured, evaluations=50)
    assert len(said.records) == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tiny-flux", "tiny-wan"])
@pytest.mark.parametrize("evaluations", [7, 13, 25])
def test_nothing_is_said_of_trained_models(said, model, evaluations):
    make_plan(Profile.load(embedded(model).profile), evaluations=evaluations)
    assert not said.records


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("flow", [mixture(), rotating(), rotating(6.0, 0.3)])
def test_nothing_is_said_of_flows_that_turn_smoothly(said, flow, shift):
    make_plan(calibrate(flow, noise_of(4), time_grid(50, shift)), evaluations=13)
    assert not said.records


def test_without_a_spread_nothing_is_told():
    erratic = [0.1, 0.3] * 10
    assert profile_from([0.0] * 20, erratic).unresolved == 0
    spread = {"direction_std": (0.001,) * 20, "samples": 4}
    assert profile_from([0.0] * 20, erratic).model_copy(update=spread).unresolved == 1


@pytest.mark.parametrize("claim", [{"psnr": 1e29}, {"drift": -0.1}, {"worst_psnr": 1000.0}])
def test_a_certificate_claims_nothing_that_cannot_be(claim):
    known = {"held_out": 2, "drift": 0.1, "fit_drift": 0.1, "evaluations_spent": 9, "date": "today"}
    assert Certificate(**known).worst_psnr is None
    with pytest.raises(ValidationError):
        Certificate(**{**known, **claim})


# --- latents of a joint model


def joint(**changes):
    own = {"times": (1.0, 0.8, 0.6, 0.0), "weights": ((1.0,), (1.5, -0.5))} | changes
    times, rows = (1.0, 0.9, 0.7, 0.0), ((1.0,), (1.25, -0.25))
    fields = {"rule": "fitted", "times": times, "anchors": (0, 2), "weights": rows}
    return Plan(**fields, origin=Origin(latent_shape=(4,)), latents={"audio": own})


def test_a_latent_is_a_plan_by_itself_at_the_same_anchors():
    plan = joint(latent_shape=(7, 2))
    first, audio = plan.of_latent(), plan.of_latent("audio")
    assert (first.latents, first.weights) == (None, plan.weights)
    assert (audio.anchors, audio.times[1], audio.weights[1]) == ((0, 2), 0.8, (1.5, -0.5))
    assert (first.origin.latent_shape, audio.origin.latent_shape) == ((4,), (7, 2))
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(PlanError, match="audio"):
        plan.of_latent("sound")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times": (1.0, 0.5, 0.0)}, "same steps"),
        ({"times": (1.0, 0.5, 0.6, 0.0)}, "decrease"),
        ({"weights": ((1.0,),)}, "row of weights"),
        ({"weights": ((1.0,), (5.0, -0.5))}, "adds up"),
        ({"breaks": (0.9,)}, "new part"),
    ],
)
def test_a_latent_that_cannot_be_followed_is_refused(changes, message):
    with pytest.raises(TACacheError, match=message):
        joint(**changes)


def test_only_weighted_plans_have_latents():
    latent = {"times": (1.0, 0.5, 0.0), "weights": ((1.0,), (1.0,))}
    with pytest.raises(PlanError, match="further ones"):
        Plan.full((1.0, 0.5, 0.0)).model_validate(
            {**Plan.full((1.0, 0.5, 0.0)).model_dump(), "latents": {"audio": latent}}
        )
    for name in ("", "Audio", "a b", "a" * 41):
        with pytest.raises(ValidationError, match="latents"):
            Plan(
                rule="linear", times=(1.0, 0.0), anchors=(0,), weights=((1.0,),),
                latents={name: {"times": (1.0, 0.0), "weights": ((1.0,),)}},
            )  # fmt: skip


def test_a_plan_of_several_latents_is_followed_by_none_alone():
    with pytest.raises(PlanError, match="of_latent"):
        Stepper(joint())
    with pytest.raises(PlanError, match="of_latent"):
        replan(joint(), (1.0, 0.5, 0.0))
