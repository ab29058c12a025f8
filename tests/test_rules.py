"""TASU three times (in the plane, in torch, and in numpy), and the carried memory by hand."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support import DTYPES, noise_of, seeds

from tacache.rules import (
    advance,
    average_of,
    basis_of,
    carry,
    init_direction,
    memory_of,
    memory_rate,
    memory_sums,
    realign,
    start_arc,
    weighted_sum,
)

TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    # The recursion stays in float32; only what it starts from is coarse, and equally so for both.
    torch.bfloat16: 1e-4,
    torch.float16: 1e-4,
}


def paper_tasu(v, v_previous, updates):
    """Eq. 11-13 of one sample, from the paper's text; and how far p stood from each velocity."""
    v, v_previous = np.asarray(v, np.float64).ravel(), np.asarray(v_previous, np.float64).ravel()
    increment = v - v_previous
    p = increment - (increment @ v_previous) / (v_previous @ v_previous) * v_previous
    found, margins = [], []
    for growth, d in updates:
        residual = p - (p @ v) / (v @ v) * v
        margins.append(np.linalg.norm(residual) / np.linalg.norm(p))
        u = residual / np.linalg.norm(residual)
        v = growth * v + d * np.linalg.norm(v) * u
        found.append(v)
    return found, min(margins)


def by_equations(v, v_previous, updates):
    p, found = init_direction(v, v_previous), []
    v = v.to(p.dtype)
    for growth, turn in updates:
        v = advance(v, realign(p, v), growth, turn)
        found.append(v)
    return found


def by_arc(v, v_previous, updates):
    arc, found = start_arc(v, v_previous), []
    for growth, turn in updates:
        arc = arc.advance(growth, turn)
        found.append(arc.velocity())
    return found


updates_of = st.lists(
    st.tuples(st.floats(0.8, 1.25), st.one_of(st.just(0.0), st.floats(0, 0.9))),
    min_size=1,
    max_size=13,
)
shapes = st.sampled_from([(2,), (7,), (2, 3), (3, 2, 4)])


@given(seeds, shapes, updates_of, st.sampled_from(DTYPES), st.integers(1, 3))
def test_arc_and_equations_follow_the_paper(seed, shape, updates, dtype, samples):
    v, v_previous = (noise_of(samples, shape, dtype, seed + i) for i in range(2))
    runs = [paper_tasu(v[i].double(), v_previous[i].double(), updates) for i in range(samples)]
    # Where a velocity all but meets p, its side of p is a matter of rounding.
    assume(min(margin for _, margin in runs) > (1e-5 if dtype == torch.float64 else 0.03))
    expected = [np.stack([run[0][j] for run in runs]) for j in range(len(updates))]
    for way in (by_equations, by_arc):
        for ours, theirs in zip(way(v, v_previous, updates), expected, strict=True):
            close = ours.double().reshape(samples, -1).numpy()
            scale = np.abs(theirs).max()
            np.testing.assert_allclose(close, theirs, rtol=0, atol=TOLERANCE[dtype] * scale)


def test_past_its_direction_a_velocity_turns_back():
    # p is at right angles to v_previous = (1, 0), so from v at 80 degrees it is 10 degrees away.
    angle = np.deg2rad(80)
    v = torch.tensor([[np.cos(angle), np.sin(angle)]])
    v_previous = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    updates = [(1.0, 0.13)] * 9
    expected, margin = paper_tasu(v[0], v_previous[0], updates)
    assert margin > 1e-3
    angles = np.rad2deg([np.arctan2(y, x) for x, y in expected])
    assert max(angles) > 90  # it did pass
    assert (np.diff(angles) < 0).any()  # and did come back
    for way in (by_equations, by_arc):
        np.testing.assert_allclose(
            torch.cat(way(v, v_previous, updates)), expected, rtol=0, atol=1e-12
        )


