"""Fitted plans of a host: its calls are held open, advance in lock-step, and judge the result."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from tacache.errors import HostError, named
from tacache.fidelity import psnr, spectral_distance
from tacache.fitting import fit_runs, with_psnr
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.integrators import Integrator
from tacache.fitting.latents import Latents
from tacache.fitting.lockstep import Reference
from tacache.fitting.samples import check_finite
from tacache.hosts.base import Call, Host, Pixels, Trajectory
from tacache.plan import Plan
from tacache.prompts import Sample, as_prompts, fingerprint, samples_of
from tacache.storage.finished import job_key
from tacache.work.processes import Processes, Together
from tacache.work.progress import track

Value = TypeVar("Value")


def fit_plans(
    host: Host,
    prompts: str | Path | Iterable[str] | None,
    *,
    call: Call,
    options: FitOptions,
    seeds: Sequence[int] | None = None,
) -> list[Plan]:
    """Return a plan per budget, fitted on full-step runs of a host, one per prompt and seed.

    Where a quality is asked for, they are the plans of all budgets that were tried
    (`tacache.fitting.chosen_plan`). The full runs are made once for all budgets. Each certificate
    holds the PSNR of the pictures that the host makes of held-out samples when it follows the plan.
    Processes of one launcher share the samples out.
    """
    host.check(call, fitting=True)
    texts = None if prompts is None else as_prompts(prompts)
    samples, processes = samples_of(texts, seeds), host.processes()
    options = replace(
        options,
        resume=options.resume and kept_by(options.resume, processes),
        progress=options.progress and processes.rank == 0,
    )
    with (
        torch.no_grad(),
        host.quiet(),
        hold(host, samples, call, processes, options.progress) as runs,
    ):
        known = {"prompts_sha256": None if texts is None else fingerprint(texts)}
        pictures: dict[int, Pixels] | None = None
        goes_on = options.min_psnr is not None  # with fits, when pictures have been compared

        def measure(plan: Plan, reference: Reference) -> Plan:
            nonlocal pictures
            if pictures is None:
                ends, held_out = reference.run_ends, reference.held_out
                pictures = runs.pictures(ends, held_out, in_calls_of_their_own=goes_on)
            origin = runs.held[0].origin().model_copy(update=known)
            more = 1 if goes_on else 0
            return _measured(runs, plan.model_copy(update={"origin": origin}), pictures, more)

        return fit_runs(runs, options, measure)


def kept_by(path: Path, processes: Processes) -> Path:
    """Return the file of this process's own that keeps its full runs."""
    return path if processes.count == 1 else path.with_name(f"{path.name}.{processes.rank}")


class Failure(NamedTuple):
    """What a process sends in the place of its values when it cannot go on."""

    reason: str


class OtherProcessError(HostError):
    """Another process has failed and said so."""


class Shared(NamedTuple):
    """What all runs of a fit have in common."""

    times: tuple[float, ...]
    breaks: tuple[float, ...]
    shape: tuple[int, ...]
    settings: object


