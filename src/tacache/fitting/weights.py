"""The weights of one interval, from inner products alone: least squares for the mean log error."""

import math
from statistics import fmean

import numpy as np

from tacache.fitting.anchors import Floats

RIDGES = (1e-6, 1e-3, 1e-2)  # of the normal equations' mean diagonal, towards plain reuse
REWEIGHTED = 4  # rounds in which samples are weighted by their last error
FLOOR = 0.02  # of the mean error, below which a sample gains no more weight
TINY = float(np.finfo(np.float64).tiny)
SIMPLER = 0.02  # of the log error: what a longer history must gain
MAX_RATE = 8.0  # a memory whose rate is larger hardly holds the newest velocity: it is not used


def choose_row(products: Floats) -> tuple[float, ...]:
    """Return the row (a, b, r) of an interval, from inner products with v_i, v_{i-1}, m_{i-1}.

    Where hardly any v_{i-1} is wanted beside m_{i-1}, r would have no bound: then it is left out.
    """
    weights = choose_weights(products)
    if len(weights) < 3:
        return weights
    a, b, c = weights
    if abs(c) > MAX_RATE * abs(b):
        return choose_weights(products[:, [0, 1, 3]][:, :, [0, 1, 3]])
    return a, b, c / b if b else 0.0


def choose_weights(products: Floats) -> tuple[float, ...]:
    """Return one interval's weights from the inner products (samples, basis + 1, basis + 1).

    How much of the basis is used and the strength of the ridge are those that predict best a
    sample left out of the fit; of nearly equal choices the shorter basis wins.
    """
    longest, best = products.shape[1] - 1, (math.inf, 1, RIDGES[0])
    for length in range(1, longest + 1):
        used = [*range(length), longest]
        part = products[:, used][:, :, used]
        for ridge in RIDGES if length > 1 else RIDGES[:1]:
            score = _left_out_error(part, ridge) if len(part) > 1 else float(length > 1)
            if score < best[0] - (SIMPLER if length > best[1] else 0.0):
                best = (score, length, ridge)
    used = [*range(best[1]), longest]
    return tuple(float(w) for w in solve_weights(products[:, used][:, :, used], best[2]))


def solve_weights(products: Floats, ridge: float = RIDGES[0]) -> Floats:
    """Return the weights w that minimise the mean log of |target - sum_i w_i v_i|^2 over samples.

    By weighted least squares, each sample weighted by its last error: fidelity is judged in
    decibels, and plain squares would serve the few samples that are hardest to follow.
    """
    normal, right, size = products[:, :-1, :-1], products[:, :-1, -1], products[:, -1, -1]
    share = inverse_shares(size)
    weights: Floats = np.zeros(right.shape[1])
    for _ in range(REWEIGHTED):
        matrix, vector = np.einsum("s,sij->ij", share, normal), share @ right
        small = max(ridge * float(np.diag(matrix).mean()), TINY)
        weights = np.linalg.solve(
            matrix + small * np.eye(len(matrix)), vector + small * np.eye(len(matrix))[0]
        )
        error = np.maximum(_errors(products, weights), 0)
        share = inverse_shares(error + FLOOR * error.mean())
    return weights


def inverse_shares(errors: Floats) -> Floats:
    """Return 1 / errors but for a factor: at most 1, and all 1 where there is no error."""
    bounded = np.maximum(errors, max(1e-14 * float(np.max(errors)), TINY))
    shares: Floats = bounded.min() / bounded
    return shares


def _left_out_error(products: Floats, ridge: float) -> float:
    """Mean log error of each sample under weights fitted to the others."""
    errors = []
    for s in range(len(products)):
        weights = solve_weights(np.delete(products, s, axis=0), ridge)
        left = _errors(products[s : s + 1], weights)[0] / max(products[s, -1, -1], 1e-300)
        errors.append(math.log(max(left, 1e-14)))
    return fmean(errors)


def _errors(products: Floats, weights: Floats) -> Floats:
    """Return |target - sum_i w_i v_i|^2 of each sample."""
    signed = np.append(-weights, 1.0)
    errors: Floats = np.einsum("i,sij,j->s", signed, products, signed)
    return errors
