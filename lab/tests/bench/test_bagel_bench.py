"""`tacache bench bagel`: the benchmark on the stand-in and, with BAGEL_PATH, on BAGEL."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import bagel_real, bagel_stand_in, command_line
from tests.bagel_stand_in import CALL, SIZE
from torch import Tensor

from tacache.bagel import calibrate
from tacache.bagel.held_call import scales_at
from tacache.bagel.host import replaced
from tacache.bagel.inferencer import BagelHost
from tacache.bagel.maker import maker_of, pixels_of
from tacache.bagel.runs import device_of
from tacache.errors import HostError
from tacache.prompts import Sample
from tacache.work.processes import Processes
from tacache_lab.bench import BenchJob, Record, host_calls, read_records, run_bench
from tacache_lab.bench.calibration_sets import CalibrationVelocity
from tacache_lab.bench.host_calls import Calls, host_of
from tacache_lab.bench.judging import FINE, FULL, Judge, euler_run
from tacache_lab.bench.machines import installed
from tacache_lab.bench.model_caches import inside_caches
from tacache_lab.flops import count_flops

pytestmark = pytest.mark.filterwarnings("ignore:.*Disabling autocast:UserWarning")
METHODS = ("tasu-10", "fitted", "reuse", "fewer", "ab2", "magcache")
STEPS, BUDGETS = 8, (6, 4)
FEW = {**CALL, "num_timesteps": STEPS + 1}
FOX = Sample("a red fox", 0)
UNTIMED = {"seconds": None, "full_seconds": None, "prepare_seconds": None, "tuned_on": None}


def job(**changes: Any) -> BenchJob:
    asked = BenchJob(
        methods=METHODS,
        evaluations=BUDGETS,
        prompts=["a red fox", "two boats"],
        calibration=["a lamp", "a kite"],
        call=FEW,
        seeds=[3],
    )
    return replace(asked, **changes)


def timeless(records: list[Record]) -> list[Record]:
    return [record.model_copy(update=UNTIMED) for record in records]


@pytest.fixture(
    scope="module",
    params=["stand-in", pytest.param("real", marks=bagel_real.needs_checkout)],
)
def inferencer(request) -> Any:
    return (bagel_real if request.param == "real" else bagel_stand_in).inferencer()


@pytest.fixture(scope="module")
def stand_in() -> Any:
    return bagel_stand_in.inferencer()


@pytest.fixture(scope="module")
def undisturbed(inferencer, tmp_path_factory) -> list[Record]:
    return run_bench(inferencer, job(fine=16), tmp_path_factory.mktemp("whole") / "r.jsonl")


@contextmanager
def latents_of(inferencer: Any) -> Iterator[list[Tensor]]:
    """What `generate_image` itself gives in the block."""
    found: list[Tensor] = []
    whole = inferencer.model.generate_image

    def noted(*args: Any, **call: Any) -> Any:
        made = whole(*args, **call)
        found.extend(made)
        return made

    inferencer.model.generate_image = noted
    try:
        yield found
    finally:
        del inferencer.model.generate_image


@contextmanager
def flows_of(inferencer: Any) -> Iterator[list[float]]:
    """The times at which `_forward_flow` of the class runs in the block."""
    kind, times = type(inferencer.model), []
    plain = kind._forward_flow

    @functools.wraps(plain)
    def noted(self: Any, **arguments: Any) -> Any:
        times.append(float(arguments["timestep"][0]))
        return plain(self, **arguments)

    kind._forward_flow = noted
    try:
        yield times
    finally:
        kind._forward_flow = plain


# --- records ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_method_runs_from_one_noise_and_is_counted_right(undisturbed):
    assert [record.reason for record in undisturbed if record.status != "done"] == []
    assert len(undisturbed) == 2 * (2 + len(METHODS) * len(BUDGETS))
    assert len({record.noise_sha256 for record in undisturbed}) == 1  # of one seed
    spent = {(record.method, record.evaluations): record.spent for record in undisturbed}
    assert spent[FULL, STEPS] == STEPS
    assert spent[FINE, 16] == 16
    assert all(spent[method, budget] == budget for method in METHODS for budget in BUDGETS)
    drift = {r.method: r.to_full.drift for r in undisturbed if r.evaluations == 4}
    assert drift["fitted"] < drift["fewer"]


@pytest.mark.slow
def test_records_say_what_calibration_says_of_the_model(inferencer, undisturbed):
    measured = calibrate(inferencer, ["a lamp"], **FEW).origin
    unsaid = {"prompts_sha256": None, "weights": None}  # a results file goes on in later versions
    assert undisturbed[0].origin == measured.model_copy(update=unsaid)
    assert undisturbed[0].origin.kind == "bagel"


@pytest.mark.parametrize("steps", [STEPS, 5])
def test_full_steps_are_those_of_generate_image_bit_for_bit(inferencer, tmp_path, steps):
    """The reference, and as many steps as a user asks BAGEL for."""
    caller = Calls(BagelHost(inferencer), FEW, FOX)
    made = Judge(caller, job(), tmp_path / "r.jsonl", {}).run(FOX, euler_run, steps=steps)
    with latents_of(inferencer) as latents:
        picture = maker_of(inferencer, None, FEW | {"num_timesteps": steps + 1})(FOX)
    assert torch.equal(made.result.latents, latents[0].float())
    assert torch.equal(made.result.pixels.movedim(0, -1), torch.from_numpy(pixels_of(picture)))
    assert len(made.evaluated) == steps


def test_times_off_the_grid_are_evaluated_as_bagel_would(inferencer):
    """The steps of a run with other levels, asked of a call with the usual ones."""
    caller = Calls(BagelHost(inferencer), FEW, FOX)
    with caller.open(FOX) as usual, caller.open(FOX, steps=6) as other:
        assert other.times == caller.grid(6)
        new = sorted(set(other.times) - set(usual.times))
        assert len(new) == 4
        assert new[0] < 0.4 < new[1]  # guidance is off at the first
        for t in other.times[:-1]:
            found = usual(usual.run.noise, t)
            assert torch.equal(found, other(other.run.noise, t))
        assert tuple(usual.evaluated) == other.times[:-1]
        with pytest.raises(HostError, match=r"t=0.0 is no noise level"):
            usual(usual.run.noise, 0.0)


def test_the_calls_own_autocast_holds(tmp_path):
    inferencer = bagel_stand_in.inferencer()
    inferencer.autocast = "cpu"
    caller = Calls(BagelHost(inferencer), FEW, FOX)
    assert caller.host.dtype == "bfloat16"
    test_times_off_the_grid_are_evaluated_as_bagel_would(inferencer)
    test_full_steps_are_those_of_generate_image_bit_for_bit(inferencer, tmp_path, STEPS)


@pytest.mark.slow
def test_evaluations_are_calls_of_forward_flow_that_ran(inferencer, tmp_path):
    asked = job(methods=["fewer"], evaluations=[4], prompts=["a red fox"])
    run_bench(inferencer, asked, tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").unlink()  # what is made ready stays
    with flows_of(inferencer) as times:
        full, fewer = run_bench(inferencer, asked, tmp_path / "r.jsonl")
    seen = [round(t, 6) for t in times]
    # first what the model is, then a warm-up of two steps
    assert tuple(seen[3 : 3 + STEPS]) == full.evaluated
    # then operations: calls of two and three steps, an evaluation with guidance and one without
    assert tuple(seen[3 + STEPS + 2 + 3 + 2 :]) == fewer.evaluated
    assert (full.spent, fewer.spent) == (STEPS, 4)


@pytest.mark.slow
def test_operations_are_those_of_the_inferencers_own_call(inferencer, undisturbed):
    """With steps that guidance is off in, which cost less."""
    records = {(r.method, r.evaluations): r for r in undisturbed if r.prompt == FOX.prompt}

    def of_call(steps: int) -> int:
        make = maker_of(inferencer, None, FEW | {"num_timesteps": steps + 1})
        return count_flops(functools.partial(make, FOX))

    assert records[FULL, STEPS].flops == pytest.approx(of_call(STEPS), rel=1e-6)
    assert records[FINE, 16].flops == pytest.approx(of_call(16), rel=1e-6)
    assert records["fewer", 4].flops == pytest.approx(of_call(4), rel=1e-6)


# --- killed and resumed -----------------------------------------------------------------------


@pytest.mark.slow
def test_killed_it_goes_on_where_it_stopped(stand_in, tmp_path, monkeypatch):
    asked = job(methods=("tasu-10", "fewer", "magcache"), fine=16)
    whole = run_bench(stand_in, asked, tmp_path / "whole.jsonl")
    evaluate, left, draw = host_calls.Counted.__call__, [0], random.Random(1)

    def dying(self: Any, x: Tensor, t: float) -> Tensor:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return evaluate(self, x, t)

    monkeypatch.setattr(host_calls.Counted, "__call__", dying)
    interruptions = 0
    while True:
        left[0] = draw.randrange(26, 40)
        try:
            records = run_bench(stand_in, asked, tmp_path / "r.jsonl")
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert interruptions < 100
    assert interruptions >= 3
    # a tuning that goes on evaluates again what its tries had shared
    uncounted = {"prepare_evaluations": None}
    for made, wanted in zip(timeless(records), timeless(whole), strict=True):
        assert (made.prepare_evaluations or 0) >= (wanted.prepare_evaluations or 0)
        assert made.model_copy(update=uncounted) == wanted.model_copy(update=uncounted)


def test_nothing_stays_replaced(stand_in):
    before = dict(vars(stand_in)), set(vars(stand_in.model))
    with Calls(BagelHost(stand_in), FEW, FOX).open(FOX):
        assert (dict(vars(stand_in)), set(vars(stand_in.model))) == before


def test_one_call_serves_a_sample_at_all_times(stand_in, monkeypatch):
    caller = Calls(BagelHost(stand_in), FEW, FOX)
    plain, opened = Calls.open, []
    monkeypatch.setattr(Calls, "open", lambda *given: opened.append(1) or plain(*given))
    with ExitStack() as stack:
        velocity = CalibrationVelocity(caller, [FOX, Sample("two boats", 1)], stack)
        x = torch.randn(2, 4, 64)
        for t in (1.0, 0.777, 0.123):
            assert velocity(x, t, [0, 1]).shape == x.shape
    assert len(opened) == 2


# --- refused ----------------------------------------------------------------------------------


@pytest.mark.skipif(not inside_caches(), reason="diffusers cannot be imported")
def test_caches_inside_the_model_are_recorded_with_the_reason(stand_in, tmp_path):
    asked = job(methods=["dicache"], evaluations=[4], prompts=["a red fox"])
    record = run_bench(stand_in, asked, tmp_path / "r.jsonl")[-1]
    assert record.status == "failed"
    assert "InterleaveInferencer has no transformer" in record.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_timestep": 9}, "takes no argument 'num_timestep' .meant 'num_timesteps'"),
        ({"enable_taylorseer": True}, "enable_taylorseer=True does not go with"),
    ],
)
def test_a_call_that_cannot_be_benchmarked_is_refused(stand_in, changes, message):
    with pytest.raises(HostError, match=message):
        Calls(BagelHost(stand_in), FEW | changes, FOX)


def test_an_inferencer_that_makes_no_picture_is_refused(stand_in, monkeypatch):
    monkeypatch.setattr(type(stand_in), "__call__", lambda self, **call: {"image": None})
    with pytest.raises(
        HostError, match="'a red fox' with seed 0: generate_image of the model was not called"
    ):
        Calls(BagelHost(stand_in), FEW, FOX)


def test_a_picture_that_is_none_is_refused(stand_in, monkeypatch):
    caller = Calls(BagelHost(stand_in), FEW, FOX)
    monkeypatch.setattr(type(stand_in), "decode_image", lambda self, latents, shape: latents)
    with (
        caller.open(FOX) as velocity,
        pytest.raises(HostError, match="made no picture of the last state"),
    ):
        velocity.finish(velocity.run.noise)


def test_guidance_by_another_rule_is_refused(stand_in, monkeypatch):
    whole = type(stand_in.model).generate_image

    @functools.wraps(whole)
    def otherwise(self: Any, **call: Any) -> Any:
        flow = self._forward_flow
        with replaced(self, _forward_flow=lambda **given: flow(**given | {"cfg_img_scale": 2.0})):
            return whole(self, **call)

    monkeypatch.setattr(type(stand_in.model), "generate_image", otherwise)
    with pytest.raises(HostError, match="guidance at t=1 is not that of its cfg_interval"):
        Calls(BagelHost(stand_in), FEW, FOX)


# --- small parts ------------------------------------------------------------------------------


def test_bagel_is_told_by_its_inferencer_and_runs_alone(stand_in, monkeypatch):
    host = host_of(stand_in)
    assert isinstance(host, BagelHost)
    assert host_of(host) is host
    with pytest.raises(HostError, match="Bagel is neither a pipeline"):
        host_of(stand_in.model)
    assert host.processes() == Processes(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(HostError, match="bagel runs in one process"):
        host.processes()


@pytest.mark.skipif(not inside_caches(), reason="diffusers cannot be imported")
def test_caches_are_refused_by_the_caller_too(stand_in):
    caller = Calls(BagelHost(stand_in), FEW, FOX)
    refused = pytest.raises(HostError, match="InterleaveInferencer has no transformer")
    with refused, caller.inside(object()):
        pass


def test_versions_are_those_of_what_is_installed():
    found = installed(["torch", "no-such-package"])
    assert found.keys() == {"torch"}
    assert torch.__version__.partition("+")[0] == found["torch"].partition("+")[0]


@pytest.mark.slow
def test_it_needs_no_diffusers():
    """BAGEL's transformers and diffusers of today do not go together."""
    code = (
        "import sys; sys.modules['diffusers'] = None\n"
        "from tacache.bagel import inferencer; from tacache_lab.bench import runner, suites\n"
        "assert not suites.INSIDE and 'fitted' in suites.OUTSIDE\n"
        "suites.check_names(['dicache'])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = result.stderr.strip().splitlines()[-1]
    assert "unknown method 'dicache'" in last
    assert "those inside the model need tacache[diffusers]" in last


@pytest.mark.parametrize(("t", "guided"), [(1.0, True), (0.41, True), (0.4, False), (0.1, False)])
def test_guidance_is_on_within_the_interval(stand_in, t, guided):
    with Calls(BagelHost(stand_in), FEW, FOX).open(FOX) as velocity:
        scales = scales_at(t, velocity.run.run)
    assert scales == {"cfg_text_scale": 4.0 if guided else 1.0, "cfg_img_scale": 1.0}


def test_offloaded_weights_are_on_no_device():
    both = torch.nn.ModuleList([torch.nn.Linear(1, 1, device=kind) for kind in ("meta", "cpu")])
    assert device_of(both) == torch.device("cpu")
    assert device_of(both[:1]) == torch.device("cpu")


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch) -> Iterator[list[str]]:
    """A checkout and weights of the stand-in, and the options that name them."""
    monkeypatch.chdir(tmp_path)
    bagel_stand_in.write_checkout(Path("Bagel"))
    bagel_stand_in.write_weights(Path("W"))
    with bagel_stand_in.no_checkout_loaded():
        yield ["--load", "bagel-path=Bagel", "--load", "weights=W"]


