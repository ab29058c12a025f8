"""Finish times and budgets follow from what is left: exact answers, and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacache.serving.costs import BatchTimes
from tacache.serving.finish_times import RemainingWork, finish_times


class Machine:
    """Seconds by rows; a second for every batch unless told."""

    def __init__(self, batch=lambda rows: 1.0, decoding=0.0, rest=0.0, pays=99):
        self._batch, self._decoding, self._rest, self._pays = batch, decoding, rest, pays

    def batch(self, size, rows):
        """One call of the denoiser."""
        return self._batch(rows)

    def decoding(self, size, rows):
        """One call of the decoder."""
        return self._decoding

    def rest(self, size):
        """What comes after."""
        return self._rest

    def paying(self, size, most):
        """How many rows pay."""
        return min(self._pays, most)


def ends(remaining, rows=None, machine=None, most=8, **more):
    jobs = [
        RemainingWork(*pair) for pair in zip(remaining, rows or [1] * len(remaining), strict=True)
    ]
    return finish_times(jobs, machine or Machine(), most=most, **more)


def test_requests_that_fit_into_one_batch_finish_after_their_own_evaluations():
    assert ends([3, 1, 2]) == [3.0, 1.0, 2.0]


def test_who_does_not_fit_waits_for_the_next_batch():
    assert ends([1, 1, 1], most=2) == [1.0, 1.0, 2.0]


def test_who_came_first_goes_first():
    # batches: (0, 1), (0, 1), (2), (2)
    assert ends([2, 2, 2], most=2) == [2.0, 2.0, 4.0]


def test_where_rows_do_not_pay_requests_go_one_after_another():
    assert ends([2, 2], machine=Machine(pays=1)) == [2.0, 4.0]


def test_a_request_larger_than_a_batch_runs_alone():
    assert ends([1, 1], [5, 1], most=4) == [1.0, 2.0]


def test_nothing_is_left_to_wait_for():
    assert ends([0, 2]) == [0.0, 2.0]


def test_the_time_of_a_batch_depends_on_its_rows():
    assert ends([1, 2], machine=Machine(lambda rows: 1.0 + rows)) == [3.0, 5.0]


def test_decoding_holds_up_the_next_batch_and_the_rest_does_not():
    # a batch, the first is decoded, a batch, the second is decoded; the rest is in own threads
    machine = Machine(decoding=0.5, rest=10.0)
    assert ends([1, 2], machine=machine) == [11.5, 13.0]
    assert ends([1, 1], machine=machine) == [11.5, 11.5]  # decoded together


def test_a_request_that_waits_for_its_picture_only_is_decoded_first():
    assert ends([0, 1], machine=Machine(decoding=0.5)) == [0.5, 2.0]


def test_one_that_prepares_joins_when_it_is_ready():
    late = [RemainingWork(2), RemainingWork(1, ready=1.5)]
    assert finish_times(late, Machine(), most=8) == [2.0, 3.0]
    assert finish_times([RemainingWork(1, ready=1.5)], Machine(), most=8) == [2.5]


def test_those_beyond_the_active_ones_begin_when_others_end():
    jobs = [
        RemainingWork(2),
        RemainingWork(1),
        RemainingWork(1, ready=0.25, begun=False),
        RemainingWork(1, begun=False),
    ]
    # the third begins at 1.0 and comes a quarter too late for the second batch
    assert finish_times(jobs, Machine(), most=8, active=2) == [2.0, 1.0, 3.0, 3.0]


def test_sizes_share_no_batch():
    jobs = [
        RemainingWork(1, size="small"),
        RemainingWork(1, size="large"),
        RemainingWork(1, size="small"),
    ]
    assert finish_times(jobs, Machine(), most=8) == [1.0, 2.0, 1.0]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(1, 8),
)
def test_no_request_starves_and_none_ends_before_its_own_evaluations(requests, most, active):
    jobs = [RemainingWork(*one, begun=i < active) for i, one in enumerate(requests)]
    found = finish_times(jobs, Machine(), most=most, active=active)
    assert all(end >= job.left for end, job in zip(found, jobs, strict=True))
    assert max(found) <= sum(job.left for job in jobs)


def test_times_between_measured_rows_are_interpolated():
    times = BatchTimes()
    assert not times
    with pytest.raises(ValueError, match="no batch"):
        times.of(1)
    times.add(2, 1.0)
    times.add(4, 2.0)
    assert [times.of(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0]


def test_a_single_slow_batch_changes_nothing_and_several_do():
    times = BatchTimes()
    for seconds in (9.0, 1.0, 1.0, 1.0, 7.0):
        times.add(1, seconds)
    assert times.of(1) == 1.0
    for _ in range(9):
        times.add(1, 2.0)
    assert times.of(1) == 2.0


def test_a_batch_in_progress_is_nearer_to_its_end():
    assert ends([1, 2], elapsed=0.75) == [0.25, 1.25]
    assert ends([1, 2], elapsed=5.0) == [0.0, 1.0]  # it is late, and the next takes its time
    late = [RemainingWork(1), RemainingWork(1, ready=0.5)]
    assert finish_times(late, Machine(), most=8, elapsed=0.75) == [0.25, 1.5]


def times_of(seconds, count=3):
    times = BatchTimes()
    for rows, taken in seconds.items():
        for _ in range(count):
            times.add(rows, taken)
    return times


def test_rows_pay_as_long_as_each_takes_less():
    launches = {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.1}  # a small model waits for its kernels
    assert times_of(launches).paying(16) == 8
    work = {1: 1.0, 2: 1.95, 4: 3.8}  # a large one has work to do
    assert times_of(work).paying(16) == 1
    both = {1: 1.0, 2: 1.2, 4: 2.0, 8: 4.0}
    assert times_of(both).paying(16) == 4
    assert times_of(both).paying(2) == 2


def test_few_measurements_decide_nothing():
    work = {1: 1.0, 2: 2.0, 4: 4.0}
    assert times_of(work, count=2).paying(16) == 16
    assert times_of({1: 1.0}).paying(16) == 16
    assert times_of({1: 1.0, 8: 8.0}).paying(8) == 1  # a queue that is always full
    assert times_of({2: 2.0, 4: 4.0, 8: 8.0}).paying(16) == 16  # what is alone is not known
