"""The demo's pictures or clips in one file for the documentation."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from training import strip

PROMPTS = ["a cat", "a rocket that rises quickly, and a very long rest of a prompt"]
SIDE = 24


def colour(n: int, frame: int) -> tuple[int, int, int]:
    return 40 * n, 60 * frame, 128


def write_demo(folder, frames: int, fps: int | None):
    pictures, ending = [], "png" if fps is None else "gif"
    for m, evaluations in enumerate((50, 7)):
        for n, prompt in enumerate(PROMPTS):
            file = folder / f"{m}-{n}.{ending}"
            first, *others = (
                Image.new("RGB", (SIDE, SIDE), colour(2 * m + n, i)) for i in range(frames)
            )
            more = {"save_all": True, "append_images": others} if others else {}
            first.save(file, **more)
            pictures.append({"prompt": prompt, "evaluations": evaluations, "file": file.name})
    budgets = [{"evaluations": 50}, {"evaluations": 7, "psnr": 20.0, "ssim": 0.9}]
    found = [{"seconds": 1.0, "psnr": None, "ssim": None, **one} for one in pictures]
    rows = [{"seconds": 1.0, "speedup": 1.0, "psnr": None, "ssim": None, **b} for b in budgets]
    record = {"model": "m", "steps": 50, "seed": 0, "prompts": PROMPTS, "fps": fps}
    record |= {"pictures": found, "budgets": [{"plan": None, **row} for row in rows]}
    (folder / "demo.json").write_text(json.dumps({"profile": "p.json", **record}))


@pytest.mark.parametrize(("frames", "fps", "name"), [(1, None, "s.png"), (3, 10, "s.gif")])
def test_every_picture_stands_under_its_prompt_and_beside_its_budget(
    tmp_path, monkeypatch, frames, fps, name
):
    write_demo(tmp_path, frames, fps)
    monkeypatch.setattr(sys, "argv", ["strip", str(tmp_path), str(tmp_path / name)])
    strip.main()
    assert json.loads((tmp_path / "s.json").read_text())["model"] == "m"
    with Image.open(tmp_path / name) as made:
        assert getattr(made, "n_frames", 1) == frames
        head = made.height - 2 * (SIDE + strip.GAP)
        assert head > 3 * strip.LINE  # the longer prompt takes many lines
        for frame in range(frames):
            made.seek(frame)
            pixels = np.asarray(made.convert("RGB")).astype(int)
            for n in range(4):
                x = strip.MARGIN + n % 2 * (SIDE + strip.GAP) + SIDE // 2
                y = head + n // 2 * (SIDE + strip.GAP) + SIDE // 2
                assert np.abs(pixels[y, x] - colour(n, frame)).max() < 12
    if fps:
        with Image.open(tmp_path / name) as made:
            assert made.info["duration"] == 1000 // fps
