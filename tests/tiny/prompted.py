"""Pipelines of newer models that read a prompt, with no text encoder: each has noise of its own.

They are whole but for that: what a command types goes in, and pictures come out.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from diffusers.modular_pipelines import ModularPipelineBlocks
from diffusers.modular_pipelines.modular_pipeline_utils import InputParam, OutputParam
from tests.tiny import configurations as base
from tests.tiny import further_modular as cut
from tests.tiny.configurations import WIDTH
from tests.tiny.further_embedded import QWEN21_VAE, SilentProcessor
from tests.tiny.weights import seeded
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline, ModularPipeline

TURBO_LEVELS = [1.0, 0.95, 0.88, 0.8, 0.68, 0.5]  # noise levels that come with a checkpoint
MASK = torch.ones(1, cut.TOKENS, dtype=torch.bool)


def read(prompt: str, *shape: int) -> Tensor:
    """Numbers that stand for a prompt, the same for equal ones."""
    generator = torch.Generator().manual_seed(zlib.crc32(prompt.encode()))
    return torch.randn(1, cut.TOKENS, *shape, generator=generator)


def text_of(prompt: str | list[str]) -> str:
    return prompt if isinstance(prompt, str) else prompt[0]


@seeded
def krea2_turbo() -> DiffusionPipeline:
    """The distilled Krea 2."""
    import diffusers

    pipe = diffusers.Krea2Pipeline(
        **{name: make() for name, make in cut.KREA2.items()},
        vae=base.qwen_parts(1)["vae"](),
        text_encoder=None,
        tokenizer=None,
        is_distilled=True,
    )
    pipe.encode_prompt = lambda prompt, **_: (read(text_of(prompt), cut.LAYERS, WIDTH), MASK)
    return pipe


@seeded
def qwen21_turbo() -> DiffusionPipeline:
    """Qwen-Image-2.1 Turbo, which brings its noise levels."""
    import diffusers

    pipe = diffusers.QwenImage21Pipeline(
        scheduler=cut.QWEN21["scheduler"](),
        transformer=cut.QWEN21["transformer"](),
        vae=QWEN21_VAE["vae"](),
        text_encoder=None,
        processor=SilentProcessor(),
        sample_sigmas=TURBO_LEVELS,
    )
    no_picture = torch.zeros_like(MASK)
    pipe.encode_prompt = lambda prompt, **_: (read(text_of(prompt), WIDTH), None, no_picture)
    return pipe


class ReadPromptStep(ModularPipelineBlocks):
    """Puts the numbers of a prompt in the place of its encoding."""

    model_name = "flux3"

    @property
    def inputs(self) -> list[InputParam]:
        """What a call gives."""
        return [InputParam("prompt"), InputParam("negative_prompt")]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        """What the blocks after it read."""
        names = ("prompt_embeds", "negative_prompt_embeds")
        return [OutputParam(name, type_hint=Tensor) for name in names]

    def __call__(self, components: Any, state: Any) -> Any:
        """Read both prompts."""
        block_state = self.get_block_state(state)
        block_state.prompt_embeds = read(text_of(block_state.prompt), WIDTH)
        block_state.negative_prompt_embeds = read(block_state.negative_prompt or "", WIDTH)
        self.set_block_state(state, block_state)
        return components, state


@seeded
def flux3() -> ModularPipeline:
    """FLUX.3, which is blocks only."""
    import diffusers

    blocks = diffusers.Flux3AutoBlocks()
    del blocks.sub_blocks["prompt_upsampler"], blocks.sub_blocks["text_encoder"]
    blocks.sub_blocks.insert("text_encoder", ReadPromptStep(), 0)
    pipe = diffusers.Flux3ModularPipeline(blocks=blocks)
    parts = cut.flux3(flow_map=False) | {"vae": base.FLUX2["vae"]}
    pipe.update_components(**{name: make() for name, make in parts.items()})
    return pipe


class ReadOnePromptStep(ReadPromptStep):
    """The same for a model that takes one prompt, and is told which rows are its text."""

    model_name = "minimax-h3"

    @property
    def inputs(self) -> list[InputParam]:
        """What a call gives."""
        return [InputParam("prompt", required=True)]

    @property
    def intermediate_outputs(self) -> list[OutputParam]:
        """What the blocks after it read."""
        names = ("prompt_embeds", "text_token_tags")
        return [OutputParam(name, type_hint=Tensor) for name in names]

    def __call__(self, components: Any, state: Any) -> Any:
        """Read the prompt."""
        block_state = self.get_block_state(state)
        block_state.prompt_embeds = read(block_state.prompt, WIDTH)
        block_state.text_token_tags = torch.ones(cut.TOKENS, dtype=torch.long)
        self.set_block_state(state, block_state)
        return components, state


MINIMAX_H3_VAES = {
    "vae": base.part(
        "AutoencoderKLMiniMaxH3",
        block_out_channels=(8,) * 6,
        layers_per_block=1,
        norm_num_groups=4,
        decoder_num_layers=1,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=24,
    ),
    "audio_vae": base.part(
        "AutoencoderKLMiniMaxH3Audio",
        encoder_dim=4,
        encoder_rates=(8, 10, 10),
        latent_dim=32,
        num_attention_heads=2,
        decoder_dim=8,
        decoder_rates=(10, 10, 8),
        decoder_kernel_sizes=(20, 20, 16),
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1,),),
        latents_mean=[0.0] * 32,
        latents_std=[1.0] * 32,
    ),
}


@seeded
def minimax_h3() -> ModularPipeline:
    """MiniMax-H3, which makes clips with sound and is blocks only."""
    import diffusers

    blocks = diffusers.MiniMaxH3Blocks()
    del blocks.sub_blocks["text_encoder"]
    blocks.sub_blocks.insert("text_encoder", ReadOnePromptStep(), 1)
    pipe = diffusers.MiniMaxH3ModularPipeline(blocks=blocks)
    parts = cut.MINIMAX_H3 | MINIMAX_H3_VAES
    pipe.update_components(**{name: make() for name, make in parts.items()})
    return pipe


PIPELINES = {
    "Krea2Pipeline": krea2_turbo,
    "MiniMaxH3ModularPipeline": minimax_h3,
    "QwenImage21Pipeline": qwen21_turbo,
    "Flux3ModularPipeline": flux3,
}
