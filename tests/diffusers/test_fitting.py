"""Plans fitted to pipelines: held calls in lock-step, their certificate and their failures."""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import comb
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.diffusers_support import call_of, counted, in_two_processes
from tests.tiny import PIPELINES

import tacache
from tacache import HostError, Plan, PlanError, TACacheError, hosts
from tacache.diffusers import applied, apply, drive, fit_plan
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.plan_run import PlanRun
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.full_runs import retraced
from tacache.fitting.lockstep import Problem, lock_step
from tacache.fitting.reference import record
from tacache.fitting.refine import with_weights
from tacache.hosts.held_runs import HostSamples, hold
from tacache.prompts import samples_of
from tacache.work.processes import ALONE

FLUX = PIPELINES["flux"]
PROMPTS = ["a red fox in the snow", "two blue birds", "an old stone bridge", "a bowl of soup"]
STEPS, BUDGET = 8, 4
PROBES = 7 + 6 + 4 + 2  # from steps 1, 2, 4 and 6 to the end
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers")


def call_for(tiny: Any = FLUX, **changes: Any) -> dict[str, Any]:
    call = tiny.call() | {"num_inference_steps": STEPS, "evaluations": BUDGET} | changes
    call.pop("prompt", None)
    return call


def pictures(tiny: Any, pipe: Any, prompt: str, seed: int = 0, **changes: Any) -> np.ndarray:
    call = call_for(tiny, **changes) | {"prompt": prompt, "output_type": "np"}
    call.pop("evaluations")
    return np.asarray(pipe(**call, generator=torch.Generator().manual_seed(seed))[0])


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, evaluation: int) -> Iterator[None]:
    """Expect that a fit, which keeps its runs every three steps, is killed at an evaluation."""
    evaluate_one, steps = HostSamples._one, []

    def dying(self: Any, k: int, x: Any, step: int) -> Any:
        steps.append(step)
        if len(steps) == evaluation:
            raise KeyboardInterrupt
        return evaluate_one(self, k, x, step)

    monkeypatch.setattr("tacache.fitting.full_runs.KEEP_EVERY", 3)
    with monkeypatch.context() as patch:
        patch.setattr(HostSamples, "_one", dying)
        with pytest.raises(KeyboardInterrupt):
            yield


def decibels(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((a.astype(np.float64) - b) ** 2)))


@pytest.fixture
def flux() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return fit_plan(FLUX.build(), PROMPTS, search=False, **call_for())


@pytest.fixture(scope="module")
def multistep_plan() -> Plan:
    tiny = PIPELINES["wan"]
    call = call_for(tiny, output_type="latent")
    return fit_plan(tiny.build(), PROMPTS[:2], search=False, **call)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not [t for t in threading.enumerate() if t.name.startswith("driven")]


# --- what is fitted ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "sd3", "wan-euler", "wan", "sana", "wan-2.2"])
def test_the_plan_applies_and_its_certificate_is_what_one_measures(name, caplog):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    before = pipe.scheduler
    full = pictures(tiny, pipe, PROMPTS[0])
    with drive(pipe, **call_of(tiny, num_inference_steps=STEPS)):
        pass  # the first held call of a kind makes one evaluation more, to check itself
    with counted(pipe, tiny.denoisers) as calls:
        found = fit_plan(pipe, PROMPTS[:2], search=False, **call_for(tiny))
    assert pipe.scheduler is before
    assert found.rule == "fitted"
    assert found.evaluations == BUDGET
    certificate = found.certificate
    assert certificate.held_out == 1
    least = 2 * (STEPS + BUDGET) + 2 * PROBES + BUDGET  # the last to measure the PSNR
    tries, rest = divmod(certificate.evaluations_spent - least, 2 * BUDGET)
    assert tries >= 0
    assert rest == 0
    assert len(calls) == certificate.evaluations_spent * tiny.calls_per_step
    with applied(pipe, found):
        made = pictures(tiny, pipe, PROMPTS[0])
    assert certificate.psnr == pytest.approx(decibels(full, made), abs=0.01)
    assert found.origin.pipeline == type(pipe).__name__
    assert found.origin.scheduler == type(before).__name__
    assert found.origin.prompts_sha256 is not None
    ours = [r for r in caplog.records if r.name == "tacache.diffusers"]
    assert not [r for r in ours if r.levelno >= logging.WARNING]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan-euler", "z-image"])
