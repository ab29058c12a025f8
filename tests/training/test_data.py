import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.video_support import THINGS, WHITE
from training import prompts as prompts_module
from training.prompts import SET_SIZE, SETS, SHEET, TURBO_SETS
from training.render import Bank, build_bank, render
from training.scenes import CANVAS, Placed, Scene
from training.turbo import read_captions

from tacache import models
from tacache.prompts import read_prompts
from tacache_lab.demo.demo_request import PROMPTS

pytestmark = pytest.mark.slow


def picture(rgb: tuple[int, int, int], round_off: bool) -> np.ndarray:
    line = np.linspace(-1, 1, 96)
    inside = line[:, None] ** 2 + line**2 <= 1 if round_off else np.ones((96, 96), bool)
    return np.where(inside[..., None], np.array([*rgb, 255]), 0).astype(np.uint8)


@pytest.fixture(scope="module")
def bank() -> Bank:
    fills = [(200, 20, 30), (30, 60, 220), (20, 160, 40), (20, 20, 20)]
    pictures = np.stack([picture(rgb, n % 2 == 0) for n, rgb in enumerate(fills)])
    return build_bank(pictures, THINGS)


@pytest.mark.parametrize(("x", "y", "size"), [(40, 80, 40), (70.5, 50.25, 33.3), (64, 64, 104)])
def test_objects_are_drawn_where_the_scene_says(
    bank: Bank, x: float, y: float, size: float
) -> None:
    scene = Scene("single_object", WHITE, (Placed(1, "black", x, y, size),), 0.0)
    drawn = render([scene], bank)[0].float()
    assert drawn.shape == (3, CANVAS, CANVAS)
    mass = (255 - drawn).mean(0)
    line = torch.arange(CANVAS) + 0.5
    assert float((mass.sum(0) * line).sum() / mass.sum()) == pytest.approx(x, abs=0.2)
    assert float((mass.sum(1) * line).sum() / mass.sum()) == pytest.approx(y, abs=0.2)
    area = float(mass.sum() / mass.max())
    assert area == pytest.approx(size**2, rel=0.02)
    inner = mass[round(y) - 8 : round(y) + 8, round(x) - 8 : round(x) + 8]
    assert float(inner.max() - inner.min()) <= 1  # flat stays flat: the filter's weights sum to 1


FOLDER = Path(prompts_module.__file__).parent
OWN = models.embedded("tiny-flux").folder


def bare(prompts: list[str] | tuple[str, ...]) -> set[str]:
    return {prompt.lower().removeprefix("a photo of ") for prompt in prompts}


def test_the_command_writes_the_committed_prompts(tmp_path, monkeypatch) -> None:
    output = tmp_path / "following.jsonl"
    command = ["prompts", "-o", str(output), "--sets", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    prompts_module.main()
    assert output.read_bytes() == (FOLDER / "following.jsonl").read_bytes()
    for name in ("sheet.txt", "turbo.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
    for name in SETS:
        made = (tmp_path / f"{name}.jsonl").read_bytes()
        assert made == (OWN / f"{name}.jsonl").read_bytes()


def test_the_models_prompts_are_in_no_other_set() -> None:
    known = [json.loads(line) for line in (FOLDER / "following.jsonl").read_text().splitlines()]
    others = [
        bare([item["prompt"] for item in known]),
        bare(SHEET.splitlines()),
        bare(PROMPTS),
    ]
    calibration, test = (bare(read_prompts(OWN / f"{name}.jsonl")) for name in SETS)
    assert len(calibration) == len(test) == SET_SIZE == 60
    assert not calibration & test
    turbo = bare([caption["prompt"] for caption in read_captions()])
    assert len(turbo) == sum(TURBO_SETS.values())
    for other in others:
        assert not (calibration | test) & other
        assert not (calibration | test | other) & turbo
