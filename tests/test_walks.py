"""How many modules of the library work passes on its four ways (docs/reference/architecture.md).

A module counts where a function of it runs and it stands above the ground. What a module does when
it is imported does not count.
"""

import re
from pathlib import Path

import pytest
import torch
from tests.diffusers_support import call_of
from tests.test_imports import RANK, rank_of, walked
from tests.tiny import PIPELINES

import tacache
from tacache.diffusers import applied, fit_plan

FLUX = PIPELINES["flux"]
TIMES = tacache.time_grid(12)
PLAN = tacache.instant_plan(TIMES, 4)
# The modules that each walk passes today. The goals are 6, 12, 20 and 24: a fit on a pipeline holds
# its calls open by a room of its own, and a server starts within its walk. Both of them pass
# `fitting.quality_goal`, where it is seen whether a quality is asked for; and every walk with a
# pipeline passes `diffusers.joint`, where it is seen whether it steps several latents. A request
# passes `serving.finish_times` where a batch was measured before its end is estimated.
SAMPLE, PICTURE, FITTED, REQUEST = 2, 12, 33, 36


PAGE = (Path(__file__).parent.parent / "docs/reference/architecture.md").read_text("utf-8")
ELSEWHERE = {"serving.replicas", "cli.generate_command", "cli.named_models"}  # other ways to go


def named_by(walk: str) -> set[str]:
    """Return the modules above the ground that the numbered list of a walk names."""
    section = PAGE.split(f"### {walk}")[1].split("\n## ")[0].split("\n### ")[0]
    steps = "\n".join(re.findall(r"^\d\. .*(?:\n   .*)*", section, flags=re.MULTILINE))
    names = re.findall(r"`((?:[a-z_]+/)*[a-z_]+)\.py`", steps)
    modules = {name.replace("/", ".") for name in names} - ELSEWHERE
    return {module for module in modules if rank_of(module) > RANK["errors"]}


def passed_by(work) -> list[str]:
    """Return the modules above the ground whose functions run while this work is done."""
    work()  # what is done once, such as importing, is no part of the walk
    with walked() as passed:
        work()
    return sorted(module for module in passed if rank_of(module) > RANK["errors"])


def test_from_a_velocity_to_a_sample():
    noise = torch.ones(1, 2, dtype=torch.float64)
    modules = passed_by(lambda: tacache.sample(lambda x, t: x * t, noise, PLAN))
    assert {"stepper", "plan"} <= set(modules)
    assert len(modules) <= SAMPLE, ", ".join(modules)


@pytest.mark.slow
def test_from_a_pipeline_and_a_plan_to_a_picture():
    pipe, call = FLUX.build(), call_of(FLUX)
    with applied(pipe, PLAN):
        pipe(**call)
        plan = pipe.scheduler.run_plan  # for the grid of this call

    def draw() -> None:
        with applied(pipe, plan):
            pipe(**call)

    modules = passed_by(draw)
    assert named_by("1. A plan generates") <= set(modules)
    assert len(modules) <= PICTURE, ", ".join(modules)


@pytest.mark.slow
def test_from_a_pipeline_to_a_fitted_plan():
    pipe, call = FLUX.build(), {**FLUX.call(), "num_inference_steps": 8}
    call.pop("prompt")
    prompts = ["a fox", "two birds", "a bridge", "a bowl"]
    modules = passed_by(lambda: fit_plan(pipe, prompts, evaluations=4, **call))
    assert {"hosts.held_runs", "fitting", "fitting.weights"} <= set(modules)
    assert len(modules) <= FITTED, ", ".join(modules)


@pytest.mark.slow
def test_from_a_request_to_a_picture():
    pytest.importorskip("fastapi")
    from tests.serving.support import CALL, GENERATIONS, served, tiny_flux

    from tacache.serving.app import make_app
    from tacache.serving.worker import Worker

    pipe, answers = tiny_flux(), []
    request = {"prompt": "a fox", "seed": 1, "size": "32x32", "speedup": 2}

    def ask() -> None:
        # The server starts within the walk, as threads that run before are not seen.
        with served(make_app(Worker(pipe, CALL), "tiny")) as client:
            answers.append(client.post(GENERATIONS, request))

    modules = passed_by(ask)
    assert all(len(answer.pictures()) == 1 for answer in answers)
    assert named_by("4. A request becomes a picture") <= set(modules)
    assert len(modules) <= REQUEST, ", ".join(modules)
