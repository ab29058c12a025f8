"""SSC against eq. 6-8 and Algorithm 1 written out, and the budget search against brute force."""

import functools
import math
import operator
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import variations

from tacache import PlanError
from tacache.ssc import (
    SEARCH_SIZE,
    check_limits,
    interval_table,
    schedule_for,
    split_widest,
    walk,
)


def added(values):
    """One after the other; from Python 3.12 on `sum` rounds once, at the end."""
    return functools.reduce(operator.add, values, 0.0)


def paper_ssc(z, n, tau, max_skip):
    """Eq. 6, set by set."""
    admitted = [
        h for h in range(1, min(max_skip, len(z) - n) + 1) if h == 1 or added(z[n : n + h]) <= tau
    ]
    return max(admitted)


def paper_table(k, d, tau_k, tau_d, max_skip):
    """Eq. 7-8."""
    return [
        min(paper_ssc(k, n, tau_k, max_skip), paper_ssc(d, n, tau_d, max_skip))
        for n in range(len(d))
    ]


def paper_walk(table):
    """The steps at which Algorithm 1 evaluates the model."""
    evaluated, n, steps = [], 0, len(table)
    while n < steps:
        h = min(table[n], steps - n)
        evaluated.append(n)
        n += 1 if h == 1 or n == 0 else h
    return tuple(evaluated)


def paper_anchors(k, d, tau_k, tau_d, max_skip):
    return paper_walk(paper_table(k, d, tau_k, tau_d, max_skip))


def cost_of(anchors, d):
    ends = (*anchors[1:], len(d))
    return sum(sum(d[n:end]) ** 2 for n, end in zip(anchors, ends, strict=True))


def fewest(steps, max_skip):
    return 1 + math.ceil((steps - 1) / max_skip)


def window_sums(z, max_skip):
    return {0.0} | {
        added(z[n : n + h]) for n in range(len(z)) for h in range(1, min(max_skip, len(z) - n) + 1)
    }


@st.composite
def sequences(draw, least=1, most=12):
    steps = draw(st.integers(least, most))
    return tuple(draw(st.lists(variations, min_size=steps, max_size=steps)) for _ in range(2))


thresholds = st.one_of(st.integers(0, 24).map(lambda n: n / 8), st.floats(0, 6))
max_skips = st.integers(1, 14)


@given(sequences(most=20), thresholds, thresholds, max_skips)
def test_the_table_and_the_walk_are_the_papers(z, tau_k, tau_d, max_skip):
    table = interval_table(*z, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip)
    assert list(table) == paper_table(*z, tau_k, tau_d, max_skip)
    assert walk(table) == paper_walk(table)


def test_a_table_by_hand():
    k, d = [0.0] * 6, [0.5, 0.25, 0.25, 0.5, 2.0, 0.125]
    table = interval_table(k, d, tau_k=0.0, tau_d=1.0, max_skip=12)
    assert table == (3, 3, 2, 1, 1, 1)
    assert walk(table) == (0, 1, 4, 5)  # step 0 alone, whatever its interval could be
    assert interval_table(d, k, tau_k=1.0, tau_d=0.0, max_skip=2) == (2, 2, 2, 1, 1, 1)


def test_a_threshold_reached_exactly_is_kept():
    assert interval_table([0.0] * 4, [0.5] * 4, tau_k=0.0, tau_d=1.0)[1] == 2


@given(sequences(most=20), *[thresholds] * 4, max_skips)
def test_looser_thresholds_never_add_anchors(z, tau_k, tau_d, more_k, more_d, max_skip):
    tight = walk(interval_table(*z, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip))
    loose = interval_table(*z, tau_k=tau_k + more_k, tau_d=tau_d + more_d, max_skip=max_skip)
    assert len(walk(loose)) <= len(tight)


@given(sequences(most=20), thresholds, thresholds, max_skips)
def test_a_larger_max_skip_never_adds_anchors(z, tau_k, tau_d, max_skip):
    small = walk(interval_table(*z, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip))
    large = walk(interval_table(*z, tau_k=tau_k, tau_d=tau_d, max_skip=max_skip + 1))
    assert len(large) <= len(small)