def test_in_half_precision_the_certificate_is_that_of_the_pipelines_own_steps(name):
    tiny = PIPELINES[name]
    pipe = tiny.build().to(dtype=torch.bfloat16)
    call = call_for(tiny, output_type="latent")
    found = fit_plan(pipe, PROMPTS[:2], search=False, **call)

    def drawn() -> torch.Tensor:
        options = call_of(tiny, prompt=PROMPTS[0], num_inference_steps=STEPS)
        return tiny.output(pipe(**options)).double()

    full = drawn()
    with applied(pipe, found):
        drift = float((drawn() - full).norm() / full.norm())
    assert found.certificate.drift == pytest.approx(drift, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan-euler"])
def test_an_interval_is_one_step_of_the_parent(name, monkeypatch):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    found = fit_plan(pipe, PROMPTS[:2], search=False, **call_for(tiny))
    steps: list[int] = []
    follow = PlanRun.step

    def watched(run: PlanRun, scheduler: Any, step: Any, *rest: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            steps.append(run.stepper.step)
            return step(*args, **kwargs)

        return follow(run, scheduler, noted, *rest)

    monkeypatch.setattr(PlanRun, "step", watched)
    with applied(pipe, found):
        pictures(tiny, pipe, PROMPTS[0])
    assert len(steps) == BUDGET


@pytest.mark.slow
def test_it_is_the_fit_of_its_velocity_functions(flux):
    """The same samples through `tacache.fit_plan`, each call held and evaluated by hand."""
    found = fit_plan(flux, PROMPTS[:2], search=False, **call_for())
    call = call_for()
    call.pop("evaluations")
    arguments = [call | {"prompt": text, "output_type": "np"} for text in PROMPTS[:2]]
    opened = [drive(flux, **one, generator=torch.Generator().manual_seed(0)) for one in arguments]
    runs = [one.__enter__() for one in opened]
    try:
        noise = torch.stack([run.noise for run in runs])

        def velocity(x, t, which):
            states = zip(which.tolist(), x, strict=True)
            return torch.stack([runs[k].evaluate_at(state, t) for k, state in states])

        condition = {"which": torch.arange(2)}
        other = tacache.fit_plan(
            velocity,
            noise,
            runs[0].times,
            evaluations=BUDGET,
            search=False,
            condition=condition,
        )
    finally:
        for one in opened:
            one.__exit__(None, None, None)
    assert other.times == found.times
    assert other.anchors == found.anchors
    assert other.weights == found.weights
    assert other.certificate.drift == found.certificate.drift


@pytest.mark.slow
def test_several_budgets_share_their_full_runs(flux, plan):
    options, call = FitOptions.split(call_for(evaluations=[3, BUDGET], search=False))
    with counted(flux, FLUX.denoisers) as calls:
        found = hosts.fit_plans(PipelineHost(flux), PROMPTS, call=call, options=options)
    assert [one.evaluations for one in found] == [3, BUDGET]
    assert found[1] == plan
    spent = [one.certificate.evaluations_spent for one in found]
    assert len(calls) == sum(spent) - 4 * STEPS - 4 * PROBES
    least = 4 * (STEPS + 3) + 4 * PROBES + 3
    assert spent[0] in range(least, 1500, 4 * 3)  # other powers are other anchors, for each sample


@pytest.mark.slow
def test_a_search_stays_within_its_limit(flux):
    least = 4 * (STEPS + BUDGET) + 4 * PROBES + BUDGET
    for most in (least, least + 12, least + 36, least + 100):  # a start takes 16
        with counted(flux, FLUX.denoisers) as calls:
            found = fit_plan(flux, PROMPTS, **call_for(max_evaluations=most))
        assert len(calls) == found.certificate.evaluations_spent <= most
    with pytest.raises(PlanError, match=rf"max_evaluations={least - 1} is too few"):
        fit_plan(flux, PROMPTS, **call_for(max_evaluations=least - 1))


@pytest.mark.slow
def test_seeds_are_samples(flux):
    found = fit_plan(flux, PROMPTS[:1], seeds=[0, 1, 2], search=False, **call_for())
    assert found.samples == 2
    assert found.certificate.held_out == 1


@pytest.mark.slow
def test_latents_have_no_psnr(flux):
    found = fit_plan(flux, PROMPTS, search=False, **call_for(output_type="latent"))
    assert found.certificate.psnr is None
    sets = comb(STEPS - 1, BUDGET - 1)  # of few steps, all sets of anchors are tried
    assert found.certificate.evaluations_spent == 4 * (STEPS + PROBES + sets * BUDGET)


@pytest.mark.slow
def test_a_plan_that_is_applied_meanwhile_changes_nothing(flux, plan):
    apply(flux, plan)
    carrier = flux.scheduler
    assert fit_plan(flux, PROMPTS, search=False, **call_for()) == plan
    assert flux.scheduler is carrier


@pytest.mark.slow
def test_the_pipeline_is_as_before(flux):
    flux.set_progress_bar_config(disable=True, desc="mine")
    expected = pictures(FLUX, flux, PROMPTS[1])
    before = dict(flux.__dict__), copy.deepcopy(flux._progress_bar_config), dict(flux.config)
    fit_plan(flux, PROMPTS, search=False, **call_for())
    after = dict(flux.__dict__), flux._progress_bar_config, dict(flux.config)
    assert after[1:] == before[1:]
    assert after[0]["scheduler"] is before[0]["scheduler"]
    assert np.array_equal(pictures(FLUX, flux, PROMPTS[1]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan", "wan-2.2"])  # Euler, UniPC, two experts
def test_a_plan_for_the_flow_is_followed_as_its_certificate_says(name):
    """At times of its own, by Euler's steps on any solver; the pipeline is shown these alone."""
    tiny = PIPELINES[name]
    pipe, call = tiny.build(), call_for(tiny, evaluations=4, output_type="latent")
    found = fit_plan(pipe, PROMPTS[:2], target="flow", max_evaluations=400, **call)
    assert (found.evaluations, found.full_steps) == (4, STEPS)
    assert not set(found.times[1:-1]) <= set(found.full_times)
    assert found.breaks == ((0.875,) if name == "wan-2.2" else ())

    def latents() -> torch.Tensor:
        return tiny.output(pipe(**call_of(tiny, prompt=PROMPTS[0], num_inference_steps=STEPS)))

    full = latents()
    with applied(pipe, found), counted(pipe, tiny.denoisers) as calls:
        drift = (latents() - full).norm() / full.norm()
        assert pipe.scheduler.run_plan == found
    assert len(calls) == 4 * tiny.calls_per_step
    assert found.certificate.drift == pytest.approx(float(drift), rel=1e-3)


@pytest.mark.slow
def test_image_to_image_from_the_middle():
    tiny = PIPELINES["flux-img2img"]
    pipe = tiny.build()
    call = call_for(tiny, strength=0.6, evaluations=3)
    found = fit_plan(pipe, PROMPTS[:2], search=False, **call)
    assert found.steps < STEPS
    full = pictures(tiny, pipe, PROMPTS[0], strength=0.6)
    with applied(pipe, found, strength=0.6):
        made = pictures(tiny, pipe, PROMPTS[0], strength=1.0)
    assert found.certificate.psnr == pytest.approx(decibels(full, made), abs=0.01)


# --- multistep parents ------------------------------------------------------------------------


@contextmanager
def problem_on(name: str, **changes: Any) -> Iterator[Problem]:
    """Recorded runs of a tiny pipeline."""
    tiny = PIPELINES[name]
    call = call_for(tiny, **changes)
    call.pop("evaluations")
    host, samples = PipelineHost(tiny.build()), samples_of(PROMPTS)
    with torch.no_grad(), hold(host, samples, call, ALONE) as runs:
        yield Problem(runs, record(runs), 3, list(range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "sana"])
def test_the_full_run_is_the_parents_own(name):
    tiny = PIPELINES[name]
    call = call_for(tiny, output_type="latent") | {"prompt": PROMPTS[1]}
    call.pop("evaluations")
    expected = tiny.build()(**call, generator=torch.Generator().manual_seed(0))[0]
    with problem_on(name) as problem:
        assert torch.equal(problem.reference.states[-1][1], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "sana"])
def test_a_fit_that_goes_on_from_a_known_one_is_the_whole_fit(name):
    """The solver's history is made again up to there."""
    with problem_on(name) as problem:
        known = lock_step(problem, (0, 2, 4, 6))
        whole, part = (lock_step(problem, (0, 2, 5, 6), *extra) for extra in ((), (known, 1)))
        assert part.weights == whole.weights
        assert torch.equal(part.states[-1], whole.states[-1])
        again = with_weights(problem, whole.anchors, whole.weights, known, 1)
        assert torch.equal(again.states[-1], whole.states[-1])


@pytest.mark.slow
def test_a_walk_taken_up_midway_ends_as_the_full_run():
    """What probes start from: the solver with its history, in the middle of recorded steps."""
    with problem_on("wan") as problem:
        runs, states = problem.runs, problem.reference.states
        velocities = [runs.evaluate(states[n], n, range(4)) for n in range(4)]
        walk, x = retraced(runs, [1, 3], states, velocities), states[4][[1, 3]]
        for n in range(4, STEPS):
            x = walk.move(x, runs.evaluate(x, n, [1, 3]), n, n + 1)
        assert torch.equal(x, states[-1][[1, 3]])


@pytest.mark.slow
def test_the_drift_is_what_the_pipeline_makes():
    tiny = PIPELINES["wan"]
    pipe, call = tiny.build(), call_for(tiny)
    found = fit_plan(pipe, PROMPTS[:2], search=False, **call)
    call.pop("evaluations")
    call |= {"prompt": PROMPTS[0], "output_type": "latent"}

    def latents() -> torch.Tensor:
        return pipe(**call, generator=torch.Generator().manual_seed(0))[0]

    full = latents()
    with applied(pipe, found):
        drift = (latents() - full).norm() / full.norm()
    assert found.certificate.drift == pytest.approx(float(drift), rel=1e-3)


@pytest.mark.slow
def test_a_fit_to_the_parent_beats_one_to_euler():
    tiny = PIPELINES["wan"]
    changes = {"num_inference_steps": 12, "output_type": "latent"}
    own, eulers = (
        fit_plan(PIPELINES[name].build(), PROMPTS, search=False, **call_for(tiny, **changes))
        for name in ("wan", "wan-euler")
    )
    with problem_on("wan", num_inference_steps=12) as problem:
        drifts = [with_weights(problem, one.anchors, one.weights).drift for one in (own, eulers)]
    assert sum(drifts[0].values()) < 0.5 * sum(drifts[1].values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wan", "sana"])
def test_a_search_on_a_multistep_parent_stays_within_its_limit(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    with counted(pipe, tiny.denoisers) as calls:
        found = fit_plan(pipe, PROMPTS, **call_for(tiny, max_evaluations=260))
    assert len(calls) == found.certificate.evaluations_spent * tiny.calls_per_step
    assert found.certificate.evaluations_spent <= 260


@pytest.mark.slow
def test_a_killed_fit_on_a_multistep_parent_goes_on(tmp_path, monkeypatch):
    tiny, path = PIPELINES["wan"], tmp_path / "runs"
    pipe, call = tiny.build(), call_for(PIPELINES["wan"], output_type="latent")
    whole = fit_plan(pipe, PROMPTS[:2], search=False, **call)
    with killed_at(monkeypatch, 2 * 7):
        fit_plan(pipe, PROMPTS[:2], search=False, resume=path, **call)
    assert fit_plan(pipe, PROMPTS[:2], search=False, resume=path, **call) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s, None),
        (
            lambda s: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
            "fitted to the steps of UniPCMultistepScheduler, this pipeline has FlowMatchEuler",
        ),
        (
            lambda s: type(s).from_config(s.config, solver_order=3),
            "of UniPCMultistepScheduler, this pipeline has solver_order=3 for 2: expect another",
        ),
    ],
)
def test_another_solver_is_warned_of(multistep_plan, change, expected, caplog):
    pipe = PIPELINES["wan"].build()
    pipe.scheduler = change(pipe.scheduler)
    with caplog.at_level(logging.WARNING, logger="tacache.diffusers"):
        apply(pipe, multistep_plan)
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == (expected is not None)
    assert all(expected in message for message in found)


def test_the_name_of_a_solver_does_not_reach_the_log_raw(multistep_plan, caplog):
    host = multistep_plan.origin.model_copy(update={"scheduler": "\x1b[2JEuler"})
    apply(PIPELINES["wan"].build(), multistep_plan.model_copy(update={"origin": host}))
    (record,) = caplog.records
    assert r"the steps of \x1b[2JEuler, this" in record.getMessage()


# --- a mix of settings ------------------------------------------------------------------------


def mix(monkeypatch, name: str, *values: Any) -> None:
    """Let the prompts' calls take these values of an argument in turn."""
    opened = PipelineHost.open

    def mixed(self: Any, sample: Any, call: Any, times: Any = None) -> Any:
        value = values[PROMPTS.index(sample.prompt) % len(values)]
        return opened(self, sample, call | {name: value}, times)

    monkeypatch.setattr(PipelineHost, "open", mixed)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flux", r"has other noise levels than .* \(a dynamic shift follows the size\)"),
        ("sd3", r"has latents of shape .*: fit one size at a time"),
    ],
)
def test_sizes_are_not_mixed(name, message, monkeypatch):
    tiny = PIPELINES[name]
    call = call_for(tiny)
    height = call.pop("height")
    mix(monkeypatch, "height", height, 2 * height)
    with pytest.raises(HostError, match=rf"{PROMPTS[1]}.*{message}"):
        fit_plan(tiny.build(), PROMPTS, **call)


