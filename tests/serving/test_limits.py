"""Limits that a bad moment set are tried again, and less often where they hold."""

import pytest

from tacache.serving.limits import BATCHES_UNTIL_RETRY, CALLS_UNTIL_RETRY, RowLimits, SingleKinds


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
