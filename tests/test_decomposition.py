import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import noise_of, seeds

from tacache.decomposition import (
    dot,
    indicators,
    norm,
    orthogonal_part,
    relative_distance,
    share,
)

SHAPES = [(), (1,), (5,), (2, 3), (4, 2, 3), (2, 1, 3, 2)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
shapes = st.sampled_from(SHAPES)


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
