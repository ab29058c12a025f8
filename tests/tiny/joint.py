"""Joint pipelines with two latents: one made by hand, with exact answers, and a tiny MiniMax-H3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from tests.tiny import FURTHER
from torch import Tensor

PICTURE, SOUND = (1, 4, 4, 4), (1, 6, 8)
SHIFTS = {"scheduler": 5.0, "audio_scheduler": 1.5}  # two grids
MINIMAX_H3 = FURTHER["MiniMaxH3ModularPipeline"]


class PairedFlow(ModelMixin, ConfigMixin):
    """Velocities that lead to known ends on straight lines; a `bend` moves each by the other."""

    @register_to_config
    def __init__(self, bend: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.picture = torch.nn.Parameter(torch.randn(PICTURE, generator=generator))
        self.sound = torch.nn.Parameter(torch.randn(SOUND, generator=generator))

    def forward(self, x: Tensor, y: Tensor, t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """The velocities of pictures x at time t and of sound y at time s."""
        bend = self.config.bend
        v, w = (x - self.picture) / (t + bend), (y - self.sound) / (s + bend)
        v = v + bend * torch.sin(4 * t + x) * (1 + y.mean())
        w = w + bend * torch.cos(7 * s - y) * (1 + x.mean())
        return v, w


@dataclass
class PairedOutput(BaseOutput):
    """Pictures with their sound."""

    frames: Any
    audio: Any


class PairedPipeline(DiffusionPipeline):
    """Steps pictures and sound in one loop, each by a scheduler and a grid of its own."""

    def __init__(self, transformer: Any, scheduler: Any, audio_scheduler: Any) -> None:
        super().__init__()
        self.register_modules(
            transformer=transformer, scheduler=scheduler, audio_scheduler=audio_scheduler
        )

    @torch.no_grad()
    def __call__(
        self,
        prompt: Any = None,
        num_inference_steps: int = 12,
        generator: Any = None,
        latents: Tensor | None = None,
        audio_latents: Tensor | None = None,
        output_type: str = "np",
    ) -> Any:
        """The pictures (or latents) and the sound of a run."""
        prompts = len(prompt) if isinstance(prompt, list) else 1
        if latents is None:
            latents = randn_tensor((prompts, *PICTURE[1:]), generator=generator)
        if audio_latents is None:
            audio_latents = randn_tensor((prompts, *SOUND[1:]), generator=generator)
        self.scheduler.set_timesteps(num_inference_steps)
        self.audio_scheduler.set_timesteps(num_inference_steps)
        timesteps, audio_timesteps = self.scheduler.timesteps, self.audio_scheduler.timesteps
        for i, t in enumerate(timesteps):
            s = audio_timesteps[i]
            v, w = self.transformer(latents, audio_latents, t / 1000, s / 1000)
            latents = self.scheduler.step(v, t, latents, return_dict=False)[0]
            audio_latents = self.audio_scheduler.step(w, s, audio_latents, return_dict=False)[0]
        if output_type == "latent":
            return PairedOutput(frames=latents, audio=audio_latents)
        frames = latents.sigmoid().permute(0, 2, 3, 1).numpy().astype(np.float32)
        return PairedOutput(frames=frames, audio=audio_latents.flatten(1).numpy())


def paired(bend: float = 0.0) -> PairedPipeline:
    """The made pipeline; without a bend every plan ends where the full run does."""
    parts = {name: FlowMatchEulerDiscreteScheduler(shift=shift) for name, shift in SHIFTS.items()}
    pipe = PairedPipeline(PairedFlow(bend=bend), **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def minimax() -> Any:
    """MiniMax-H3 without its encoders and decoders; its grids have shifts of 12 and 3."""
    pipe = MINIMAX_H3.build()
    blocks = pipe._blocks.sub_blocks["denoise"].sub_blocks["t2va"].sub_blocks
    blocks["denoise"].set_progress_bar_config(disable=True)
    return pipe


def minimax_call(steps: int = 12) -> dict[str, Any]:
    """A call of the tiny MiniMax-H3 for so many steps, which are one fewer than are asked for."""
    return MINIMAX_H3.call() | {"num_inference_steps": steps + 1}
