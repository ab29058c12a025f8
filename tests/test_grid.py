import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacache import TACacheError, time_grid
from tacache.grid import as_times, break_steps, budget_for, interpolate, same_grid, step_lengths


def test_the_plain_grid_by_hand():
    assert time_grid(4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_the_shifted_grid_by_hand():
    assert time_grid(2, shift=3.0) == [1.0, 0.75, 0.0]
    assert len(time_grid(50, shift=3.0)) == 51


@given(st.integers(1, 200), st.floats(0.01, 100))
def test_a_grid_falls_from_exactly_1_to_exactly_0(steps, shift):
    grid = time_grid(steps, shift)
    assert (grid[0], grid[-1], len(grid)) == (1.0, 0.0, steps + 1)
    assert all(t > t_next for t, t_next in pairwise(grid))
    for i, t in enumerate(grid):
        u = 1 - i / steps
        assert t == pytest.approx(shift * u / (1 + (shift - 1) * u), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("steps", [0, -3])
def test_a_grid_without_steps_is_an_error(steps):
    with pytest.raises(TACacheError, match=f"at least one step, not {steps}"):
        time_grid(steps)


@pytest.mark.parametrize("shift", [0.0, -1.0, math.nan, math.inf])
def test_a_shift_that_is_not_positive_is_an_error(shift):
    with pytest.raises(TACacheError, match=f"positive number, not {shift}"):
        time_grid(5, shift)


def test_times_are_taken_from_any_iterable_of_numbers():
    assert as_times(torch.tensor([1.0, 0.5, 0.0])) == (1.0, 0.5, 0.0)
    assert as_times(iter([2, 1])) == (2.0, 1.0)
    assert all(type(t) is float for t in as_times([2, 1]))


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([], "at least two numbers .* not 0"),
        ([1.0], "at least two numbers .* not 1"),
        ([1.0, 0.5, 0.5], "must decrease, noise first: step 1 goes from 0.5 to 0.5"),
        ([0.0, 1.0], "must decrease, noise first: step 0 goes from 0.0 to 1.0"),
        ([1.0, math.nan, 0.0], "must be finite: step 0"),
        ([math.inf, 0.0], "must be finite: step 0"),
    ],
)
def test_times_that_make_no_grid_are_an_error(times, message):
    with pytest.raises(TACacheError, match=message):
        as_times(times)


def test_step_lengths_by_hand():
    assert step_lengths([1.0, 0.5, 0.25]) == (0.5, 0.25)


def test_interpolation_is_linear_inside_and_constant_beyond():
    found = interpolate([2.0, 1.0, 0.75, 0.5, 0.1], [1.0, 0.5], [4.0, 8.0])
    assert found == (4.0, 4.0, 6.0, 8.0, 8.0)


def test_a_break_falls_on_the_first_step_that_starts_below_it():
    times = [1.0, 0.75, 0.5, 0.25, 0.0]
    assert break_steps(times, [0.8]) == (1,)
    assert break_steps(times, [0.75]) == (2,)  # a step that starts at the break is above it
    assert break_steps(times, [0.3, 0.6, 0.55]) == (2, 3)


@pytest.mark.parametrize("where", [2.0, 1.5, 0.25, 0.1, 0.0, -1.0])
def test_a_break_that_nothing_precedes_or_follows_is_none(where):
    assert break_steps([1.0, 0.75, 0.5, 0.25, 0.0], [where]) == ()


def test_grids_are_the_same_but_for_rounding():
    grid = time_grid(8, shift=3.0)
    assert same_grid(grid, [t + 5e-5 for t in grid])
    assert not same_grid(grid, time_grid(8, shift=3.1))
    assert not same_grid(grid, grid[:-1])


@pytest.mark.parametrize(
    ("steps", "speedup", "evaluations"),
    [(50, 4, 13), (50, 3, 17), (50, 5, 10), (28, 4, 7), (50, 1, 50), (10, 100, 1)],
)
def test_a_speedup_is_the_nearest_number_of_evaluations(steps, speedup, evaluations):
    assert budget_for(steps, speedup) == evaluations