@pytest.mark.slow
@given(sequences(most=14), max_skips, st.one_of(st.none(), st.floats(0.01, 100)))
def test_the_budget_asked_is_the_budget_given(z, max_skip, ratio):
    steps = len(z[0])
    for budget in range(fewest(steps, max_skip), steps + 1):
        found = schedule_for(*z, evaluations=budget, max_skip=max_skip, ratio=ratio)
        assert len(found.anchors) == budget
        assert found.anchors[0] == 0
        assert all(0 < b - a <= max_skip for a, b in pairwise((*found.anchors[1:], steps)))
        if ratio is not None:
            assert found.tau_d == pytest.approx(ratio * found.tau_k, rel=1e-12)


def test_the_largest_sum_survives_the_division_by_a_ratio():
    """3.75 * ratio / ratio is less than 3.75 in floating point."""
    magnitude = [0.0] * 5 + [0.75, 1.0, 1.0, 1.0, 1.0, 2.0]
    found = schedule_for(magnitude, [0.0] * 11, evaluations=2, max_skip=10, ratio=38.46269522939581)
    assert found.anchors == (0, 1)


@pytest.mark.parametrize("ratio", [None, 10.0, 3.0, 0.1])
@pytest.mark.parametrize(
    "z",
    [([0.0] * 30, [0.0] * 30), ([0.1] * 30, [0.3] * 30), ([0.0] * 30, [0.1] * 30)],
    ids=["zero", "constant", "no magnitude"],
)
def test_every_budget_is_met_where_all_steps_are_alike(z, ratio):
    for budget in range(fewest(30, 12), 31):
        found = schedule_for(*z, evaluations=budget, ratio=ratio)
        assert len(found.anchors) == budget


@pytest.mark.slow
@pytest.mark.parametrize("steps", [50, 150])
@pytest.mark.parametrize("ratio", [None, 10.0])
def test_every_budget_of_a_long_run_is_met(steps, ratio):
    k = [0.02 + 0.01 * math.sin(n) for n in range(steps)]
    d = [0.1 + 0.09 * math.cos(n / 3) for n in range(steps)]
    assert (steps > math.sqrt(SEARCH_SIZE / 12)) == (steps == 150)  # 150 steps are searched in part
    for budget in (fewest(steps, 12), steps // 4, steps - 1):
        found = schedule_for(k, d, evaluations=budget, ratio=ratio)
        assert len(found.anchors) == budget


@pytest.mark.parametrize(
    ("budget", "max_skip", "message"),
    [
        (0, 12, "0 evaluations cannot be made: 50 steps with max_skip=12 take 6 to 50$"),
        (1, 12, "1 evaluation cannot be made: .* take 6 to 50$"),
        (5, 12, "5 evaluations cannot be made: .* take 6 to 50; a larger max_skip allows fewer$"),
        (51, 12, "51 evaluations cannot be made: .* take 6 to 50$"),
        (3, 1, "3 evaluations cannot be made: .* max_skip=1 take 50 to 50; a larger max_skip"),
    ],
)
def test_an_impossible_budget_states_the_range(budget, max_skip, message):
    with pytest.raises(PlanError, match=message):
        schedule_for([0.1] * 50, [0.1] * 50, evaluations=budget, max_skip=max_skip)


def landings(z, max_skip, ratio=None):
    """Every set of anchors that some pair of thresholds leads to, with such a pair."""
    k_sums, d_sums = (window_sums(part, max_skip) for part in z)
    if ratio is None:
        pairs = product(k_sums, d_sums)
    else:
        steps = sorted(d_sums | {ratio * tau for tau in k_sums})
        inside = [(a + b) / 2 for a, b in pairwise(steps)] + [2 * steps[-1] + 1]
        pairs = ((tau / ratio, tau) for tau in inside)
    return {paper_anchors(*z, *pair, max_skip): pair for pair in pairs}


@pytest.mark.slow
@given(sequences(least=2, most=8), st.integers(1, 8), st.sampled_from([None, None, 10.0, 0.5]))
def test_no_pair_of_thresholds_is_better(z, max_skip, ratio):
    all_anchors, steps = landings(z, max_skip, ratio), len(z[0])
    for budget in range(fewest(steps, max_skip), steps + 1):
        found = schedule_for(*z, evaluations=budget, max_skip=max_skip, ratio=ratio)
        walked = paper_anchors(*z, found.tau_k, found.tau_d, max_skip)
        landing = [anchors for anchors in all_anchors if len(anchors) == budget]
        if landing:
            best = min(cost_of(anchors, z[1]) for anchors in landing)
            assert found.anchors == walked  # nothing is split where a pair lands
            assert cost_of(found.anchors, z[1]) <= best * (1 + 1e-9) + 1e-15
        else:
            nearest = max(len(anchors) for anchors in all_anchors if len(anchors) < budget)
            assert len(walked) == nearest
            assert set(walked) < set(found.anchors)
            assert found.anchors == split_widest(walked, z[1], budget)


def test_the_widest_interval_is_split_where_it_halves_its_variation():
    # Intervals (1, 5) and (5, 7) hold 2.0 and 1.0; the first halves after step 1.
    variation = [0.1, 1.0, 0.3, 0.3, 0.4, 0.5, 0.5]
    assert split_widest((0, 1, 5), variation, 4) == (0, 1, 2, 5)
    assert split_widest((0, 1, 5), variation, 5) in {(0, 1, 2, 3, 5), (0, 1, 2, 4, 5)}
    assert split_widest((0, 1, 5), variation, 7) == tuple(range(7))
    assert split_widest((0, 1, 5), variation, 3) == (0, 1, 5)


def test_intervals_without_variation_are_split_in_the_middle():
    assert split_widest((0, 1), [0.0] * 9, 3) == (0, 1, 5)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tau_k": -0.1}, "tau_k is a finite number from 0 up, not -0.1"),
        ({"tau_d": math.nan}, "tau_d is a finite number from 0 up, not nan"),
        ({"tau_d": math.inf}, "tau_d is a finite number from 0 up, not inf"),
        ({"ratio": 0.0}, "ratio .* is a positive number, not 0.0"),
        ({"ratio": math.inf}, "ratio .* is a positive number, not inf"),
        ({"max_skip": 0}, "max_skip is at least 1 .* not 0"),
    ],
)
def test_limits_out_of_range_are_errors(limits, message):
    with pytest.raises(PlanError, match=message):
        check_limits(**{"max_skip": 12, **limits})


