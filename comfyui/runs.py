"""Full runs of a model for calibration and fits: one per conditioning and seed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
import torch
from torch import Tensor

from tacache import HostError, Plan, Profile, fit_plan
from tacache.kdiffusion import velocity_of

from .sampling import check_flow, describe, record_profile

Held = tuple[Any, Tensor, dict[str, Any]]  # model, state and extra_args, as a sampler gets them


class Job(NamedTuple):
    """What all runs share, and what tells them apart."""

    model: Any
    positive: Sequence[Any]
    negative: Sequence[Any]  # one for all, or one each
    cfg: float
    latent: dict[str, Any]
    sigmas: Tensor
    seeds: Sequence[int]

    def runs(self) -> list[tuple[Any, Any, int]]:
        """Every conditioning with every seed."""
        if len(self.negative) not in (1, len(self.positive)):
            raise HostError(
                f"{len(self.negative)} negative conditionings for {len(self.positive)} positive "
                "ones: give one, or one each"
            )
        negative = list(self.negative) * (len(self.positive) if len(self.negative) == 1 else 1)
        pairs = zip(self.positive, negative, strict=True)
        return [(plus, minus, seed) for plus, minus in pairs for seed in self.seeds]


def profiles(job: Job) -> Iterator[Profile]:
    """The profile of each run, as it is done; progress and previews are those of all together."""
    check_flow(job.model.get_model_object("model_sampling"))
    runs, steps = job.runs(), len(job.sigmas) - 1
    show = latent_preview.prepare_callback(job.model, len(runs) * steps)
    for number, run in enumerate(runs):
        found: list[Profile] = []

        def callback(step: int, x0: Tensor, x: Tensor, _: int, done: int = number * steps) -> None:
            show(done + step, x0, x, len(runs) * steps)

        options = {"record": found.append, "cfg": job.cfg}
        _run(job, run, comfy.samplers.KSAMPLER(record_profile, options), callback)
        yield found[0]


def fitted(job: Job, evaluations: int, max_evaluations: int) -> Plan:
    """A plan fitted on all runs, which are held within each other while the fit asks them."""
    check_flow(job.model.get_model_object("model_sampling"))
    if "noise_mask" in job.latent or len(job.latent["samples"]) != 1:
        raise HostError("a fit takes a latent of batch size 1 without a mask: give it more seeds")
    done: list[Plan] = []

    def hold(waiting: Sequence[tuple[Any, Any, int]], held: list[Held]) -> None:
        if not waiting:
            done.append(_fit(job, held, evaluations, max_evaluations))
            return

        def wait(model: Any, x: Tensor, _: Tensor, extra_args: Any = None, **__: Any) -> Tensor:
            hold(waiting[1:], [*held, (model, x, extra_args or {})])
            return x

        _run(job, waiting[0], comfy.samplers.KSAMPLER(wait), None)

    hold(job.runs(), [])
    return done[0]


def _fit(job: Job, held: Sequence[Held], evaluations: int, max_evaluations: int) -> Plan:
    bar = comfy.utils.ProgressBar(max_evaluations)
    velocities = [velocity_of(model, extra_args) for model, _, extra_args in held]

    def velocity(x: Tensor, t: float, run: Sequence[int]) -> Tensor:
        found = []
        for k, i in enumerate(run):
            found.append(velocities[i](x[k : k + 1], t))
            bar.update(1)  # here ComfyUI stops a run that the user cancelled
        return torch.cat(found)

    plan = fit_plan(
        velocity,
        torch.cat([x for _, x, _ in held]),
        job.sigmas.tolist(),
        evaluations=evaluations,
        max_evaluations=max_evaluations,
        condition={"run": list(range(len(held)))},
    )
    host = describe(held[0][0].inner_model, job.cfg)
    known = {"latent_shape": plan.host.latent_shape, "dtype": plan.host.dtype}
    return plan.model_copy(update={"host": host.model_copy(update=known)})


def _run(
    job: Job, run: tuple[Any, Any, int], sampler: Any, callback: Callable[..., None] | None
) -> None:
    """One sampling through ComfyUI's own guider, as its custom sampler does it."""
    positive, negative, seed = run
    samples = comfy.sample.fix_empty_latent_channels(job.model, job.latent["samples"])
    noise = comfy.sample.prepare_noise(samples, seed, job.latent.get("batch_index"))
    guider = comfy.samplers.CFGGuider(job.model)
    guider.set_conds(positive, negative)
    guider.set_cfg(job.cfg)
    guider.sample(
        noise,
        samples,
        sampler,
        job.sigmas,
        denoise_mask=job.latent.get("noise_mask"),
        callback=callback,
        disable_pbar=True,
        seed=seed,
    )
