"""The demo's pictures in one: `python -m training.strip demo docs/figures/tiny-flux-demo.png`.

Prompts from left to right, budgets from top to bottom; the record `demo.json` is copied beside it.
Of a demo's clips the strip is a moving GIF: `python -m training.strip demo FILE.gif`.
"""

import argparse
import shutil
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw

from tacache.lab.demo.run import ModelDemo

GAP, MARGIN, LINE = 4, 92, 14


def main() -> None:
    """Draw the strip of a demo's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    record = options.demo / "demo.json"
    made = ModelDemo.model_validate_json(record.read_text(encoding="utf-8"))
    save(strips(made, options.demo), made.fps, options.output)
    shutil.copyfile(record, options.output.with_suffix(".json"))


def save(frames: list[Image.Image], fps: int | None, path: Path) -> None:
    """A picture, or frames in one palette at the clips' rate."""
    if fps is None:
        frames[0].save(path, optimize=True)
        return
    chosen = [frames[0], frames[len(frames) // 2], frames[-1]]
    tall = Image.new("RGB", (chosen[0].width, sum(one.height for one in chosen)))
    for n, one in enumerate(chosen):
        tall.paste(one, (0, n * one.height))
    palette = tall.quantize(256)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=1000 // fps, loop=0)


def strips(made: ModelDemo, folder: Path) -> list[Image.Image]:
    """The strip of every frame; of pictures there is one."""
    opened = [Image.open(folder / picture.file) for picture in made.pictures]
    try:
        count = min(getattr(one, "n_frames", 1) for one in opened)
        return [draw(made, [_frame(one, n) for one in opened]) for n in range(count)]
    finally:
        for one in opened:
            one.close()


def _frame(picture: Image.Image, n: int) -> Image.Image:
    picture.seek(n)
    return picture.convert("RGB")


def draw(made: ModelDemo, pictures: list[Image.Image]) -> Image.Image:
    """Pictures in a grid with prompts above and budgets beside."""
    columns, rows, side = len(made.prompts), len(made.budgets), pictures[0].width
    wrapped = [textwrap.wrap(prompt, side // 6 + 1) for prompt in made.prompts]
    head = LINE * max(map(len, wrapped)) + 6
    size = (MARGIN + columns * (side + GAP), head + rows * (side + GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for n, lines in enumerate(wrapped):
        place = (MARGIN + n * (side + GAP) + 2, 4)
        pen.multiline_text(place, "\n".join(lines), "black", font_size=11)
    for m, budget in enumerate(made.budgets):
        facts = [f"{budget.evaluations} evaluations"]
        facts += ["full steps"] if budget.psnr is None else [f"{budget.psnr:.1f} dB"]
        y = head + m * (side + GAP)
        pen.multiline_text((4, y + side // 2 - 12), "\n".join(facts), "black", font_size=11)
        for n in range(columns):
            sheet.paste(pictures[m * columns + n], (MARGIN + n * (side + GAP), y))
    return sheet


if __name__ == "__main__":
    main()
