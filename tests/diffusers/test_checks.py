"""What stops a run under a plan, beside starts and guiders: callbacks that count, MeanFlow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from diffusers.callbacks import (
    IPAdapterScaleCutoffCallback,
    MultiPipelineCallbacks,
    PipelineCallback,
    SD3CFGCutoffCallback,
)
from tests.diffusers_support import counted, plan_of, run
from tests.support import tasu
from tests.tiny import PIPELINES

from tacache import HostError, Plan
from tacache.diffusers import applied
from tacache.diffusers.calls import RunningCall
from tacache.diffusers.checks import ApplyOptions, check_call, warn_unread

SD3 = PIPELINES["sd3"]


def call_with(callback: Any) -> RunningCall:
    return RunningCall(None, {"callback_on_step_end": callback}, is_read=True)


class Mine(PipelineCallback):
    """A callback of one's own that counts."""


CUTOFFS = [
    SD3CFGCutoffCallback(cutoff_step_ratio=0.4),
    SD3CFGCutoffCallback(cutoff_step_ratio=None, cutoff_step_index=3),
    IPAdapterScaleCutoffCallback(cutoff_step_ratio=0.5),
    Mine(cutoff_step_ratio=0.5),
]


@pytest.mark.parametrize("cutoff", CUTOFFS, ids=lambda one: type(one).__name__)
def test_a_callback_that_counts_iterations_is_refused(cutoff):
    never = SD3CFGCutoffCallback(cutoff_step_ratio=1.0)
    for callback in (cutoff, MultiPipelineCallbacks([never, cutoff])):
        with pytest.raises(HostError, match=f"{type(cutoff).__name__} counts its cutoff_step"):
            check_call(call_with(callback), tasu())
        check_call(call_with(callback), Plan.full(tasu().times))
    check_call(call_with(never), tasu())
    check_call(call_with(MultiPipelineCallbacks([never])), tasu())
    check_call(call_with(lambda *_: {}), tasu())


def test_a_pipeline_with_such_a_callback_is_stopped_before_its_model_runs():
    pipe = SD3.build()
    with applied(pipe, plan_of(SD3, pipe)), counted(pipe, SD3.denoisers) as calls:
        with pytest.raises(HostError, match="cutoff_step_ratio"):
            run(SD3, pipe, callback_on_step_end=CUTOFFS[0])
        assert not calls


@pytest.mark.parametrize("option", ["use_meanflow", "flow_map", "deltatime_type"])
@pytest.mark.parametrize("told", [True, False])
def test_a_model_that_is_told_where_its_step_ends_is_warned_of(option, told, caplog):
    model = SimpleNamespace(config=SimpleNamespace(**{option: told}))
    pipe = SimpleNamespace(transformer=model, config={})
    check_call(RunningCall(pipe, is_read=True, is_of_diffusers=True), tasu())
    assert (option in caplog.text) is told


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        (ApplyOptions(), True),
        (ApplyOptions(1.0), True),
        (ApplyOptions(None, ()), True),
        (ApplyOptions(1.0, ()), False),
    ],
)
def test_what_is_left_open_is_warned_of(said, warned, caplog):
    assert warn_unread(RunningCall(), said) is warned
    assert bool(caplog.records) is warned
    assert not warn_unread(RunningCall(is_read=True), ApplyOptions())
