"""benchmarks/serving: its commands in small, and its pages as its records say."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.fullsize.records import read
from benchmarks.serving import __main__ as command
from benchmarks.serving import measure, tables, throughput

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_batch_times_are_measured(tmp_path):
    path = tmp_path / "batches.json"
    words = "--device cpu --models flux-512 wan-480p-17f --tiny --rows 1 2 --repeats 1 -o"
    measure.main([*words.split(), str(path)])
    found = json.loads(path.read_text())["batches"]
    assert [one["passes"] for one in found] == [1, 2]
    assert all(set(one["seconds"]) == {"1", "2"} for one in found)
    assert all(one["decode_seconds"] > 0 for one in found)


@pytest.mark.slow
def test_a_simulation_is_recorded_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "REQUESTS", {1: 20})
    monkeypatch.setattr(command, "LOADS", (0.5, 2.0))
    monkeypatch.setattr(command, "FULLSIZE", tmp_path / "none.jsonl")
    batches, out = tmp_path / "batches.json", tmp_path / "serving.jsonl"
    one = {"model": "made-up", "passes": 1, "seconds": {"1": 1.0, "4": 2.0}, "decode_seconds": 0.5}
    batches.write_text(json.dumps({"device": "NVIDIA H200", "batches": [one]}))
    command.main(["simulate", str(batches), "--gpus", "1", "-o", str(out)])
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    made = [one for one in lines if one["model"] == "made-up"]
    assert len(made) == 2 * 2 * len(command.POLICIES)
    assert {one["what"] for one in lines} == {"simulated"}
    command.main(["draw", str(out), "-o", str(tmp_path)])
    assert (tmp_path / "serving-made-up-h200.svg").exists()


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_pages_show_the_records(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, (records, render) in tables.PAGES[page].items():
        shown = render(read(ROOT / tables.RESULTS / records))
        assert tables.replaced(text, name, shown) == text


def test_what_is_said_of_one_gpu_was_measured():
    text = " ".join((ROOT / "docs/reference/serving.md").read_text(encoding="utf-8").split())
    runs = read(ROOT / tables.RESULTS / "serving-throughput.jsonl")
    large, busy, usual = runs[4], runs[-2], runs[-1]
    assert [one["model"] for one in (large, busy, usual)] == ["flux-1024", "tiny-flux", "tiny-flux"]
    assert [one["times"] for one in (busy, usual)] == [24.0, 6.0]
    assert {one["graph_rows"] for one in (busy, usual)} == {"few"}
    gains = ("gain_over_one_after_another", "gain_over_whole_requests")
    said = "tiny-flux served {:.1f} times as many requests as one after another and {:.2f} times"
    assert said.format(*map(busy.get, gains)) in text
    late, whole = (busy[way]["p50_seconds"] for way in ("batcher", "whole_requests"))
    assert f"half of its requests were done in {late:.2f} s in place of {whole:.2f} s" in text
    assert (
        "six times the load it was {:.1f} and {:.2f} times".format(*map(usual.get, gains)) in text
    )
    assert round(usual["whole_requests"]["p50_seconds"] / usual["batcher"]["p50_seconds"]) == 6
    ours, theirs = large["batcher"], large["one_after_another"]
    rates = [one["requests_per_second"] for one in (ours, theirs)]
    assert "{:.2f} requests a second against {:.2f}".format(*rates) in text
    assert round(ours["p50_seconds"] / theirs["p50_seconds"]) == 2
    batches = json.loads((ROOT / tables.RESULTS / "serving-batches-h200.json").read_text())[
        "batches"
    ]
    flux = next(one["seconds"] for one in batches if one["model"] == "flux-1024")
    assert f"takes {flux['1']:.2f} s for one row and {flux['8']:.2f} s for eight" in text
    checks = [
        one["simulated_over_measured"]["batches_of_the_run"]
        for one in read(ROOT / tables.RESULTS / "serving-check.jsonl")
    ]
    assert (
        sum(abs(one["requests_per_second"] - 1) <= 0.17 for one in checks) == 6 == len(checks) - 4
    )
    assert sum(abs(one["p50_seconds"] - 1) <= 0.25 for one in checks) == 3
    off = [100 * one["batcher"]["finish_error"]["after_last_arrival"] for one in (usual, busy)]
    assert "by {:.0f} % under six times the load and by {:.0f} % under 24".format(*off) in text


@pytest.mark.slow
def test_the_three_ways_serve_the_same_pictures(tmp_path, monkeypatch):
    """With a denoiser that costs nothing, so that only the ways themselves take time."""
    pipe = throughput.tiny_flux("cpu")
    config, blocks = pipe.transformer.config, pipe.transformer
    blocks.transformer_blocks = blocks.transformer_blocks[:1]
    blocks.single_transformer_blocks = blocks.single_transformer_blocks[:1]
    monkeypatch.setattr(throughput, "tiny_flux", lambda device: pipe)
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "prompt_embeds": (3, 32, config.joint_attention_dim),
        "pooled_prompt_embeds": (3, config.pooled_projection_dim),
        "negative_prompt_embeds": (1, 32, config.joint_attention_dim),
        "negative_pooled_prompt_embeds": (1, config.pooled_projection_dim),
    }
    inputs = tmp_path / "prompts.pt"
    torch.save({name: torch.randn(s, generator=generator) for name, s in shapes.items()}, inputs)
    out: Path = tmp_path / "runs.jsonl"
    words = ["run", "tiny-flux", "--inputs", str(inputs), "--device", "cpu", "--requests", "4"]
    words += ["--warm", "1"]
    throughput.main([*words, "--max-rows", "4", "-o", str(out)])
    record = json.loads(out.read_text())
    assert max(record["largest_difference_of_pictures"].values()) < 1e-4
    assert record["batcher"]["batches"] > 0
    for way in ("one_after_another", "whole_requests", "batcher"):
        assert record[way]["requests_per_second"] > 0
