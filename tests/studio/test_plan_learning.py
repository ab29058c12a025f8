import pytest
from tests.studio.conftest import PROMPTS, STEPS

from tacache.errors import HostError
from tacache.studio.plan_learning import FIT, PROFILE, Lesson, learn, told
from tacache.studio.turns import JobProgress, Part, StoppedError

pytestmark = pytest.mark.slow

LESSON = Lesson(tuple(PROMPTS), (4,), "run")


def test_a_plan_is_learned_with_progress(model, hearing):
    watch = hearing()
    learned = learn(model, LESSON, watch)
    (plan,) = learned.plans
    assert (plan.rule, plan.evaluations, plan.steps) == ("fitted", 4, STEPS)
    assert plan.certificate.psnr is not None
    assert learned.profile.samples == 4
    assert learned.profile.times == model.times
    assert model.fits(plan)
    profile = [one for one in watch.news if isinstance(one, JobProgress) and one.part == PROFILE]
    assert [one.done for one in profile] == list(range(1, 4 * STEPS + 1))
    fit = [one.done for one in watch.news if isinstance(one, JobProgress) and one.part == FIT]
    assert 4 * STEPS <= fit[-1] <= plan.certificate.evaluations_spent + 8
    assert [one.name for one in watch.news if isinstance(one, Part)] == [PROFILE]


@pytest.mark.parametrize("after", [3, 4 * STEPS + 5])
def test_learning_stops_within_an_evaluation(model, hearing, after):
    watch = hearing(stop_after=after)
    with pytest.raises((StoppedError, HostError)):
        learn(model, LESSON, watch)
    assert len(watch.news) == after
    assert not model.host.pipe.transformer._forward_pre_hooks


def test_passes_of_one_evaluation_count_once(model, hearing):
    watch = hearing()
    with told(model, watch, "x", None):
        (hook,) = model.host.pipe.transformer._forward_pre_hooks.values()
        for t in (1.0, 1.0, 0.5, 0.5, 1.0):
            hook(None, (), {"timestep": t})
        hook(None, (), {})
    assert [one.done for one in watch.news] == [1, 2, 3, 4]


def test_a_lesson_is_read_from_fields():
    read = Lesson.read(" a fox \n\n a bird\n", "13, 7,13", "flow")
    assert read == Lesson(("a fox", "a bird"), (7, 13), "flow")


@pytest.mark.parametrize(
    ("prompts", "evaluations", "sentence"),
    [
        ("a fox", "13", "give 2 to 64 prompts"),
        ("a fox\n" * 65, "13", "give 2 to 64 prompts"),
        ("a\nb", "", "whole numbers"),
        ("a\nb", "1.5", "whole numbers"),
        ("a\nb", "1,2,3,4,5,6,7,8,9", "up to 8"),
    ],
)
def test_what_cannot_be_learned_is_refused(prompts, evaluations, sentence):
    with pytest.raises(HostError, match=sentence):
        Lesson.read(prompts, evaluations, "run")
