"""What ComfyUI's calls of a sampler carry: of the stand-in and of the real code.

Signatures alone do not show it, since most of it travels in dictionaries. `make upstream` runs this
file as a program on a checkout, where ComfyUI's packages are installed.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.comfy_stand_in import SHAPE, Checkout, StandIn

Carried = dict[str, Any]  # a name -> the name of a type, or what lies below


def carried(host: type[StandIn]) -> Carried:
    """Return what one sampling hands to a sampler: its arguments, and what the nodes read there."""
    seen: Carried = {}

    def watch(model: Any, x: Any, sigmas: Any, extra_args: Any = None, **options: Any) -> Any:
        guider = model.inner_model
        seen["extra_args"] = _types(extra_args)
        seen["options"] = _types({name: options[name] for name in sorted(options)})
        seen["prompt"] = _types(guider.conds["positive"][0])
        return x

    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        comfy = host(monkeypatch, Path(folder))
        guider = comfy.samplers.CFGGuider(comfy.model(lambda x, t: x))
        conditioning = [[torch.zeros(1, 2, 3), {"guidance": 3.5}]]
        guider.set_conds(conditioning, conditioning)
        noise, sampler = torch.zeros(1, *SHAPE), comfy.samplers.KSAMPLER(watch)
        guider.sample(noise, noise, sampler, torch.tensor([1.0, 0.0]), disable_pbar=True, seed=0)
    return seen


def differences(expected: Carried, real: Carried) -> Iterator[str]:
    """Yield a line for each thing that only one side's calls carry, or carry as another type."""
    mine, theirs = dict(_flat(expected)), dict(_flat(real))
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            yield f"calls carry {name}: {theirs.get(name)}, those of the stand-in {mine.get(name)}"


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _types(part) for name, part in value.items()}
    return type(value).__name__


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf by the path to it; an empty dictionary is a leaf."""
    for name, part in value.items():
        if isinstance(part, dict) and part:
            yield from _flat(part, f"{path}{name}.")
        else:
            yield f"{path}{name}", str(part)


if __name__ == "__main__":
    print(json.dumps(carried(Checkout)))
