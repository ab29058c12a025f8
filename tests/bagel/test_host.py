"""`tacache.bagel`: plans followed and refused, on the stand-in and, with BAGEL_PATH, on BAGEL."""

import inspect
import logging
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import bagel_real, bagel_stand_in
from tests.bagel_stand_in import CALL, SIZE, packed_arguments

from tacache import Plan, Stepper, make_plan
from tacache.bagel import applied, apply, calibrate, fit_plan, load_inferencer, remove
from tacache.bagel.host import Following, followed_plan
from tacache.bagel.runs import guidance_breaks, run_of, run_times
from tacache.errors import HostError, PlanError
from tacache.grid import break_steps
from tacache.storage.origin import Origin

# the real inferencer asks for CUDA's autocast on any machine
pytestmark = pytest.mark.filterwarnings("ignore:.*Disabling autocast:UserWarning")
STEPS = CALL["num_timesteps"] - 1


class Hosted(NamedTuple):
    """An inferencer, and whether it is BAGEL's own."""

    inferencer: Any
    real: bool

    @property
    def model(self) -> Any:
        """Its Bagel."""
        return self.inferencer.model

    def latents(self, prompts=("a red fox",), sizes=None, bfloat16=False, **call):
        """The latents of one packed call from seed 0."""
        torch.manual_seed(0)
        chosen = {"num_timesteps": 13, "timestep_shift": 3.0, "cfg_interval": (0.4, 1.0)}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.real or bfloat16):
            packed = packed_arguments(
                self.inferencer, list(prompts), sizes or [SIZE] * len(prompts)
            )
            return self.model.generate_image(**packed, **chosen | {"cfg_text_scale": 4.0} | call)

    @contextmanager
    def passes(self):
        """Language-model passes of each step, in order."""
        inner, total, steps = self.model._forward_flow, [0], []
        hook = self.model.language_model.model.register_forward_pre_hook(
            lambda *_: total.__setitem__(0, total[0] + 1)
        )

        def counted(**arguments):
            before = total[0]
            v = inner(**arguments)
            steps.append(total[0] - before)
            return v

        before = self.model.__dict__.get("_forward_flow")
        self.model._forward_flow = counted
        try:
            yield steps
        finally:
            hook.remove()
            if before is None:
                del self.model._forward_flow
            else:
                self.model._forward_flow = before


@pytest.fixture(
    scope="module",
    params=["stand-in", pytest.param("real", marks=bagel_real.needs_checkout)],
)
def hosted(request):
    real = request.param == "real"
    return Hosted((bagel_real if real else bagel_stand_in).inferencer(), real)


@pytest.fixture(scope="module")
def stand_in():
    return Hosted(bagel_stand_in.inferencer(), real=False)


@pytest.fixture(scope="module")
def profile(hosted):
    return calibrate(hosted.inferencer, ["a red fox", "two boats"], **CALL)


@pytest.fixture(scope="module")
def plan(profile):
    return make_plan(profile, evaluations=6)


@pytest.fixture(scope="module")
def stand_in_plan(stand_in):
    return make_plan(calibrate(stand_in.inferencer, ["a red fox"], **CALL), evaluations=6)


def full_plan():
    return Plan.full(run_times(13, 3.0))


def shadows(model):
    return model.__dict__.keys() & {"generate_image", "_forward_flow"}


# --- following a plan -----------------------------------------------------------------------


@pytest.mark.parametrize("renorm", ["global", "channel", "text_channel"])
def test_a_plan_of_anchors_alone_is_bit_exact(hosted, renorm):
    call = {"cfg_renorm_type": renorm, "cfg_img_scale": 1.5, "cfg_renorm_min": 0.1}
    plain = hosted.latents(["a red fox", "two boats"], **call)
    with applied(hosted.model, full_plan()) as following, hosted.passes() as passes:
        followed = hosted.latents(["a red fox", "two boats"], **call)
    assert all(map(torch.equal, plain, followed))
    assert following.run_plan.evaluations == STEPS
    assert passes == [3] * 10 + [1] * 2  # guidance ends at 0.4


