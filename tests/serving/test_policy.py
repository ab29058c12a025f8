"""Who goes first, who shares a batch with whom, and when it starts."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacache.serving.joining import JoinableCall
from tacache.serving.policy import Situation, goes_first, is_single, next_batch
from tacache.serving.request import EvaluationRequest

NOW = 100.0


def generation(number, adapters=None, comes_back=False):
    return SimpleNamespace(number=number, adapters=adapters, comes_back=comes_back)


def evaluation(number, rows=1, key="network", kind="evaluation", adapters=None, since=NOW):
    call = JoinableCall(torch.nn.Identity(), {}, rows, key)
    return EvaluationRequest(call, generation(number, adapters), kind, since)


def situation(max_rows=8, running=0, **more):
    return Situation(NOW, running, max_rows, 0.5, single={"broken"}, **more)


evaluations = st.lists(
    st.builds(
        evaluation,
        st.integers(0, 99),
        st.integers(1, 4),
        st.sampled_from(["network", "other", "broken", None]),
        st.sampled_from(["evaluation", "decoding", "other"]),
        st.sampled_from([None, "style"]),
    ),
    min_size=1,
    max_size=12,
)


@given(evaluations, st.integers(1, 9))
def test_a_batch_begins_with_who_goes_first_and_holds_no_more_than_it_may(waiting, most):
    batch, wait = next_batch(waiting, situation(most))
    assert wait <= 0  # nobody else can come
    assert batch[0] is goes_first(waiting)
    assert len({(one.call.key, one.generation.adapters) for one in batch}) == 1
    assert len(batch) == 1 or sum(one.call.rows for one in batch) <= most
    assert len(batch) == 1 or not is_single(batch[0], situation(most))


def test_decoding_goes_before_evaluations_and_then_who_came_first():
    late, early = evaluation(2), evaluation(1)
    picture = evaluation(3, kind="decoding", key="decoder")
    assert next_batch([late, early, picture], situation()).evaluations == [picture]
    assert next_batch([late, early], situation()).evaluations == [early, late]


def test_one_of_many_rows_waits_while_smaller_ones_behind_it_fill_the_batch():
    first, large, small = evaluation(1, rows=2), evaluation(2, rows=4), evaluation(3, rows=1)
    batch = next_batch([first, large, small], situation(4))
    assert (batch.evaluations, batch.rows) == ([first, small], 3)


@pytest.mark.parametrize(
    ("waiting", "more", "wait"),
    [
        ([evaluation(1)], {"running": 1}, 0.0),  # nobody else can come
        ([evaluation(1)], {"running": 2}, 0.5),
        ([evaluation(1, since=NOW - 0.2)], {"running": 2}, 0.3),
        ([evaluation(1, since=NOW - 0.2)], {"running": 2, "last_ended": NOW - 0.1}, 0.4),
        ([evaluation(1, key="broken")], {"running": 2}, 0.0),  # never shares one
        ([evaluation(1), evaluation(2)], {"running": 3, "max_rows": 2}, 0.0),  # full
        (  # full, but one that came before is to come again
            [evaluation(1), evaluation(2)],
            {"running": 3, "max_rows": 2, "last": [generation(0, comes_back=True)],
             "full_seconds": 2.0},
            0.1,
        ),
        (
            [evaluation(1), evaluation(2)],
            {"running": 3, "max_rows": 2, "last": [generation(0)], "full_seconds": 2.0},
            0.0,
        ),
    ],
)  # fmt: skip
def test_how_long_a_batch_waits(waiting, more, wait):
    assert next_batch(waiting, situation(**more)).wait_s == pytest.approx(wait)
