"""The carried memory of fitted plans, by hand."""

import pytest
import torch
from support import DTYPES, noise_of

from tacache.carrying import average_of, basis_of, carry, memory_of, memory_rate, memory_sums


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
