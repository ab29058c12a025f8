import time

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tacache.errors import HostError
from tacache.lab.cost import count_flops, latencies, measure_cost, peak_memory, timed

on_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_flops_of_a_hand_counted_attention(device, mode):
    query = torch.rand(2, 3, 5, 8, device=device)
    key, value = torch.rand(2, 2, 3, 7, 8, device=device)
    with mode():
        found = count_flops(lambda: scaled_dot_product_attention(query, key, value))
    # scores: 2 x 3 x 5 x 7 sums of 8 products; values: 2 x 3 x 5 x 8 sums of 7 products
    assert found == 2 * (2 * 3 * 5 * 7 * 8) + 2 * (2 * 3 * 5 * 8 * 7)


def test_flops_of_masked_attention_are_those_of_all_scores():
    query = torch.rand(1, 2, 6, 4)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    found = count_flops(lambda: scaled_dot_product_attention(query, query, query, attn_mask=mask))
    assert found == 4 * (2 * 6 * 6 * 4)


@torch.no_grad()
def test_flops_of_a_hand_counted_transformer_layer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train()
    x = torch.rand(3, 10, 16)  # 30 tokens
    projections = 2 * 30 * 16 * (4 * 16)  # query, key, value, output
    attention = 4 * (3 * 2 * 10 * 10 * 8)
    feed_forward = 2 * 30 * 16 * 32 * 2
    assert count_flops(lambda: layer(x)) == projections + attention + feed_forward


def test_flops_of_a_convolution():
    convolution = nn.Conv2d(3, 5, 3, padding=1)
    x = torch.rand(1, 3, 8, 8)
    assert count_flops(lambda: convolution(x)) == 2 * (5 * 8 * 8) * (3 * 3 * 3)


def test_latency_counts_warm_runs_only():
    calls = []

    def run():
        time.sleep(0.05 if not calls else 0.002)
        calls.append(1)

    seconds = latencies(run, "cpu", repeats=3, warmup=1)
    assert len(seconds) == 3
    assert len(calls) == 4
    assert all(second >= 0.002 for second in seconds)
    assert min(seconds) < 0.05


def test_a_cost_is_the_median_with_its_parts(monkeypatch):
    ticks = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    a = torch.rand(4, 4)
    cost = measure_cost(lambda: a @ a, "cpu", repeats=3)
    assert cost.repeats == (3.0, 1.0, 2.0)
    assert cost.latency == 2.0
    assert cost.flops == 2 * 4**3
    assert cost.peak_memory is None
    assert cost.notes == ("peak memory not run: torch does not count it on cpu",)
    assert type(cost).model_validate_json(cost.model_dump_json()) == cost


def test_timed_gives_what_the_run_gives():
    output, seconds = timed(lambda: "picture", "cpu")
    assert output == "picture"
    assert seconds >= 0


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (1, -1)])
def test_nothing_to_time(repeats, warmup):
    with pytest.raises(HostError, match="cannot be timed"):
        latencies(lambda: None, "cpu", repeats, warmup)


def test_memory_is_not_counted_on_the_cpu():
    assert peak_memory(lambda: torch.rand(10), "cpu") is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_time_and_memory_are_the_device_s():
    a = torch.rand(4096, 4096, device="cuda")
    cost = measure_cost(lambda: (a @ a).sum(), "cuda", repeats=3)
    assert cost.latency > 0
    assert cost.notes == ()
    assert cost.peak_memory is not None
    assert cost.peak_memory >= 2 * a.nbytes
