"""Fitted plans of a host: its calls are held open, walk in lock-step, and judge the result."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from tacache.errors import HostError, named
from tacache.fidelity import capped, psnr
from tacache.fitting import fit_runs
from tacache.fitting.flow import Target
from tacache.fitting.samples import check_finite
from tacache.fitting.walking import Walk
from tacache.host.interface import Call, Host, OpenRun, Pixels
from tacache.plan import LONGEST, Plan
from tacache.profile import Origin
from tacache.prompts import Sample, as_prompts, fingerprint, samples_of
from tacache.storage.finished import job_key
from tacache.work.processes import Processes, Together
from tacache.work.progress import track

Value = TypeVar("Value")
NO_VARY = (
    "vary was removed, since a mix of settings gained no more than chance: fit at one setting, and "
    "a second plan where another is needed"
)


def fit_plans(
    host: Host,
    prompts: str | Path | Iterable[str] | None,
    *,
    evaluations: Sequence[int],
    call: Call,
    seeds: Sequence[int] | None = None,
    target: Target = "run",
    reference_steps: int | None = None,
    history: int = LONGEST,
    max_evaluations: int = 3000,
    search: bool = True,
    resume: str | Path | None = None,
    progress: bool = False,
) -> list[Plan]:
    """A plan per budget, fitted on full-step runs of a host, one per prompt and seed.

    The full runs are made once for all budgets. Each certificate holds the PSNR of the pictures
    that the host makes of held-out samples when it follows the plan. Processes of one launcher
    share the samples out.
    """
    if "vary" in call:
        raise HostError(NO_VARY)
    host.check(call, fitting=True)
    texts = None if prompts is None else as_prompts(prompts)
    samples, processes = samples_of(texts, seeds), host.processes()
    show = progress and processes.rank == 0
    with torch.no_grad(), host.quiet(), hold(host, samples, call, processes, show) as runs:
        plans, full = fit_runs(
            runs,
            evaluations,
            target=target,
            reference_steps=reference_steps,
            history=history,
            max_evaluations=max_evaluations,
            search=search,
            measured=True,
            resume=None if resume is None else kept_by(Path(resume), processes),
            progress=show,
        )
        known = {"prompts_sha256": None if texts is None else fingerprint(texts)}
        origin = runs.held[0].origin().model_copy(update=known)
        pictures = runs.pictures(full.run_ends, full.held_out)
        return [_certified(runs, plan, origin, pictures, call) for plan in plans]


def kept_by(path: Path, processes: Processes) -> Path:
    """The file of this process's own that keeps its full runs."""
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


