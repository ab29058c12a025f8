"""`tacache.bagel.accelerate`: what each run of BAGEL follows, and what it learns on the way."""

import pytest
import torch

from tacache import instant_plan
from tacache.bagel import accelerate, applied, apply, remove
from tacache.bagel.host import followed_plan
from tacache.bagel.runs import run_times
from tacache.errors import HostError, PlanError
from tacache.storage.store import PlanStore
from tests import bagel_stand_in
from tests.bagel_stand_in import CALL, packed_arguments

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
    assert followed_plan(inferencer).evaluations == 12


def test_it_is_the_instant_plan_applied(inferencer):
    accelerate(inferencer, evaluations=EVALUATIONS)
    found, plan = draw(inferencer, 0)[0], followed_plan(inferencer)
    remove(inferencer)
    with applied(inferencer, plan):
        assert draw(inferencer, 0)[0] == found


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


def test_few_steps_stay_full(inferencer, caplog):
    untouched = draw(inferencer, 0, num_timesteps=8)
    accelerate(inferencer)
    assert draw(inferencer, 0, num_timesteps=8) == untouched
    assert followed_plan(inferencer) is None
    assert "a run of 7 steps stays full" in caplog.text


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