def test_a_skipped_step_makes_no_language_model_pass(hosted, plan):
    with applied(hosted.inferencer, plan), hosted.passes() as passes:
        skipping = hosted.latents()
    assert plan.evaluations == 6
    assert passes == [(1 + (n < 10)) * (n in plan.anchors) for n in range(STEPS)]
    (full,) = hosted.latents()
    assert not torch.equal(skipping[0], full)
    assert (skipping[0] - full).norm() < 0.1 * full.norm()


def test_the_picture_of_the_inferencer_is_near_its_full_one(hosted, plan):
    def picture():
        torch.manual_seed(3)
        made = hosted.inferencer(text="a red fox", **CALL)["image"]
        return torch.from_numpy(np.asarray(made, dtype=np.float32))

    full = picture()
    with applied(hosted.inferencer, plan):
        assert (picture() - full).abs().mean() < 3
    assert torch.equal(picture(), full)


def test_velocities_keep_their_dtype_and_are_rebuilt_in_float32(stand_in, stand_in_plan):
    seen = []
    with applied(stand_in.model, stand_in_plan):
        inner = stand_in.model._forward_flow

        def watched(**arguments):
            seen.append(inner(**arguments))
            return seen[-1]

        stand_in.model._forward_flow = watched
        stand_in.latents(bfloat16=True)
    assert {v.dtype for v in seen} == {torch.bfloat16}
    stepper = Stepper(stand_in_plan)
    for n, v in enumerate(seen):  # as one sample: the norms run over all tokens of the image
        expected = stepper.velocity(v[None], lambda v=v: v[None])[0]
        assert torch.equal(v, expected), n


