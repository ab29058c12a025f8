"""What a run follows where a quality is asked for: stored plans, instant ones, full steps."""

import pytest
from tests.support import certified

from tacache import Origin, PlanError, instant_plan, time_grid
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts.quality_choice import (
    full_reason,
    instant_for,
    instant_reason,
    makes_clips,
    quality_choice,
)
from tacache.instant import CLIP_LIKE_STEPS, LIKE_STEPS
from tacache.storage.signature import RunSignature
from tacache.storage.store import PlanStore

ORIGIN = Origin(kind="diffusers", pipeline="P", weights="w", call={"guidance_scale": 3.0})
RUN = RunSignature(ORIGIN, tuple(time_grid(20, shift=3.0)), (), 20)
FIGURES = {
    5: {"psnr": 30.0, "p5_psnr": 24.0},
    7: {"psnr": 33.0, "p5_psnr": 29.0, "equivalent_steps": 18.0},
    8: {"psnr": 36.0, "p5_psnr": 31.0},
    12: {"psnr": 42.0, "p5_psnr": 36.0},
    13: {"psnr": 34.0, "p5_psnr": 30.0, "equivalent_steps": 60.0},
}


@pytest.fixture
def store(tmp_path):
    store = PlanStore(tmp_path / "plans", shipped=())
    for evaluations, figures in FIGURES.items():
        store.put(certified(evaluations, **figures, origin=ORIGIN))
    return store


@pytest.fixture
def empty(tmp_path):
    return PlanStore(tmp_path / "none", shipped=())


@pytest.mark.parametrize(
    ("goal", "evaluations"),
    [
        ({"min_psnr": 30}, 5),
        ({"min_psnr": 35}, 8),
        ({"min_psnr": 42}, 12),
        ({"min_psnr": 29, "psnr_of": "p5"}, 7),
        ({"min_psnr": 35, "psnr_of": "p5"}, 12),
        ({"like_steps": 18}, 7),
        ({"like_steps": 19}, 13),
        ({"like_steps": 60}, 13),
    ],
)
def test_the_fewest_evaluations_whose_certificate_promises_it(store, goal, evaluations):
    chosen = quality_choice(QualityGoal(**goal), RUN, store)
    assert chosen.plan == chosen.stored.plan
    assert (chosen.plan.rule, chosen.plan.evaluations) == ("fitted", evaluations)


def test_plans_of_another_run_promise_nothing(store):
    other = RUN._replace(origin=ORIGIN.model_copy(update={"weights": "v"}))
    assert quality_choice(QualityGoal(min_psnr=20), other, store).plan is None


def test_what_ships_is_chosen_by_the_same_certificates(tmp_path, store):
    shipping = PlanStore(tmp_path / "own", shipped=(store.folder,))
    assert quality_choice(QualityGoal(min_psnr=35), RUN, shipping).plan.evaluations == 8


@pytest.mark.parametrize("steps", [12, 16])
def test_without_such_a_plan_the_table_names_an_instant_one(empty, steps):
    plan = quality_choice(QualityGoal(like_steps=steps), RUN, empty).plan
    assert plan == instant_plan(RUN.times, LIKE_STEPS[steps], target="flow").model_copy(
        update={"origin": ORIGIN}
    )


@pytest.mark.parametrize(("near", "evaluations"), [(11.0, None), (12.0, 19)])
def test_the_table_is_not_believed_where_fits_on_this_model_miss_it(empty, near, evaluations):
    empty.put(certified(19, equivalent_steps=near, origin=ORIGIN))
    plan = quality_choice(QualityGoal(like_steps=12), RUN, empty).plan
    assert (plan and plan.evaluations) == evaluations
    assert quality_choice(QualityGoal(like_steps=10), RUN, empty).plan.evaluations == 19


def test_of_a_psnr_nothing_is_known_in_advance(empty):
    assert quality_choice(QualityGoal(min_psnr=5), RUN, empty) == (None, None)


def test_the_table_ends_where_nothing_was_measured():
    assert instant_for(QualityGoal(like_steps=max(LIKE_STEPS) + 1), RUN) is None


def test_as_many_evaluations_as_steps_are_made_where_plain_steps_are_not_as_near():
    """The cost is the same, and steps of their own are nearer to the flow."""
    steps = 12
    run = RunSignature(ORIGIN, tuple(time_grid(steps)))
    near = max(like for like, evaluations in LIKE_STEPS.items() if evaluations == steps)
    assert instant_for(QualityGoal(like_steps=near), run).evaluations == steps
    assert instant_for(QualityGoal(like_steps=near + 4), run) is None
    few = RunSignature(ORIGIN, tuple(time_grid(8)))
    assert instant_for(QualityGoal(like_steps=8), few) is None  # its own steps are as near


@pytest.mark.parametrize(
    "facts",
    [{"call": {"num_frames": 17}}, {"latent_shape": (16, 5, 12, 12)}],
)
def test_clips_take_more_than_pictures(facts):
    """Video pipelines say so by their call, and ComfyUI by its latents."""
    run = RunSignature(Origin(kind="diffusers", **facts), tuple(time_grid(50)))
    goal = QualityGoal(like_steps=28)
    assert instant_for(goal, run).evaluations == CLIP_LIKE_STEPS[28]
    assert "clips of tiny-wan" in instant_reason(goal, CLIP_LIKE_STEPS[28], clip=makes_clips(run))
    one_frame = {"call": {"num_frames": 1}, "latent_shape": (16, 1, 12, 12)}
    picture = run._replace(origin=Origin(kind="diffusers", **one_frame))
    assert instant_for(goal, picture).evaluations == LIKE_STEPS[28]
    assert "pictures of tiny-flux" in instant_reason(
        goal, LIKE_STEPS[28], clip=makes_clips(picture)
    )
    beyond = max(CLIP_LIKE_STEPS) + 1
    assert instant_for(QualityGoal(like_steps=beyond), run) is None  # nothing measured is enough


def test_a_joint_model_has_no_plan_for_the_flow(empty):
    joint = RUN._replace(latents={"audio": RUN.times})
    with pytest.raises(PlanError, match="like_steps"):
        quality_choice(QualityGoal(like_steps=12), joint, empty)
    assert quality_choice(QualityGoal(min_psnr=35), joint, empty).plan is None


def test_a_part_of_its_own_begins_with_an_evaluation():
    plan = instant_for(QualityGoal(like_steps=12), RUN._replace(breaks=(0.9,)))
    assert len(plan.break_steps) == 1
    assert plan.evaluations == LIKE_STEPS[12]


def test_full_steps_that_are_not_enough_are_called_so():
    enough, more = (full_reason(QualityGoal(like_steps=n), 20) for n in (20, 21))
    assert "no plan that skips some" in enough
    assert "not even they reach" in more
