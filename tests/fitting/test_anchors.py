"""Local errors against direct least squares, anchors against brute force."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import noise_of, seeds

from tacache.fitting.anchors import (
    as_columns,
    best_anchors,
    growth_between,
    inner_products,
    local_errors,
    pooled,
)

TIMES = (1.0, 0.9, 0.75, 0.7, 0.4, 0.3, 0.0)
STEPS = len(TIMES) - 1
LENGTHS = -np.diff(TIMES)


def random_walk(seed: int = 0, size: int = 20) -> np.ndarray:
    """Velocities of one sample that change slowly, (steps, size)."""
    drawn = np.random.default_rng(seed).normal(size=(STEPS, size))
    return 1 + np.cumsum(0.3 * drawn, axis=0)


def least_squares(velocities: np.ndarray, used: list[int], n: int, m: int) -> float:
    """The squared error that the best weights of the used velocities leave of a move."""
    move = LENGTHS[n:m] @ velocities[n:m]
    weights = np.linalg.lstsq(velocities[used].T, move, rcond=None)[0]
    return float(((move - weights @ velocities[used]) ** 2).sum())


@pytest.mark.parametrize("parts", [(), (2,), (1, 4)])
def test_local_errors_are_those_of_least_squares(parts):
    velocities = random_walk()
    errors = local_errors(velocities @ velocities.T, TIMES, parts)
    assert errors.shape == (STEPS, STEPS, STEPS + 1)
    for p in range(STEPS):
        for n in range(STEPS):
            for m in range(STEPS + 1):
                crossed = any(n < part < m for part in parts)
                if p > n or n >= m or crossed:
                    assert errors[p, n, m] == np.inf
                    continue
                apart = any(p < part <= n for part in parts)
                used = [n] if apart or p == n else [n, p]
                expected = least_squares(velocities, used, n, m)
                scale = ((LENGTHS[n:m] @ velocities[n:m]) ** 2).sum()
                assert errors[p, n, m] == pytest.approx(expected, rel=1e-8, abs=1e-12 * scale)


def test_one_step_and_a_constant_velocity_have_no_local_error():
    velocities = np.tile(random_walk()[:1], (STEPS, 1))
    errors = local_errors(velocities @ velocities.T, TIMES)
    possible = errors[np.isfinite(errors)]
    assert (possible >= 0).all()
    assert possible.max() < 1e-13 * (velocities[0] ** 2).sum()
    walk = random_walk(3)
    errors = local_errors(walk @ walk.T, TIMES)
    for n in range(STEPS):
        assert errors[n, n, n + 1] < 1e-13


def test_a_velocity_of_zero_explains_nothing():
    velocities = random_walk()
    velocities[2] = 0
    errors = local_errors(velocities @ velocities.T, TIMES)
    assert np.isfinite(errors[2, 2, 3:]).all()
    assert errors[2, 2, 4] == pytest.approx((LENGTHS[3] ** 2 * velocities[3] ** 2).sum())


def cost_of(anchors: tuple[int, ...], errors: np.ndarray, growth: list[float]) -> float:
    ends = (*anchors[1:], STEPS)
    before = (anchors[0], *anchors[:-1])
    return sum(
        errors[p, n, m] * growth[m] ** 2 for p, n, m in zip(before, anchors, ends, strict=True)
    )


@pytest.mark.slow
@given(
    seed=seeds,
    evaluations=st.integers(1, STEPS),
    parts=st.sets(st.integers(1, STEPS - 1), max_size=2),
    logs=st.lists(st.floats(-2, 2), min_size=STEPS + 1, max_size=STEPS + 1),
)
def test_the_anchors_are_the_best_of_all(seed, evaluations, parts, logs):
    parts = tuple(sorted(parts))[: evaluations - 1]
    velocities, growth = random_walk(seed, size=3), np.exp(logs).tolist()
    errors = local_errors(velocities @ velocities.T, TIMES, parts)
    sets = [(0, *rest) for rest in combinations(range(1, STEPS), evaluations - 1)]
    costs = {anchors: cost_of(anchors, errors, growth) for anchors in sets}
    found = best_anchors(errors, growth, evaluations)
    assert found in costs
    assert set(parts) <= set(found)
    assert costs[found] == pytest.approx(min(costs.values()), rel=1e-9, abs=1e-15)


def test_where_errors_grow_anchors_are_dense():
    velocities = random_walk(5)
    errors = local_errors(velocities @ velocities.T, TIMES)
    early = best_anchors(errors, [1e3, 1e3, 1e3, 1e3, 1e-3, 1e-3, 1e-3], 3)
    late = best_anchors(errors, [1e-3, 1e-3, 1e-3, 1e-3, 1e3, 1e3, 1e3], 3)
    assert early[1] < late[1]


def test_growth_is_interpolated_in_its_logarithm():
    found = growth_between(10, [2, 6], [8.0, 2.0])
    assert len(found) == 11
    assert found[:3] == pytest.approx([8.0] * 3)
    assert found[4] == pytest.approx(4.0)
    assert found[8] == pytest.approx(2**0.5)
    assert found[10] == 1.0
    assert growth_between(1, [], []) == [1.0, 1.0]


def test_inner_products_are_summed_in_float64():
    rough = noise_of(4, (3, 5), torch.float16)
    flat = rough.flatten(1).double().numpy()
    assert inner_products(rough) == pytest.approx(flat @ flat.T, rel=1e-14)
    found = as_columns([rough[0], rough[1]], rough[2])
    assert found == pytest.approx(flat[:3] @ flat[:3].T, rel=1e-14)
    assert found.dtype == np.float64


def test_pooling_weighs_a_sample_by_how_much_it_turns():
    calm, wild = random_walk(1), 100 * random_walk(2)
    grams = [v @ v.T for v in (calm, wild)]
    changes = [(np.diff(v, axis=0) ** 2).sum() for v in (calm, wild)]
    assert pooled(grams) == pytest.approx(grams[0] / changes[0] + grams[1] / changes[1])
    assert np.isfinite(pooled([np.ones((4, 4)), np.zeros((4, 4))])).all()
