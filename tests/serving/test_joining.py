"""Which calls may share a batch; joined and parted again they are what they were."""

from dataclasses import dataclass

import pytest
import torch

from tacache.serving.joining import CallKeys, is_close, joinable, joined, mapped, parted


def network(hidden_states, timestep, txt_ids=None, attention_kwargs=None, img_shapes=None):
    return hidden_states


KNOWN = CallKeys()  # as one batcher has one: keys are numbers of its own


def call(rows=1, width=3, known=KNOWN, **more):
    arguments = {"hidden_states": torch.rand(rows, width), "timestep": torch.rand(rows), **more}
    return joinable(network, (), arguments, known)


def test_rows_are_those_of_the_networks_first_tensor_in_whatever_order_it_is_called():
    states, more = torch.rand(2, 3), {"txt_ids": torch.zeros(5, 3), "timestep": torch.rand(2)}
    backwards = joinable(network, (), {**more, "hidden_states": states}, KNOWN)
    assert backwards.rows == 2
    assert backwards.key == joinable(network, (states,), more, KNOWN).key


def test_calls_of_other_rows_have_equal_keys():
    assert call(1).key == call(4).key
    assert call(4).rows == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"width": 3}, {"width": 4}),
        ({"attention_kwargs": None}, {"attention_kwargs": {"scale": 0.5}}),
        ({"txt_ids": torch.zeros(5, 3)}, {"txt_ids": torch.ones(5, 3)}),
        ({"txt_ids": torch.zeros(5, 3)}, {"txt_ids": torch.zeros(6, 3)}),
        ({"img_shapes": [(1, 2, 2)]}, {"img_shapes": [(1, 4, 4)]}),
    ],
)
def test_calls_that_differ_beside_their_rows_are_not_joined(one, other):
    assert call(**one).key != call(**other).key


def test_equal_positions_of_two_requests_are_the_same():
    assert call(txt_ids=torch.zeros(5, 3)).key == call(txt_ids=torch.zeros(5, 3)).key


def test_positions_are_not_rows_where_there_happen_to_be_as_many():
    calls = [call(5, txt_ids=torch.zeros(5, 3)) for _ in range(2)]
    assert joined(calls)["txt_ids"].shape == (5, 3)
    assert joined(calls)["hidden_states"].shape == (10, 3)


def test_a_changed_tensor_is_read_again():
    known, ids = CallKeys(), torch.zeros(5, 3)
    before = call(txt_ids=ids, known=known).key
    ids += 1
    assert call(txt_ids=ids, known=known).key != before


@pytest.mark.parametrize("unknown", [object(), [torch.zeros(1)], {"image": torch.rand(2, 3)}])
def test_what_cannot_be_compared_is_called_alone(unknown):
    assert call(2, attention_kwargs=unknown).key is None


def test_joined_calls_part_again():
    calls = [call(rows, img_shapes=[(1, 2, 2)] * rows) for rows in (1, 2, 3)]
    whole = joined(calls)
    assert whole["img_shapes"] == [(1, 2, 2)] * 6
    for ours, one in zip(parted(whole["hidden_states"], [1, 2, 3]), calls, strict=True):
        assert torch.equal(ours, one.arguments["hidden_states"])


def test_results_of_every_kind_part_by_rows():
    @dataclass
    class Output:
        sample: torch.Tensor
        extra: None = None

    x = torch.arange(6.0).reshape(3, 2)
    assert [one[0].shape for one in parted((x,), [1, 2])] == [(1, 2), (2, 2)]
    assert torch.equal(parted(Output(x), [1, 2])[1].sample, x[1:])
    with pytest.raises(TypeError, match="str cannot be parted"):
        parted("text", [1])


def test_tuples_of_tensors_are_compared_by_their_content():
    first, second = torch.zeros(2000), torch.zeros(2000)
    second[1000] = 1.0  # which printing leaves out
    assert call(attention_kwargs=(first,)).key == call(attention_kwargs=(first.clone(),)).key
    assert call(attention_kwargs=(first,)).key != call(attention_kwargs=(second,)).key


def test_results_are_changed_tensor_by_tensor_whatever_holds_them():
    @dataclass
    class Output:
        sample: torch.Tensor
        extra: None = None

    x = torch.ones(2)
    found = mapped((Output(x), x, None), lambda one: one + 1)
    assert torch.equal(found[0].sample, x + 1)
    assert torch.equal(found[1], x + 1)
    assert found[2] is None


def test_results_are_close_up_to_rounding_and_zeros_are_equal():
    x = torch.rand(2, 3)
    assert is_close((x, torch.zeros(2, 3)), (x * (1 + 1e-6), torch.zeros(2, 3)))
    assert not is_close((x,), (x + 0.1,))
    assert is_close(x.bfloat16(), (x * 1.01).bfloat16())
