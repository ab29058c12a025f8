"""Loading a pipeline by its name, from a hub or a folder, as the command line's options say."""

import inspect
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import DiffusionPipeline, ModularPipeline

from tacache import models
from tacache.errors import HostError, first_line

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
OFFLOADS = {
    "model": "enable_model_cpu_offload",
    "sequential": "enable_sequential_cpu_offload",
}


class Loading(NamedTuple):
    """How a pipeline is loaded; None means the sensible choice for this machine."""

    dtype: str | None = None
    device: str | None = None
    offload: str | None = None
    compile: bool = False
    revision: str | None = None  # a branch, tag or commit on the hub
    variant: str | None = None  # of the weights' files, such as fp16


def load_pipeline(model: str, how: Loading) -> Any:
    """Return the pipeline of an embedded model, a hub id or a local folder, on its device."""
    device = how.device or default_device()
    dtype = how.dtype or ("float32" if device == "cpu" else "bfloat16")
    if dtype not in DTYPES:
        raise HostError(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPES)}")
    if how.offload is not None and how.offload not in OFFLOADS:
        raise HostError(f"unknown offload {how.offload!r}: choose from {', '.join(OFFLOADS)}")
    check_device(device)
    which = {"revision": how.revision, "variant": how.variant}
    options = {name: value for name, value in which.items() if value is not None}
    pipe = _load(model, DTYPES[dtype], **options)
    if how.offload is None:
        pipe.to(device)
    else:
        getattr(pipe, OFFLOADS[how.offload])(device=device)
    if how.compile:
        pipe.transformer.compile()
    return pipe


def _load(model: str, dtype: torch.dtype, **which: str) -> Any:
    """Return the pipeline on the CPU; the name of an embedded model comes before a folder's."""
    if model in models.shipped():
        if which:
            raise HostError(f"{model} ships with tacache: leave {' and '.join(which)} out")
        pipe = models.load(model)
        return pipe if dtype == torch.float32 else pipe.to(dtype)
    if looks_like_folder(model) and not Path(model).is_dir():
        raise HostError(f"there is no folder {model}: give a pipeline's folder or a hub id")
    models.check_known(model)
    try:
        if _is_modular(model, which):
            modular = ModularPipeline.from_pretrained(model, **which)
            modular.load_components(dtype=dtype, **_from_text(modular))
            return modular
        return DiffusionPipeline.from_pretrained(model, dtype=dtype, **which)
    except (OSError, ValueError) as error:
        raise HostError(f"cannot load {model}: {first_line(error)}") from error


def _is_modular(model: str, which: dict[str, str]) -> bool:
    """Return whether a folder or a repository has a pipeline of blocks and no other."""
    chosen = {name: value for name, value in which.items() if name == "revision"}
    try:
        DiffusionPipeline.load_config(model, **chosen)
    except OSError:
        try:
            ModularPipeline.load_config(model, **chosen)
        except OSError:
            return False  # loading the one that is usual says what is missing
        return True
    return False


def _from_text(modular: Any) -> dict[str, str]:
    """Return the workflow that starts from a prompt alone, so that its parts alone are loaded."""
    workflows = getattr(modular._blocks, "_workflow_map", None) or {}
    names = [name for name, needs in workflows.items() if needs == {"prompt": True}]
    takes_one = "workflow" in inspect.signature(modular.load_components).parameters
    return {"workflow": names[0]} if names and takes_one else {}


def check_device(name: str) -> None:
    """Stop before anything is loaded where there is no such device."""
    try:
        torch.zeros(1).to(name)
    except (RuntimeError, AssertionError) as error:
        raise HostError(f"there is no device {name!r} here: {first_line(error)}") from error


def default_device() -> str:
    """Return the fastest device there is."""
    if torch.cuda.is_available():
        # Processes of one launcher share the devices out between them, several to a device where
        # they are more than there are devices.
        rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        return f"cuda:{rank % count if count else rank}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def looks_like_folder(model: str) -> bool:
    """Return whether a name is a path rather than an id such as `owner/name`."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1
