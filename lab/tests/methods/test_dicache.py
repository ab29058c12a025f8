"""DiCache's formulas against cases by hand, and what its rule promises."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import noise_of

from tacache_lab.methods.inside import CACHES
from tacache_lab.methods.inside.dicache import (
    DiCacheSettings,
    DiCacheState,
    gain,
    rebuilt,
    relative_change,
)

STEPS = 10


def rows(*values: float) -> torch.Tensor:
    """One sample of one number, or several."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def decisions(state: DiCacheState, probes: list[float]) -> list[bool]:
    """Which steps are due; at those p = r = the probe itself."""
    made = []
    for value in probes:
        made.append(state.due(rows(value)))
        if made[-1]:
            state.remember(rows(value), rows(value))
    return made


def test_relative_change_by_hand():
    now, before = torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([[2.0, -2.0], [1.0, 3.0]])
    assert relative_change(now, before).tolist() == [1.0, 1.0]  # (1 + 3) / (2 + 2), (1 + 3) / 4


def test_gain_is_how_far_the_probe_has_gone_between_one_and_its_cap():
    last, before = rows(2.0, 2.0, 2.0, 2.0), rows(1.0, 1.0, 1.0, 2.0)
    g = gain(rows(2.25, 9.0, 1.5, 7.0), last, before, cap=1.5)
    assert g.tolist() == [1.25, 1.5, 1.0, 1.0]  # the last: no way between the evaluations


def test_what_is_rebuilt_lies_on_the_line_through_the_last_two():
    last, before = noise_of(2, seed=1), noise_of(2, seed=2)
    g = torch.tensor([1.0, 1.5], dtype=torch.float64)
    got = rebuilt(last, before, g)
    torch.testing.assert_close(got[0], last[0])
    torch.testing.assert_close(got[1], last[1] + 0.5 * (last[1] - before[1]))
    assert rebuilt(last.bfloat16(), before.bfloat16(), g).dtype == torch.bfloat16


def test_changes_are_summed_until_the_threshold():
    settings = DiCacheSettings(threshold=0.25, retention=0.0)
    # each step changes by a tenth of the one before: due where three of them are summed
    probes = [1.1**n for n in range(STEPS)]
    due = decisions(DiCacheState(settings, STEPS), probes)
    assert [n for n, one in enumerate(due) if one] == [0, 3, 6, 9]


def test_the_first_part_is_always_evaluated():
    settings = DiCacheSettings(threshold=1e6, retention=0.4)
    due = decisions(DiCacheState(settings, STEPS), [1.0] * STEPS)
    assert [n for n, one in enumerate(due) if one] == [0, 1, 2, 3]


def test_an_estimate_by_hand():
    state = DiCacheState(DiCacheSettings(threshold=1e6, cap=1.5), STEPS)
    state.remember(rows(1.0), rows(10.0))
    assert state.estimate(rows(5.0)).item() == 10.0  # one evaluation: reuse
    state.remember(rows(2.0), rows(14.0))
    assert state.estimate(rows(2.25)).item() == 15.0  # 10 + 1.25 * 4
    state.remember(rows(3.0), rows(16.0))
    assert state.estimate(rows(9.0)).item() == 17.0  # 14 + 1.5 * 2


def test_a_batch_is_evaluated_as_soon_as_one_sample_is_due():
    state = DiCacheState(DiCacheSettings(threshold=0.5, retention=0.0), STEPS)
    assert state.due(rows(1.0, 1.0))
    state.remember(rows(1.0, 1.0), rows(1.0, 1.0))
    assert not state.due(rows(1.0, 1.2))
    assert state.due(rows(1.0, 2.0))


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.floats(0, 1), st.floats(0, 3))
def test_a_threshold_of_zero_evaluates_every_step_and_a_lower_one_no_less(probes, retention, high):
    def spent(threshold: float) -> int:
        settings = DiCacheSettings(threshold=threshold, retention=retention)
        return sum(decisions(DiCacheState(settings, len(probes)), probes))

    assert spent(0.0) == len(probes)
    assert 1 <= spent(high) <= len(probes)


@pytest.mark.parametrize("field", [{"threshold": -1}, {"retention": 1.5}, {"cap": 0.5}, {"k": 1}])
def test_settings_that_mean_nothing_are_refused(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        DiCacheSettings(**{"threshold": 0.4, **field})


def test_on_flux_both_ends_are_evaluated():
    """Its code: while the count is at most int(0.2 N), and where it is N - 1."""
    settings = DiCacheSettings(threshold=1e6, both_ends=True)
    due = decisions(DiCacheState(settings, 50), [1.0] * 50)
    assert [n for n in range(50) if due[n]] == [*range(11), 49]
    assert CACHES["dicache"].published["flux"].both_ends
    assert CACHES["dicache"].published["wan"].cap == 2.0