class HeldRuns:
    """The open runs of a host, this process's share of them, as a fit sees them."""

    together = False

    def __init__(
        self,
        host: Host,
        held: Sequence[OpenRun],
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
        self.times, self.breaks = held[0].times, held[0].breaks
        self.noise = torch.stack([run.noise for run in held])

    @contextmanager
    def on_steps(self, steps: int) -> Iterator["HeldRuns"]:
        """Further calls of the same samples, with another number of steps."""
        call = self.host.with_steps(self.call, steps)
        with ExitStack() as stack:
            held = _opened(stack, self.host, [self.samples[i] for i in self.numbers], call)
            yield HeldRuns(self.host, held, self.samples, self.numbers, self._group, call, self.job)

    def walk(self, chosen: Sequence[int]) -> Walk:
        """The chosen runs at step 0, to be stepped as the host steps."""
        return self.host.walk([self.held[k] for k in chosen], self.times)

    def evaluate(self, x: Tensor, step: int, chosen: Sequence[int]) -> Tensor:
        """One evaluation of each chosen run, one after the other."""
        return torch.stack([self._one(k, x[s], step) for s, k in enumerate(chosen)])

    def _one(self, k: int, x: Tensor, step: int) -> Tensor:
        sample, run = self.samples[self.numbers[k]], self.held[k]
        with named(sample):
            v = run.evaluate(x, step)
        check_finite(v, step, str(sample))
        if run.state is not None and not torch.equal(run.state, x.to(run.state.dtype)):
            raise HostError(
                "the pipeline edits its latents between steps (inpainting): a plan cannot be "
                "fitted to it; calibrate it and make one by a rule"
            )
        return v

    def gathered(self, mine: Mapping[int, Value]) -> dict[int, Value]:
        """Everyone's values by the samples' numbers; if a process failed, its reason."""
        values: dict[int, Value] = {}
        for part in self._group.exchange(dict(mine)):
            if isinstance(part, Failure):
                raise OtherProcessError(f"another process failed: {part.reason}")
            values |= part
        return values

    def pictures(self, results: Tensor, held_out: int) -> dict[int, Pixels]:
        """What the host makes of its held-out samples' full-step results, where that is pixels."""
        found: dict[int, Pixels] = {}
        for k, i in enumerate(self.numbers):
            if i < held_out:
                with named(self.samples[i]):
                    pixels = self.held[k].finish(results[k].to(self.noise.device))
                if pixels is not None:
                    found[i] = pixels
        return found

    def _check_alike(self) -> None:
        """Refuse runs, those of other processes too, that differ in levels, size or settings."""
        mine = zip(self.numbers, self.held, strict=True)
        found = self.gathered(
            {
                i: Shared(run.times, run.breaks, tuple(run.noise.shape), run.settings)
                for i, run in mine
            }
        )
        first, name = found[0], self.samples[0]
        for i, run in found.items():
            one = self.samples[i]
            if run.times != first.times:
                raise HostError(
                    f"{one} has other noise levels than {name} (a dynamic shift follows the size): "
                    "fit prompts of one size and one number of steps together"
                )
            if run.shape != first.shape:
                raise HostError(
                    f"{one} has latents of shape {run.shape}, {name} of {first.shape}: fit one "
                    "size at a time"
                )
            if run.breaks != first.breaks:
                raise HostError(
                    f"{one} changes its expert or guidance at noise levels {run.breaks}, {name} at "
                    f"{first.breaks}: fit them apart"
                )
            if run.settings != first.settings:
                raise HostError(
                    f"{one} runs with another size or other settings than {name}: fit prompts of "
                    "one size together"
                )


@contextmanager
def hold(
    host: Host,
    samples: Sequence[Sample],
    call: Call,
    processes: Processes,
    progress: bool = False,
) -> Iterator[HeldRuns]:
    """The runs of this process, held at their first step; the others are told of a failure."""
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
            yield HeldRuns(host, held, samples, numbers, group, call, job)
    except OtherProcessError:
        raise
    except Exception as error:
        group.exchange(Failure(f"process {processes.rank}: {error}"))
        raise


def job_of(host: Host, samples: Sequence[Sample], call: Call) -> str:
    """What the kept full runs of these samples belong to: files of other work have another."""
    return job_key(host.identity(call), [(sample,) for sample in samples], call)


def _opened(
    stack: ExitStack, host: Host, samples: Sequence[Sample], call: Call, progress: bool = False
) -> list[OpenRun]:
    """The calls of these samples, open until the stack is closed."""
    held = []
    for sample in track(samples, "preparing", progress):
        with named(sample):
            held.append(stack.enter_context(host.open(sample, call)))
    return held


def _certified(
    runs: HeldRuns, plan: Plan, origin: Origin, pictures: Mapping[int, Pixels], call: Call
) -> Plan:
    """The plan with its origin, and with the PSNR of held-out samples when the host follows it."""
    plan, found = plan.model_copy(update={"host": origin}), {}
    for i, picture in pictures.items():
        with named(runs.samples[i]), runs.host.follow(plan, call) as asked:
            made = runs.host.draw(runs.samples[i], asked)
            found[i] = float(psnr(*(torch.from_numpy(one)[None] for one in (picture, made))))
            if math.isnan(found[i]):
                raise HostError("the decoded pictures are not numbers")
    everyone = runs.gathered(found)
    assert plan.certificate is not None  # a fit has made one
    changed = {
        "psnr": capped(math.fsum(everyone.values()) / len(everyone)) if everyone else None,
        "evaluations_spent": plan.certificate.evaluations_spent + len(everyone) * plan.evaluations,
    }
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=changed)})