def test_the_table_and_the_search_check_their_limits():
    with pytest.raises(PlanError, match="tau_k"):
        interval_table([0.0], [0.0], tau_k=-1.0, tau_d=0.0)
    with pytest.raises(PlanError, match="max_skip"):
        schedule_for([0.0], [0.0], evaluations=1, max_skip=0)
    with pytest.raises(PlanError, match="ratio"):
        schedule_for([0.0], [0.0], evaluations=1, ratio=-1.0)


# --- breaks: steps at which history starts anew


@st.composite
def broken_sequences(draw):
    z = draw(sequences(least=3, most=14))
    steps = len(z[0])
    return z, tuple(sorted(draw(st.sets(st.integers(1, steps - 1), max_size=3))))


@given(broken_sequences(), thresholds, thresholds, max_skips)
def test_no_interval_crosses_a_break_and_each_starts_like_step_0(drawn, tau_k, tau_d, max_skip):
    z, breaks = drawn
    limits = {"tau_k": tau_k, "tau_d": tau_d, "max_skip": max_skip}
    table = interval_table(*z, **limits, breaks=breaks)
    free = interval_table(*z, **limits)
    steps = len(table)
    for n in range(steps):
        end = min([b for b in breaks if b > n], default=steps)
        assert table[n] == (1 if n in breaks else min(free[n], end - n))
    assert set(walk(table)) >= {n for b in breaks for n in (b, b + 1) if n < steps}


@pytest.mark.slow
@given(broken_sequences(), max_skips, st.sampled_from([None, 10.0]))
def test_every_budget_that_breaks_allow_is_met(drawn, max_skip, ratio):
    z, breaks = drawn
    steps = len(z[0])
    loose = {"tau_k": 1e6, "tau_d": 1e6, "max_skip": max_skip}
    least = len(walk(interval_table(*z, **loose, breaks=breaks)))
    options = {"max_skip": max_skip, "ratio": ratio, "breaks": breaks}
    for budget in range(least, steps + 1):
        found = schedule_for(*z, evaluations=budget, **options)
        assert len(found.anchors) == budget
        assert set(found.anchors) >= {0, *breaks}
    with pytest.raises(PlanError, match=f"take {least} to {steps}"):
        schedule_for(*z, evaluations=least - 1, **options)
