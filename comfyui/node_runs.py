"""Full runs of a model for calibration and fits: one per conditioning and seed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
import torch
from torch import Tensor

from tacache import HostError, Plan, Profile, fit_plan
from tacache.fitting.budget_search import guess_for, most_tries
from tacache.fitting.quality_goal import QualityGoal
from tacache.kdiffusion import velocity_of

from .sampling import check_flow, describe, record_profile

Held = tuple[Any, Tensor, dict[str, Any]]  # model, state and extra_args, as a sampler gets them


class RunInputs(NamedTuple):
    """What all runs share, and what tells them apart."""

    model: Any
    positive: Sequence[Any]
    negative: Sequence[Any]  # one for all, or one each
    cfg: float
    latent: dict[str, Any]
    sigmas: Tensor
    seeds: Sequence[int]

    def runs(self) -> list[tuple[Any, Any, int]]:
        """Return every conditioning with every seed."""
        if len(self.negative) not in (1, len(self.positive)):
            raise HostError(
                f"{len(self.negative)} negative conditionings for {len(self.positive)} positive "
                "ones: give one, or one each"
            )
        negative = list(self.negative) * (len(self.positive) if len(self.negative) == 1 else 1)
        pairs = zip(self.positive, negative, strict=True)
        return [(plus, minus, seed) for plus, minus in pairs for seed in self.seeds]


def check_one_latent(latent: dict[str, Any]) -> None:
    """Refuse pictures with sound: each needs rates or weights of its own."""
    if latent["samples"].is_nested:
        raise HostError(
            "this latent has pictures and sound, and a run is measured here for one of them: take "
            "TACache Sampler alone, or fit the model as a pipeline of diffusers (tacache fit)"
        )


def profiles(job: RunInputs) -> Iterator[Profile]:
    """Yield each run's profile as it is done; progress is that of all together."""
    check_flow(job.model.get_model_object("model_sampling"))
    check_one_latent(job.latent)
    runs, steps = job.runs(), len(job.sigmas) - 1
    show = latent_preview.prepare_callback(job.model, len(runs) * steps)
    for number, run in enumerate(runs):
        measured: list[Profile] = []

        def callback(step: int, x0: Tensor, x: Tensor, _: int, done: int = number * steps) -> None:
            show(done + step, x0, x, len(runs) * steps)

        options = {"record": measured.append, "cfg": job.cfg}
        _run(job, run, comfy.samplers.KSAMPLER(record_profile, options), callback)
        yield measured[0]


def fitted(job: RunInputs, asked: int | QualityGoal, max_evaluations: int, vae: Any = None) -> Plan:
    """Fit a plan on all runs, which are held within each other while the fit asks them.

    It has so many evaluations, or the fewest that have a quality; `vae` makes the pictures for a
    PSNR.
    """
    check_flow(job.model.get_model_object("model_sampling"))
    check_one_latent(job.latent)
    if "noise_mask" in job.latent or len(job.latent["samples"]) != 1:
        raise HostError("a fit takes a latent of batch size 1 without a mask: give it more seeds")
    done: list[Plan] = []

    def hold(waiting: Sequence[tuple[Any, Any, int]], held: list[Held]) -> None:
        if not waiting:
            done.append(_fit(job, held, asked, max_evaluations, vae))
            return

        def wait(model: Any, x: Tensor, _: Tensor, extra_args: Any = None, **__: Any) -> Tensor:
            hold(waiting[1:], [*held, (model, x, extra_args or {})])
            return x

        _run(job, waiting[0], comfy.samplers.KSAMPLER(wait), None)

    hold(job.runs(), [])
    return done[0]


def _fit(
    job: RunInputs, held: Sequence[Held], asked: int | QualityGoal, max_evaluations: int, vae: Any
) -> Plan:
    most, tries = len(job.sigmas) - 2, 1  # the largest budget skips one step
    if isinstance(asked, QualityGoal):
        tries = most_tries(1, most, guess_for(asked, most + 1, 1, most))
    bar = comfy.utils.ProgressBar(max_evaluations * tries)
    velocities = [velocity_of(model, extra_args) for model, _, extra_args in held]

    def velocity(x: Tensor, t: float, run: Sequence[int]) -> Tensor:
        guided = []
        for k, i in enumerate(run):
            guided.append(velocities[i](x[k : k + 1], t))
            bar.update(1)  # here ComfyUI stops a run that the user cancelled
        return torch.cat(guided)

    plan = fit_plan(
        velocity,
        torch.cat([x for _, x, _ in held]),
        job.sigmas.tolist(),
        max_evaluations=max_evaluations,
        condition={"run": list(range(len(held)))},
        decode=None if vae is None else partial(_pictures, job, vae),
        **(asdict(asked) if isinstance(asked, QualityGoal) else {"evaluations": asked}),
    )
    origin = describe(held[0][0].inner_model, job.cfg)
    latents = {"latent_shape": plan.origin.latent_shape, "dtype": plan.origin.dtype}
    return plan.model_copy(update={"origin": origin.model_copy(update=latents)})


def _pictures(job: RunInputs, vae: Any, latents: Tensor) -> Tensor:
    """Return what the VAE makes of results, a sample along dim 0; the model is loaded again."""
    pictures = vae.decode(job.model.model.process_latent_out(latents))
    comfy.model_management.load_models_gpu([job.model])  # which the VAE may have put aside
    values: Tensor = pictures.float().cpu().reshape(len(latents), -1).clamp(0, 1)
    return values


def _run(
    job: RunInputs, run: tuple[Any, Any, int], sampler: Any, callback: Callable[..., None] | None
) -> None:
    """Make one sampling through ComfyUI's own guider, as its custom sampler does it."""
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
