"""Calls of a pipeline as velocity functions: exact, in any order, several at a time."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
import time
import traceback
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FlowMatchEulerDiscreteScheduler, FluxPipeline
from tests.diffusers_support import (
    MODULAR,
    REFUSED,
    STEPS,
    SUPPORTED,
    call_of,
    counted,
    profile_of,
    recorded,
    run,
)
from tests.tiny import FURTHER, PIPELINES, Tiny
from tests.tiny.entry import as_tensor
from tests.tiny.pictures import picture
from torch import Tensor

import tacache
from tacache import HostError, Plan
from tacache.diffusers import apply, calibrate
from tacache.diffusers.trajectory import CHECKED, PipelineTrajectory, drive, held_call
from tacache.velocity import euler

FLUX, WAN = PIPELINES["flux"], PIPELINES["wan"]
DRIVEN = tuple(name for name in (*SUPPORTED, *MODULAR) if "ltx2" not in name)  # see test_joint.py
SHUFFLED = (STEPS - 1, 3, 7, 0, 0, 5, 5, 4, STEPS - 1, 1)


@pytest.fixture
def flux() -> Any:
    return FLUX.build()


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not driven_threads()


@pytest.fixture(autouse=True)
def _small_edits(monkeypatch):
    """Qwen's editing would encode a megapixel, whatever it is given."""
    monkeypatch.setattr(
        "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit.calculate_dimensions",
        lambda *_: (256, 256, None),
    )


def driven_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("driven")]


def as_vector(output: Any) -> Tensor:
    """All outputs of a call as one vector, as `diffusers_support.run` gives them."""
    parts = [as_tensor(value) for value in output.values() if value is not None]
    return torch.cat([part.flatten() for part in parts])


def walk(run: PipelineTrajectory) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """All steps with the pipeline's own solver: the last state, and x, the model's x and v."""
    x, solver, seen = run.noise, run.solver(), []
    for n in range(run.steps):
        v = run.evaluate(x, n)
        seen.append((x, run.state, v))
        x = solver.step(v, run.state)
    return x, seen


def driven(tiny: Tiny, pipe: Any, **changes: Any) -> Tensor:
    """A whole run through `drive`, as one vector."""
    with drive(pipe, **call_of(tiny, **changes)) as run:
        return as_vector(run.output(walk(run)[0]))


def check_exact(tiny: Tiny, pipe: Any, **changes: Any) -> None:
    """In order it is the pipeline's own run, and out of order it gives the same velocities."""
    expected = run(tiny, pipe, **changes)
    with recorded(pipe) as velocities:
        run(tiny, pipe, **changes)
    (own,) = velocities.values()
    with drive(pipe, **call_of(tiny, **changes)) as held:
        x, seen = walk(held)
        sign = 1 if torch.equal(seen[0][2], own[0]) else -1
        assert all(torch.equal(sign * v, one) for (_, _, v), one in zip(seen, own, strict=True))
        for n in (n % held.steps for n in SHUFFLED):
            given, state, v = seen[n]
            assert torch.equal(held.evaluate(given, n), v)
            assert torch.equal(held.state, state)
        found = as_vector(held.output(x))
    assert torch.equal(found, expected)