class HostSamples:
    """The open runs of a host, this process's share of them, as a fit sees them."""

    together = False

    def __init__(
        self,
        host: Host,
        held: Sequence[Trajectory],
        samples: Sequence[Sample],
        numbers: Sequence[int],
        group: Together,
        call: Call,
        job: str = "",
    ) -> None:
        self.host, self.held, self.samples, self.numbers = host, held, samples, numbers
        self.call = call
        self._group, self.total, self.job = group, len(samples), job
        self._check_alike()
        self.sounds: dict[int, Mapping[str, Tensor]] = {}  # beside the pictures, by latent
        self.times, self.breaks = held[0].times, held[0].breaks
        self.latents: Latents = getattr(held[0], "latents", ())  # only joint models have some
        self.noise = torch.stack([run.noise for run in held])

    def on_steps(self, steps: int) -> AbstractContextManager["HostSamples"]:
        """Open further calls of the same samples, with another number of steps."""
        return self._again(self.host.with_steps(self.call, steps))

    def on_levels(self, times: tuple[float, ...]) -> AbstractContextManager["HostSamples"]:
        """Open further calls of the same samples, on these noise levels."""
        return self._again(self.call, times)

    @contextmanager
    def _again(self, call: Call, times: tuple[float, ...] | None = None) -> Iterator["HostSamples"]:
        with ExitStack() as stack:
            samples = [self.samples[i] for i in self.numbers]
            held = _opened(stack, self.host, samples, call, times=times)
            yield HostSamples(
                self.host, held, self.samples, self.numbers, self._group, call, self.job
            )

    def integrator(self, chosen: Sequence[int]) -> Integrator:
        """Return the chosen runs at step 0, to be stepped as the host steps."""
        return self.host.integrator([self.held[k] for k in chosen], self.times)

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """Return one evaluation of each chosen run, one after the other."""
        return torch.stack([self._one(k, x[s], step) for s, k in enumerate(chosen)])

    def _one(self, k: int, x: Tensor, step: int) -> Tensor:
        sample, run = self.samples[self.numbers[k]], self.held[k]
        with named(sample):
            own_times = run.grid != self.times  # the host counts the steps of another grid
            v = run.evaluate_at(x, self.times[step]) if own_times else run.evaluate(x, step)
        check_finite(v, step, str(sample))
        if run.state is not None and not torch.equal(run.state, x.to(run.state.dtype)):
            raise HostError(
                "the pipeline edits its latents between steps (inpainting): a plan cannot be "
                "fitted to it; calibrate it and make one by a rule"
            )
        return v

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Return everyone's values by the samples' numbers; if a process failed, its reason."""
        values: dict[int, Value] = {}
        for part in self._group.exchange(dict(mine)):
            if isinstance(part, Failure):
                raise OtherProcessError(f"another process failed: {part.reason}")
            values |= part
        return values

    def pictures(
        self, results: Tensor, held_out: int, *, in_calls_of_their_own: bool = False
    ) -> dict[int, Pixels]:
        """Return what the host makes of its held-out full-step results, where that is pixels.

        The calls that make them have ended then: calls of their own let a fit go on.
        """
        pictures: dict[int, Pixels] = {}
        for k, i in enumerate(self.numbers):
            if i >= held_out:
                continue
            with named(self.samples[i]), ExitStack() as stack:
                run = self.held[k]
                if in_calls_of_their_own:
                    (run,) = _opened(stack, self.host, [self.samples[i]], self.call)
                pixels = run.finish(results[k].to(self.noise.device))
            if pixels is not None:
                pictures[i], self.sounds[i] = pixels, getattr(run, "sounds", {})
        return pictures

    def _check_alike(self) -> None:
        """Refuse runs, those of other processes too, that differ in levels, size or settings."""
        mine = zip(self.numbers, self.held, strict=True)
        shared = self.gathered(
            {
                i: Shared(run.times, run.breaks, tuple(run.noise.shape), run.settings)
                for i, run in mine
            }
        )
        first, name = shared[0], self.samples[0]
        for i, run in shared.items():
            sample = self.samples[i]
            if run.times != first.times:
                raise HostError(
                    f"{sample} has other noise levels than {name} (a dynamic shift follows the "
                    "size): fit prompts of one size and one number of steps together"
                )
            if run.shape != first.shape:
                raise HostError(
                    f"{sample} has latents of shape {run.shape}, {name} of {first.shape}: fit one "
                    "size at a time"
                )
            if run.breaks != first.breaks:
                raise HostError(
                    f"{sample} changes its expert or guidance at noise levels {run.breaks}, {name} "
                    f"at {first.breaks}: fit them apart"
                )
            if run.settings != first.settings:
                raise HostError(
                    f"{sample} runs with another size or other settings than {name}: fit prompts "
                    "of one size together"
                )


@contextmanager
def hold(
    host: Host,
    samples: Sequence[Sample],
    call: Call,
    processes: Processes,
    progress: bool = False,
) -> Iterator[HostSamples]:
    """Hold the runs of this process at their first step; the others are told of a failure."""
    group = Together(processes.count)
    numbers = list(range(processes.rank, len(samples), processes.count))
    try:
        if not numbers:
            raise HostError(
                f"{len(samples)} prompts are too few for {processes.count} processes: give each one"
            )
        with ExitStack() as stack:
            held = _opened(stack, host, [samples[i] for i in numbers], call, progress)
            job = job_of(host, samples, call)
            yield HostSamples(host, held, samples, numbers, group, call, job)
    except OtherProcessError:
        raise
    except Exception as error:
        group.exchange(Failure(f"process {processes.rank}: {error}"))
        raise


def job_of(host: Host, samples: Sequence[Sample], call: Call) -> str:
    """Return what the kept full runs of these samples belong to; files of other work differ."""
    return job_key(host.identity(call), [(sample,) for sample in samples], call)


def _opened(
    stack: ExitStack,
    host: Host,
    samples: Sequence[Sample],
    call: Call,
    progress: bool = False,
    times: tuple[float, ...] | None = None,
) -> list[Trajectory]:
    """Return the calls of these samples, open until the stack is closed."""
    held = []
    for sample in track(samples, "preparing", progress):
        with named(sample):
            held.append(stack.enter_context(host.open(sample, call, times)))
    return held


def _measured(runs: HostSamples, plan: Plan, pictures: Mapping[int, Pixels], opening: int) -> Plan:
    """Return the plan with the PSNR of held-out samples that follow it, those of all processes.

    `opening` are the evaluations of each that opening a call of its own took.
    """
    mine: dict[int, float] = {}
    heard: dict[int, dict[str, float]] = {}
    for i, picture in pictures.items():
        with named(runs.samples[i]), runs.host.follow(plan, runs.call) as call:
            followed = runs.host.draw(runs.samples[i], call)
            pair = (torch.from_numpy(pixels)[None] for pixels in (picture, followed))
            mine[i] = float(psnr(*pair))
            if math.isnan(mine[i]):
                raise HostError("the decoded pictures are not numbers")
            sounds = getattr(runs.host, "sounds", {})
            heard[i] = {
                name: float(spectral_distance(full[None], sounds[name][None]))
                for name, full in runs.sounds[i].items()
            }
    values = list(runs.gathered(mine).values())
    plan = with_psnr(plan, values, len(values) * (plan.evaluations + opening))
    return _with_sound(plan, list(runs.gathered(heard).values()))


def _with_sound(plan: Plan, heard: Sequence[Mapping[str, float]]) -> Plan:
    """Return the plan with the spectral distances of held-out sound, each in its latent."""
    latents = dict(plan.latents or {})
    for name, latent in latents.items():
        distances = [by_latent[name] for by_latent in heard if name in by_latent]
        if distances and latent.certificate is not None:
            measured = {
                "spectral_distance": fmean(distances),
                "worst_spectral_distance": max(distances),
            }
            certificate = latent.certificate.model_copy(update=measured)
            latents[name] = latent.model_copy(update={"certificate": certificate})
    return plan.model_copy(update={"latents": latents or None})
