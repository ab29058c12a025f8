"""What records say of the machine they were made on."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from tacache.bench.records import Machine

PACKAGES = ("tacache", "torch", "diffusers", "transformers")  # whose versions records say


def this_machine(device: torch.device) -> Machine:
    """The device and what is installed."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    return Machine(
        device=f"{device.type}: {name}",
        versions={"python": platform.python_version(), **installed(PACKAGES)},
    )


def installed(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that are there."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