def test_one_step_by_hand():
    # v = (1, 1), v_previous = (1, 0): p = (0, 1), whose part across v is (-1, 1) / 2.
    v, v_previous = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    assert init_direction(v, v_previous).tolist() == [[0.0, 1.0]]
    u = realign(torch.tensor([[0.0, 1.0]]), v)
    torch.testing.assert_close(u, torch.tensor([[-1.0, 1.0]]) / 2**0.5)
    # growth 2, turn 0.5: 2 (1, 1) + 0.5 sqrt(2) (-1, 1) / sqrt(2) = (1.5, 2.5)
    for way in (by_equations, by_arc):
        torch.testing.assert_close(way(v, v_previous, [(2.0, 0.5)])[0], torch.tensor([[1.5, 2.5]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0, -1.0, -4.0, 0.0])
@pytest.mark.parametrize("shape", [(), (1,), (40,), (4, 8, 8)])
def test_parallel_history_gives_no_direction(shape, factor, dtype):
    v = noise_of(3, shape, dtype)
    grown = 1.1**3 * v.double()
    for way in (by_equations, by_arc):
        last = way(v, factor * v, [(1.1, 0.4)] * 3)[-1]
        if factor == 0.0 and shape != ():
            # From nothing the whole change is orthogonal, but it lies along v: still no direction.
            assert last.isfinite().all()
        torch.testing.assert_close(last.double(), grown, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("factor", [3.0, 1 / 3, -0.7, 1 + 1e-3])
@pytest.mark.parametrize("shape", [(2,), (3, 5), (16, 32, 32), (16, 128, 128)])
def test_history_parallel_but_for_rounding_gives_no_direction(shape, factor, dtype):
    v = noise_of(2, shape, dtype)
    for way in (by_equations, by_arc):
        torch.testing.assert_close(way(v, factor * v, [(1.0, 0.4)])[-1], v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_samples_never_turn(dtype):
    v, v_previous = noise_of(6, (), dtype), noise_of(6, (), dtype, seed=1)
    for way in (by_equations, by_arc):
        last = way(v, v_previous, [(1.2, 0.5)] * 2)[-1]
        torch.testing.assert_close(last.double(), 1.44 * v.double(), rtol=1e-5, atol=0)


def test_a_sample_without_a_direction_does_not_stop_its_neighbours():
    v, v_previous = noise_of(3), noise_of(3, seed=1)
    v_previous[1] = 2 * v[1]
    together = by_arc(v, v_previous, [(1.1, 0.3)] * 2)[-1]
    torch.testing.assert_close(together[1], 1.21 * v[1])
    for i in (0, 2):
        alone = by_arc(v[i : i + 1], v_previous[i : i + 1], [(1.1, 0.3)] * 2)[-1]
        torch.testing.assert_close(together[i : i + 1], alone)
        assert (together[i] - 1.21 * v[i]).norm() > 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_history_only_the_magnitude_moves(dtype):
    v = noise_of(2, dtype=dtype)
    last = by_arc(v, None, [(1.1, 0.4)] * 2)[-1]
    torch.testing.assert_close(last.double(), 1.21 * v.double(), rtol=1e-6, atol=1e-6)


def test_a_zero_anchor_velocity_stays_zero():
    v = torch.zeros(2, 3)
    for way in (by_equations, by_arc):
        assert way(v, torch.ones(2, 3), [(1.1, 0.4)] * 3)[-1].eq(0).all()


@pytest.mark.parametrize(
    ("dtype", "working"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_the_recursion_stays_in_working_precision(dtype, working):
    v, v_previous = noise_of(2, dtype=dtype), noise_of(2, dtype=dtype, seed=1)
    for previous in (v_previous, None):
        arc = start_arc(v, previous).advance(1.1, 0.2)
        assert {part.dtype for part in arc[1:]} == {working}
        assert arc.velocity().dtype == working
    assert init_direction(v, v_previous).dtype == working


def test_arcs_are_values_and_advancing_changes_none():
    v, v_previous = noise_of(2), noise_of(2, seed=1)
    copies = v.clone(), v_previous.clone()
    arc = start_arc(v, v_previous)
    before = [part.clone() for part in arc]
    arc.advance(1.1, 0.2).velocity()
    arc.velocity()
    assert all(torch.equal(a, b) for a, b in zip(arc, before, strict=True))
    assert torch.equal(v, copies[0])
    assert torch.equal(v_previous, copies[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weighted_sum_by_hand(dtype):
    velocities = [torch.tensor([[1.0, 2.0]], dtype=dtype), torch.tensor([[4.0, -8.0]], dtype=dtype)]
    total = weighted_sum(velocities, [1.5, -0.5])
    assert total.tolist() == [[-0.5, 7.0]]
    assert total.dtype == torch.promote_types(dtype, torch.float32)
    assert velocities[0].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_memory_is_summed_in_working_precision_and_rounded_once(dtype):
    v, memory = noise_of(2, (64,), dtype), noise_of(2, (64,), dtype, 1)
    found = carry(v, memory, rate=-0.7)
    exact = v.double() - 0.7 * memory.double()
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-7)
    for same in (carry(v, rate=-0.7), carry(v, memory, rate=0.0)):
        assert torch.equal(same, v)
        assert same.data_ptr() != v.data_ptr()  # the caller may write into v
    assert [memory_rate(row) for row in ((1.0,), (1.5, -0.5), (1.5, -0.5, 0.25))] == [
        0.0,
        0.0,
        0.25,
    ]


def test_memory_and_average_by_hand():
    rows = [(1.0,), (1.5, -0.5), (1.8, -1.2, -0.5), (1.6, -0.9, 0.25), (1.4, -0.4)]
    v = list(noise_of(5, (2, 3)))
    third = v[1] - 0.5 * v[0]
    fourth = v[2] + 0.25 * third
    for i, expected in ((1, v[0]), (2, third), (3, fourth), (4, v[3])):
        torch.testing.assert_close(memory_of(v, rows, i), expected)
        torch.testing.assert_close(
            average_of(v, rows, i), rows[i][0] * v[i] + rows[i][1] * expected
        )
    assert torch.equal(average_of(v, rows, 0), v[0])
    for i, expected in ((0, [v[0]]), (1, [v[1], v[0]]), (3, [v[3], v[2], third])):
        torch.testing.assert_close(basis_of(v, rows, i), expected)


def test_a_memory_of_equal_velocities_is_its_sum_times_them():
    rows = ((1.0,), (1.5, -0.5), (1.2, -0.2, -0.5), (1.2, -0.2, 0.4), (1.1,))
    v = torch.ones(1, 3, dtype=torch.float64)
    found = [float(memory_of([v] * 5, rows, i)[0, 0]) for i in range(1, 5)]
    assert memory_sums(rows)[1:] == pytest.approx(found)
    assert memory_sums(rows) == pytest.approx([1.0, 1.0, 0.5, 1.2, 1.0])
