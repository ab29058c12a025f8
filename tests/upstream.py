"""Compare the stand-ins of BAGEL and ComfyUI with checkouts of the real code.

`make upstream BAGEL_PATH=DIR COMFYUI_PATH=DIR` runs it. Both sides are read as syntax, so that no
requirement of theirs has to be installed. Each line that is printed is one name or argument that
tests rely on and that the real code does not have. Most of what ComfyUI hands to a sampler travels
in dictionaries, which no signature shows: where its packages are installed a sampling is run by its
own code too, and what that carries is compared.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.syntax import Checkout, Definition, Function, members, signature, takes

TESTS = Path(__file__).parent
ENTIRELY = ("nn.Module", "torch.nn.Module", "object", "Exception")  # bases without a surface here


class Surface(NamedTuple):
    """What the tests and our code expect of one project."""

    project: str
    variable: str  # the environment variable that names a checkout
    stand_in: str  # the file in tests
    stands_for: Mapping[str, str]  # a name of the stand-in -> FILE:NAME in the checkout
    own: tuple[str, ...] = ()  # names of the stand-in that have nothing to stand for
    used: tuple[str, ...] = ()  # FILE:NAME, or FILE:NAME(ARGUMENTS), beyond the stand-in
    words: Mapping[str, tuple[str, ...]] = {}  # keys and attributes that a file spells out
    calls: str | None = None  # the module that prints what calls of the real code carry


BAGEL = Surface(
    project="BAGEL",
    variable="BAGEL_PATH",
    stand_in="bagel_stand_in.py",
    stands_for={
        "InterleaveInferencer": "inferencer.py:InterleaveInferencer",
        "load_ae": "modeling/autoencoder.py:load_ae",
        "Autoencoder": "modeling/autoencoder.py:AutoEncoder",
        "Qwen2Tokenizer": "modeling/qwen2/__init__.py:Qwen2Tokenizer",
        "Bagel": "modeling/bagel/__init__.py:Bagel",
        "Qwen2ForCausalLM": "modeling/bagel/__init__.py:Qwen2ForCausalLM",
        "SiglipVisionModel": "modeling/bagel/__init__.py:SiglipVisionModel",
        "Core": "modeling/bagel/qwen2_navit.py:Qwen2Model",
        "add_special_tokens": "data/data_utils.py:add_special_tokens",
        "ImageTransform": "data/transforms.py:ImageTransform",
    },
    own=(
        "Core.__init__",
        "Core.forward",
        "Autoencoder.__init__",
        "ImageTransform.sizes",
        "InterleaveInferencer.autocast",
        "SiglipVisionModel.layers",
        "Bagel.forward_cache_update_text",  # it takes what prepare_prompts gave, whatever it is
    ),
    used=(
        "modeling/bagel/__init__.py:Qwen2Config",
        "modeling/bagel/__init__.py:SiglipVisionConfig",
        "modeling/bagel/__init__.py:BagelConfig(visual_gen, visual_und, llm_config, vit_config, "
        "vae_config, latent_patch_size, max_latent_size, vit_max_num_patch_per_side, "
        "connector_act)",
        "modeling/bagel/bagel.py:Bagel.connector",
        "modeling/bagel/bagel.py:Bagel.vit_pos_embed",
        "modeling/bagel/bagel.py:Bagel.forward_cache_update_text(past_key_values, **texts)",
        "modeling/bagel/bagel.py:tqdm",
        "modeling/bagel/qwen2_navit.py:Qwen2MoTDecoderLayer",
        "modeling/bagel/siglip_navit.py:SiglipVisionEmbeddings."
        "convert_conv2d_to_linear(config, meta)",
    ),
    words={
        "modeling/bagel/bagel.py": (
            "packed_init_noises",
            "packed_seqlens",
            "packed_vae_position_ids",
            "text_channel",
            "channel",
            "global",
        ),
        "data/data_utils.py": ("start_of_image", "end_of_image"),
    },
)

COMFYUI = Surface(
    project="ComfyUI",
    variable="COMFYUI_PATH",
    stand_in="comfy_stand_in.py",
    stands_for={
        "InterruptProcessingException": "comfy/model_management.py:InterruptProcessingException",
        "CONST": "comfy/model_sampling.py:CONST",
        "EPS": "comfy/model_sampling.py:EPS",
        "KSAMPLER": "comfy/samplers.py:KSAMPLER",
        "MaskedModel": "comfy/samplers.py:KSamplerX0Inpaint",
        "CONDCrossAttn": "comfy/conds.py:CONDCrossAttn",
        "CFGGuider": "comfy/samplers.py:CFGGuider",
        "prepare_noise": "comfy/sample.py:prepare_noise",
        "ProgressBar": "comfy/utils.py:ProgressBar",
        "prepare_callback": "latent_preview.py:prepare_callback",
    },
    own=(
        "CONST.percent_to_sigma",
        "MaskedModel.__init__",
        "MaskedModel.latent_image",  # KSAMPLER sets both on it from outside
        "MaskedModel.noise",
        "ProgressBar.hook",
    ),
    used=(
        "comfy/sample.py:fix_empty_latent_channels(model, latent_image)",
        "comfy/model_sampling.py:ModelSamplingDiscreteFlow.percent_to_sigma(percent)",
        "comfy/model_patcher.py:ModelPatcher(model, load_device, offload_device)",
        "comfy/model_patcher.py:ModelPatcher.get_model_object(name)",
        "comfy/model_patcher.py:ModelPatcher.model_options",
        "comfy/model_base.py:BaseModel.diffusion_model",
        "comfy/model_base.py:BaseModel.model_sampling",
        "comfy/model_base.py:ModelType",
        "comfy/controlnet.py:ControlBase.previous_controlnet",
        "comfy/controlnet.py:ControlBase.timestep_range",
        "comfy/sd.py:CLIP.tokenize(text)",
        "comfy/sd.py:CLIP.encode_from_tokens_scheduled(tokens)",
        "comfy/utils.py:PROGRESS_BAR_HOOK",
        "folder_paths.py:models_dir",
        "folder_paths.py:folder_names_and_paths",
        "folder_paths.py:add_model_folder_path(folder_name, full_folder_path)",
        "folder_paths.py:get_folder_paths(folder_name)",
        "folder_paths.py:get_filename_list(folder_name)",
        "folder_paths.py:get_full_path(folder_name, filename)",
    ),
    words={
        "comfy/samplers.py": (
            "latent_image",
            "denoise_mask",
            "denoise_mask_function",
            "model_options",
            "timestep_start",
            "timestep_end",
            "control",
        ),
    },
    calls="tests.comfy_calls",
)
SURFACES = (BAGEL, COMFYUI)


def drifted(surface: Surface, root: Path) -> Iterator[str]:
    """What the tests expect of a checkout and do not find there, a sentence each."""
    checkout, tests = Checkout(root), Checkout(TESTS)
    for name, place in surface.stands_for.items():
        expected = tests.find(surface.stand_in, name)
        assert expected is not None, f"{surface.stand_in} has no {name}"
        yield from _compared(surface, name, expected, checkout, place)
    for place in surface.used:
        yield from _used(checkout, place)
    for file, words in surface.words.items():
        known = checkout.words(file)
        yield from (f"{file} does not name {word!r}" for word in words if word not in known)


def _compared(
    surface: Surface, name: str, expected: Definition, checkout: Checkout, place: str
) -> Iterator[str]:
    """Where the real definition has less than the one that stands in for it."""
    file, _, real_name = place.partition(":")
    found = checkout.find(file, real_name)
    if found is None:
        yield f"{file} has no {real_name}"
    elif isinstance(expected.node, Function):
        yield from takes(found, signature(expected), f"{file}: {real_name}")
    else:
        for member, node in members(expected.node).items():
            private = member.startswith("_") and not member.startswith("__")
            if f"{name}.{member}" in surface.own or (private and member not in SHADOWED):
                continue
            yield from _member(checkout, file, f"{real_name}.{member}", node)


SHADOWED = ("_forward_flow",)  # the one private method that our code replaces


def _member(checkout: Checkout, file: str, path: str, expected: Definition | None) -> Iterator[str]:
    """Whether a class of the checkout, or one it inherits from, has this member."""
    found, outside = checkout.member(file, path)
    if found is None and [base for base in outside if base not in ENTIRELY]:
        return  # it may come from another library, which this comparison does not read
    if found is None:
        yield f"{file} has no {path}"
    elif expected is not None and isinstance(expected.node, Function):
        yield from takes(found, signature(expected), f"{file}: {path}")


def _used(checkout: Checkout, place: str) -> Iterator[str]:
    """Whether the checkout has a name that is used without a stand-in, with these arguments."""
    file, _, rest = place.partition(":")
    name, bracket, arguments = rest.partition("(")
    node = ast.parse(f"def expected({arguments}: ...").body[0] if bracket else None
    expected = Definition(file, node) if node is not None else None
    if "." in name:
        yield from _member(checkout, file, name, expected)
        return
    found = checkout.find(file, name)
    if found is None:
        yield f"{file} has no {name}"
    elif expected is not None:
        yield from takes(found, signature(expected), f"{file}: {name}")


def carried_otherwise(surface: Surface, root: Path) -> Iterator[str]:
    """Yield what calls of the real code carry otherwise than those of the stand-in."""
    if surface.calls is None:
        return
    from tests.comfy_calls import carried, differences
    from tests.comfy_stand_in import StandIn

    command = [sys.executable, "-m", surface.calls]
    environment = {**os.environ, surface.variable: str(root)}
    real = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    if real.returncode:
        reason = (real.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        yield f"its calls could not be compared, run this where its packages are: {reason}"
        return
    yield from differences(carried(StandIn), json.loads(real.stdout.splitlines()[-1]))


def main(environment: Mapping[str, str] = os.environ) -> int:
    """Print what drifted: 0 where nothing did, 1 where something did, 2 without a checkout."""
    given = {s.project: environment.get(s.variable) for s in SURFACES}
    if not any(given.values()):
        names = " ".join(f"{s.variable}=DIR" for s in SURFACES)
        print(f"There is no checkout to compare with: make upstream {names}", file=sys.stderr)
        return 2
    code = 0
    for surface in SURFACES:
        path = given[surface.project]
        if not path:
            print(f"{surface.project}: not compared, since {surface.variable} names no checkout")
        elif not (root := Path(path).expanduser()).is_dir():
            print(f"{surface.project}: there is no folder {root}", file=sys.stderr)
            return 2
        else:
            lines = [*drifted(surface, root), *carried_otherwise(surface, root)]
            for line in lines:
                print(f"{surface.project}: {line}")
            print(f"{surface.project}: {len(lines) or 'nothing'} drifted")
            code = 1 if lines else code
    return code


if __name__ == "__main__":
    sys.exit(main())