@pytest.mark.parametrize("sizes", [[SIZE, SIZE, SIZE], [(32, 32), (48, 64), (16, 32)]])
def test_packed_images_do_not_depend_on_each_other(stand_in, stand_in_plan, sizes, caplog):
    prompts = ["a red fox", "two boats", "a lamp"]
    call = {"cfg_renorm_type": "channel"}  # BAGEL's own "global" renorm couples them
    with applied(stand_in.model, stand_in_plan):
        torch.manual_seed(0)
        packed = packed_arguments(stand_in.inferencer, prompts, sizes)
        noises = packed["packed_init_noises"].split([h * w // 256 for h, w in sizes])
        together = stand_in.latents(prompts, sizes, **call)
        for prompt, size, noise, one in zip(prompts, sizes, noises, together, strict=True):
            alone = packed_arguments(stand_in.inferencer, [prompt], [size])
            alone["packed_init_noises"] = noise
            chosen = {"num_timesteps": 13, "timestep_shift": 3.0, "cfg_interval": (0.4, 1.0)}
            made = stand_in.model.generate_image(**alone, **chosen, cfg_text_scale=4.0, **call)
            assert torch.allclose(made[0], one, atol=1e-5)


def test_50_timesteps_are_49_steps(hosted):
    profile = calibrate(hosted.inferencer, ["a fox"], **CALL | {"num_timesteps": 50})
    assert profile.steps == 49
    assert profile.times == run_times(50, 3.0)
    plan = make_plan(profile, evaluations=13)
    with applied(hosted.model, plan), hosted.passes() as passes:
        hosted.latents(num_timesteps=50)
    assert len(passes) == 49
    assert sum(count > 0 for count in passes) == 13


def test_a_flow_outside_a_run_is_the_models_own(stand_in, stand_in_plan):
    packed = packed_arguments(stand_in.inferencer, ["a fox"], [SIZE])
    taken = inspect.signature(stand_in.model._forward_flow).parameters
    arguments = {name: value for name, value in packed.items() if name in taken}
    arguments |= {"x_t": packed["packed_init_noises"], "timestep": torch.ones(4)}
    plain = stand_in.model._forward_flow(**arguments)
    with applied(stand_in.model, stand_in_plan):
        assert torch.equal(stand_in.model._forward_flow(**arguments), plain)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_skipped_steps_wait_for_nothing(tmp_path):
    weights = bagel_stand_in.write_weights(tmp_path / "weights")
    checkout = bagel_stand_in.write_checkout(tmp_path / "Bagel")
    with bagel_stand_in.no_checkout_loaded():
        inferencer = load_inferencer(checkout, weights, device="cuda", dtype="bfloat16")
    inferencer.autocast = "cuda"
    plan = make_plan(calibrate(inferencer, ["a fox"], **CALL), evaluations=6)
    assert plan.origin.dtype == "bfloat16"
    following = Following(plan)
    arguments = {name: t.cuda() for name, t in _packed(inferencer).items()}
    following.start(run_of(inferencer.model, {**arguments, **plan.origin.call}))
    x = arguments["packed_init_noises"]
    v = x.bfloat16() + 1
    for n in range(plan.steps):
        last = n == plan.steps - 1  # where the run is looked at once
        torch.cuda.set_sync_debug_mode("default" if last else "error")
        try:
            made = following.velocity(x, lambda n=n: v * (1 + n / 50))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert made.dtype == torch.bfloat16
    fitted_plan = fit_plan(inferencer, ["a", "b", "c d"], evaluations=6, search=False, **CALL)
    assert fitted_plan.certificate.drift < 0.1


def test_a_result_that_is_not_finite_is_an_error(stand_in, stand_in_plan):
    following, arguments = Following(stand_in_plan), _packed(stand_in.inferencer)
    following.start(run_of(stand_in.model, {**arguments, **stand_in_plan.origin.call}))
    x = arguments["packed_init_noises"]
    for _ in range(stand_in_plan.steps - 1):
        following.velocity(x, lambda: x * float("nan"))
    with pytest.raises(HostError, match="is not finite"):
        following.velocity(x, lambda: x * float("nan"))


def _packed(inferencer):
    packed = packed_arguments(inferencer, ["a fox"], [SIZE])
    names = ("packed_init_noises", "packed_seqlens", "packed_vae_position_ids")
    return {name: packed[name] for name in names}


# --- where guidance switches ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "switches"), [((0.4, 1.0), (10,)), ((0, 1), ()), ((0.4, 0.9), (3, 10))]
)
def test_anchors_lie_where_guidance_switches(hosted, interval, switches):
    call = CALL | {"cfg_interval": interval}
    profile = calibrate(hosted.inferencer, ["a fox"], **call)
    plan = make_plan(profile, evaluations=6 + len(switches))
    assert plan.break_steps == switches
    assert set(switches) <= set(plan.anchors)
    with applied(hosted.model, plan) as following, hosted.passes() as passes:
        hosted.latents(cfg_interval=interval)
    assert following.run_plan is plan
    assert all(passes[n] for n in switches)


@pytest.mark.slow
@given(
    number=st.integers(3, 60),
    shift=st.sampled_from([1.0, 1.5, 3.0, 5.0]),
    ends=st.lists(st.one_of(st.floats(-0.2, 1.2), st.just(None)), min_size=2, max_size=2),
    pick=st.tuples(st.integers(0, 59), st.integers(0, 59)),
)
def test_breaks_are_the_steps_at_which_bagel_switches(number, shift, ends, pick):
    times = run_times(number, shift)
    # an end that was not drawn is a level of the grid itself: the case where rounding matters
    low, high = (
        times[i % number] if end is None else end for end, i in zip(ends, pick, strict=True)
    )
    levels = torch.linspace(1, 0, number)
    levels = shift * levels / (1 + (shift - 1) * levels)
    on = [bool(t > low and t <= high) for t in levels[:-1]]
    expected = tuple(n for n in range(1, number - 1) if on[n] != on[n - 1])
    found = break_steps(times, guidance_breaks((low, high), 4.0))
    assert set(expected) <= set(found)
    if any(on):
        assert found == expected


# --- coming and going -----------------------------------------------------------------------


def test_the_model_is_as_before_after_the_block_and_after_an_error(hosted, plan):
    (before,) = hosted.latents()
    with applied(hosted.model, plan):
        assert shadows(hosted.model) == {"generate_image", "_forward_flow"}
    assert not shadows(hosted.model)
    with pytest.raises(ZeroDivisionError), applied(hosted.model, plan):
        raise ZeroDivisionError
    hook = hosted.model.llm2vae.register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="in the middle"), applied(hosted.model, plan):
        hosted.latents()
    hook.remove()
    assert not shadows(hosted.model)
    assert torch.equal(hosted.latents()[0], before)


def _fail(*_):
    raise RuntimeError("in the middle")


