"""Who goes first, and who shares a wave with whom."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tacache.serving.asks import Ask, goes_first, is_alone, wave_of
from tacache.serving.joining import JoinableCall


def ask(number, rows=1, key="network", what="evaluation", adapters=None):
    call = JoinableCall(torch.nn.Identity(), {}, rows, key)
    return Ask(call, SimpleNamespace(number=number, adapters=adapters), what)


asks = st.lists(
    st.builds(
        ask,
        st.integers(0, 99),
        st.integers(1, 4),
        st.sampled_from(["network", "other", "broken", None]),
        st.sampled_from(["evaluation", "decoding", "other"]),
        st.sampled_from([None, "style"]),
    ),
    max_size=12,
)


@given(asks, st.integers(1, 9))
def test_a_wave_begins_with_who_goes_first_and_holds_no_more_than_it_may(pending, most):
    wave = wave_of(pending, most, {"broken"})
    assert bool(wave) == bool(pending)
    if wave:
        assert goes_first(wave[0]) == min(map(goes_first, pending))
        assert len({(one.call.key, one.request.adapters) for one in wave}) == 1
        assert len(wave) == 1 or sum(one.call.rows for one in wave) <= most
        assert len(wave) == 1 or not is_alone(wave[0], {"broken"})


def test_decoding_goes_before_evaluations_and_then_who_came_first():
    late, early, picture = ask(2), ask(1), ask(3, what="decoding", key="decoder")
    assert wave_of([late, early, picture], 8, set()) == [picture]
    assert wave_of([late, early], 8, set()) == [early, late]


def test_one_of_many_rows_waits_while_smaller_ones_behind_it_fill_the_wave():
    first, large, small = ask(1, rows=2), ask(2, rows=4), ask(3, rows=1)
    assert wave_of([first, large, small], 4, set()) == [first, small]