# --- exactness --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIVEN)
def test_it_is_the_pipelines_own_run(name):
    check_exact(PIPELINES[name], PIPELINES[name].build())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("flux", {"num_images_per_prompt": 3}),
        ("flux", {"prompt": ["a red fox", "two blue birds"]}),
        ("wan", {"num_videos_per_prompt": 2}),
        ("flux-img2img", {"strength": 0.6}),
        ("flux-inpaint", {"strength": 0.6}),
        ("flux-inpaint", {"mask_image": picture(32)}),  # grey: a mixture of new and known
        ("sd3-img2img", {"strength": 0.37}),
        ("wan-v2v", {"strength": 0.6}),
        ("flux-controlnet", {"control_guidance_start": 0.2, "control_guidance_end": 0.5}),
        ("lumina2", {"cfg_trunc_ratio": 0.5}),
        ("z-image", {"cfg_truncation": 0.5}),
        ("sd3", {"skip_guidance_layers": [0], "skip_layer_guidance_stop": 0.6}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_batches_late_starts_and_what_is_counted_in_steps(name, changes):
    check_exact(PIPELINES[name], PIPELINES[name].build(), **changes)


@pytest.mark.parametrize("name", ["flux", "wan-euler", "mochi", "ltx-condition"])
def test_the_velocity_has_this_projects_sign(name):
    tiny = PIPELINES[name]
    with drive(tiny.build(), **call_of(tiny)) as run:
        x, solver = run.noise, run.solver()
        for n, (t, t_next) in enumerate(zip(run.times, run.times[1:], strict=False)):
            v = run.evaluate(x, n)
            ours, before, x = euler(x, v, t, t_next), x, solver.step(v, x)
            moved = x != before  # LTX's condition stays where it is
            assert moved.float().mean() > 0.4
            torch.testing.assert_close(ours[moved], x[moved], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan-euler", "mochi"])
def test_a_calibration_of_the_velocity_function_is_that_of_the_pipeline(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    expected = profile_of(tiny, pipe)
    with drive(pipe, **call_of(tiny)) as run:
        found = tacache.calibrate(run.evaluate_at, run.noise, run.times)
    assert found.times == expected.times
    assert found.magnitude == pytest.approx(expected.magnitude, rel=1e-3, abs=1e-4)
    assert found.direction == pytest.approx(expected.direction, rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan", "wan-2.2", "sana", "hidream", "mochi"])
def test_the_grid_is_that_of_calibration(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    profile = profile_of(tiny, pipe)
    with drive(pipe, **call_of(tiny)) as run:
        assert (run.times, run.breaks, run.steps) == (profile.times, profile.breaks, STEPS)
        assert run.call["num_inference_steps"] == STEPS


def test_the_grid_of_a_late_start():
    tiny = PIPELINES["flux-img2img"]
    pipe = tiny.build()
    with drive(pipe, **call_of(tiny, strength=0.5)) as run:
        assert run.times == profile_of(tiny, pipe, strength=0.5).times
        assert run.steps == STEPS // 2


def test_the_first_velocity_is_not_evaluated_twice(flux):
    with counted(flux, FLUX.denoisers) as calls, drive(flux, **call_of(FLUX)) as run:
        walk(run)
        assert len(calls) == STEPS
        run.evaluate(run.noise, 0)
        assert len(calls) == STEPS + 1


def test_another_state_at_the_first_step_has_its_own_velocity(flux):
    with drive(flux, **call_of(FLUX)) as run:
        other = run.evaluate(2 * run.noise, 0)
        assert not torch.equal(other, run.evaluate(run.noise, 0))


def test_what_is_given_and_taken_is_a_copy(flux):
    with drive(flux, **call_of(FLUX)) as run:
        noise, v = run.noise, run.evaluate(run.noise, 0)
        for mine in (run.noise, run.state, run.evaluate(run.noise, 0)):
            mine.zero_()
        assert torch.equal(run.noise, noise)
        assert torch.equal(run.evaluate(noise, 0), v)


def test_solvers_of_a_run_are_independent():
    """UniPC keeps a history; each solver has its own."""
    with drive(WAN.build(), **call_of(WAN)) as run:
        x, seen = walk(run)
        again, beside = run.solver(), run.solver()
        y, z = run.noise, run.noise
        for _, _, v in seen:
            y, z = again.step(v, y), beside.step(v, z)
        assert torch.equal(y, x)
        assert torch.equal(z, x)
        with pytest.raises(HostError, match="all 12 steps"):
            again.step(v, y)


def test_states_in_another_dtype_are_taken(flux):
    flux.to(torch.bfloat16)
    expected = run(FLUX, flux)
    with drive(flux, **call_of(FLUX)) as held:
        x, solver = held.noise, held.solver()
        assert x.dtype == torch.bfloat16
        for n in range(held.steps):
            v = held.evaluate(x.float(), n)
            assert v.dtype == torch.bfloat16
            x = solver.step(v, x)
        assert torch.equal(as_vector(held.output(x.double())), expected)


# --- the output -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flux", "wan"])
def test_the_output_is_the_pipelines(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    expected = pipe(**call_of(tiny, output_type="np"))
    with drive(pipe, **call_of(tiny, output_type="np")) as run:
        found = run.output(walk(run)[0])
    assert type(found) is type(expected)
    assert (found[0] == expected[0]).all()
    with drive(pipe, **call_of(tiny, output_type="np", return_dict=False)) as run:
        found = run.output(walk(run)[0])
    assert isinstance(found, tuple)
    assert (found[0] == expected[0]).all()


def test_a_run_may_end_anywhere(flux):
    with drive(flux, **call_of(FLUX)) as run:
        run.evaluate(run.noise, 4)
        x = torch.randn(run.noise.shape)
        assert torch.equal(run.output(x).images, x)


def test_inpainting_ends_with_the_known_part_clean_wherever_it_ends():
    tiny = PIPELINES["flux-inpaint"]
    pipe = tiny.build()
    expected = run(tiny, pipe)
    with drive(pipe, **call_of(tiny)) as held:
        x, _ = walk(held)
        held.evaluate(held.noise, 2)
        assert torch.equal(as_vector(held.output(x)), expected)


# --- several runs -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "flux-inpaint", "wan", "wan-2.2", "sana"])
def test_runs_in_lock_step_are_runs_alone(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    changes = [{"prompt": "two blue birds"}, {"num_inference_steps": 9}]
    alone = [run(tiny, pipe, **change) for change in changes]
    with (
        drive(pipe, **call_of(tiny, **changes[0])) as first,
        drive(pipe, **call_of(tiny, **changes[1])) as second,
    ):
        runs = [first, second]
        states, solvers = [one.noise for one in runs], [one.solver() for one in runs]
        for n in range(STEPS):
            for k, one in enumerate(runs):
                if n < one.steps:
                    v = one.evaluate(states[k], n)
                    states[k] = solvers[k].step(v, one.state)
        together = [as_vector(one.output(x)) for one, x in zip(runs, states, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_one_thread_works_at_a_time(flux):
    main, working, threads = threading.current_thread(), threading.Lock(), set()

    def enter(*_: Any) -> None:
        assert working.acquire(blocking=False)
        threads.add(threading.current_thread())

    flux.transformer.register_forward_pre_hook(enter)
    flux.transformer.register_forward_hook(lambda *_: working.release())
    with drive(flux, **call_of(FLUX)) as first, drive(flux, **call_of(FLUX)) as second:
        for n in range(3):
            for one in (first, second):
                one.evaluate(one.noise, n)
        assert len(threads) == 2
        assert main not in threads
        assert all(thread.daemon for thread in threads)


def test_one_run_may_end_while_others_go_on(flux):
    expected = run(FLUX, flux, prompt="two blue birds")
    with drive(flux, **call_of(FLUX, prompt="two blue birds")) as kept:
        with drive(flux, **call_of(FLUX)) as finished, drive(flux, **call_of(FLUX)):
            finished.output(finished.noise)
        assert len(driven_threads()) == 1
        assert torch.equal(as_vector(kept.output(walk(kept)[0])), expected)


# --- the user's pipeline ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan", "flux-inpaint"])
@pytest.mark.parametrize("ends", [True, False], ids=["finished", "left"])
def test_the_pipeline_is_not_touched(name, ends):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    expected = run(tiny, pipe)
    module = inspect.unwrap(type(pipe).__call__).__globals__
    before = dict(vars(pipe)), copy.deepcopy(vars(pipe.scheduler)), dict(pipe.config), set(module)
    scheduler = pipe.scheduler
    with drive(pipe, **call_of(tiny, prompt="another", guidance_scale=2.0)) as held:
        assert pipe.scheduler is scheduler
        held.evaluate(held.noise, 3)
        if ends:
            held.output(held.noise)
    assert pipe.scheduler is scheduler
    assert vars(pipe) == before[0]
    assert str(vars(scheduler)) == str(before[1])
    assert (dict(pipe.config), set(module)) == before[2:]
    assert "enumerate" not in module
    assert torch.equal(run(tiny, pipe), expected)


def test_a_plan_on_the_pipeline_is_left_out(flux):
    expected = run(FLUX, flux)
    with drive(flux, **call_of(FLUX)) as held:
        plan = Plan.full(held.times)
    apply(flux, plan.model_copy(update={"anchors": (0, 1, 6), "rule": "reuse"}))
    before = flux.scheduler
    assert torch.equal(driven(FLUX, flux), expected)
    assert flux.scheduler is before


def test_a_shift_set_by_hand_is_kept():
    tiny = PIPELINES["wan-euler"]
    pipe = tiny.build()
    pipe.scheduler.set_shift(7.0)
    assert torch.equal(driven(tiny, pipe), run(tiny, pipe))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "wan"])
def test_offloading_goes_on_working(name):
    """Its hooks sit on modules that all runs share, and every call that ends renews them."""
    tiny = PIPELINES[name]
    pipe = tiny.build()
    expected = run(tiny, pipe)
    pipe.enable_model_cpu_offload(device="cpu")  # moves nothing, but has all the hooks
    with drive(pipe, **call_of(tiny)) as kept:
        x, solver = kept.noise, kept.solver()
        for n in range(kept.steps):
            if n == 3:
                assert torch.equal(driven(tiny, pipe), expected)
            if n == 5:
                with drive(pipe, **call_of(tiny)) as left:
                    left.evaluate(left.noise, 2)
            v = kept.evaluate(x, n)
            x = solver.step(v, x)
        assert torch.equal(as_vector(kept.output(x)), expected)
    assert torch.equal(run(tiny, pipe), expected)
    assert hasattr(pipe.transformer, "_hf_hook")


@pytest.mark.slow
def test_progress_bars_are_silent(flux, capsys):
    flux.set_progress_bar_config(disable=False)
    driven(FLUX, flux)
    assert capsys.readouterr().err == ""
    run(FLUX, flux)
    assert "12/12" in capsys.readouterr().err


# --- what a thread does not inherit -----------------------------------------------------------


def test_autocast_holds_in_the_thread(flux):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = run(FLUX, flux)
        found = driven(FLUX, flux)
    assert torch.equal(found, expected)
    assert not torch.equal(found, driven(FLUX, flux))


def test_inference_mode_holds_in_the_thread(flux):
    seen = []
    flux.transformer.register_forward_pre_hook(
        lambda *_: seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
    )
    with drive(flux, **call_of(FLUX)):
        assert seen.pop() == (False, False)
    with torch.inference_mode(), drive(flux, **call_of(FLUX)):
        assert seen.pop() == (True, False)


def test_the_default_device_holds_in_the_thread(flux, monkeypatch):
    seen = []
    monkeypatch.setattr(
        FluxPipeline, "check_inputs", lambda *_, **__: seen.append(torch.empty(1).device.type)
    )
    # encoding on meta with weights on the CPU fails in some versions of torch
    with suppress(HostError), torch.device("meta"), drive(flux, **call_of(FLUX)):
        pass
    with drive(flux, **call_of(FLUX)):
        pass
    assert seen == ["meta", "cpu"]


# --- errors -----------------------------------------------------------------------------------


def test_an_error_before_the_loop_comes_at_once(flux):
    message = r"FluxPipeline failed: ValueError: .*prompt"
    with (
        pytest.raises(HostError, match=message) as caught,
        drive(flux, **call_of(FLUX, prompt=3)),
    ):
        pytest.fail("it has not begun")
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert "check_inputs" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


def test_an_error_in_the_loop_comes_with_its_evaluation(flux):
    def fail(*_: Any) -> None:
        if armed:
            raise torch.OutOfMemoryError("no memory is left")

    armed: list[bool] = []
    flux.transformer.register_forward_pre_hook(fail)
    with drive(flux, **call_of(FLUX)) as run:
        run.evaluate(run.noise, 3)
        armed.append(True)
        with pytest.raises(HostError, match="OutOfMemoryError: no memory is left") as caught:
            run.evaluate(run.noise, 4)
        assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
        assert not driven_threads()
        for use in (lambda: run.evaluate(run.noise, 4), lambda: run.output(run.noise)):
            with pytest.raises(HostError, match="has failed"):
                use()


def test_an_error_after_the_loop_comes_with_finish(flux, monkeypatch):
    monkeypatch.setattr(flux.vae, "decode", mock.Mock(side_effect=RuntimeError("broken")))
    with drive(flux, **call_of(FLUX, output_type="np")) as run:
        with pytest.raises(HostError, match="RuntimeError: broken"):
            run.output(run.noise)
        with pytest.raises(HostError, match="has failed"):
            run.output(run.noise)


def test_an_interrupted_wait_closes_the_run(flux):
    """A late reply must not be taken for that of the next question."""
    with drive(flux, **call_of(FLUX)) as run:
        interrupted = mock.Mock(
            get=mock.Mock(side_effect=KeyboardInterrupt), put=run._loop.replies.put
        )
        with mock.patch.object(run._loop, "replies", interrupted), pytest.raises(KeyboardInterrupt):
            run.evaluate(run.noise, 3)
        with pytest.raises(HostError, match="was interrupted"):
            run.evaluate(run.noise, 4)


def test_wrong_questions_leave_the_run_open(flux):
    with drive(flux, **call_of(FLUX)) as run:
        for n in (-1, STEPS):
            with pytest.raises(HostError, match="steps 0 to 11"):
                run.evaluate(run.noise, n)
        for use in (lambda x: run.evaluate(x, 0), run.output):
            with pytest.raises(HostError, match=r"shape \(2, 16\), but the run's \(1, "):
                use(torch.zeros(2, 16))
        with pytest.raises(HostError, match=r"t=0.123 is no step"):
            run.evaluate_at(run.noise, 0.123)
        run.output(run.noise)
        with pytest.raises(HostError, match="is finished"):
            run.evaluate(run.noise, 0)
    with pytest.raises(HostError, match="is finished"):
        run.output(run.noise)


def test_leaving_early_ends_the_thread_at_once(flux):
    freed = mock.Mock()
    with mock.patch.object(FluxPipeline, "maybe_free_model_hooks", freed):
        with drive(flux, **call_of(FLUX, num_inference_steps=50)) as run:
            run.evaluate(run.noise, 1)
            assert len(driven_threads()) == 1
            started = time.perf_counter()
        assert time.perf_counter() - started < 1
        assert not driven_threads()
    freed.assert_called_once_with()
    with pytest.raises(HostError, match="is closed"):
        run.evaluate(run.noise, 2)


def test_an_error_of_the_caller_passes_through(flux):
    with pytest.raises(ZeroDivisionError), drive(flux, **call_of(FLUX)):
        raise ZeroDivisionError


@pytest.mark.parametrize("name", REFUSED)
def test_what_calibration_refuses_is_refused_alike(name):
    pipe = PIPELINES[name].build()
    with pytest.raises(HostError) as expected:
        calibrate(pipe, ["a fox"], num_inference_steps=2)
    with pytest.raises(HostError) as found, drive(pipe, prompt="a fox", num_inference_steps=2):
        pass
    assert str(found.value) == str(expected.value)


def test_what_is_no_function_of_state_and_step_is_refused(flux):
    tiny = PIPELINES["ltx-condition"]
    call = call_of(tiny, image_cond_noise_scale=0.1)
    message = r"image_cond_noise_scale=0\.1"
    with pytest.raises(HostError, match=message), drive(tiny.build(), **call):
        pass
    flux.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    message = r"pipe\.transformer\.disable_cache\(\)"
    with pytest.raises(HostError, match=message), drive(flux, **call_of(FLUX)):
        pass


def test_a_misspelt_argument_stops_before_any_work(flux):
    with pytest.raises(HostError, match="meant 'guidance_scale'"), drive(flux, guidance_scal=2.0):
        pass


class Inherited(FluxPipeline):
    """Its loop is in the class it inherits from."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the class it inherits from."""
        return super().__call__(*args, **kwargs)


def test_a_loop_elsewhere_is_refused(flux):
    pipe = Inherited(**flux.components)
    with pytest.raises(HostError, match="in its own __call__"), drive(pipe, **call_of(FLUX)):
        pass


class Odd:
    """A pipeline that turns its loop in a way of its own."""

    def __init__(self, steps: tuple[int, ...], leaves: bool = False, loops: int = 1) -> None:
        self.scheduler = FlowMatchEulerDiscreteScheduler()
        self.steps, self.leaves, self.loops = steps, leaves, loops

    def maybe_free_model_hooks(self) -> None:
        """Nothing is offloaded."""

    def __call__(self, num_inference_steps: int = 3) -> Tensor:
        """A flow that grows."""
        self.scheduler.set_timesteps(num_inference_steps)
        x = torch.ones(1, 2)
        for _ in range(self.loops):
            for i, t in enumerate(self.scheduler.timesteps):
                if self.leaves:
                    break
                for _ in range(self.steps[i]):
                    x = self.scheduler.step(x, t, x).prev_sample
        return x


def test_a_plain_object_can_be_driven():
    with drive(Odd((1, 1, 1))) as run:
        assert torch.equal(run.output(walk(run)[0]), Odd((1, 1, 1))())


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (Odd((0, 1, 1)), "without a step"),
        (Odd((1, 0, 1)), "without a step"),
        (Odd((2, 1, 1)), "twice in a turn"),
        (Odd((1, 1, 1), leaves=True), "left its loop by itself"),
        (Odd((1, 1, 1), loops=2), "more than once a call"),
    ],
)
def test_odd_loops_are_refused(odd, message):
    with pytest.raises(HostError, match=message), drive(odd) as run:
        run.output(walk(run)[0])


# --- a driven call is compared with a plain one -----------------------------------------------


def test_the_first_driven_call_of_a_kind_is_compared_with_a_plain_one():
    CHECKED.clear()
    counts = []
    for _ in range(2):
        pipe = FLUX.build()
        with counted(pipe, FLUX.denoisers) as calls, drive(pipe, **call_of(FLUX)):
            counts.append(len(calls))
    assert counts == [2, 1]


def test_noise_of_the_global_generator_is_the_same_in_both():
    CHECKED.clear()
    call = call_of(FLUX)
    del call["generator"]
    torch.manual_seed(3)
    with drive(FLUX.build(), **call) as run:
        noise = run.noise
    after = torch.rand(1)
    torch.manual_seed(3)
    with drive(FLUX.build(), **call) as run:
        assert torch.equal(run.noise, noise)
    assert torch.equal(torch.rand(1), after)


def test_a_pipeline_that_is_another_one_when_driven_is_refused():
    class Shy(FluxPipeline):
        def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
            latents, ids = super().prepare_latents(*args, **kwargs)
            alone = threading.current_thread() is threading.main_thread()
            return (latents if alone else 2 * latents), ids

    pipe = Shy(**FLUX.build().components)
    with (
        pytest.raises(HostError, match="another state and velocity and result than in a plain"),
        drive(pipe, **call_of(FLUX)),
    ):
        pass


# --- a grid of the caller's own ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["flux", "wan"])
def test_the_same_time_has_the_same_velocity_on_another_grid(name):
    tiny = PIPELINES[name]
    pipe = tiny.build()
    grids = (1.0, 0.75, 0.5, 0.0), (1.0, 0.5, 0.25, 0.125, 0.0)
    found = []
    for times in grids:
        asked = call_of(tiny, num_inference_steps=len(times) - 1)
        with held_call(pipe, asked, times=times) as run:
            assert run.times == times
            found.append(run.evaluate(run.noise, times.index(0.5)))
            x = run.solver().step(run.evaluate(run.noise, 0), run.noise)
            assert not torch.equal(x, run.noise)
    assert torch.equal(*found)


@pytest.mark.slow
def test_blocks_that_cannot_be_driven_are_not_logged_at_each_level():
    """The one error says it; diffusers would log it with a trace for each block around the loop."""
    tiny, seen = FURTHER["HeliosModularPipeline"], []
    log = logging.getLogger("diffusers.modular_pipelines.modular_pipeline")
    handler = logging.Handler()
    handler.emit = seen.append
    log.addHandler(handler)
    try:
        with pytest.raises(HostError, match="cannot be driven"), drive(tiny.build(), **tiny.call()):
            pass
        assert not seen
        log.error("of another thread's")
        assert len(seen) == 1
    finally:
        log.removeHandler(handler)
