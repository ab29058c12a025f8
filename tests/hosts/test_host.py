"""The verbs on a host of a few lines: a velocity function that is asked for prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tacache
from tacache import HostError, Plan, ProfileError, time_grid
from tacache.calibration import full_steps, measure
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import EulerIntegrator
from tacache.hosts import Call, Pixels, Request, calibrate, fit_plans, generate
from tacache.prompts import Sample
from tacache.storage.origin import Origin
from tacache.velocity import Batch
from tacache.work.processes import ALONE

PROMPTS = ["a", "ab", "abc", "abcd"]
CALL = {"steps": 12, "scale": 2.0}


def velocity_of(sample: Sample, scale: float = 2.0) -> Any:
    """Straight to a point of the prompt's own, by a bend."""
    goal = torch.full((1, 2, 3), float(len(sample.text)))
    return lambda x, t: scale * torch.sin(x - goal) + t * x


def noise_of(sample: Sample) -> Tensor:
    return torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(sample.seed))


class _Run:
    state: Tensor | None = None
    breaks: tuple[float, ...] = ()

    def __init__(self, sample: Sample, call: Call) -> None:
        self.times = self.grid = tuple(time_grid(call["steps"]))
        self.noise, self._velocity = noise_of(sample), velocity_of(sample, call["scale"])
        self.settings: object = call.get("kind", {}).get(sample.prompt)

    def evaluate(self, x: Tensor, step: int) -> Tensor:
        return self._velocity(x, self.times[step])

    def finish(self, x: Tensor) -> Pixels | None:
        return x[0].sigmoid().numpy()[..., None]

    def origin(self) -> Origin:
        return Origin(pipeline="Small", latent_shape=(2, 3))


class _Small:
    """A host."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def check(self, call: Call, *, fitting: bool = False) -> None:
        if "generator" in call:
            raise HostError("no generator")

    def processes(self) -> Any:
        return ALONE

    def identity(self, call: Call) -> object:
        return "small"

    def quiet(self) -> Any:
        return nullcontext()

    def record(self, samples: Sequence[Sample], call: Call) -> Any:
        run, (sample,) = _Run(samples[0], call), samples
        steps = full_steps(run._velocity, Batch(noise_of(sample), {}), run.times)
        return measure((v for v, _ in steps), run.times, run.origin())

    @contextmanager
    def open(self, sample: Sample, call: Call, times: Any = None) -> Iterator[_Run]:
        yield _Run(sample, call)

    def integrator(self, runs: Sequence[_Run], times: tuple[float, ...]) -> EulerIntegrator:
        return EulerIntegrator(times)

    @contextmanager
    def follow(self, plan: Plan | None, call: Call) -> Iterator[Call]:
        before, self.plan = self.plan, plan or self.plan
        try:
            yield call
        finally:
            self.plan = before

    @contextmanager
    def full(self) -> Iterator[None]:
        before, self.plan = self.plan, None
        try:
            yield
        finally:
            self.plan = before

    @property
    def run_plan(self) -> Plan | None:
        return self.plan

    def draw(self, sample: Sample, call: Call) -> Pixels:
        run = _Run(sample, call)
        plan = self.plan or Plan.full(run.times)
        return run.finish(tacache.sample(run._velocity, run.noise, plan))

    def with_steps(self, call: Call, steps: int) -> Call:
        return {**call, "steps": steps}


def together(x: Tensor, t: float, sample: Sequence[Sample]) -> Tensor:
    """All samples' velocities, for the verbs of velocity functions."""
    return torch.cat([velocity_of(one)(x[i : i + 1], t) for i, one in enumerate(sample)])


def samples() -> list[Sample]:
    return [Sample(text, 0) for text in PROMPTS]


def test_a_profile_is_that_of_the_velocity_function():
    found = calibrate(_Small(), PROMPTS, call=CALL)
    noise = torch.cat([noise_of(one) for one in samples()])
    wanted = tacache.calibrate(
        together, noise, time_grid(12), condition={"sample": samples()}, batch_size=1
    )
    assert found.magnitude == pytest.approx(wanted.magnitude, rel=1e-12)
    assert found.direction == pytest.approx(wanted.direction, rel=1e-12)
    assert found.samples == 4
    assert found.origin.pipeline == "Small"
    assert found.origin.prompts_sha256 is not None


@pytest.mark.slow
def test_a_plan_is_that_of_the_velocity_function_and_is_certified():
    (found,) = fit_plans(_Small(), PROMPTS, options=FitOptions(evaluations=(4,)), call=CALL)
    noise = torch.cat([noise_of(one) for one in samples()])
    wanted = tacache.fit_plan(
        together, noise, time_grid(12), evaluations=4, condition={"sample": samples()}
    )
    assert found.anchors == wanted.anchors
    assert np.allclose(np.concatenate(found.weights), np.concatenate(wanted.weights), atol=1e-5)
    full, made = (_Small().draw(samples()[0], CALL), None)
    host = _Small()
    with host.follow(found, CALL):
        made = host.draw(samples()[0], CALL)
    error = float(np.mean((full.astype(float) - made.astype(float)) ** 2))
    assert found.certificate.psnr == pytest.approx(-10 * np.log10(error), abs=1e-6)


def test_what_a_host_fails_with_names_the_sample():
    class Failing(_Small):
        def record(self, samples: Sequence[Sample], call: Call) -> Any:
            raise RuntimeError("out of memory")

        def draw(self, sample: Sample, call: Call) -> Pixels:
            raise RuntimeError("out of memory")

    with pytest.raises(HostError, match="'a' with seed 7: out of memory"):
        calibrate(Failing(), PROMPTS, seeds=[7], call=CALL)
    with pytest.raises(HostError, match="'a' with seed 7: out of memory"):
        fit_plans(
            Failing(),
            PROMPTS,
            seeds=[7],
            options=FitOptions(evaluations=(4,), search=False),
            call=CALL,
        )


def test_what_a_measurement_fails_with_names_the_sample():
    with pytest.raises(ProfileError, match="'a' with seed 0: the velocity at step 0 of sample 0"):
        calibrate(_Small(), PROMPTS, call=CALL | {"scale": float("nan")})


def test_runs_with_other_settings_are_not_fitted_together():
    with pytest.raises(HostError, match="'ab' with seed 0 runs with another size or other settin"):
        fit_plans(
            _Small(),
            PROMPTS,
            options=FitOptions(evaluations=(4,)),
            call=CALL | {"kind": {"ab": 1}},
        )


def test_a_call_is_checked_before_any_work():
    for work in (calibrate, fit_plans):
        budget = {} if work is calibrate else {"options": FitOptions(evaluations=(4,))}
        with pytest.raises(HostError, match="no generator"):
            work(_Small(), PROMPTS, call=CALL | {"generator": 1}, **budget)


def test_a_picture_is_written_and_compared(tmp_path):
    plan = tacache.make_plan(calibrate(_Small(), PROMPTS, call=CALL), evaluations=5)

    class Pictured(_Small):
        def draw(self, sample: Sample, call: Call) -> Pixels:
            return np.repeat(super().draw(sample, call), 3, axis=-1)

    host, asked = Pictured(), Request(plan, CALL, compare=True)
    found = generate(host, Sample("a", 3), asked, tmp_path / "deep" / "a")
    assert (found.prompt, found.seed, found.evaluations) == ("a", 3, 5)
    assert found.psnr < 999
    names = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert names == ["a-full.png", "a-pair.png", "a.png"]
    again = generate(host, Sample("a", 3), Request(None, CALL), tmp_path / "b")
    assert again.evaluations is None
