"""What records say of the machine they were made on."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from tacache_lab.bench.records import Machine

PACKAGES = ("tacache", "torch", "diffusers", "transformers")  # whose versions records say


def this_machine(device: torch.device) -> Machine:
    """Return the device and what is installed."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    return Machine(
        device=f"{device.type}: {name}",
        versions={"python": platform.python_version(), **installed(PACKAGES)},
    )


def same_device(device: torch.device) -> str:
    """Return a name that two processes have in common where they run on one device."""
    if device.type != "cuda":
        return f"{platform.node()} {device.type}"
    unique = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"{platform.node()} {unique or torch.device(device.type, device.index or 0)}"


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are there."""
    versions = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def synchronize(device: torch.device, *, reset: bool = False) -> None:
    """Wait for the device, so that a clock tells what it did."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def allocated(device: torch.device) -> int:
    """Return bytes that tensors have on the device; 0 where it does not say."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_memory(device: torch.device) -> int:
    """Return the most bytes since it was reset; 0 where the device does not say."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
