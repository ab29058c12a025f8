"""The flow as a reference: how it is run, kept, tuned to and recorded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from lab.tests.bench.test_runner import FLUX, STEPS, job
from tests.diffusers_support import counted
from tests.flows import GaussianFlow
from tests.support import SHAPE, noise_of

from tacache import TACacheError, time_grid
from tacache.tasu import relative_distance
from tacache_lab.bench import RecordError, run_bench
from tacache_lab.bench.flow_runs import LOWEST, RATIO, flow_end, flow_steps, flow_times
from tacache_lab.bench.judging import work_folder
from tacache_lab.bench.named_methods import METHODS, resolve
from tacache_lab.bench.suites import FLOW_STEPS, SUITES, choose
from tacache_lab.methods import BASELINES, SamplingProblem, record

GRID = partial(time_grid, shift=3.0)
FLOW = GaussianFlow(noise_of(1, SHAPE, seed=5)[0], 0.05)


def test_the_end_of_the_grid_is_graded():
    grid = tuple(GRID(FLOW_STEPS))
    times = flow_times(grid)
    assert (times[0], times[-1]) == (grid[0], grid[-1])
    ratios = [b / a for a, b in pairwise(times[:-1])]
    assert min(ratios) >= RATIO - 1e-9
    assert RATIO * times[-2] <= LOWEST < times[-2]
    alike = [t for t in times if t in grid]
    assert len(alike) > FLOW_STEPS * 0.8
    assert len(times) < 1.3 * FLOW_STEPS


def test_a_grid_that_ends_above_zero_ends_there():
    times = flow_times((1.0, 0.9, 0.5, 0.4))
    assert times[-1] == 0.4
    assert all(a > b for a, b in pairwise(times))


def test_the_flow_is_nearer_than_ten_times_as_many_euler_steps():
    """Data as narrow as pictures are make the end of the flow stiff."""
    noise = noise_of(4)
    times = flow_times(tuple(GRID(FLOW_STEPS)))
    end = flow_end(SamplingProblem(FLOW, noise, times), times)
    euler = record(FLOW, noise, tuple(GRID(10 * len(times)))).states[-1]
    truth = FLOW.solution(noise, 0.0)
    ours, theirs = (float(relative_distance(x, truth).mean()) for x in (end, euler))
    assert ours < min(theirs, 1e-3)
    half = flow_times(tuple(GRID(FLOW_STEPS // 2)))
    coarser = relative_distance(flow_end(SamplingProblem(FLOW, noise, half), half), truth)
    assert ours < float(coarser.mean())


def test_the_solver_starts_anew_at_a_break():
    def velocity(x, t):
        return torch.full_like(x, 1.0 if t >= 0.5 else 3.0)

    times = (1.0, 0.75, 0.5, 0.49, 0.25, 0.0)
    states = [x for _, x in flow_steps(velocity, torch.zeros(1, 2), times, breaks=(0.5,))]
    wanted = [-0.25, -0.5, -0.51, -1.23, -1.98]  # each step with its own model's velocity
    assert [float(x[0, 0]) for x in states] == pytest.approx(wanted)


# --- in a benchmark -----------------------------------------------------------------------------


def flow_job(**changes: Any) -> Any:
    asked = job(reference="flow", fine=16, methods=["taylorseer-1", "euler:12"], evaluations=[4])
    return replace(asked, **changes)


@pytest.fixture(scope="module")
def pipe() -> Any:
    return FLUX.build()


@pytest.fixture(scope="module")
def made(pipe, tmp_path_factory) -> Any:
    out = tmp_path_factory.mktemp("flow") / "r.jsonl"
    return run_bench(pipe, flow_job(), out), out


@pytest.mark.slow
def test_records_compare_with_the_flow_and_say_so(made):
    records, _ = made
    assert {one.status for one in records} == {"done"}
    assert {one.reference for one in records} == {"flow"}
    assert {one.fine for one in records} == {16}
    assert len({one.noise_sha256 for one in records}) == 1  # one seed, all from one noise
    found = {one.method: one for one in records if one.prompt == "a red fox"}
    assert set(found) == {"full", "fine", "taylorseer-1", "euler:12"}
    assert found["fine"].spent > 16  # its end is graded
    assert found["fine"].to_fine is None
    assert all(found[name].to_fine is not None for name in ("full", "taylorseer-1", "euler:12"))
    twelve = found["euler:12"]
    assert (twelve.evaluations, twelve.spent, twelve.tuned_on) == (None, 12, None)
    assert twelve.to_fine.drift < found["full"].to_fine.drift  # of 8 steps


@pytest.mark.slow
def test_what_is_kept_is_not_run_again(made, pipe):
    records, out = made
    assert len(list(work_folder(out).glob("flow-*.pt"))) == len(job().calibration)
    assert len(list(work_folder(out).glob("reference-*.pt"))) == 4
    out.write_text("".join(one.to_line() for one in records if one.method != "taylorseer-1"))
    with counted(pipe, FLUX.denoisers) as calls:
        again = run_bench(pipe, flow_job(), out)
    assert {one.key for one in again} == {one.key for one in records}
    assert len(calls) < 2 * 4 + 3 * STEPS  # two samples, set-up and FLOPs; no reference


@pytest.mark.slow
def test_another_reference_is_another_file(made, pipe):
    _, out = made
    with pytest.raises(RecordError, match="another model, call or reference"):
        run_bench(pipe, flow_job(reference="run"), out)


@pytest.mark.slow
def test_tuning_to_the_flow_is_kept_apart(pipe, tmp_path):
    """Settings of the same method and budget that were tuned to full steps are not taken."""
    out = tmp_path / "r.jsonl"
    for reference in ("run", "flow"):
        run_bench(pipe, flow_job(reference=reference, prompts=["a red fox"], fine=16), out)
        out.unlink()
    # taylorseer-1 twice; the grid of euler:12 has nothing to tune
    assert len(list(work_folder(out).glob("tuning-*.jsonl"))) >= 3


def test_the_suite_compares_with_the_flow():
    suite = choose("flow")
    assert (suite.reference, suite.fine, suite.tries) == ("flow", FLOW_STEPS, 4)
    assert {"instant", "tasu", "fitted", "fitted-flow", "spectrum", "l2p"} <= set(suite.methods)
    assert set(suite.evaluations) == {5, 7, 10, 13, 17, 20, 25}
    assert choose("flow", fine=90).fine == 90
    assert choose("main").reference == "run"
    assert SUITES["main"].tries is None
    with pytest.raises(TACacheError, match="no reference 'truth': choose from run, flow"):
        choose("flow", reference="truth")


def test_a_reference_without_steps_is_refused():
    with pytest.raises(TACacheError, match="with how many"):
        flow_job(fine=None).check()
    with pytest.raises(TACacheError, match="at least one setting"):
        flow_job(tries=0).check()


def test_euler_takes_a_number_of_steps():
    assert not resolve("euler:400").method.budgeted
    assert not resolve("euler:400").method.calibrated
    for name in ("euler:many", "euler:0", "euler:"):
        with pytest.raises(TACacheError, match="a number of steps follows"):
            resolve(name)
    assert "euler" not in METHODS
    assert "euler" not in BASELINES
