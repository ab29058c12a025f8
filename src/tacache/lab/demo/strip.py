"""A demo in one picture: full steps, ours with more and with fewer evaluations, the paper's."""

import math
from pathlib import Path
from typing import Any

from tacache.lab.demo.record import PAPER, Budget, ModelDemo, Picture, chosen
from tacache.lab.demo.telling import name_of
from tacache.storage.atomic import writing

GAP, BETWEEN, LINE, EDGE = 3, 18, 18, 6  # pixels
PAPER_WHITE, INK, SOFT = "white", "#1c1d1f", "#62666d"


def blocks(made: ModelDemo) -> list[Budget]:
    """Full steps, ours with the most and the fewest evaluations, and the paper's with the most."""
    found = chosen(made)
    paper = [one for one in found if one.rule == PAPER]
    return [one for one in found if one not in paper[1:]]


def write_strip(made: ModelDemo, folder: Path) -> Path:
    """Write strip.png beside the demo's files; of clips, a strip.gif that moves."""
    frames = strips(made, folder)
    target = folder / ("strip.png" if made.fps is None else "strip.gif")
    with writing(target) as draft:
        if made.fps is None:
            frames[0].save(draft, optimize=True)
        else:
            _save_moving(frames, made.fps, draft)
    return target


def strips(made: ModelDemo, folder: Path) -> list[Any]:
    """The strip of every frame; of pictures there is one."""
    from PIL import Image

    shown = [one.file for row in blocks(made) for one in made.pictures if _is_of(one, row)]
    opened = [Image.open(folder / file) for file in shown]
    try:
        count = min(getattr(one, "n_frames", 1) for one in opened)
        return [draw(made, [_frame(one, n) for one in opened]) for n in range(count)]
    finally:
        for one in opened:
            one.close()


def draw(made: ModelDemo, pictures: list[Any]) -> Any:
    """One block a plan, side by side; in each the prompts' pictures, under what it is."""
    from PIL import Image, ImageDraw

    rows, count = blocks(made), len(made.prompts)
    columns = math.ceil(math.sqrt(count))
    width, height = (size + GAP for size in pictures[0].size)
    block, head = columns * width - GAP, 2 * LINE + EDGE
    lines = math.ceil(count / columns)
    size = (len(rows) * (block + BETWEEN) - BETWEEN + 2 * EDGE, head + lines * height - GAP + EDGE)
    sheet = Image.new("RGB", size, PAPER_WHITE)
    pen = ImageDraw.Draw(sheet)
    for b, row in enumerate(rows):
        left = EDGE + b * (block + BETWEEN)
        for n, (text, colour) in enumerate(zip(title(made, row), (INK, SOFT), strict=True)):
            pen.text((left, EDGE + n * LINE - 2), text, colour, font_size=13)
        for n in range(count):
            place = (left + n % columns * width, head + n // columns * height)
            sheet.paste(pictures[b * count + n], place)
    return sheet


def title(made: ModelDemo, row: Budget) -> tuple[str, str]:
    """What stands above a block: how it was drawn, and how fast and how near that is."""
    if row.psnr is None:
        return f"full steps: {row.evaluations} evaluations", f"{row.seconds:.1f} s a {made.noun}"
    return (
        f"{name_of(row.rule)}: {row.evaluations} evaluations",
        f"{row.speedup:.1f} times faster, {row.psnr:.1f} dB",
    )


def _is_of(picture: Picture, row: Budget) -> bool:
    return (picture.rule, picture.evaluations) == (row.rule, row.evaluations)


def _frame(picture: Any, n: int) -> Any:
    picture.seek(n)
    return picture.convert("RGB")


def _save_moving(frames: list[Any], fps: int, path: Path) -> None:
    """Frames in one palette, at the clips' rate."""
    from PIL import Image

    chosen = [frames[0], frames[len(frames) // 2], frames[-1]]
    tall = Image.new("RGB", (chosen[0].width, sum(one.height for one in chosen)))
    for n, one in enumerate(chosen):
        tall.paste(one, (0, n * one.height))
    palette = tall.quantize(256)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=1000 // fps, loop=0)