def test_parts_that_start_elsewhere_are_not_mixed(monkeypatch):
    tiny = PIPELINES["z-image"]
    mix(monkeypatch, "cfg_truncation", 0.5, 0.75)
    with pytest.raises(HostError, match="changes its expert or guidance at noise levels"):
        fit_plan(tiny.build(), PROMPTS[:2], **call_for(tiny))


# --- refusals and failures --------------------------------------------------------------------


FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (
            partial(diffusers.UniPCMultistepScheduler, thresholding=True, **FLOW),
            r"clips what it predicts \(thresholding=True\).*set thresholding=False, or make",
        ),
        (diffusers.FlowMatchHeunDiscreteScheduler, "evaluates the model 2 times a step"),
        (
            partial(diffusers.FlowMatchEulerDiscreteScheduler, stochastic_sampling=True),
            "draws new noise at each step",
        ),
        (
            partial(
                diffusers.DPMSolverMultistepScheduler, algorithm_type="sde-dpmsolver++", **FLOW
            ),
            "draws new noise at each step",
        ),
    ],
)
def test_solvers_that_cannot_be_fitted_are_refused_before_any_work(scheduler, message):
    tiny = PIPELINES["wan"]
    pipe = tiny.build()
    pipe.scheduler = scheduler()
    with (
        counted(pipe, tiny.denoisers) as calls,
        pytest.raises(HostError, match=message),
    ):
        fit_plan(pipe, PROMPTS, **call_for(tiny))
    assert not calls


