"""Every family of pipelines under a plan; writes docs/reference/pipelines.md.

`python -m tests.diffusers.test_pipelines` writes the page again from new runs.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from tests.diffusers_support import counted, fed, profile_of, recorded, run
from tests.tiny import FURTHER, PIPELINES
from tests.tiny.counting import frozen
from tests.tiny.flow_classes import flow_classes, named_schedulers
from tests.tiny.untried import UNTRIED
from torch import Tensor

from tacache import HostError, Plan, Profile, instant_plan, make_plan
from tacache.diffusers import applied, apply, calibrate
from tacache.diffusers.applying import plain_scheduler
from tacache.diffusers.joint import further_schedulers
from tacache.diffusers.stepping import run_times
from tacache.plan import LatentPlan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "pipelines.md"
EVERY = PIPELINES | FURTHER
STEPS, EVALUATIONS = 8, 4
INTRODUCTION = f"""\
# Pipelines

Every pipeline below was run with tiny random weights on the CPU, {STEPS} steps of which a plan
evaluates {EVALUATIONS}. Under a plan that evaluates every step, its output is that of the untouched
pipeline, bit for bit. Under the skipping plan it calls its denoiser as often as planned. With
the full run's velocities put in at the skipped steps it ends where the full run ends, bit for bit.
A frozen denoiser gives the same output at every call. With it, a plan that reuses velocities ends
where the full run ends, up to rounding. It would not if the pipeline counted anything else in its
loop. Modular pipelines are run from text alone.
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
    "ChromaInpaintPipeline": "with `guidance_embeds` in its transformer's configuration, which its "
    "call reads",
    "EasyAnimateControlPipeline": "with embeddings in place of its encoder, to which its call "
    "gives an argument that it does not take",
    "z-image": "an anchor where `cfg_truncation` ends the guidance",
}
UNTRIED_HEADING = """
## Not tried

These classes sample a flow as well. They need what the tests do without.

| pipeline | scheduler | needs |
|---|---|---|
"""
QWEN = "pipelines.qwenimage.pipeline_qwenimage_edit"
ENLARGING = {  # functions that compute a size of about a megapixel, and what they return instead
    f"{QWEN}.calculate_dimensions": (256, 256, None),
    "pipelines.longcat_image.pipeline_longcat_image_edit.calculate_dimensions": (64, 64),
    f"{QWEN}_inpaint.calculate_dimensions": (256, 256, None),
    f"{QWEN}_plus.calculate_dimensions": (256, 256),
    "pipelines.qwenimage.pipeline_qwenimage_layered.calculate_dimensions": (128, 128),
    "modular_pipelines.qwenimage.encoders.calculate_dimensions": (256, 256, None),
    "pipelines.joyimage.image_processor.find_best_bucket": (64, 64),
}
# What makes velocities of constant outputs constant: LTX2 rescales its guidance in pictures.
# Models that are told where a step ends, which is another level under a plan.
FLOW_MAPS = (
    "AnyFlowFARPipeline",
    "AnyFlowPipeline",
    "Flux3DistilledModularPipeline",
)
NOTES |= dict.fromkeys(
    FLOW_MAPS, "told where each step ends: under a plan another one, as a warning says"
)
UNSCALED = {"guidance_rescale": 0.0, "audio_guidance_rescale": 0.0}
STILL = dict.fromkeys(
    ("ltx2", "LTX2ConditionPipeline", "LTX2InContextPipeline", "LTX2ImageToVideoPipeline"), UNSCALED
)
UNMEASURED = {  # a calibration stops, so the plan is an instant one
    "Kandinsky6SRPipeline": "its call cannot give latents",
    "LTX2DFRPipeline": "its call takes noise levels and no number of steps",
    "LTX2HDRPipeline": "its sound stands still",
    "QwenImageLayeredPipeline": "its call cannot give latents",
}
AT_ONCE = "skipped steps are made at once, so the full run is reproduced up to rounding"
NOTES |= {
    name: f"not calibrated: {reason}; by an instant plan, whose {AT_ONCE}"
    for name, reason in UNMEASURED.items()
} | {
    "MiniMaxH3ModularPipeline": "pictures and sound, each on a grid of its own, by a plan with an "
    f"entry for each, whose {AT_ONCE}",
}


