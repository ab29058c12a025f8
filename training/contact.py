"""Contact sheets of the data: ``python -m training.contact`` draws objects, colours, scenes."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

from training.captions import caption
from training.emoji import WORK, load_pictures, load_vocabulary
from training.render import Bank, build_bank, render
from training.scenes import COLOURS, sample_scenes

GROUND = (205, 210, 205)


def to_image(picture: Tensor) -> Image.Image:
    """A picture (3, height, width) or premultiplied sprite (4, height, width) as an image."""
    pixels = picture.permute(1, 2, 0).contiguous().numpy()
    if pixels.shape[2] == 3:
        return Image.fromarray(pixels)
    return Image.frombytes("RGBa", pixels.shape[1::-1], pixels.tobytes()).convert("RGBA")


def contact_sheet(
    pictures: Sequence[Image.Image], labels: Sequence[str], columns: int, side: int, lines: int
) -> Image.Image:
    """Pictures in rows with their labels below."""
    width, height = side + 8, side + 8 + 11 * lines
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), GROUND)
    draw = ImageDraw.Draw(sheet)
    for n, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        x, y = n % columns * width + 4, n // columns * height + 4
        small = picture.resize((side, side), Image.Resampling.LANCZOS)
        sheet.paste(small, (x, y), small if small.mode == "RGBA" else None)
        wrapped = textwrap.wrap(label, max(6, side // 6))[:lines]
        draw.multiline_text((x, y + side), "\n".join(wrapped), fill=0, spacing=0, font_size=10)
    return sheet


def draw_sheets(bank: Bank, folder: Path, seed: int, count: int = 64) -> None:
    """The three sheets."""
    things = load_vocabulary()
    sprites = [to_image(sprite) for sprite in bank.sprites]
    nouns = [thing.noun for thing in things]
    objects = contact_sheet(sprites[: len(things)], nouns, columns=22, side=48, lines=2)
    objects.save(folder / "objects.png")
    shown = [(i, c) for i, t in enumerate(things) if t.recolour for c in (None, *COLOURS)]
    labels = [colour or things[i].noun for i, colour in shown]
    chosen = [sprites[bank.rows[key]] for key in shown]
    contact_sheet(chosen, labels, 2 * (len(COLOURS) + 1), 48, 1).save(folder / "colours.png")
    scenes = sample_scenes(count, seed, things)
    rng = random.Random(seed)
    captions = [caption(scene, rng, things) for scene in scenes]
    pictures = [to_image(picture) for picture in render(scenes, bank)]
    contact_sheet(pictures, captions, columns=11, side=128, lines=4).save(folder / "scenes.png")


def main() -> None:
    """Draw the sheets of the packed pictures."""
    bank = build_bank(load_pictures(), load_vocabulary())
    draw_sheets(bank, WORK, seed=0)
    print(f"objects.png, colours.png, scenes.png -> {WORK}")


if __name__ == "__main__":
    main()