def test_inpainting_is_refused():
    tiny = PIPELINES["flux-inpaint"]
    with pytest.raises(HostError, match=r"edits its latents between steps \(inpainting\)"):
        fit_plan(tiny.build(), PROMPTS[:2], **call_for(tiny))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator": torch.Generator()}, "seeds make the generators"),
        ({"guidence_scale": 3.0}, "no argument 'guidence_scale'"),
        ({"evaluations": STEPS + 1}, "9 evaluations cannot be made"),
        ({"history": 0}, "history is 1 .*, not 0"),
        ({"seeds": []}, "too few"),
    ],
)
def test_bad_arguments_are_errors(flux, changes, message):
    with pytest.raises(TACacheError, match=message):
        fit_plan(flux, PROMPTS, **call_for(**changes))


def test_one_prompt_is_too_few(flux):
    with pytest.raises(PlanError, match="at least two samples"):
        fit_plan(flux, PROMPTS[:1], **call_for())


def test_a_prompt_that_fails_at_its_start_is_named(flux):
    encode = flux.encode_prompt

    def failing(*args: Any, **kwargs: Any) -> Any:
        if kwargs["prompt"] == PROMPTS[2]:
            raise ValueError("cannot encode")
        return encode(*args, **kwargs)

    flux.encode_prompt = failing
    with pytest.raises(HostError, match=rf"{PROMPTS[2]}.* seed 0.*cannot encode"):
        fit_plan(flux, PROMPTS, **call_for())


