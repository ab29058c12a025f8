"""What was measured of one size stands for it, and for others in proportion to their pixels."""

import threading

import pytest

from tacache.serving.costs import (
    BATCHES_UNTIL_RETRY,
    CALLS_UNTIL_RETRY,
    Costs,
    RowLimits,
    Shape,
    SingleKinds,
    size_of,
)

SMALL, LARGE = (512, 512, None), (1024, 1024, None)


def test_a_size_is_what_a_call_says_of_it():
    assert size_of({"height": 512, "width": 256, "prompt": "a fox"}) == (512, 256, None)
    assert size_of({"num_frames": 17}) == (None, None, 17)


def test_nothing_is_known_before_the_first_batch():
    costs = Costs()
    assert not costs
    assert costs.decoding(SMALL, 2) == costs.before(SMALL) == costs.rest(SMALL) == 0.0
    assert costs.shape(SMALL) == Shape(1, 1)
    with pytest.raises(ValueError, match="no batch"):
        costs.batch(SMALL, 1)


def test_a_large_picture_says_nothing_of_small_ones_that_were_measured():
    costs = Costs()
    costs.add_batch(SMALL, 1, 1.0)
    costs.add_batch(LARGE, 1, 9.0)
    assert (costs.batch(SMALL, 1), costs.batch(LARGE, 1)) == (1.0, 9.0)


def test_a_size_that_was_not_measured_costs_as_its_pixels():
    costs = Costs()
    costs.add_batch(SMALL, 1, 1.0)
    costs.add_decoding(SMALL, 1, 0.5)
    assert costs.batch(LARGE, 1) == 4.0
    assert costs.decoding(LARGE, 1) == 2.0
    costs.add_batch(LARGE, 1, 5.0)
    assert costs.batch((1024, 2048, None), 1) == 10.0  # the nearest one, not the first
    assert costs.batch((None, None, None), 1) in (1.0, 5.0)  # the pipeline's own: no pixels known


def test_what_requests_do_beside_batches_is_kept_by_size():
    costs = Costs()
    costs.add_request(SMALL, 1.0, 0.1, Shape(2, 1))
    costs.add_request(SMALL, 2.0, 0.1, Shape(2, 1))
    assert costs.before(SMALL) == pytest.approx(1.5)
    assert costs.rest(SMALL) == pytest.approx(0.1)
    assert costs.before(LARGE) == pytest.approx(1.5)  # until it is known
    assert costs.shape(LARGE) == Shape(2, 1)


def test_costs_are_read_while_others_are_noted():
    costs, errors = Costs(), []
    costs.add_batch((0, 0, 0), 1, 1.0)

    def write():
        for n in range(1, 2000):
            costs.add_batch((n, n, None), 1, 1.0)
            costs.add_request((n, n, None), 1.0, 1.0, Shape())

    def look():
        while writing.is_alive():
            try:
                costs.batch((5000, 5000, None), 1)
                costs.shape((5000, 5000, None))
            except Exception as error:
                errors.append(error)

    writing = threading.Thread(target=write)
    reading = threading.Thread(target=look)
    writing.start()
    reading.start()
    for thread in (writing, reading):
        thread.join(60)
    assert not errors


# --- limits that a bad moment set are tried again, and less often where they hold


def test_a_size_whose_memory_ended_has_half_the_rows_and_others_have_all():
    limits = RowLimits()
    limits.memory_ended("large", 6)
    assert (limits.rows("large", 8), limits.rows("small", 8)) == (3, 8)
    limits.memory_ended("large", 3)
    limits.memory_ended("large", 1)
    assert limits.rows("large", 8) == 1


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_larger_batches_are_tried_again_and_less_often_after_every_failure(failures):
    limits = RowLimits()
    for _ in range(failures):
        limits.memory_ended("large", 8)
    for _ in range(BATCHES_UNTIL_RETRY * 2 ** (failures - 1) - 1):
        limits.went_well("large", 4)
        limits.went_well("large", 2)  # says nothing
    assert limits.rows("large", 16) == 4
    limits.went_well("large", 4)
    assert limits.rows("large", 16) == 8
    assert limits.rows("large", 6) == 6


def test_a_kind_that_failed_when_joined_is_joined_again_after_single_calls():
    kinds = SingleKinds()
    for failures in (1, 2):
        kinds.joining_failed("kind")
        for _ in range(CALLS_UNTIL_RETRY * failures):
            assert "kind" in kinds
            assert "other" not in kinds
            kinds.made_singly("kind")
        assert "kind" not in kinds


def test_a_batch_takes_no_longer_than_a_larger_one_did():
    costs = Costs()
    for rows, seconds in ((1, 0.002), (16, 0.2), (18, 0.01), (24, 0.016)):
        costs.add_batch(SMALL, rows, seconds)
    assert [costs.batch(SMALL, rows) for rows in (1, 16, 18, 24)] == [0.002, 0.01, 0.01, 0.016]
    assert costs.measured(SMALL)[16] == 0.2
