"""A plan from kept samples: its cost, and whether they can be made again."""

from contextlib import nullcontext

import pytest
import torch
from tests.support import mixture, noise_of

from tacache import Origin, time_grid
from tacache.errors import HostError
from tacache.fitting import check_budget
from tacache.fitting.aiming import flow_cost
from tacache.fitting.full_runs import held_out_of
from tacache.fitting.quality_goal import QualityGoal
from tacache.fitting.samples import FunctionSamples
from tacache.hosts.learning import RecordedSample
from tacache.hosts.teaching import (
    check_repeats,
    cost_of,
    fit_kept,
    kept_options,
    most_of,
    untouched_generators,
)
from tacache.storage.signature import RunSignature

TIMES = time_grid(20, shift=3.0)


def kept(states=True, seconds=0.5, velocity=1.0):
    x = torch.zeros(1, 3)
    end = (x, torch.full((1, 3), velocity))
    walked = torch.zeros(21, 1, 3), torch.zeros(20, 1, 3)
    return RecordedSample({}, TIMES, (end, end), *(walked if states else (None, None)), seconds)


RUN = RunSignature(Origin(), tuple(TIMES))


def test_the_cost_is_told_before():
    known, again = cost_of([kept()] * 8, RUN, 5), cost_of([kept(states=False)] * 8, RUN, 5)
    most = most_of(8, 20, 5)
    assert f"at most {most - 160} evaluations" in known
    assert f"at most {most} evaluations" in again
    assert "minutes" in known
    assert "seconds" in cost_of([kept(seconds=0.001)] * 2, RUN, 5)


def test_runs_of_other_sizes_within_a_call_teach_nothing(tmp_path):
    """AnyFlow makes its clip chunk after chunk, each by a run of its own."""
    small, large = torch.zeros(1, 2), torch.zeros(1, 4)
    samples = [kept()._replace(ends=((x, x), (x, x))) for x in (small, large)]
    with pytest.raises(HostError, match="several runs, of other sizes"):
        fit_kept(None, {}, RUN, 5, samples, tmp_path / "runs")


def test_all_budgets_of_a_quality_are_in_its_cost():
    goal = QualityGoal(min_psnr=35)
    each = kept_options(goal, 8, RUN).max_evaluations - 160
    assert f"at most {7 * each} evaluations" in cost_of([kept()] * 8, RUN, goal)
    assert f"at most {7 * each + 160} ev" in cost_of([kept()] * 7 + [kept(False)], RUN, goal)


@pytest.mark.parametrize(
    "goal", [QualityGoal(min_psnr=35, psnr_of="p5"), QualityGoal(like_steps=9)]
)
@pytest.mark.parametrize("samples", [2, 8])
@pytest.mark.parametrize("steps", [4, 8, 50])
def test_a_fit_for_a_quality_may_try_every_budget(goal, samples, steps):
    """Those with the most evaluations cost the most; the flow's own runs come before them."""
    options = kept_options(goal, samples, RunSignature(Origin(), tuple(time_grid(steps))))
    assert (options.goal, options.search) == (goal, False)
    runs = FunctionSamples(mixture(), noise_of(samples), time_grid(steps), {}, None)
    aiming = flow_cost(runs, options)
    most = steps - 1
    check_budget(runs, most, options, held_out_of(samples) * most + aiming)


class Repeating:
    """A host whose only call has these velocities."""

    def __init__(self, velocity, times=TIMES, noise=0.0):
        self.velocity, self.times, self.noise = velocity, times, torch.full((1, 3), noise)

    def quiet(self):
        """It shows nothing."""
        return nullcontext()

    def open(self, sample, call):
        """It is its own run."""
        return nullcontext(self)

    def evaluate(self, x, step):
        """The same at all steps."""
        return torch.full((1, 3), self.velocity)


def test_a_call_is_proven_by_its_velocities():
    check_repeats(Repeating(1.0), {}, kept())
    check_repeats(Repeating(1.0005), {}, kept())
    with pytest.raises(HostError, match=r"other velocities at step 0 \(by 10"):
        check_repeats(Repeating(1.1), {}, kept())
    for other in (Repeating(1.0, TIMES[:5]), Repeating(1.0, noise=0.1)):
        with pytest.raises(HostError, match="other noise or on another grid"):
            check_repeats(other, {}, kept())


def test_generators_go_on_where_they_were():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with untouched_generators():
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)
