import pytest
import torch
from tests.support import noise_of

from tacache import HostError
from tacache.velocity import batches, check_noise, check_velocity, euler


def test_without_a_size_there_is_one_batch():
    x = noise_of(5)
    (only,) = batches(x)
    assert torch.equal(only.noise, x)
    assert only.condition == {}


def test_batches_slice_the_condition_with_the_samples():
    x, label = noise_of(5), torch.arange(5)
    found = list(batches(x, {"label": label, "prompt": list("abcde")}, batch_size=2))
    assert [len(batch.noise) for batch in found] == [2, 2, 1]
    assert torch.equal(torch.cat([batch.noise for batch in found]), x)
    assert [batch.condition["label"].tolist() for batch in found] == [[0, 1], [2, 3], [4]]
    assert [batch.condition["prompt"] for batch in found] == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize("size", [0, -2])
def test_a_batch_holds_at_least_one_sample(size):
    with pytest.raises(HostError, match=f"batch_size is at least 1, not {size}"):
        list(batches(noise_of(2), batch_size=size))


@pytest.mark.parametrize(
    ("value", "found"),
    [(torch.ones(3), "3"), (["a"], "1"), (3.5, "no length"), (torch.tensor(3.5), "no length")],
    ids=["tensor", "list", "number", "0-d tensor"],
)
def test_a_condition_has_one_entry_a_sample(value, found):
    message = f"condition 'label' must have one entry a sample, 2; it has {found}"
    with pytest.raises(HostError, match=message):
        list(batches(noise_of(2), {"label": value}))


def test_noise_has_samples_of_floating_point():
    check_noise(torch.ones(1))
    with pytest.raises(HostError, match=r"samples along dim 0; its shape is \(\)"):
        check_noise(torch.tensor(1.0))
    with pytest.raises(HostError, match=r"its shape is \(2, 0\)"):
        check_noise(torch.ones(2, 0))
    with pytest.raises(HostError, match=r"floating-point, not torch\.int32"):
        check_noise(torch.ones(2, dtype=torch.int32))


def test_a_velocity_has_the_shape_of_its_state():
    x = noise_of(2)
    assert check_velocity(x, x) is x
    with pytest.raises(HostError, match=r"velocity has shape \(1, 2, 3\), but the state \(2, 2, 3"):
        check_velocity(x[:1], x)


def test_an_euler_step_by_hand():
    x, v = torch.tensor([1.0, 2.0]), torch.tensor([4.0, -4.0])
    assert euler(x, v, 0.75, 0.5).tolist() == [0.0, 3.0]


def test_an_euler_step_keeps_the_dtype_of_the_state():
    x = noise_of(2, dtype=torch.bfloat16)
    assert euler(x, x.float(), 1.0, 0.5).dtype == torch.bfloat16
