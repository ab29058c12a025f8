"""Finish times and budgets follow from what is left: exact answers, and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacache.serving.load import WaveTimes, finish_times


def second(rows):
    return 1.0


def test_requests_that_fit_into_one_wave_finish_after_their_own_evaluations():
    assert finish_times([3, 1, 2], [1, 1, 1], second, most=8) == [3.0, 1.0, 2.0]


def test_who_does_not_fit_waits_for_the_next_wave():
    assert finish_times([1, 1, 1], [1, 1, 1], second, most=2) == [1.0, 1.0, 2.0]


def test_requests_take_turns_where_not_all_fit():
    # waves: (0, 1), (2, 0), (1, 2)
    assert finish_times([2, 2, 2], [1, 1, 1], second, most=2) == [2.0, 3.0, 3.0]


def test_a_request_larger_than_a_wave_runs_alone():
    assert finish_times([1, 1], [5, 1], second, most=4) == [1.0, 2.0]


def test_nothing_is_left_to_wait_for():
    assert finish_times([0, 2], [1, 1], second, most=4) == [0.0, 2.0]


def test_the_time_of_a_wave_depends_on_its_rows():
    ends = finish_times([1, 2], [1, 1], lambda rows: 1.0 + rows, most=4)
    assert ends == [3.0, 5.0]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=8),
    st.integers(1, 6),
)
def test_no_request_starves_and_none_ends_before_its_own_evaluations(requests, most):
    remaining, rows = [list(column) for column in zip(*requests, strict=True)]
    ends = finish_times(remaining, rows, second, most)
    assert all(end >= left for end, left in zip(ends, remaining, strict=True))
    assert max(ends) <= sum(remaining)


def test_times_between_measured_rows_are_interpolated():
    times = WaveTimes()
    assert not times
    with pytest.raises(ValueError, match="no wave"):
        times.of(1)
    times.add(2, 1.0)
    times.add(4, 2.0)
    assert [times.of(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0]


def test_a_new_measurement_moves_the_time_a_little():
    times = WaveTimes()
    times.add(1, 1.0)
    times.add(1, 2.0)
    assert times.of(1) == pytest.approx(1.2)
