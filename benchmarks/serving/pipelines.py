"""The pipelines that are served: tiny-flux without its text encoder, others with random weights."""

from pathlib import Path
from typing import Any

import torch
from benchmarks.fullsize.models import build
from torch import Tensor

import tacache_models
from tacache import Plan, instant_plan, models
from tacache.diffusers import drive
from tacache.prompts import read_prompts

TEXTS = ("prompt_embeds", "pooled_prompt_embeds")  # in the order of what encode_prompt returns
SIZE = {"height": 128, "width": 128}
STEPS = 50


@torch.no_grad()
def encode(out: Path) -> None:
    """Write the embeddings of tiny-flux's test prompts, for a machine without its encoder."""
    pipe = models.load("tiny-flux")
    texts = read_prompts(models.embedded("tiny-flux").prompts("test"))
    settings: dict[str, Any] = {
        "prompt_2": None,
        "max_sequence_length": tacache_models.TOKENS,
        "device": torch.device("cpu"),
    }
    encoded = pipe.encode_prompt(prompt=texts, **settings)
    empty = pipe.encode_prompt(prompt="", **settings)
    embeddings = dict(zip(TEXTS, encoded, strict=False))
    negative = {f"negative_{name}": tensor for name, tensor in zip(TEXTS, empty, strict=False)}
    torch.save(embeddings | negative, out)


def tiny_flux(device: str) -> Any:
    """The pipeline in float32, without text encoders."""
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    folder = models.embedded("tiny-flux").folder
    without = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=AutoencoderKL.from_pretrained(folder / "vae").float(),
        transformer=FluxTransformer2DModel.from_pretrained(folder / "transformer").float(),
        **without,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def tiny_flux_plans(budgets: tuple[int, ...]) -> dict[int, Plan]:
    """The fitted plan that ships, for every budget."""
    return {budget: models.embedded("tiny-flux").plan(budget) for budget in budgets}


def flux(
    device: str, size: int, budgets: tuple[int, ...], *, tiny: bool = False
) -> tuple[Any, dict[str, Any], dict[int, Plan]]:
    """FLUX.1-dev with random weights, what all its calls have, and instant plans."""
    built = build("flux", torch.device(device), tiny=tiny)
    sizes = {} if tiny else {"height": size, "width": size}
    call = built.call | sizes | {"num_inference_steps": STEPS, "output_type": "pt"}
    with drive(built.pipe, **call) as run:
        times = run.times
    return built.pipe, call, {budget: instant_plan(times, evaluations=budget) for budget in budgets}


def flux_calls(pipe: Any, call: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The arguments of this many requests, which differ in their prompts and seeds."""
    arguments = []
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        texts = {
            name: torch.randn(call[name].shape, generator=generator).to(call[name])
            for name in TEXTS
        }
        arguments.append(call | texts | {"generator": generator})
    return arguments


def calls(embeddings: dict[str, Tensor], count: int, device: str) -> list[dict[str, Any]]:
    """The arguments of this many requests: prompts in turn, seeds by their numbers."""
    own = models.default_call("tiny-flux")
    fixed = {name: own[name] for name in ("height", "width", "num_inference_steps")}
    arguments = []
    for number in range(count):
        row = number % len(embeddings["prompt_embeds"])
        texts = {
            name: tensor[:1] if name.startswith("negative") else tensor[row : row + 1]
            for name, tensor in embeddings.items()
        }
        arguments.append(
            fixed
            | {name: tensor.to(device) for name, tensor in texts.items()}
            | {
                "true_cfg_scale": own["true_cfg_scale"],
                "generator": torch.Generator().manual_seed(number),
                "output_type": "pt",
            }
        )
    return arguments
