"""`tacache.bagel.accelerate`: what each run of BAGEL follows, and what it learns on the way."""

import pytest
import torch
from tests import bagel_stand_in
from tests.bagel_stand_in import CALL, packed_arguments

from tacache import instant_plan
from tacache.bagel import accelerate, applied, apply, remove
from tacache.bagel.host import followed_plan
from tacache.bagel.runs import run_times
from tacache.errors import HostError, PlanError
from tacache.fitting.quality_goal import QualityGoal
from tacache.instant import LIKE_STEPS
from tacache.storage.store import PlanStore

EVALUATIONS = 5  # of 12 steps


@pytest.fixture
def inferencer():
    return bagel_stand_in.inferencer()


def draw(inferencer, seed, prompt="a red fox", **changes):
    """The picture of a call, the passes of its network, and what torch draws next."""
    passes = []
    core = inferencer.model.language_model.model
    counting = core.register_forward_hook(lambda *_: passes.append(1))
    torch.manual_seed(seed)
    try:
        made = inferencer(text=prompt, **CALL | changes)["image"]
    finally:
        counting.remove()
    return made.tobytes(), len(passes), torch.rand(1).item()


def passes_of(plan):
    """Guided steps take two passes; guidance is on above 0.4."""
    return sum(2 if plan.times[n] > 0.4 else 1 for n in plan.anchors)


def test_every_run_makes_exactly_as_many_evaluations_as_were_asked_for(inferencer, caplog):
    accelerate(inferencer, evaluations=EVALUATIONS)
    for seed in range(2):
        _, passes, _ = draw(inferencer, seed)
        plan = followed_plan(inferencer)
        assert (plan.rule, plan.evaluations, passes) == ("linear", EVALUATIONS, passes_of(plan))
    assert len(caplog.records) == 1
    draw(inferencer, 0, num_timesteps=25)
    assert followed_plan(inferencer).steps == 24
    accelerate(inferencer)
    draw(inferencer, 0, num_timesteps=51)
    assert followed_plan(inferencer).evaluations == 13


@pytest.mark.parametrize("evaluations", [EVALUATIONS, 11, 12])
def test_what_is_not_finite_is_an_error_at_every_budget(inferencer, evaluations):
    accelerate(inferencer, evaluations=evaluations)
    with torch.no_grad():
        inferencer.model.llm2vae.weight.fill_(float("nan"))
    with pytest.raises(HostError, match="is not finite"):
        draw(inferencer, 0)


def test_it_is_the_instant_plan_applied(inferencer):
    accelerate(inferencer, evaluations=EVALUATIONS)
    found, plan = draw(inferencer, 0)[0], followed_plan(inferencer)
    remove(inferencer)
    with applied(inferencer, plan):
        assert draw(inferencer, 0)[0] == found


def test_nearness_to_the_flow_is_left_to_an_instant_plan_at_its_own_times(inferencer):
    accelerate(inferencer, like_steps=8)
    draw(inferencer, 0)
    plan = followed_plan(inferencer)
    assert (plan.evaluations, plan.full_steps) == (LIKE_STEPS[8], 12)
    assert not set(plan.times[1:-1]) <= set(plan.full_times)


@pytest.mark.slow
@pytest.mark.parametrize("quality", [{"like_steps": 8}, {"min_psnr": 25}])
def test_the_smallest_budget_that_has_a_quality_is_learned(inferencer, quality):
    """Towards the flow a kept call is made with other numbers of steps, too."""
    accelerate(inferencer, learn=4, **quality)
    for seed in range(4):
        draw(inferencer, seed)
        assert followed_plan(inferencer) is None
    draw(inferencer, 4)
    plan = followed_plan(inferencer)
    goal = QualityGoal(**quality)
    stored = [entry.plan for entry in PlanStore().plans()]
    best = goal.fewest(stored, lambda tried: tried)
    assert (plan.anchors, plan.weights) == (best.anchors, best.weights)
    assert plan.evaluations < plan.full_steps


