"""The one memory of a fitted plan, carried from anchor to anchor in the place of past velocities.

Into interval i goes m_i = v_{i-1} + r_i m_{i-1}, and its average velocity is a_i v_i + b_i m_i. A
row of weights is (a, b, r) or the beginning of it: without r the memory is v_{i-1}, and without b
it is not used.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tacache.decomposition import working_dtype
from tacache.rules import weighted_sum

Rows = Sequence[Sequence[float]]


def carry(v: Tensor, memory: Tensor | None = None, *, rate: float) -> Tensor:
    """What is carried into the next interval, v + rate * memory: a new tensor of v's dtype."""
    if memory is None or rate == 0:
        return v.clone()
    return torch.add(v.to(working_dtype(v)), memory, alpha=rate).to(v.dtype)


def memory_rate(row: Sequence[float]) -> float:
    """The rate r in a row (a, b, r) of weights with a carried memory; shorter ones have none."""
    return row[2] if len(row) > 2 else 0.0


def memory_sums(rows: Rows) -> list[float]:
    """What each interval's memory adds up to of all velocities before it: m_i of equal ones.

    A memory that begins later lacks a part of this sum, which velocities, all nearly parallel,
    need to be right: the oldest one it holds is multiplied by what the memory there should hold.
    """
    sums: list[float] = []
    for row in rows:
        sums.append(1 + memory_rate(row) * sums[-1] if memory_rate(row) else 1.0)
    return sums


def average_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """The average velocity of interval i, from that of its anchor and what is carried into it."""
    row, v = weights[i][:2], velocities[i]
    basis = [v] if len(row) == 1 else [v, memory_of(velocities, weights, i)]
    return weighted_sum(basis, row).to(v.dtype)


def memory_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> Tensor:
    """What is carried into interval i, where two velocities are known: v_{i-1} + r_i m_{i-1}."""
    first = i
    while memory_rate(weights[first]):  # the first rows of a part have no rate
        first -= 1
    memory = velocities[first - 1]
    for j in range(first + 1, i + 1):
        memory = carry(velocities[j - 1], memory, rate=memory_rate(weights[j]))
    return memory


def basis_of(velocities: Sequence[Tensor], weights: Rows, i: int) -> list[Tensor]:
    """What an interval's average is a sum of: the last two velocities, and the memory of others."""
    memory = [memory_of(velocities, weights, i - 1)] if i > 1 else []
    return [*velocities[i::-1][:2], *memory]