def test_after_an_interrupted_run_the_next_one_starts_anew(stand_in, stand_in_plan):
    with applied(stand_in.model, stand_in_plan):
        (wanted,) = stand_in.latents()
        hook = stand_in.model.llm2vae.register_forward_pre_hook(_fail)
        with pytest.raises(RuntimeError):
            stand_in.latents()
        hook.remove()
        assert torch.equal(stand_in.latents()[0], wanted)


def test_a_method_of_the_users_own_is_called_and_comes_back(stand_in, stand_in_plan):
    calls, model = [], stand_in.model
    flow = model._forward_flow

    def mine(**arguments):
        calls.append(arguments["x_t"])
        return flow(**arguments)

    model._forward_flow = mine
    try:
        with applied(model, stand_in_plan):
            stand_in.latents()
        assert len(calls) == stand_in_plan.evaluations
        assert model._forward_flow is mine
    finally:
        del model._forward_flow


def test_another_plan_within_replaces_the_first_for_its_block(stand_in, stand_in_plan):
    (plain,) = stand_in.latents()
    with applied(stand_in.model, stand_in_plan):
        (outer,) = stand_in.latents()
        with applied(stand_in.model, full_plan()):
            assert torch.equal(stand_in.latents()[0], plain)
        assert torch.equal(stand_in.latents()[0], outer)


def test_a_plan_is_followed_from_apply_to_remove(stand_in, stand_in_plan):
    before, full = set(vars(stand_in.model)), stand_in.latents()
    other = make_plan(calibrate(stand_in.inferencer, ["a fox"], **CALL), evaluations=4)
    apply(stand_in.inferencer, other)
    apply(stand_in.model, stand_in_plan)  # takes the place of the first
    followed = stand_in.latents()
    assert followed_plan(stand_in.inferencer).evaluations == stand_in_plan.evaluations
    assert not torch.equal(followed[0], full[0])
    with applied(stand_in.model, other) as following:
        stand_in.latents()
        assert following.run_plan.evaluations == 4
    again = stand_in.latents()
    assert all(torch.equal(a, b) for a, b in zip(followed, again, strict=True))
    remove(stand_in.inferencer)
    remove(stand_in.inferencer)
    assert set(vars(stand_in.model)) == before
    assert all(torch.equal(a, b) for a, b in zip(full, stand_in.latents(), strict=True))


def test_one_run_at_a_time(stand_in, stand_in_plan):
    hook = stand_in.model.llm2vae.register_forward_pre_hook(lambda *_: stand_in.latents() and None)
    try:
        with (
            applied(stand_in.model, stand_in_plan),
            pytest.raises(HostError, match="one at a time"),
        ):
            stand_in.latents()
    finally:
        hook.remove()


def test_what_is_no_bagel_is_refused():
    with (
        pytest.raises(HostError, match="Linear is no BAGEL"),
        applied(torch.nn.Linear(1, 1), full_plan()),
    ):
        pass


# --- TaylorSeer -----------------------------------------------------------------------------


def test_taylorseer_is_refused_while_it_is_on(stand_in_plan):
    fresh = Hosted(bagel_stand_in.inferencer(), real=False)
    model = fresh.model
    fresh.latents(enable_taylorseer=True)
    fresh.latents()  # BAGEL leaves the flag on in its layers
    with pytest.raises(HostError, match=r"TaylorSeer is on.*enable_taylorseer = False"):
        calibrate(fresh.inferencer, ["a fox"], **CALL)
    with pytest.raises(HostError, match="TaylorSeer is on"), applied(model, stand_in_plan):
        pass
    assert not shadows(model)
    for module in model.language_model.modules():
        module.enable_taylorseer = False
    with applied(model, stand_in_plan):
        fresh.latents()
        with pytest.raises(HostError, match="enable_taylorseer=True does not go"):
            fresh.latents(enable_taylorseer=True)


@bagel_real.needs_checkout
def test_the_real_taylorseer_is_refused_after_its_run():
    fresh = Hosted(bagel_real.inferencer(), real=True)
    fresh.latents(enable_taylorseer=True)
    fresh.latents()
    with pytest.raises(HostError, match="TaylorSeer is on"), applied(fresh.model, full_plan()):
        pass
    for module in fresh.model.language_model.modules():
        module.enable_taylorseer = False
    (plain,) = fresh.latents()
    with applied(fresh.model, full_plan()):
        assert torch.equal(fresh.latents()[0], plain)


