"""The demo's pictures or clips in one file: a block a plan, in each every prompt."""

import numpy as np
import pytest
from PIL import Image
from tests.demo_support import FULL, budget, demo_of

from tacache_lab.demo import strip
from tacache_lab.demo.record import DemoPicture, ModelDemo

PROMPTS = ("a cat", "a rocket", "a fox")
SIDE = 24
RULES = ("plain", "linear", "fitted", "tasu")
ROWS = [FULL, *(budget(rule, k, 30.0) for k in (13, 10) for rule in RULES)]
SHOWN = [(None, 50), ("plain", 13), ("linear", 13), ("fitted", 13)]


def colour(block: int, n: int, frame: int) -> tuple[int, int, int]:
    return 60 * block, 100 * n, 60 * frame


def written(folder, frames: int, fps: int | None) -> ModelDemo:
    """A demo whose pictures of the shown plans have a colour each; the others are white."""
    pictures, ending = [], "png" if fps is None else "gif"
    for row in ROWS:
        for n, prompt in enumerate(PROMPTS):
            key = (row.rule, row.evaluations)
            block = SHOWN.index(key) if key in SHOWN else None
            file = folder / f"{row.rule}-{row.evaluations}-{n}.{ending}"
            first, *others = (
                Image.new("RGB", (SIDE, SIDE), "white" if block is None else colour(block, n, i))
                for i in range(frames)
            )
            first.save(file, **({"save_all": True, "append_images": others} if others else {}))
            facts = {"rule": row.rule, "evaluations": row.evaluations, "seconds": 1.0}
            pictures.append(DemoPicture(prompt=prompt, file=file.name, **facts))
    update = {"prompts": PROMPTS, "pictures": tuple(pictures), "fps": fps}
    return demo_of(*ROWS[1:]).model_copy(update=update)


@pytest.mark.parametrize(("frames", "fps", "name"), [(1, None, "strip.png"), (3, 10, "strip.gif")])
def test_every_prompt_stands_in_the_block_of_its_plan(tmp_path, frames, fps, name):
    made = written(tmp_path, frames, fps)
    assert [(one.rule, one.evaluations) for one in strip.blocks(made)] == SHOWN
    target = strip.write_strip(made, tmp_path)
    assert target == tmp_path / name
    with Image.open(target) as sheet:
        assert getattr(sheet, "n_frames", 1) == frames
        head = 2 * strip.LINE + strip.EDGE
        width = 2 * SIDE + strip.GAP + strip.BETWEEN  # of a block: two columns for three prompts
        for frame in range(frames):
            sheet.seek(frame)
            pixels = np.asarray(sheet.convert("RGB")).astype(int)
            for block in range(len(SHOWN)):
                for n in range(len(PROMPTS)):
                    x = strip.EDGE + block * width + n % 2 * (SIDE + strip.GAP) + SIDE // 2
                    y = head + n // 2 * (SIDE + strip.GAP) + SIDE // 2
                    assert np.abs(pixels[y, x] - colour(block, n, frame)).max() < 12
        if fps:
            assert sheet.info["duration"] == 1000 // fps


def test_below_each_block_is_how_its_pictures_differ_from_full_steps(tmp_path):
    made = written(tmp_path, 1, None)
    with Image.open(strip.write_strip(made, tmp_path)) as sheet:
        foot = 2 * strip.LINE + strip.EDGE + 2 * (SIDE + strip.GAP)
        width = 2 * SIDE + strip.GAP + strip.BETWEEN
        for block in (1, 2, 3):
            place = (strip.EDGE + block * width + 4, foot + 4)
            assert sheet.getpixel(place) == (min(255, strip.BRIGHTER * 60 * block), 0, 0)


def test_a_block_is_named_by_its_rule_its_speed_and_its_fidelity():
    made = demo_of(*ROWS[1:])
    assert strip.title(made, FULL) == ("m: 50 steps", "5.0 s a picture")
    assert strip.title(made, ROWS[1])[0] == "13 plain steps"
    assert strip.title(made, ROWS[3]) == (
        "ours, fitted: 13 of 50 evaluations",
        "3.8 times faster, 30.0 dB PSNR",
    )
