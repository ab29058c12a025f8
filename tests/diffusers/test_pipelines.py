"""Every family of pipelines under a plan; writes docs/reference/pipelines.md.

`python -m tests.diffusers.test_pipelines` writes the page again from new runs.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from tacache import HostError, Plan, make_plan
from tacache.diffusers import applied, apply, calibrate
from tests.diffusers_support import (
    EVALUATIONS,
    MODULAR,
    REFUSED,
    STEPS,
    SUPPORTED,
    counted,
    fed,
    profile_of,
    recorded,
    run,
)
from tests.tiny import PIPELINES
from tests.tiny.check import frozen

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pipelines.md"
INTRODUCTION = f"""\
# Pipelines

Every pipeline below was run with tiny random weights on the CPU, {STEPS} steps of which a plan
evaluates {EVALUATIONS}. Under a plan that evaluates every step, its output is that of the untouched
pipeline, bit for bit. Under the skipping plan it calls its denoiser as often as planned. With
the full run's velocities put in at the skipped steps it ends where the full run ends, bit for bit.
And with a frozen denoiser, whose output never changes, a plan that reuses velocities does so too,
but for rounding: whatever else a pipeline counts in its loop would show there. Modular pipelines
are run from text alone.
Written by `python -m tests.diffusers.test_pipelines`, and checked whenever the tests run.

| pipeline | scheduler | all-anchor bit-identical | evaluations as planned | full run reproduced \
from recorded velocities | full run reproduced with a frozen denoiser | note |
|---|---|---|---|---|---|---|
"""
NOTES = {
    "flux-img2img": "strength 1 here; below it, `apply(pipe, plan, strength=...)`",
    "flux-inpaint": "the kept region is put back at anchors; strength as for image to image",
    "flux-controlnet": "the whole run is controlled; `control_guidance_end` below 1 is refused",
    "sd3": "`skip_guidance_layers` is refused",
    "sd3-img2img": "strength 1 here; below it, `apply(pipe, plan, strength=...)`",
    "wan-euler": "with Euler in place of UniPC",
    "wan-2.2": "the second expert starts with an anchor and no history",
    "wan-v2v": "strength 1 here; below it, `apply(pipe, plan, strength=...)`",
    "ltx-condition": "a time per token; with `image_cond_noise_scale` above 0 noise is drawn in "
    "every loop, so such a run differs from the full one (a warning says so)",
    "ltx2": "pictures and sound, each stepped by a scheduler of its own; frozen without "
    "`guidance_rescale`, which works on pictures",
    "lumina2": "`cfg_trunc_ratio` below 1 is refused",
    **dict.fromkeys(
        ("modular-flux", "modular-qwen-image", "modular-sd3", "modular-z-image"),
        "from a picture, `apply(pipe, plan, strength=...)`",
    ),
    "modular-wan-2.2": "the second expert starts with an anchor and no history",
    "modular-ltx2": "pictures and sound, each stepped by a scheduler of its own",
    "z-image": "an anchor where `cfg_truncation` ends the guidance",
}
# What makes velocities of constant outputs constant: LTX2 rescales its guidance in pictures.
STILL = {"ltx2": {"guidance_rescale": 0.0, "audio_guidance_rescale": 0.0}}


class Verdict(NamedTuple):
    """What held for one family of pipelines."""

    pipeline: str
    scheduler: str
    bit_identical: bool | None
    as_planned: bool | None
    reproduced: bool | None
    frozen: bool | None
    note: str

    def row(self) -> str:
        """The family's line of the page."""
        marks = {True: "yes", False: "**no**", None: "-"}
        flags = (self.bit_identical, self.as_planned, self.reproduced, self.frozen)
        held = [marks[flag] for flag in flags]
        return f"| {' | '.join([self.pipeline, self.scheduler, *held, self.note])} |\n"


@functools.cache
@mock.patch(
    "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit.calculate_dimensions",
    mock.Mock(return_value=(256, 256, None)),  # it would encode a megapixel, whatever it is given
)
def verdict(name: str) -> Verdict:
    """Run a family untouched, under the full plan, under a skipping plan, and fed."""
    tiny = PIPELINES[name]
    pipe = tiny.build()
    labels = type(pipe).__name__, type(pipe.scheduler).__name__
    try:
        profile = profile_of(tiny, pipe)
    except HostError as error:
        return Verdict(*labels, None, None, None, None, f"refused: {str(error).split(': ', 1)[1]}")
    untouched = run(tiny, pipe)
    with applied(pipe, Plan.full(profile.times)):
        full = run(tiny, pipe)
    plan = make_plan(profile, evaluations=EVALUATIONS)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        skipping = run(tiny, pipe)
    with recorded(pipe) as velocities:
        run(tiny, pipe)
    with applied(pipe, plan), fed(velocities) as skipped:
        reproduced = run(tiny, pipe)
    reuse = Plan(rule="reuse", times=plan.times, anchors=plan.anchors, breaks=plan.breaks)
    with frozen(pipe, tiny.denoisers):
        constant = run(tiny, pipe, **STILL.get(name, {}))
        with applied(pipe, reuse):
            reused = run(tiny, pipe, **STILL.get(name, {}))
    schedulers = len(velocities)
    return Verdict(
        *labels,
        bit_identical=torch.equal(full, untouched),
        as_planned=len(calls) == EVALUATIONS * tiny.calls_per_step
        and len(skipped) == schedulers * (STEPS - EVALUATIONS)
        and not torch.equal(skipping, untouched),
        reproduced=torch.equal(reproduced, untouched),
        frozen=torch.allclose(reused, constant, rtol=0, atol=1e-6 * float(constant.abs().max()))
        and not torch.equal(constant, untouched),
        note=NOTES.get(name, ""),
    )


def page() -> str:
    """The whole page, from new runs."""
    return INTRODUCTION + "".join(verdict(name).row() for name in PIPELINES)


# One test a family, so that its runs are made once, whichever process it lands on.
@pytest.mark.parametrize("name", [*SUPPORTED, *MODULAR])
def test_the_pipeline_follows_plans_exactly(name):
    seen = verdict(name)
    assert seen.bit_identical, "a plan that evaluates every step changed the output"
    assert seen.as_planned, "the denoiser was not called once an anchor and pass"
    assert seen.reproduced, "the full run's velocities at skipped steps gave another output"
    assert seen.frozen, "something beside the denoiser differs under a plan"
    assert seen.row() in PAGE.read_text(encoding="utf-8")


REASONS = {
    "sana-sprint": "SanaSprintPipeline .* consistency sampler: every step draws new noise",
    "sdxl": "EulerDiscreteScheduler cannot carry a plan: it does not sample a flow",
    "skyreels-v2-df": "SkyReelsV2DiffusionForcingPipeline .* a timestep of its own",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_accelerated_is_refused_with_the_reason(name):
    pipe = PIPELINES[name].build()
    before = pipe.scheduler
    with counted(pipe, PIPELINES[name].denoisers) as calls:
        with pytest.raises(HostError, match=REASONS[name]):
            apply(pipe, Plan.full([1.0, 0.5, 0.0]))
        with pytest.raises(HostError, match=REASONS[name]):
            calibrate(pipe, ["a fox"], num_inference_steps=2)
    assert pipe.scheduler is before
    assert not calls
    assert verdict(name).row() in PAGE.read_text(encoding="utf-8")


def test_the_page_has_nothing_else():
    found = PAGE.read_text(encoding="utf-8")
    assert found.startswith(INTRODUCTION)
    assert len(found.removeprefix(INTRODUCTION).splitlines()) == len(PIPELINES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
