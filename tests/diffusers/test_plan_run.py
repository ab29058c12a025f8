"""A run that ends before its plan does is said, wherever that can be noticed."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch
from diffusers.pipelines.stable_diffusion_3 import pipeline_stable_diffusion_3
from tests.diffusers_support import STEPS, run
from tests.tiny import PIPELINES

from tacache import HostError, Plan
from tacache.diffusers import accelerate, applied, apply, fit_plan, remove
from tacache.diffusers.applying import check_finished
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.schedulers import PlanSchedulerMixin
from tacache.diffusers.stepping import run_times
from tacache.hosts import Request, generate
from tacache.prompts import Sample

SD3 = PIPELINES["sd3"]
ANCHORS = (0, 1, 5, 9)


class Short(diffusers.StableDiffusion3Pipeline):
    """Loops that do not end where the grid does."""

    def __call__(
        self,
        left_out: int = 0,
        twice: bool = False,
        by_hand: bool = False,
        after: bool = False,
        within: Any = None,
    ) -> Any:
        """Leave timesteps out, prepare the run twice or once more, or integrate by hand.

        `within` is called after each step.
        """
        self.scheduler.set_timesteps(STEPS)
        if twice:
            self.scheduler.set_timesteps(STEPS)
        x, sigmas = torch.ones(1, 4, 4, 4), self.scheduler.sigmas
        timesteps = self.scheduler.timesteps
        for i, t in enumerate(timesteps[: len(timesteps) - left_out]):
            v = torch.sin(x)
            if by_hand:
                x = x + (sigmas[i + 1] - sigmas[i]) * v
            else:
                x = self.scheduler.step(v, t, x, return_dict=False)[0]
            if within is not None:
                within()
        if after:
            self.scheduler.set_timesteps(STEPS)
        return x


@pytest.fixture(scope="module")
def pipe() -> Any:
    return Short(**SD3.build().components)


@pytest.fixture(scope="module")
def plan(pipe) -> Plan:
    pipe.scheduler.set_timesteps(STEPS)
    return Plan(rule="reuse", times=run_times(pipe.scheduler), anchors=ANCHORS)


def said(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("tacache")]


def test_a_finished_run_is_silent(pipe, plan, caplog):
    with applied(pipe, plan):
        pipe()
        check_finished(pipe)
        pipe()
    assert not said(caplog)


def test_on_leaving_applied(pipe, plan, caplog):
    with applied(pipe, plan):
        pipe(left_out=1)
    (message,) = said(caplog)
    assert f"step {ANCHORS[-1]} of {STEPS}" in message
    assert f"{plan.times[ANCHORS[-1]]:.4g} in place of 0" in message


def test_at_the_next_run_and_once_only(pipe, plan, caplog):
    with applied(pipe, plan):
        pipe(left_out=1)
        assert not said(caplog)
        pipe()
        assert len(said(caplog)) == 1
    assert len(said(caplog)) == 1


def test_at_remove(pipe, plan, caplog):
    apply(pipe, plan)
    pipe(left_out=2)
    remove(pipe)
    (message,) = said(caplog)
    assert "unfinished" in message
    remove(pipe)
    assert len(said(caplog)) == 1


def test_in_a_call_of_our_own_it_is_an_error(pipe, plan):
    with applied(pipe, plan):
        pipe(left_out=1)
        with pytest.raises(HostError, match=r"Short: .* unfinished"):
            check_finished(pipe)
    check_finished(pipe)


def leave_last_out(monkeypatch: Any, planned: bool) -> None:
    """Make SD3 loop over `timesteps[:-1]`; with `planned`, only where it follows a plan."""
    prepare = pipeline_stable_diffusion_3.retrieve_timesteps

    def shorter(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        timesteps, steps = prepare(scheduler, *args, **kwargs)
        whole = planned and not isinstance(scheduler, PlanSchedulerMixin)
        return (timesteps if whole else timesteps[:-1]), steps

    monkeypatch.setattr(pipeline_stable_diffusion_3, "retrieve_timesteps", shorter)


def test_generate_writes_no_unfinished_picture(plan, tmp_path, monkeypatch):
    pipe, call = SD3.build(), {**SD3.call(), "num_inference_steps": STEPS}
    before, prompt = pipe.scheduler, call.pop("prompt")
    leave_last_out(monkeypatch, planned=False)
    request = Request(plan, call)
    with pytest.raises(HostError, match=r"StableDiffusion3Pipeline: .* unfinished"):
        generate(PipelineHost(pipe), Sample(prompt, 0), request, tmp_path / "x")
    assert not any(tmp_path.iterdir())
    assert pipe.scheduler is before


def test_no_certificate_is_of_an_unfinished_run(monkeypatch):
    pipe, call = SD3.build(), {**SD3.call(), "num_inference_steps": STEPS}
    call.pop("prompt")
    leave_last_out(monkeypatch, planned=True)
    with pytest.raises(HostError, match=r"'a fox' .*unfinished"):
        fit_plan(pipe, ["a fox", "a boat"], evaluations=4, search=False, **call)


def test_a_fit_needs_a_loop_over_all_timesteps(monkeypatch):
    pipe, call = SD3.build(), {**SD3.call(), "num_inference_steps": STEPS}
    call.pop("prompt")
    leave_last_out(monkeypatch, planned=False)
    with pytest.raises(HostError, match=f"{STEPS - 1} steps, this run has {STEPS}"):
        fit_plan(pipe, ["a fox", "a boat"], evaluations=4, search=False, **call)


def test_an_integration_by_hand_is_said(pipe, plan, caplog):
    with applied(pipe, plan):
        pipe(by_hand=True)
        assert not said(caplog)
        pipe(by_hand=True)
        assert len(said(caplog)) == 1
    assert len(said(caplog)) == 2
    assert all("no step was made" in message for message in said(caplog))


def test_preparing_twice_in_a_call_is_nothing(pipe, plan, caplog):
    with applied(pipe, plan):
        pipe(twice=True)
        pipe(twice=True)
    assert not said(caplog)


def test_preparing_once_more_at_the_end_is_nothing(pipe, plan, caplog):
    """WanAnimate does so after each of its parts, the last one too."""
    with applied(pipe, plan):
        pipe(after=True)
        pipe(after=True)
        check_finished(pipe)
    assert not said(caplog)


@pytest.mark.parametrize("chosen", [False, True])
def test_a_call_within_a_call_is_refused(pipe, plan, chosen):
    before = pipe.scheduler
    accelerate(pipe, speedup=1) if chosen else apply(pipe, plan)
    inner = [pipe]
    try:
        with pytest.raises(HostError, match="another call of this pipeline was made within it"):
            pipe(within=lambda: inner.pop()() if inner else None)
    finally:
        remove(pipe)
    assert pipe.scheduler is before


@pytest.mark.parametrize("chosen", [False, True])
def test_a_scheduler_replaced_by_hand_is_said(pipe, plan, caplog, chosen):
    before = pipe.scheduler
    for _ in range(2):  # what is put in and taken out by our own verbs is not
        accelerate(pipe)
        apply(pipe, plan)
        with applied(pipe, plan):
            pass
        remove(pipe)
    assert not said(caplog)
    accelerate(pipe) if chosen else apply(pipe, plan)
    pipe.scheduler = type(before).from_config(pipe.scheduler.config)
    assert "was replaced by another" in said(caplog)[-1]
    pipe.scheduler = before


def test_an_error_says_enough(pipe, plan, caplog):
    with pytest.raises(TypeError), applied(pipe, plan):  # noqa: PT012 - the run and the error
        pipe(left_out=1)
        pipe(unknown=1)
    assert not said(caplog)


@pytest.mark.slow
def test_a_pipeline_of_diffusers_ends_where_its_plan_does(caplog):
    pipe = SD3.build()
    pipe.scheduler.set_timesteps(STEPS)
    with applied(pipe, Plan(rule="reuse", times=run_times(pipe.scheduler), anchors=ANCHORS)):
        run(SD3, pipe)
        run(SD3, pipe)
    assert not said(caplog)


# --- pipelines that cannot follow a plan ------------------------------------------------------

REFUSED = {
    "LTXI2VLongMultiPromptPipeline": "leaves the last timestep out",
    "VisualClozePipeline": "inner pipelines",
    "SanaSprintPipeline": "consistency sampler",
    "SanaSprintImg2ImgPipeline": "consistency sampler",
    "SkyReelsV2DiffusionForcingPipeline": "a timestep of its own",
    "SkyReelsV2DiffusionForcingImageToVideoPipeline": "a timestep of its own",
}


@pytest.mark.parametrize("name", REFUSED)
def test_subclasses_are_refused_too(name, plan):
    kind = getattr(diffusers, name)
    derived = type("Mine", (kind,), {})
    for one in (kind, derived):
        with pytest.raises(HostError, match=REFUSED[name]):
            apply(one.__new__(one), plan)
