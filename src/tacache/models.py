"""The small models that install by name: a registry, and how they are loaded and saved.

A distribution such as tacache-models names its models as entry points of `tacache.models`.
"""

import difflib
import functools
import importlib.util
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacache.errors import HostError, PlanError
from tacache.extensions import MODELS, extensions
from tacache.fitting.fit_options import Target
from tacache.plan import Plan

INSTALL = "pip install tacache-models (in a checkout: ./models)"
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
    parts: tuple[str, ...]
    packages: tuple[str, ...]
    halved: tuple[str, ...]  # the parts that ship in half precision
    assemble: Callable[[Path], Any]
    fps: int | None = None  # of the clips it makes; None of one that makes pictures
    base: "Embedded | None" = None  # the model that it adapts, whose prompts and detector it shares
    budgets: tuple[int, ...] = BUDGETS  # of the plans that ship with it
    targets: tuple[Target, ...] = ("run", "flow")  # what they are fitted to
    typical_prompt: str | None = None  # whose pictures by a plan have about the median PSNR

    @property
    def profile(self) -> Path:
        """Return the profile that ships with it."""
        return self.folder / "profile.json"

    @property
    def detector(self) -> Path:
        """Return the detector of its prompt-following score."""
        return self.base.detector if self.base else self.folder / "detector.safetensors"

    def prompts(self, name: str) -> Path:
        """Return its own prompts, or those of the model that it adapts: `calibration` or `test`."""
        return self.base.prompts(name) if self.base else self.folder / f"{name}.jsonl"

    @property
    def steps(self) -> int:
        """Return the steps that it is called with unless told."""
        return int(self.call["num_inference_steps"])

    def plan_file(self, evaluations: int, target: Target = "run", steps: int | None = None) -> Path:
        """Return where the fitted plan of this budget lies, or would lie, for so many steps."""
        if target not in SUFFIXES:
            raise PlanError(f"plans are fitted to the run or to the flow, not to {target!r}")
        own = steps is None or steps == self.steps
        name = f"{evaluations}" if own else f"{evaluations}of{steps}"
        return self.folder / "plans" / f"{name}{SUFFIXES[target]}"

    def plans(self, target: Target = "run") -> dict[int, Path]:
        """Return the files of the fitted plans that ship with it, by evaluations, fewest first."""
        files = {budget: self.plan_file(budget, target) for budget in self.budgets}
        return {budget: file for budget, file in files.items() if file.is_file()}

    def plan(self, evaluations: int, target: Target = "run") -> Plan:
        """Return the fitted plan of this budget that ships with it, for the run or for the flow."""
        files = self.plans(target)
        if evaluations not in files:
            there = ", ".join(map(str, files)) or "none"
            raise PlanError(
                f"no plan of {evaluations} evaluations fitted to the {target} ships with this "
                f"model, but those of {there}: fit one with `tacache fit`"
            )
        return Plan.load(files[evaluations])


@functools.cache
def shipped() -> dict[str, Embedded]:
    """Return the models that are installed by name; without tacache-models there are none."""
    return {name: point.load() for name, point in extensions(MODELS).items()}


def embedded(name: str) -> Embedded:
    """Return the facts of a model that is installed by name."""
    known = shipped()
    if name in known:
        return known[name]
    if not known:
        raise HostError(f"no model {name!r} is installed: {INSTALL} brings the small models")
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    choice = f"meant {close[0]}?" if close else f"there are {', '.join(known)}"
    raise HostError(f"there is no model {name} ({choice})")


def check_known(model: str) -> None:
    """Refuse a name that no installed model and no folder has: an id of a hub has an owner."""
    if "/" not in model and not Path(model).is_dir():
        embedded(model)


def default_call(model: str) -> dict[str, Any]:
    """Return the arguments a model that ships is called with unless others are given."""
    return dict(shipped()[model].call) if model in shipped() else {}


def frame_rate(model: str | None) -> int:
    """Return frames a second of the clips of a model, by name."""
    return (shipped()[model].fps if model in shipped() else None) or FPS


def own_prompts(model: str, source: str) -> str | Path:
    """Return the file of prompts of that name: the model's own, or the one for its kind."""
    if Path(source).is_file():
        return source
    if model in shipped():
        own = shipped()[model].prompts(source)
        return own if own.is_file() else source
    return FOR_VIDEO[source] if source in FOR_VIDEO and makes_video(model) else source


def makes_video(model: str) -> bool:
    """Return whether a pipeline's folder or hub id names a class that makes clips."""
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
    facts = embedded(name)
    folder = folder or facts.folder
    for part in facts.parts:
        if not (folder / part).exists():
            raise HostError(f"the weights of {name} are not in {folder}: {part} is missing")
    for package in facts.packages:
        if importlib.util.find_spec(package) is None:
            raise HostError(f"{name} needs the package {package.replace('_', '-')}: {INSTALL}")


def load(name: str, folder: str | Path | None = None) -> Any:
    """Load the model's pipeline, in float32 on the CPU, from its own folder or another one.

    `tiny-flux` is a `FluxPipeline`. `tiny-wan` is a `WanPipeline` that walks its grid by Euler's
    method, the reference of every figure; its folder names UniPC, as Wan does. `tiny-flux-turbo` is
    `tiny-flux` with a LoRA added to its weights.
    """
    facts = embedded(name)
    source = facts.folder if folder is None else Path(folder)
    check(name, source)
    try:
        with _quiet():
            pipe = facts.assemble(source)
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
    """Use one thread on a CPU: layers this small gain little from more, and wait for busy cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if pipe.device.type == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_QUIET = threading.RLock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and hints of the libraries while a small model loads."""
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    modules = (of_transformers, of_diffusers)
    with _QUIET:  # what is put back must be what others have not changed meanwhile
        before = [(module.get_verbosity(), module.is_progress_bar_enabled()) for module in modules]
        for module in modules:
            module.set_verbosity_error()
            module.disable_progress_bar()
        try:
            yield
        finally:
            for module, (verbosity, bars) in zip(modules, before, strict=True):
                module.set_verbosity(verbosity)
                if bars:
                    module.enable_progress_bar()