EDM = "it does not sample a flow"  # noise levels that begin at 80, or predicted noise
STAGES = "its run has 3 stages, each on a grid of its own"
REASONS = {
    "HeliosPyramidPipeline": STAGES,
    "HeliosPyramidModularPipeline": STAGES,
    "HeliosPyramidDistilledModularPipeline": STAGES,
    "PixArtAlphaPipeline": EDM,
    "EchoModularPipeline": "has no scheduler",
    "LTX2VideoDiffusionDecodePipeline": "its decoder makes its steps by itself",
    "RFD4ProteinaPipeline": "its steps draw noise",
    "SanaWMLTX2Refiner": "steps anew from those that it sees",
    "LTX2DFRTemporalRefinePipeline": "draws new noise at each step",
    "LTXI2VLongMultiPromptPipeline": "its loop leaves the last timestep out",
    "Cosmos2TextToImagePipeline": EDM,
    "Cosmos2VideoToWorldPipeline": EDM,
    "SanaSprintImg2ImgPipeline": "consistency sampler: every step draws new noise",
    "SkyReelsV2DiffusionForcingImageToVideoPipeline": "a timestep of its own",
    "SkyReelsV2DiffusionForcingVideoToVideoPipeline": "a timestep of its own",
    "VisualClozePipeline": "its inner pipelines hold the scheduler",
    "sana-sprint": "SanaSprintPipeline .* consistency sampler: every step draws new noise",
    "sdxl": "EulerDiscreteScheduler cannot carry a plan: it does not sample a flow",
    "skyreels-v2-df": "SkyReelsV2DiffusionForcingPipeline .* a timestep of its own",
}


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


def in_miniature() -> ExitStack:
    """Have pictures encoded small that editing pipelines enlarge, and nothing compiled."""
    stack = ExitStack()
    stack.enter_context(torch.compiler.set_stance("force_eager"))  # masks of WanAnimate2: 20 s
    for function, size in ENLARGING.items():
        stack.enter_context(mock.patch(f"diffusers.{function}", mock.Mock(return_value=size)))
    return stack


@functools.cache
def verdict(name: str) -> Verdict:
    """Run a family untouched, under the full plan, under a skipping plan, and fed."""
    with in_miniature():
        return _verdict(name)


def _verdict(name: str) -> Verdict:
    tiny = EVERY[name]
    pipe = tiny.build()
    scheduler = getattr(pipe, "scheduler", None)
    labels = type(pipe).__name__, "" if scheduler is None else type(scheduler).__name__
    try:
        plain_scheduler(pipe)
    except HostError as error:
        return Verdict(*labels, None, None, None, None, f"refused: {str(error).split(': ', 1)[-1]}")
    steps = {"num_inference_steps": STEPS} if tiny.takes_steps else {}
    untouched = run(tiny, pipe, **steps)
    if name in UNMEASURED:
        plan = instant_plan(run_times(pipe.scheduler), EVALUATIONS)
    else:
        plan = skipping_plan(pipe, profile_of(tiny, pipe, **steps))
    with applied(pipe, Plan.full(plan.times)):
        full = run(tiny, pipe, **steps)
    with applied(pipe, plan), counted(pipe, tiny.denoisers) as calls:
        skipping = run(tiny, pipe, **steps)
    with recorded(pipe) as velocities:
        run(tiny, pipe, **steps)
    with applied(pipe, plan), fed(velocities) as skipped:
        reproduced = run(tiny, pipe, **steps)
    with frozen(pipe, tiny.denoisers):
        constant = run(tiny, pipe, **steps, **STILL.get(name, {}))
        with applied(pipe, reusing(plan)):
            reused = run(tiny, pipe, **steps, **STILL.get(name, {}))
    schedulers, made = len(velocities), sum(map(len, velocities.values()))
    return Verdict(
        *labels,
        bit_identical=torch.equal(full, untouched),
        as_planned=len(calls) == EVALUATIONS * tiny.calls_per_step + tiny.calls_before
        and len(skipped) == made - schedulers * EVALUATIONS
        and not torch.equal(skipping, untouched),
        reproduced=None
        if name in FLOW_MAPS
        else torch.equal(reproduced, untouched)
        or (plan.weights is not None and nearly(reproduced, untouched)),
        frozen=nearly(reused, constant) and not torch.equal(constant, untouched),
        note=NOTES.get(name, ""),
    )