run = partial(command_line.run, "bench", "bagel")


@pytest.mark.slow
def test_the_command_writes_records_and_pictures(files):
    size = ["--height", SIZE[0], "--width", SIZE[1], "--guidance", 4]
    few = ["--steps", 9, "--count", 1, "--calibration-count", 2]
    asked = ["--methods", "tasu-10,fewer,published,inside", "--keep", "kept", "-o", "r.jsonl"]
    made = run(*files, *size, *few, *asked, "--evaluations", 4, "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["done"] == 4
    records = read_records("r.jsonl")
    assert [record.method for record in records] == ["full", "tasu-10", "fewer", "tasu:bagel"]
    assert [record.spent for record in records[:3]] == [8, 4, 4]
    assert records[0].origin.call["cfg_text_scale"] == 4.0
    assert all(Path(record.picture).is_file() for record in records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--evaluations", "9"], "a run of 8 steps has no 9 evaluations"),
        (["--frames", "5"], "leave --frames"),
        (["--load", "offload=model"], "bagel has no offload"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(files, more, message):
    size = ["--height", SIZE[0], "--width", SIZE[1], "--steps", 9]
    made = run(*files, *size, "--methods", "fewer", *more)
    assert made.exit_code == 2
    (line,) = [one for one in made.stderr.splitlines() if one.startswith("tacache: ")]
    assert message in line


def test_it_runs_in_one_process_with_both_folders(files, monkeypatch):
    assert "bagel needs --load bagel-path=DIR" in run("--methods", "fewer").stderr
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = run(*files, "--methods", "fewer")
    assert made.exit_code == 2
    assert "bagel runs in one process: leave torchrun" in made.stderr
