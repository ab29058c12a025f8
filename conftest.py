"""Settings and fixtures all tests share."""

import gc
import os
import tempfile
from itertools import count
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported: no test asks the hub

import pytest
import torch
from hypothesis import settings
from tests.flows import GaussianMixtureFlow
from tests.support import mixture, noise_of

from tacache import Profile, calibrate, time_grid

settings.register_profile("tests", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("tests")
torch.set_num_threads(1)
gc.disable()  # nothing that is made while tests are collected is garbage

# Where slow tests reach what no quick one does; elsewhere they run untraced, a third faster.
MEASURED_WHERE_SLOW = (
    "tests/cli", "tests/serving", "tests/storage", "tests/studio", "models/tests",
    "lab/tests/commands", "lab/tests/report", "lab/tests/test_studio_rivals.py",
    "tests/diffusers/test_calls.py", "tests/diffusers/test_joint.py", "tests/fitting/test_flow.py",
)  # fmt: skip

_HOMES = tempfile.TemporaryDirectory(prefix="tacache-homes-")
_NUMBERS = count()
os.environ["TACACHE_HOME"] = _HOMES.name  # the user's own store of plans is never touched


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out of the coverage where quick ones reach as much."""
    measured = tuple(config.rootpath / folder for folder in MEASURED_WHERE_SLOW)
    for item in items:
        is_measured = any(item.path.is_relative_to(folder) for folder in measured)
        if item.get_closest_marker("slow") and not is_measured:
            item.add_marker("no_cover")


def pytest_collection_finish() -> None:
    """Collect garbage again, but never look at the modules and tests that are there by now."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the plan store, which each test has for itself; it is not there at first."""
    path = Path(_HOMES.name) / str(next(_NUMBERS))
    monkeypatch.setenv("TACACHE_HOME", str(path))
    return path


@pytest.fixture(scope="session")
def flow() -> GaussianMixtureFlow:
    return mixture()


@pytest.fixture(scope="session")
def profile(flow: GaussianMixtureFlow) -> Profile:
    """20 steps of the mixture flow, measured on six samples in float64."""
    return calibrate(flow, noise_of(6), time_grid(20, shift=2.0))
