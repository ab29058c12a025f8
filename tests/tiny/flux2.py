"""FLUX.2: one language model for the text, read at several depths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.tiny.encoders import WIDTH, decoder
from tests.tiny.entry import PROMPT, Tiny
from tests.tiny.tokenizers import byte_tokenizer
from tests.tiny.weights import seeded

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

SIZE = 32
LATENT_CHANNELS = 4
DEPTHS = (1, 2)


@seeded
def build() -> DiffusionPipeline:
    """A plain Mistral stands for the vision-language one; no test passes pictures."""
    import diffusers

    tokenizer = byte_tokenizer()
    return diffusers.Flux2Pipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=diffusers.AutoencoderKLFlux2(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(4, 4),
            layers_per_block=1,
            latent_channels=LATENT_CHANNELS,
            norm_num_groups=2,
            sample_size=SIZE,
        ),
        text_encoder=decoder("MistralForCausalLM", tokenizer),
        tokenizer=tokenizer,
        transformer=diffusers.Flux2Transformer2DModel(
            in_channels=4 * LATENT_CHANNELS,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=len(DEPTHS) * WIDTH,
            timestep_guidance_channels=32,
            axes_dims_rope=(4, 4, 4, 4),
        ),
    )


def call() -> dict[str, Any]:
    """Guidance is embedded, so one pass a step; the real depths are 10, 20 and 30."""
    return {
        "prompt": PROMPT,
        "height": SIZE,
        "width": SIZE,
        "guidance_scale": 4.0,
        "max_sequence_length": 32,
        "text_encoder_out_layers": DEPTHS,
    }


PIPELINES = [Tiny("flux2", build, call)]