# --- plans made for something else ----------------------------------------------------------


def changed(plan, **host):
    return plan.model_copy(update={"origin": plan.origin.model_copy(update=host)})


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"kind": "diffusers", "pipeline": "FluxPipeline"}, "made for FluxPipeline, this is BAGEL"),
        ({"denoiser": "OtherLM"}, "made for OtherLM, this model runs Qwen2ForCausalLM"),
    ],
)
def test_a_plan_for_another_model_is_refused(stand_in, stand_in_plan, host, message):
    with (
        pytest.raises(HostError, match=message),
        applied(stand_in.model, changed(stand_in_plan, **host)),
    ):
        pass


def test_other_channels_are_refused(stand_in, stand_in_plan):
    other = changed(stand_in_plan, latent_shape=(4, 32))
    with applied(stand_in.model, other), pytest.raises(HostError, match="64 channels a token"):
        stand_in.latents()


def test_other_weights_are_a_warning(stand_in, stand_in_plan, caplog):
    with applied(stand_in.model, changed(stand_in_plan, model="another")):
        pass
    assert "made for another, this is stand-in" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"cfg_text_scale": 6.0}, "made at cfg_text_scale=4.0, this run has 6.0"),
        ({"cfg_img_scale": 2.0}, "made at cfg_img_scale=1.0, this run has 2.0"),
        ({"cfg_renorm_type": "channel"}, "made at cfg_renorm_type=global, this run has channel"),
        ({"cfg_renorm_min": 0.5}, "made at cfg_renorm_min=0.0, this run has 0.5"),
        ({"cfg_interval": (0.2, 1.0)}, "made at cfg_interval=[0.4, 1.0], this run has [0.2, 1.0]"),
        ({"sizes": [(32, 48)]}, "made for images of [32, 32], this run has (32, 48)"),
        ({"num_timesteps": 25}, "planned again from its rates"),
        ({"timestep_shift": 1.0}, "planned again from its rates"),
    ],
)
def test_other_settings_are_a_warning_once(stand_in, stand_in_plan, caplog, call, message):
    with applied(stand_in.model, stand_in_plan):
        stand_in.latents()
        assert not caplog.records
        stand_in.latents(**call)
        assert message in caplog.text
        seen = len(caplog.records)
        stand_in.latents(**call)
    assert len(caplog.records) == seen
    assert {record.name for record in caplog.records} == {"tacache.bagel"}
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_another_interval_gets_its_anchors(stand_in, stand_in_plan, caplog):
    with applied(stand_in.model, stand_in_plan) as following, stand_in.passes() as passes:
        stand_in.latents(cfg_interval=(0.75, 1.0))
    assert following.run_plan.break_steps == (6,)
    assert passes[6] == passes[7] == 1
    assert "guidance switches at steps [6], the plan's at [10]" in caplog.text


def fitted(**fields):
    rows = ((1.0,), (1.25, -0.25), (1.5, -0.5), (1.0,))
    changes = {"times": run_times(13, 3.0), "breaks": guidance_breaks((0.4, 1.0), 4.0), **fields}
    return Plan(rule="fitted", anchors=(0, 4, 7, 10), weights=rows, **changes)


def test_a_fitted_plan_for_other_steps_is_refused(stand_in):
    with applied(stand_in.model, fitted()), pytest.raises(HostError, match="num_timesteps=25"):
        stand_in.latents(num_timesteps=25)


def test_a_fitted_plan_for_another_shift_is_a_warning(stand_in, caplog):
    with applied(stand_in.model, fitted()) as following:
        stand_in.latents(timestep_shift=2.5)
    assert "differ from this run's by up to 0.0" in caplog.text
    assert following.run_plan.times == run_times(13, 2.5)
    assert set(following.run_plan.break_steps) <= set(following.run_plan.anchors)


def test_a_plan_that_cannot_move_says_so(stand_in):
    bare = Plan(rule="reuse", times=run_times(13, 3.0), anchors=(0, 3, 6), origin=Origin())
    with applied(stand_in.model, bare), pytest.raises(PlanError, match="another grid"):
        stand_in.latents(num_timesteps=20)