@pytest.mark.slow
@pytest.mark.parametrize("after", [3 * STEPS, 4 * STEPS + 3])
@pytest.mark.parametrize("kind", ["raises", "nan"])
def test_a_prompt_that_fails_on_the_way_is_named(flux, kind, after):
    seen = []

    def hook(module: Any, args: Any, result: Any) -> Any:
        seen.append(1)
        if len(seen) <= after:
            return None
        if kind == "raises":
            raise RuntimeError("out of memory")
        return (result[0] * float("nan"),)

    flux.transformer.register_forward_hook(hook)
    expected = "out of memory" if kind == "raises" else "is infinite or not a number"
    with pytest.raises(HostError, match=rf"with seed 0.*{expected}"):
        fit_plan(flux, PROMPTS, search=False, **call_for())


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1])
def test_a_prompt_that_fails_in_the_decoder_is_named(flux, after, monkeypatch):
    """That of the full run's latents, or that of the plan's."""
    decode, seen = flux.vae.decode, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        if len(seen) > after:
            raise RuntimeError("out of memory")
        return decode(*args, **kwargs)

    monkeypatch.setattr(flux.vae, "decode", failing)
    before = flux.scheduler
    with pytest.raises(HostError, match=rf"{PROMPTS[0]}.* with seed 0.*out of memory"):
        fit_plan(flux, PROMPTS[:2], search=False, **call_for())
    assert flux.scheduler is before


