"""The distillation of tiny-flux in miniature."""

import json
import sys

import pytest
import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from safetensors.torch import load_file, save_file
from training import turbo
from training.config import AUTOENCODER, TEXT_WIDTH, TOKENS, TRANSFORMER
from training.turbo import STEPS


def test_the_students_steps_are_among_the_teachers():
    levels, fine = turbo.noise_levels(STEPS), turbo.noise_levels(turbo.TEACHER_STEPS)
    assert (levels[0], levels[-1], len(levels)) == (1.0, 0.0, STEPS + 1)
    assert levels == pytest.approx(fine[:: turbo.TEACHER_STEPS // STEPS], abs=1e-6)
    assert levels[4] == pytest.approx(0.7595, abs=1e-4)  # 0.5 with FLUX.1-dev's largest shift


@pytest.fixture
def base(tmp_path):
    """A folder of tiny-flux's shapes with fewer and narrower layers."""
    torch.manual_seed(0)
    small = {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 1}
    FluxTransformer2DModel(**TRANSFORMER | small).save_pretrained(tmp_path / "base/transformer")
    narrow = {"block_out_channels": (8,) * 4, "norm_num_groups": 4, "shift_factor": 0.0}
    AutoencoderKL(**AUTOENCODER | narrow).save_pretrained(tmp_path / "base/vae")
    return tmp_path / "base"


@pytest.mark.slow
def test_all_of_it_in_miniature(base, tmp_path, monkeypatch):
    count = len(turbo.read_captions()) + 1
    text = tmp_path / "text.safetensors"
    shapes = {"states": (count, TOKENS, TEXT_WIDTH), "pooled": (count, TEXT_WIDTH)}
    save_file({name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}, text)
    monkeypatch.setattr(turbo, "TEACHER_STEPS", 2 * STEPS)
    out = tmp_path / "out"
    options = ["--runs", "4", "--batch", "4", "--minutes", "0.01", "--ranks", "2"]
    folders = ["--base", str(base), "--embeddings", str(text), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["turbo", *options, *folders])
    turbo.main()
    report = json.loads((out / "turbo.json").read_text())
    assert list(report["students"]) == ["full", "lora-2"]
    for name, student in report["students"].items():
        assert student["bytes"] == (out / f"{name}.safetensors").stat().st_size
        assert student["curve"][-1]["loss"] > 0
        assert report["held_out"][name].keys() == {"teacher", "reuse", "fewer"}
    factors = load_file(out / "lora-2.safetensors")
    assert {factor.dtype for factor in factors.values()} == {torch.float16}
    assert (out / "sheet.png").is_file()
    full = (out / "full.safetensors").stat().st_mtime_ns
    turbo.main()  # goes on from the full student that is there
    assert (out / "full.safetensors").stat().st_mtime_ns == full
    again = json.loads((out / "turbo.json").read_text())["students"]
    assert again["full"] == report["students"]["full"]
