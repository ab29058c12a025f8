"""POVD by hand and by its properties; TASU three times: in the plane, in torch, and in numpy."""

import functools
import importlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support import DTYPES, noise_of, seeds

import tacache
from tacache.tasu import (
    advance,
    dot,
    indicators,
    init_direction,
    norm,
    orthogonal_part,
    realign,
    relative_distance,
    share,
    start_arc,
)

SHAPES = [(), (1,), (5,), (2, 3), (4, 2, 3), (2, 1, 3, 2)]
shapes = st.sampled_from(SHAPES)
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


def split(change, along):
    """The parts of `change` parallel and orthogonal to `along`."""
    return share(change, along) * along, orthogonal_part(change, along)


@given(seeds, shapes, st.sampled_from(DTYPES), st.integers(1, 4), st.integers(-6, 6))
def test_parts_sum_to_the_change_and_are_orthogonal(seed, shape, dtype, samples, exponent):
    change, along = (noise_of(samples, shape, dtype, seed + i) for i in range(2))
    change = change * 2.0**exponent
    parallel, orthogonal = split(change, along=along)
    eps = torch.finfo(dtype).eps
    size = change.double().reshape(samples, -1).norm(dim=1)
    rest = (parallel.double() + orthogonal.double() - change.double()).reshape(samples, -1)
    assert (rest.norm(dim=1) <= 4 * eps * size).all()
    inner = (orthogonal.double() * along.double()).reshape(samples, -1).sum(dim=1)
    length = along.double().reshape(samples, -1).norm(dim=1)
    assert (inner.abs() <= 16 * eps * size * length).all()


@given(seeds, shapes, st.integers(1, 4))
def test_the_parallel_part_points_along_the_velocity(seed, shape, samples):
    change, along = (noise_of(samples, shape, seed=seed + i) for i in range(2))
    parallel, orthogonal = split(change, along=along)
    again, nothing = split(parallel, along=along)
    torch.testing.assert_close(again, parallel)
    assert (norm(nothing) <= 1e-14 * norm(change)).all()
    assert (dot(orthogonal, along).abs() <= 1e-13 * norm(change) * norm(along)).all()


def test_a_float16_latent_of_real_size_does_not_overflow():
    along = torch.full((1, 16, 128, 128), 2.0, dtype=torch.float16)
    parallel, orthogonal = split(along * 0.5, along=along)
    assert parallel.isfinite().all()
    assert parallel.float().mean().item() == pytest.approx(1.0, rel=1e-3)
    assert orthogonal.float().abs().max().item() <= 1e-2


def test_per_sample_numbers_broadcast_back():
    x = noise_of(3, (2, 4))
    assert dot(x, x).shape == norm(x).shape == share(x, x).shape == (3, 1, 1)
    torch.testing.assert_close(dot(x, x), norm(x).square())
    torch.testing.assert_close(share(2.5 * x, along=x), torch.full((3, 1, 1), 2.5).double())


def test_k_and_d_by_hand():
    # v = (3, 4), v_next = (6, 3): the change is (3, -1), its share along v is 5 / 25, and what is
    # left is (2.4, -1.8), of norm 3; with dt = 0.1 k = 0.2 / 0.1 and d = 3 / 5.
    k, d = indicators(torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 3.0]]), 0.1)
    assert k == pytest.approx([2.0], rel=1e-14)
    assert d == pytest.approx([0.6], rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_alone_has_the_numbers_it_has_in_a_batch(shape, dtype):
    v, v_next = noise_of(5, shape, dtype, 1), noise_of(5, shape, dtype, 2)
    together = indicators(v, v_next, 0.25)
    for i in range(5):
        alone = indicators(v[i : i + 1], v_next[i : i + 1], 0.25)
        assert (together[0][i], together[1][i]) == (alone[0][0], alone[1][0])


def test_one_element_samples_only_change_in_magnitude():
    k, d = indicators(torch.tensor([2.0, -1.0]), torch.tensor([3.0, 1.0]), 0.5)
    assert k == pytest.approx([1.0, -4.0])
    assert d == pytest.approx([0.0, 0.0], abs=1e-15)


def test_splitting_along_a_zero_velocity_leaves_the_change_orthogonal():
    change = noise_of(2)
    along = noise_of(2, seed=1)
    along[0] = 0
    parallel, orthogonal = split(change, along=along)
    assert parallel[0].eq(0).all()
    assert torch.equal(orthogonal[0], change[0])
    assert parallel[1].ne(0).any()


def test_indicators_of_a_zero_velocity_are_not_finite():
    v = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    k, d = indicators(v, torch.ones(2, 2), 1.0)
    assert not math.isfinite(k[0])
    assert not math.isfinite(d[0])
    assert (k[1], d[1]) == (0.0, 1.0)


def test_a_relative_distance_is_that_of_each_sample():
    reference = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    x = reference + torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert relative_distance(x, reference).flatten().tolist() == [0.2, 1.0]
    assert relative_distance(x.bfloat16(), reference).dtype == torch.float64
    zero = torch.zeros(2, 3)
    assert relative_distance(zero + 1, zero).isposinf().all()
    assert relative_distance(zero, zero).isnan().all()


METHOD = Path(__file__).parent.parent / "docs" / "explanation" / "method.md"


def test_the_page_of_the_method_names_what_there_is():
    """The table of equations names functions by their module, or a class of `tacache`."""
    rows = re.findall(
        r"^\| .* \| (?:\d+(?:-\d+)?|Algorithm 1) \| (.*) \|$", METHOD.read_text(), re.M
    )
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert {"tasu.Arc.advance", "ssc.interval_table", "calibration.calibrate"} <= set(names)
    for name in names:
        head, *parts = name.split(".")
        where = tacache if hasattr(tacache, head) else importlib.import_module(f"tacache.{head}")
        parts = [head, *parts] if where is tacache else parts
        assert callable(functools.reduce(getattr, parts, where)), name