@pytest.mark.slow
def test_two_samples_teach_a_plan_and_are_what_they_were_without(inferencer):
    untouched = [draw(inferencer, seed) for seed in range(2)]
    accelerate(inferencer, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        picture, _, after = draw(inferencer, seed)
        assert (picture, after) == (untouched[seed][0], untouched[seed][2])
        assert followed_plan(inferencer) is None
    _, passes, _ = draw(inferencer, 2)
    plan = followed_plan(inferencer)
    assert (plan.rule, plan.evaluations, passes) == ("fitted", EVALUATIONS, passes_of(plan))
    (stored,) = PlanStore().plans()
    assert stored.plan.certificate.psnr > 20
    assert not list((PlanStore().folder / "learning").glob("*/*"))
    other = bagel_stand_in.inferencer()
    accelerate(other, evaluations=EVALUATIONS)
    draw(other, 0)
    assert followed_plan(other).weights == stored.plan.weights


@pytest.mark.slow
def test_other_settings_are_not_those_of_a_stored_plan(inferencer):
    accelerate(inferencer, evaluations=EVALUATIONS, learn=2)
    for seed in range(2):
        draw(inferencer, seed)
    accelerate(inferencer, evaluations=EVALUATIONS)
    for other in ({"cfg_text_scale": 2.0}, {"image_shapes": (32, 48)}, {"num_timesteps": 14}):
        draw(inferencer, 0, **other)
        assert followed_plan(inferencer).rule == "linear"


def test_what_cannot_be_kept_is_not_learned_from(inferencer, caplog):
    from PIL import Image

    accelerate(inferencer, evaluations=EVALUATIONS, learn=2)
    with pytest.MonkeyPatch.context() as patched:  # a picture to edit comes before the prompt
        patched.setattr(
            type(inferencer),
            "__call__",
            lambda self, image=None, text=None, **call: {
                "image": self.interleave_inference([text, text], **call)[0]
            },
        )
        patched.setattr(
            bagel_stand_in,
            "packed_arguments",
            lambda one, texts, sizes: packed_arguments(one, texts[:1], sizes),
        )
        inferencer(image=Image.new("RGB", (8, 8)), text="a red fox", **CALL)
    assert followed_plan(inferencer).rule == "linear"
    assert "pictures are not kept" in caplog.text
    made = packed_arguments(inferencer, ["a fox"], [(32, 32)])
    inferencer.model.generate_image(**made, num_timesteps=13, timestep_shift=3.0)
    assert "not one of an InterleaveInferencer" in caplog.text
    assert followed_plan(inferencer).rule == "linear"


def test_packed_images_of_several_sizes_follow_an_instant_plan(inferencer):
    accelerate(inferencer, evaluations=EVALUATIONS, learn=2)
    made = packed_arguments(inferencer, ["a fox", "a boat"], [(32, 32), (32, 48)])
    inferencer.model.generate_image(**made, num_timesteps=13, timestep_shift=3.0)
    assert followed_plan(inferencer).evaluations == EVALUATIONS


def test_runs_below_four_steps_stay_full(inferencer):
    untouched = draw(inferencer, 0, num_timesteps=4)
    accelerate(inferencer)
    assert draw(inferencer, 0, num_timesteps=4) == untouched
    assert followed_plan(inferencer) is None


@pytest.mark.parametrize(("steps", "evaluations"), [(4, 3), (7, 5)])
def test_few_steps_follow_a_plan(inferencer, steps, evaluations):
    accelerate(inferencer, evaluations=evaluations)
    draw(inferencer, 0, num_timesteps=steps + 1)
    plan = followed_plan(inferencer)
    assert (plan.steps, plan.evaluations) == (steps, evaluations)


def test_remove_undoes_all(inferencer):
    untouched = draw(inferencer, 0)
    accelerate(inferencer, evaluations=EVALUATIONS, learn=2)
    draw(inferencer, 0)
    remove(inferencer)
    assert draw(inferencer, 0) == untouched
    assert not {"generate_image", "_forward_flow"} & set(inferencer.model.__dict__)
    other = bagel_stand_in.inferencer()  # and may go on with what was learned
    accelerate(other, evaluations=EVALUATIONS, learn=2)
    draw(other, 1)
    draw(other, 2)
    assert followed_plan(other).rule == "fitted"


def test_plans_are_taken_by_their_path(inferencer, tmp_path):
    plan = instant_plan(run_times(13, 3.0), EVALUATIONS)
    plan.save(tmp_path / "a.plan.json")
    apply(inferencer, tmp_path / "a.plan.json")
    draw(inferencer, 0)
    assert followed_plan(inferencer).rule == "linear"
    accelerate(inferencer, plan=str(tmp_path / "a.plan.json"))
    draw(inferencer, 0)
    assert followed_plan(inferencer) is not None
    with pytest.raises(PlanError, match=r"missing\.json"):
        accelerate(inferencer, plan=tmp_path / "missing.json")
    with pytest.raises(HostError, match="no BAGEL"):
        accelerate(object())
