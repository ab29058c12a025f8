"""What tests of this folder share beside `diffusers_support`."""

import pytest

from tacache.diffusers import trajectory


class EveryKind(set):
    """A set of all pipelines and schedulers."""

    def __contains__(self, kind: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def _fits_count_their_own_evaluations(request, monkeypatch):
    """The one that compares a driven call with a plain one is tested in test_trajectory."""
    if request.module.__name__.endswith("test_fitting"):
        monkeypatch.setattr(trajectory, "CHECKED", EveryKind())
