"""Weights of an interval: exact answers, what decides and what does not."""

import math

import numpy as np
import pytest
from tests.support import noise_of

from tacache.fitting.weights import choose_row, choose_weights, solve_weights


def products_of(basis, target):
    """Inner products of samples (samples, basis, size) and their targets (samples, size)."""
    columns = np.concatenate([basis, target[:, None]], axis=1)
    return np.einsum("sik,sjk->sij", columns, columns)


def smooth_samples(samples=6, basis=3, size=40, noise=0.05, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(samples, 1, size)) + 0.4 * rng.normal(size=(samples, basis, size))
    true = np.array([1.6, -0.8, 0.2][:basis])
    target = np.einsum("i,sik->sk", true, base) + noise * rng.normal(size=(samples, size))
    return base, target, true


def mean_log_error(products, weights):
    signed = np.append(-weights, 1.0)
    return float(np.log(np.einsum("i,sij,j->s", signed, products, signed)).mean())


def test_solved_weights_minimise_the_mean_log_error():
    base, target, true = smooth_samples(noise=0.3)
    target[0] += 0.3 * np.random.default_rng(1).normal(size=target.shape[1])  # a harder sample
    products = products_of(base, target)
    found = solve_weights(products)
    best = mean_log_error(products, found)
    assert found == pytest.approx(true, abs=0.3)
    rng = np.random.default_rng(2)
    for size in (0.01, 0.03, 0.1):
        for _ in range(30):
            moved = found + size * rng.normal(size=3)
            assert mean_log_error(products, moved) > best - 1e-4


def test_solved_weights_are_exact_where_that_is_possible():
    base, target, true = smooth_samples(noise=0.0)
    assert solve_weights(products_of(base, target)) == pytest.approx(true, abs=1e-4)


def test_no_error_at_all_is_no_division_by_it():
    whole = np.random.default_rng(0).integers(1, 9, size=(5, 3, 12)).astype(float)
    with np.errstate(all="raise"):
        found = solve_weights(products_of(whole, whole[:, 0]))
        still = solve_weights(products_of(0 * whole, 0 * whole[:, 0]))
        done = solve_weights(products_of(whole, 0 * whole[:, 0]))
    assert found == pytest.approx([1, 0, 0], abs=1e-6)
    assert still == pytest.approx([1, 0, 0])
    assert done == pytest.approx([0, 0, 0], abs=1e-5)


def test_one_wild_sample_decides_nothing():
    base, target, true = smooth_samples(samples=8, noise=0.02)
    calm = solve_weights(products_of(base, target))
    target[3] = 50 * np.random.default_rng(5).normal(size=target.shape[1])
    wild = solve_weights(products_of(base, target))
    assert wild == pytest.approx(calm, abs=0.02)
    assert wild == pytest.approx(true, abs=0.05)


@pytest.mark.parametrize("scale", [1e-140, 1e-30, 1.0, 1e30, 1e140])
def test_weights_do_not_depend_on_the_velocities_scale(scale):
    base, target, _ = smooth_samples()
    expected = choose_weights(products_of(base, target))
    found = choose_weights(products_of(scale * base, scale * target))
    assert found == pytest.approx(expected, rel=1e-6)


def test_history_that_is_noise_is_not_used():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(6, 1, 40))
    target = 1.1 * first[:, 0] + 0.1 * rng.normal(size=(6, 40))
    found = choose_weights(products_of(np.append(first, rng.normal(size=(6, 2, 40)), 1), target))
    assert len(found) == 1
    assert found[0] == pytest.approx(1.1, abs=0.05)


def test_history_that_helps_is_used():
    base, target, true = smooth_samples()
    assert choose_weights(products_of(base, target)) == pytest.approx(true, abs=0.1)
    shorter = products_of(base[:, :2], 1.5 * base[:, 0] - 0.5 * base[:, 1])
    assert choose_weights(shorter) == pytest.approx((1.5, -0.5), abs=1e-4)


@pytest.mark.parametrize(("gain", "length"), [(0.01, 1), (0.04, 2)])
def test_a_longer_history_must_gain_enough(gain, length):
    """Orthogonal velocities: the second explains a known share of what the first leaves."""
    basis = np.tile(np.eye(3)[:2], (5, 1, 1))
    target = np.tile([1.0, math.sqrt(gain), 1.0], (5, 1))
    assert len(choose_weights(products_of(basis, target))) == length


def test_a_single_sample_cannot_justify_a_history():
    base, target, _ = smooth_samples(samples=1, noise=0.0)
    assert len(choose_weights(products_of(base, target))) == 1


def test_a_row_is_the_weights_of_two_velocities_and_the_memory_before():
    base, target, _ = smooth_samples(samples=8, noise=0.0)
    a, b, c = choose_weights(products_of(base, target))
    assert choose_row(products_of(base, target)) == (a, b, c / b)
    assert choose_row(products_of(base[:, :2], target)) == choose_weights(
        products_of(base[:, :2], target)
    )


def test_a_memory_without_the_newest_velocity_is_not_used():
    """Its rate would have no bound: then the last two velocities are."""
    drawn = noise_of(8, (3, 40), seed=5).numpy()
    target = drawn[:, 0] + 0.01 * drawn[:, 1] + 0.5 * drawn[:, 2]
    assert len(choose_weights(products_of(drawn, target))) == 3
    row = choose_row(products_of(drawn, target))
    assert row == choose_weights(products_of(drawn[:, :2], target))
    target = drawn[:, 0] + 0.1 * drawn[:, 1] + 0.5 * drawn[:, 2]
    assert choose_row(products_of(drawn, target)) == pytest.approx((1.0, 0.1, 5.0), rel=1e-3)