# --- resuming ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_fit_goes_on(flux, plan, tmp_path, monkeypatch):
    path = tmp_path / "runs"
    with killed_at(monkeypatch, 4 * 7):
        fit_plan(flux, PROMPTS, search=False, resume=path, **call_for())
    with counted(flux, FLUX.denoisers) as calls:
        found = fit_plan(flux, PROMPTS, search=False, resume=path, **call_for())
    assert found == plan
    full = plan.certificate.evaluations_spent
    assert len(calls) == full - 4 * 6 + 4  # each call runs to its first step


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": [PROMPTS[0], "a kite"]},
        {"guidance_scale": 7.0},
        {"num_inference_steps": STEPS + 1},
        {"num_inference_steps": STEPS - 1},
    ],
)
def test_the_runs_of_another_fit_are_refused(flux, tmp_path, changes):
    """All prompts start from the same noise: it does not tell them apart."""
    path = tmp_path / "runs"
    fit_plan(flux, PROMPTS[:2], search=False, resume=path, **call_for())
    prompts = changes.pop("prompts", PROMPTS[:2])
    with pytest.raises(PlanError, match="runs of another fit"):
        fit_plan(flux, prompts, search=False, resume=path, **call_for(**changes))


# --- far from where it was fitted -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("guidance", "warned"), [(3.5, False), (3.7, False), (7.0, True)])
def test_another_guidance_is_warned_of_with_its_distance(flux, plan, guidance, warned, caplog):
    apply(flux, plan)
    with caplog.at_level(logging.WARNING, logger="tacache.diffusers"):
        pictures(FLUX, flux, PROMPTS[0], guidance_scale=guidance)
    expected = "fitted at guidance_scale=3.5, this run has 7, 3.5 away: expect a lower fidelity"
    assert [expected in record.getMessage() for record in caplog.records] == [True] * warned


def test_a_plan_by_a_rule_is_not_warned_of(flux, caplog):
    profile = tacache.diffusers.calibrate(
        flux, PROMPTS[:1], **{k: v for k, v in call_for().items() if k != "evaluations"}
    )
    apply(flux, tacache.make_plan(profile, evaluations=BUDGET))
    pictures(FLUX, flux, PROMPTS[0], guidance_scale=9.0)
    assert not [r for r in caplog.records if "guidance" in r.getMessage()]


