"""Full runs of a fit's samples: recorded, resumed, and how errors on the way grow."""

import math

import numpy as np
import pytest
import torch
from tests.support import Counted, KilledError, euler_run, noise_of

from tacache import PlanError, time_grid
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.reference import _probed, probe_cost, record
from tacache.fitting.samples import FunctionSamples

TIMES = tuple(time_grid(16, shift=2.0))
SHAPE = (2, 3)


def test_the_reference_is_the_full_run(flow):
    x = noise_of(5, SHAPE)
    reference = record(FunctionSamples(flow, x, TIMES, {}))
    assert reference.states.shape == (17, *x.shape)
    assert torch.allclose(reference.states[-1], euler_run(flow, x, TIMES), rtol=1e-12)
    assert reference.held_out == 1
    assert len(reference.growth) == 17
    assert reference.growth[-1] == 1.0


def test_growth_is_that_of_a_linear_flow():
    """Along x' = -a x an error shrinks by the same factor as the state, step by step."""
    runs = FunctionSamples(lambda x, t: 2.0 * x, noise_of(5, SHAPE), TIMES, {})
    growth = record(runs).growth
    for n in _probed(16):
        expected = math.prod(1 - 2.0 * (TIMES[i] - TIMES[i + 1]) for i in range(n, 16))
        assert growth[n] == pytest.approx(expected, rel=1e-6)


def test_a_killed_recording_goes_on_to_the_same_reference(flow, tmp_path):
    path, x, times = tmp_path / "deep" / "runs", noise_of(5, SHAPE), time_grid(25, 2.0)
    expected = record(FunctionSamples(flow, x, times, {}))
    with pytest.raises(KilledError):
        record(FunctionSamples(Counted(flow, most=23 * 5), x, times, {}), FitOptions(resume=path))
    counted = Counted(flow)
    runs = FunctionSamples(counted, x, times, {})
    found = record(runs, FitOptions(resume=path))
    assert counted.evaluations == 5 * 5 + probe_cost(runs)  # steps 20 to 24
    assert torch.equal(found.states, expected.states)
    assert np.array_equal(found.errors, expected.errors)
    assert torch.equal(found.run_ends, expected.run_ends)
    assert (found.growth, found.held_out) == (expected.growth, expected.held_out)
    assert found.spent == expected.spent
    again = Counted(flow)
    assert torch.equal(
        record(FunctionSamples(again, x, times, {}), FitOptions(resume=path)).states, found.states
    )
    assert again.evaluations == probe_cost(runs)
    assert [file.name for file in path.parent.iterdir()] == ["runs"]


@pytest.mark.parametrize("content", [b"", b"a diary", None])
def test_a_file_that_holds_no_runs_is_refused(flow, tmp_path, content):
    path = tmp_path / "runs"
    torch.save({"states": 1}, path) if content is None else path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(PlanError, match=r"holds no runs of a fit, is damaged.*: delete it"):
        record(FunctionSamples(flow, noise_of(5, SHAPE), TIMES, {}), FitOptions(resume=path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", ["noise", "samples", "times", "steps", "job"])
def test_the_file_of_another_fit_is_refused(flow, tmp_path, change):
    path, x = tmp_path / "runs", noise_of(5, SHAPE)
    record(FunctionSamples(flow, x, TIMES, {}), FitOptions(resume=path))
    changes = {
        "noise": (x + 1e-9, TIMES),
        "samples": (x[:4], TIMES),
        "times": (x, time_grid(16, shift=2.5)),
        "steps": (x, time_grid(12, shift=2.0)),
    }
    runs = FunctionSamples(flow, *changes.get(change, (x, TIMES)), {})
    runs.job = "another" if change == "job" else ""
    with pytest.raises(PlanError, match="holds the runs of another fit: delete it, or name"):
        record(runs, FitOptions(resume=path))
