"""The same promises on a CUDA device; run with `pytest -m cuda` on one."""

import pytest
import torch
from tests.support import DTYPES, RULES, euler_run, mixture, noise_of, plan_with

from tacache import Plan, Stepper, calibrate, sample, time_grid

ANCHORS = (0, 1, 4, 5, 8, 13, 19)
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def no_waiting():
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stepping_does_not_wait_for_the_device(rule, dtype, profile, request):
    plan, flow = plan_with(rule, profile, ANCHORS), mixture(device="cuda")
    x = noise_of(2, dtype=dtype, device="cuda")
    stepper = Stepper(plan)
    request.getfixturevalue("no_waiting")
    for t in plan.times[:-1]:
        v = stepper.velocity(x, lambda t=t: flow(x, t))
        assert (v.device, v.dtype) == (x.device, dtype)
    torch.cuda.set_sync_debug_mode("default")
    assert sample(flow, x, plan).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_all_anchor_plan_is_plain_euler_bit_for_bit(dtype):
    times, flow = time_grid(20, shift=3.0), mixture((4, 8, 8), device="cuda")
    x = noise_of(3, (4, 8, 8), dtype, device="cuda")
    assert torch.equal(sample(flow, x, Plan.full(times)), euler_run(flow, x, times))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_device_gives_the_processors_result(rule, dtype, profile):
    plan, x = plan_with(rule, profile, ANCHORS), noise_of(3, dtype=dtype)
    there = sample(mixture(device="cuda"), x.cuda(), plan).cpu()
    here = sample(mixture(), x, plan)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(there, here, rtol=200 * eps, atol=200 * eps)


def test_calibration_on_the_device_is_the_processors():
    x, times = noise_of(5), time_grid(12, shift=2.0)
    there = calibrate(mixture(device="cuda"), x.cuda(), times, batch_size=2)
    here = calibrate(mixture(), x, times)
    assert there.magnitude == pytest.approx(here.magnitude, rel=1e-10)
    assert there.direction == pytest.approx(here.direction, rel=1e-10)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stepping_holds_at_most_four_latents_beyond_what_it_keeps(rule, dtype, profile):
    plan, shape = plan_with(rule, profile, ANCHORS), (16, 64, 64)
    velocities = [noise_of(1, shape, dtype, n, device="cuda") for n in range(plan.steps)]
    stepper, kept = Stepper(plan), {"fitted": 1}.get(rule, 2)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for v in velocities:
        taken = stepper.velocity(v, lambda v=v: v)
        del taken
    peak = torch.cuda.max_memory_allocated() - before
    numbers = 100 * 512  # what is one number a sample takes a block of its own
    assert kept * velocities[0].nbytes <= peak + numbers
    assert peak <= kept * velocities[0].nbytes + 4 * 4 * velocities[0].numel() + numbers