# --- several processes ------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
from pathlib import Path
from tests.diffusers_support import PIPELINES, torch
from tacache.diffusers import fit_plan
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.plan_run import PlanRun

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
answers = []
for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
    pipe = PIPELINES["flux"].build()
    encode, calls = pipe.encode_prompt, []

    def watched(*args, **kwargs):
        if kwargs["prompt"] == job.get("bad"):
            raise ValueError("this prompt cannot be encoded")
        return encode(*args, **kwargs)

    def hook(module, args, result):
        calls.append(1)
        if rank == "1" and len(calls) > job.get("after", 10**6):
            raise RuntimeError("out of memory")

    def sized(self, sample, call, times=None, opened=PipelineHost.open):
        height = job["heights"][job["prompts"].index(sample.prompt) % 2]
        return opened(self, sample, call | {"height": height}, times)

    pipe.encode_prompt = watched
    pipe.transformer.register_forward_hook(hook)
    plain = PipelineHost.open
    PipelineHost.open = sized if "heights" in job else plain
    try:
        resume = folder / f"runs{number}"
        answer = {"plan": fit_plan(pipe, job["prompts"], resume=resume, **job["call"]).to_json()}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    PipelineHost.open = plain
    answers.append(answer | {"calls": len(calls)})
(folder / f"{rank}.json").write_text(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """What each of two processes found in several fits, one after the other."""
    jobs = {
        "failing at its start": {"bad": PROMPTS[1]},
        "failing in its full runs": {"after": STEPS},
        "failing in its fit": {"after": 2 * STEPS + PROBES + 2},
        "too few prompts": {"prompts": PROMPTS[:1]},
        "a size each": {"heights": [32, 64]},
        "searched": {"call": call_for(max_evaluations=300)},
    }
    folder = tmp_path_factory.mktemp("processes")
    every = [{"call": call_for(), "prompts": PROMPTS} | job for job in jobs.values()]
    (folder / "jobs.json").write_text(json.dumps(every))
    _, answers = in_two_processes(folder, SCRIPT)
    return {job: list(both) for job, *both in zip(jobs, *answers, strict=True)}


@pytest.mark.slow
def test_two_processes_fit_what_one_does(flux, launched):
    answers = launched["searched"]
    first, second = (Plan.from_json(answer["plan"]) for answer in answers)
    assert first == second
    alone = fit_plan(flux, PROMPTS, **call_for(max_evaluations=300))
    assert first.anchors == alone.anchors
    assert np.concatenate(first.weights) == pytest.approx(np.concatenate(alone.weights), rel=1e-6)
    assert first.certificate.psnr == pytest.approx(alone.certificate.psnr, abs=0.01)
    assert first.certificate.evaluations_spent == alone.certificate.evaluations_spent
    assert sum(answer["calls"] for answer in answers) == first.certificate.evaluations_spent


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at its start", "in its full runs", "in its fit"])
def test_a_failure_in_one_process_ends_both_with_its_prompt(launched, when):
    first, second = (answer["error"] for answer in launched[f"failing {when}"])
    reason = "this prompt cannot be encoded" if when == "at its start" else "out of memory"
    assert reason in second
    assert "with seed 0" in second
    assert first.startswith("OtherProcessError: another process failed: process 1: ")
    assert reason in first
    assert any(prompt in first for prompt in PROMPTS[1::2])


@pytest.mark.slow
def test_fewer_prompts_than_processes_are_an_error_in_both(launched):
    first, second = (answer["error"] for answer in launched["too few prompts"])
    assert "too few for 2 processes" in second
    assert "two samples" in first or "too few" in first


@pytest.mark.slow
def test_sizes_that_differ_between_processes_are_seen(launched):
    for answer in launched["a size each"]:
        assert f"'{PROMPTS[1]}' with seed 0 has other noise levels than" in answer["error"]


@pytest.mark.parametrize("name", ["num_images_per_prompt", "num_videos_per_prompt"])
def test_several_pictures_a_prompt_are_refused(name):
    tiny = PIPELINES["flux" if "images" in name else "wan"]
    with pytest.raises(HostError, match=f"give seeds, not {name}"):
        fit_plan(tiny.build(), PROMPTS, **call_for(tiny, **{name: 2}))
