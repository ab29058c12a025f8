"""The demo's pictures in one: `python -m training.strip demo docs/figures/tiny-flux-demo.png`.

Prompts from left to right, budgets from top to bottom; the record `demo.json` is copied beside it.
"""

import argparse
import shutil
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw

from tacache.demo import ModelDemo

SIDE, GAP, MARGIN, HEAD = 128, 4, 92, 34


def main() -> None:
    """Draw the strip of a demo's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    record = options.demo / "demo.json"
    made = ModelDemo.model_validate_json(record.read_text(encoding="utf-8"))
    draw(made, options.demo).save(options.output, optimize=True)
    shutil.copyfile(record, options.output.with_suffix(".json"))


def draw(made: ModelDemo, folder: Path) -> Image.Image:
    """Pictures in a grid with prompts above and budgets beside."""
    columns, rows = len(made.prompts), len(made.budgets)
    size = (MARGIN + columns * (SIDE + GAP), HEAD + rows * (SIDE + GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for n, prompt in enumerate(made.prompts):
        words = "\n".join(textwrap.wrap(prompt, 22))
        pen.multiline_text((MARGIN + n * (SIDE + GAP) + 2, 4), words, "black", font_size=11)
    for m, budget in enumerate(made.budgets):
        facts = [f"{budget.evaluations} evaluations"]
        facts += ["full steps"] if budget.psnr is None else [f"{budget.psnr:.1f} dB"]
        y = HEAD + m * (SIDE + GAP)
        pen.multiline_text((4, y + SIDE // 2 - 12), "\n".join(facts), "black", font_size=11)
        for n in range(columns):
            with Image.open(folder / made.pictures[m * columns + n].file) as picture:
                sheet.paste(picture, (MARGIN + n * (SIDE + GAP), y))
    return sheet


if __name__ == "__main__":
    main()
