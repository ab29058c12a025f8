"""The template of the page *Add a rival* runs as it stands there, and the benchmark takes it."""

import re
from functools import partial
from pathlib import Path

import pytest
from tests.support import mixture, noise_of
from tests.tiny import PIPELINES

from tacache import time_grid
from tacache_lab.bench.named_methods import METHODS
from tacache_lab.methods import SamplingProblem, record

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-rival.md"
TIMES, GRID = time_grid(16, 2.0), partial(time_grid, shift=2.0)
TEMPLATE, RUN = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def names():
    scope = {}
    exec(compile(TEMPLATE, str(PAGE), "exec"), scope)
    yield scope
    METHODS.pop("blend", None)


@pytest.mark.parametrize("evaluations", [1, 5, 16])
def test_the_template_keeps_its_budget(names, evaluations):
    rival, recording = names["Blend"](), record(mixture(), noise_of(3), TIMES, grid=GRID)
    settings = rival.fit(recording, evaluations)
    outcome = rival.run(SamplingProblem(mixture(), noise_of(2, seed=1), TIMES, {}, GRID), settings)
    assert outcome.evaluations == (evaluations, evaluations)
    if evaluations == 16:
        assert recording.error(rival.run(recording, settings).x) < 1e-20


@pytest.mark.slow
def test_the_benchmark_runs_the_template(names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = PIPELINES["flux"].call() | {"num_inference_steps": 8}
    del call["prompt"]
    names |= {"pipe": PIPELINES["flux"].build(), "call": call}
    exec(compile(RUN, str(PAGE), "exec"), names)
    by_method = {one.method: one for one in names["records"]}
    assert by_method.keys() == {"full", "blend", "fewer", "tasu"}
    assert {one.status for one in by_method.values()} == {"done"}
    assert by_method["blend"].spent == 4
    assert by_method["blend"].settings["share"] in (0.0, 0.5, 1.0)
