"""Guiders are tried out: those that count the turns of a loop are found, whatever their names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers.guiders as guiders
import pytest
import torch

from tacache import HostError, Plan, time_grid
from tacache.diffusers.calls import RunningCall
from tacache.diffusers.checks import ApplyOptions, check_call
from tacache.diffusers.guiders import enabled_guiders, has_momentum

PLAN = Plan(rule="reuse", times=time_grid(20), anchors=(0, 1, 5, 9, 14))
COUNTING = [
    guiders.ClassifierFreeGuidance(start=0.1),
    guiders.ClassifierFreeGuidance(stop=0.8),
    guiders.ClassifierFreeZeroStarGuidance(),
    guiders.SkipLayerGuidance(skip_layer_guidance_layers=[0]),
    guiders.SkipLayerGuidance(skip_layer_guidance_layers=[0], skip_layer_guidance_start=0.0,
                              skip_layer_guidance_stop=1.0),
    guiders.PerturbedAttentionGuidance(perturbed_guidance_layers=[0]),
    guiders.SmoothedEnergyGuidance(seg_guidance_layers=[0], seg_guidance_stop=0.5),
    guiders.AdaptiveProjectedMixGuidance(),
    guiders.TangentialClassifierFreeGuidance(stop=0.9),
    guiders.MagnitudeAwareGuidance(stop=0.8),
    guiders.AutoGuidance(auto_guidance_layers=[0], dropout=0.1, start=0.2),
]  # fmt: skip
CONSTANT = [
    guiders.ClassifierFreeGuidance(),
    guiders.ClassifierFreeZeroStarGuidance(zero_init_steps=0),
    guiders.AdaptiveProjectedGuidance(),
    guiders.AdaptiveProjectedGuidance(adaptive_projected_guidance_momentum=0.5),
    guiders.AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=-1),
    guiders.TangentialClassifierFreeGuidance(),
    guiders.MagnitudeAwareGuidance(),
    guiders.AutoGuidance(auto_guidance_layers=[0], dropout=0.1),
    guiders.SkipLayerGuidance(skip_layer_guidance_layers=[0], skip_layer_guidance_scale=0.0),
]


def checked(guider: Any, said: ApplyOptions = ApplyOptions(), **names: Any) -> None:  # noqa: B008
    pipeline = SimpleNamespace(config={}, guider=guider, **names)
    check_call(RunningCall(pipeline, is_read=True, is_of_diffusers=True), PLAN, said)


@pytest.mark.parametrize("guider", COUNTING, ids=lambda one: type(one).__name__)
def test_a_guider_that_counts_is_refused(guider):
    with pytest.raises(HostError, match=type(guider).__name__ + ".* by a count of loop iterations"):
        checked(guider)
    guider.disable()
    checked(guider)
    guider.enable()


@pytest.mark.parametrize("guider", CONSTANT, ids=lambda one: type(one).__name__)
def test_a_guider_that_is_always_the_same_is_not(guider):
    before = {name: value for name, value in vars(guider).items() if name != "momentum_buffer"}
    checked(guider)
    after = {name: value for name, value in vars(guider).items() if name != "momentum_buffer"}
    assert before == after


def test_a_guider_of_ones_own_is_tried_too():
    class Later(guiders.ClassifierFreeGuidance):
        def forward(self, pred_cond: torch.Tensor, pred_uncond: Any = None) -> Any:
            return (pred_cond if self._step < 2 else pred_uncond,)

    with pytest.raises(HostError, match=r"Later of .* by a count"):
        checked(Later())


def test_a_guider_that_cannot_be_tried_is_refused_until_it_is_vouched_for():
    with pytest.raises(HostError, match=r"cannot be tried out .* apply\(pipe, plan, breaks=\(\)\)"):
        checked(object())
    checked(object(), ApplyOptions(breaks=()))


def test_guiders_are_found_by_class_and_by_name():
    cfg, off = guiders.ClassifierFreeGuidance(), guiders.ClassifierFreeGuidance(enabled=False)
    pipe = SimpleNamespace(anything=cfg, audio_guider=None, ocr_guider=off, guider_2=cfg)
    assert enabled_guiders(pipe) == [cfg, cfg]
    assert enabled_guiders(None) == []
    assert not has_momentum(pipe)
    pipe.third = guiders.AdaptiveProjectedGuidance(adaptive_projected_guidance_momentum=-0.5)
    assert has_momentum(pipe)
