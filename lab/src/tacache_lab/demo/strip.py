"""A demo in one picture: full steps beside plain steps and our plans with as many evaluations."""

import math
from pathlib import Path
from typing import Any

from tacache.storage.atomic import writing
from tacache_lab.demo.record import OURS, PLAIN, Budget, DemoPicture, ModelDemo
from tacache_lab.demo.telling import name_of

GAP, BETWEEN, LINE, EDGE = 3, 18, 18, 6  # pixels
PAPER_WHITE, INK, SOFT = "white", "#1c1d1f", "#62666d"
BRIGHTER = 8  # times, so that differences are seen
LEGEND = f"To the right: how each picture\ndiffers from these, {BRIGHTER} times\nbrighter"


def blocks(result: ModelDemo) -> list[Budget]:
    """Return full steps, and plain steps, instant and fitted with the most evaluations of ours."""
    most = max((row.evaluations for row in result.budgets if row.rule in OURS), default=0)
    rows = [result.reached(rule, most) for rule in (PLAIN, *reversed(OURS))]
    return [result.full, *(row for row in rows if row is not None)]


def write_strip(result: ModelDemo, folder: Path) -> Path:
    """Write strip.png beside the demo's files; of clips, a strip.gif that moves."""
    frames = strips(result, folder)
    target = folder / ("strip.png" if result.fps is None else "strip.gif")
    with writing(target) as draft:
        if result.fps is None:
            frames[0].save(draft, optimize=True)
        else:
            _save_moving(frames, result.fps, draft)
    return target


def strips(result: ModelDemo, folder: Path) -> list[Any]:
    """Return the strip of every frame; of pictures there is one."""
    from PIL import Image

    shown = [
        picture.file
        for row in blocks(result)
        for picture in result.pictures
        if _is_of(picture, row)
    ]
    opened = [Image.open(folder / file) for file in shown]
    try:
        count = min(getattr(picture, "n_frames", 1) for picture in opened)
        return [draw(result, [_frame(picture, n) for picture in opened]) for n in range(count)]
    finally:
        for picture in opened:
            picture.close()


def draw(result: ModelDemo, pictures: list[Any]) -> Any:
    """Return one block a plan, side by side; in each the prompts' pictures, under what it is.

    Below each block but the first is how its pictures differ from those.
    """
    from PIL import Image, ImageDraw

    rows, count = blocks(result), len(result.prompts)
    columns = math.ceil(math.sqrt(count))
    width, height = (size + GAP for size in pictures[0].size)
    block, head = columns * width - GAP, 2 * LINE + EDGE
    foot = head + math.ceil(count / columns) * height
    small = (block + GAP) // count - GAP
    low = small * pictures[0].height // pictures[0].width
    sheet = Image.new(
        "RGB", (len(rows) * (block + BETWEEN) - BETWEEN + 2 * EDGE, foot + low + EDGE), PAPER_WHITE
    )
    pen = ImageDraw.Draw(sheet)
    for b, row in enumerate(rows):
        left = EDGE + b * (block + BETWEEN)
        for n, (text, colour) in enumerate(zip(title(result, row), (INK, SOFT), strict=True)):
            pen.text((left, EDGE + n * LINE - 2), text, colour, font_size=13)
        for n in range(count):
            picture = pictures[b * count + n]
            sheet.paste(picture, (left + n % columns * width, head + n // columns * height))
            if b:
                far = difference(pictures[n], picture).resize((small, low))
                sheet.paste(far, (left + n * (small + GAP), foot))
    pen.multiline_text((EDGE, foot + 4), LEGEND, SOFT, font_size=13, spacing=5)
    return sheet


def difference(first: Any, second: Any) -> Any:
    """Return how two pictures differ, brighter than it is."""
    from PIL import ImageChops

    return ImageChops.difference(first, second).point(lambda value: min(255, BRIGHTER * value))


def title(result: ModelDemo, row: Budget) -> tuple[str, str]:
    """Return what stands above a block: how it was drawn, and how fast and how near that is."""
    if row.psnr is None:
        return f"{result.model}: {row.evaluations} steps", f"{row.seconds:.1f} s a {result.noun}"
    name, budget = name_of(row.rule), f"{row.evaluations} of {result.steps} evaluations"
    if row.rule == PLAIN:
        name, budget = f"{row.evaluations} plain steps", ""
    return (
        f"{name}: {budget}".removesuffix(": "),
        f"{row.speedup:.1f} times faster, {row.psnr:.1f} dB PSNR",
    )


def _is_of(picture: DemoPicture, row: Budget) -> bool:
    return (picture.rule, picture.evaluations) == (row.rule, row.evaluations)


def _frame(picture: Any, n: int) -> Any:
    picture.seek(n)
    return picture.convert("RGB")


def _save_moving(frames: list[Any], fps: int, path: Path) -> None:
    """Save frames in one palette, at the clips' rate."""
    from PIL import Image

    chosen = [frames[0], frames[len(frames) // 2], frames[-1]]
    tall = Image.new("RGB", (chosen[0].width, sum(frame.height for frame in chosen)))
    for n, frame in enumerate(chosen):
        tall.paste(frame, (0, n * frame.height))
    palette = tall.quantize(256)
    first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(path, save_all=True, append_images=rest, duration=1000 // fps, loop=0)
