"""Settings and fixtures all tests share."""

import pytest
import torch
from hypothesis import settings
from support import mixture, noise_of

from tacache import Profile, calibrate, time_grid
from tests.flows import GaussianMixtureFlow

settings.register_profile("tests", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("tests")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def flow() -> GaussianMixtureFlow:
    return mixture()


@pytest.fixture(scope="session")
def profile(flow: GaussianMixtureFlow) -> Profile:
    """20 steps of the mixture flow, measured on six samples in float64."""
    return calibrate(flow, noise_of(6), time_grid(20, shift=2.0))