def skipping_plan(pipe: Any, profile: Profile) -> Plan:
    """A plan by the profile; by the grids of all latents where a latent has one of its own."""
    grids = {latent: run_times(part) for latent, part in further_schedulers(pipe).items()}
    if grids:
        return instant_plan(profile.times, EVALUATIONS, latents=grids)
    return make_plan(profile, evaluations=EVALUATIONS)


def nearly(found: Tensor, expected: Tensor) -> bool:
    """Whether two outputs are equal up to rounding."""
    return torch.allclose(found, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def reusing(plan: Plan) -> Plan:
    """A plan with the same anchors that takes each velocity from the last of them."""
    if plan.latents is None:
        return Plan(rule="reuse", times=plan.times, anchors=plan.anchors, breaks=plan.breaks)
    weights = ((1.0,),) * len(plan.anchors)
    latents = {
        name: LatentPlan(times=own.times, weights=weights) for name, own in plan.latents.items()
    }
    return Plan(
        rule="fitted", times=plan.times, anchors=plan.anchors, weights=weights, latents=latents
    )


def page() -> str:
    """The whole page, from new runs."""
    return INTRODUCTION + "".join(verdict(name).row() for name in EVERY) + untried()


def untried() -> str:
    """What the page says of classes that have no tiny configuration."""
    rows = [
        f"| {name} | {', '.join(named_schedulers(flow_classes()[name]))} | {need} |\n"
        for name, need in UNTRIED.items()
    ]
    return UNTRIED_HEADING + "".join(rows)


# One test a family, so that its runs are made once, whichever process it lands on.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EVERY if name not in REASONS])
def test_the_pipeline_follows_plans_exactly(name):
    seen = verdict(name)
    assert seen.bit_identical, "a plan that evaluates every step changed the output"
    assert seen.as_planned, "the denoiser was not called once an anchor and pass"
    assert seen.reproduced is not False, "velocities of the full run gave another output"
    assert seen.frozen, "something beside the denoiser differs under a plan"
    assert seen.row() in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_accelerated_is_refused_with_the_reason(name):
    pipe = EVERY[name].build()
    before = getattr(pipe, "scheduler", None)
    denoisers = [part for part in EVERY[name].denoisers if getattr(pipe, part, None) is not None]
    with counted(pipe, tuple(denoisers)) as calls:
        with pytest.raises(HostError, match=REASONS[name]):
            apply(pipe, Plan.full([1.0, 0.5, 0.0]))
        with pytest.raises(HostError, match=REASONS[name]):
            calibrate(pipe, ["a fox"], num_inference_steps=2)
    assert getattr(pipe, "scheduler", None) is before
    assert not calls
    assert verdict(name).row() in PAGE.read_text(encoding="utf-8")


def tried() -> dict[str, bool]:
    """The classes in the page's first table, and whether a plan is followed there."""
    rows = PAGE.read_text(encoding="utf-8").removeprefix(INTRODUCTION).split("\n\n")[0]
    return {row.split(" | ")[0].strip("| "): "refused: " not in row for row in rows.splitlines()}


def test_the_page_has_nothing_else():
    found = PAGE.read_text(encoding="utf-8")
    assert found.startswith(INTRODUCTION)
    assert found.endswith(untried())
    rows = found.removeprefix(INTRODUCTION).removesuffix(untried())
    assert len(rows.splitlines()) == len(EVERY)


def test_every_flow_pipeline_of_diffusers_is_in_the_table():
    assert not set(tried()) & set(UNTRIED), "tried, and listed as not tried"
    missing = set(flow_classes()) - set(tried()) - set(UNTRIED)
    assert not missing, f"not in the table: {sorted(missing)}"
    assert set(UNTRIED) <= set(flow_classes()), "no such class in this diffusers"


def test_readme_says_how_many_pipelines_follow_plans():
    number = sum(tried().values())
    assert f"[{number} pipelines of diffusers]" in (ROOT / "README.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
