"""The study of FID and prompt following, on a small flow in the place of tiny-flux."""

import json

import pytest
import torch
from benchmarks import quality
from benchmarks.instant import Model
from tests.support import mixture, noise_of

from tacache import models, time_grid
from tacache.plan import Plan
from tacache_lab.following import Item
from tacache_lab.methods import BASELINES, record
from tacache_lab.picture_metrics.frechet import FeatureStatistics

pytestmark = pytest.mark.slow

SIDE, COUNT = 128, 8
ITEM = Item.model_validate(
    {"tag": "single_object", "prompt": "a fox", "include": [{"class": "fox", "count": 1}]}
)


@pytest.fixture
def model():
    """A flow in pixels whose pictures differ by the row of their prompt."""
    goals = torch.linspace(0, 1, COUNT)[:, None]

    def velocity(x, t, rows):
        return x - goals[rows]

    def decode(x):
        return x.clamp(0, 1)[:, :, None, None].expand(-1, 3, SIDE, SIDE)

    grids = {steps: tuple(time_grid(steps, 3.0)) for steps in (50, *quality.BUDGETS)}
    noise = noise_of(COUNT, (1,))
    return Model("tiny-flux", velocity, decode, noise, grids)


class Means(torch.nn.Module):
    """Features of a picture: its mean and the square of it."""

    def forward(self, x):
        """Return both, a row a picture."""
        mean = x.mean((1, 2, 3))
        return torch.stack([mean, mean**2], dim=1)


@pytest.fixture
def inputs(model, monkeypatch):
    monkeypatch.setattr(quality, "detect", lambda detector, images: [[] for _ in images])
    reference = FeatureStatistics(torch.zeros(2).double(), torch.eye(2).double())
    return quality.Inputs(model, [ITEM] * COUNT, Means(), None, reference)


def test_every_method_spends_what_it_says(model):
    if "tiny-flux" not in models.shipped():
        pytest.skip("tacache-models is not installed: its plans are run here")
    rows = torch.arange(COUNT)
    named = []
    for method, evaluations, sample in quality.samplers(model):
        counted = []
        problem = quality.problem_of(model, rows)
        plain = problem.velocity

        def velocity(x, t, rows, counted=counted, plain=plain):
            counted.append(t)
            return plain(x, t, rows=rows)

        object.__setattr__(problem, "velocity", velocity)
        assert sample(problem).isfinite().all()
        assert evaluations - 2 <= len(counted) <= evaluations
        named.append((method, evaluations))
    assert named[0] == ("full", 50)
    for budget in quality.BUDGETS:
        assert {name for name, k in named if k == budget} >= {"fitted", "instant", "tasu", "fewer"}
        assert len([name for name, k in named if k == budget and name in BASELINES]) == 2


def test_a_record_has_fid_and_following_with_halves_and_is_not_made_twice(
    inputs, tmp_path, monkeypatch
):
    def two(model):
        whole = Plan.full(model.grids[50])
        for name in ("full", "again"):
            yield name, 50, lambda problem: quality.sample_by_plan(problem, whole)

    monkeypatch.setattr(quality, "samplers", two)
    full, again = quality.measured(inputs, tmp_path, set())
    assert full["pictures"] == COUNT
    assert full["fid_to_full"] is None
    assert again["fid_to_full"]["value"] == pytest.approx(0, abs=1e-6)
    assert full["fid"] == again["fid"]
    assert full["following"] == {"single_object": 0.0, "overall": 0.0}
    assert len(full["fid"]["halves"]) == len(full["following_halves"]) == 2
    assert full["noise_sha256"] == again["noise_sha256"]
    json.dumps(full)
    left = list(quality.measured(inputs, tmp_path, {("full", 50)}))
    assert left == [again]
    assert quality.table([full, again]).count("\n") == 3


def test_settings_of_records_are_read_as_those_of_their_rival():
    recording = record(mixture(), noise_of(2), time_grid(20))
    for name in ("hicache", "taylorseer-1", "oss", "magcache", "vde"):
        settings = BASELINES[name].fit(recording, 7)
        assert quality.settings_of(name, settings.model_dump(mode="json")) == settings


def test_noise_depends_on_the_picture_alone():
    assert torch.equal(quality.noise_of(3, (2,))[2], quality.noise_of(5, (2,))[2])
