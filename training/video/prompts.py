"""The model's own prompts: `python -m training.video.prompts` writes them into its folder.

Sixty each for calibration and test, kinds of motion in turn, in no other set.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from tacache.models import embedded
from tacache_lab.demo.demo_request import VIDEO_CALIBRATION, VIDEO_PROMPTS
from training.emoji import Thing, load_vocabulary
from training.prompts import SET_SIZE, SETS, Prompt, write_lines
from training.video.captions import caption
from training.video.scenes import Clip, sample_clip

SEED = 9
SHEET = Path(__file__).parent / "sheet.txt"
# a category -> the kind of clip, and the motions of a lone object
CATEGORIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sideways": ("alone", ("left", "right")),
    "up and down": ("alone", ("up", "down")),
    "bouncing": ("alone", ("bounce", "hop left", "hop right")),
    "size": ("alone", ("grow", "shrink")),
    "turning": ("alone", ("turn left", "turn right", "rock")),
    "circling and still": ("alone", ("circle left", "circle right", "still")),
    "two objects": ("pair", ()),
    "together": ("together", ()),
    "crossing": ("cross", ()),
}


def sample(rng: random.Random, category: str, things: Sequence[Thing]) -> Clip:
    """A clip of this category."""
    kind, motions = CATEGORIES[category]
    while True:
        clip = sample_clip(rng, things, (), kind)
        if not motions or clip.actors[0].motion in motions:
            return clip


def make_sets(things: Sequence[Thing], taken: Sequence[str]) -> dict[str, list[Prompt]]:
    """Prompts for calibration and test: categories in turn, none of those taken."""
    rng, used = random.Random(SEED), {plain(prompt) for prompt in taken}
    sets: dict[str, list[Prompt]] = {name: [] for name in SETS}
    for chosen in sets.values():
        while len(chosen) < SET_SIZE:
            category = tuple(CATEGORIES)[len(chosen) % len(CATEGORIES)]
            prompt = plain(caption(sample(rng, category, things), rng, things))
            if prompt not in used:
                used.add(prompt)
                chosen.append({"category": category, "prompt": prompt})
    return sets


def plain(prompt: str) -> str:
    """Without capitals and the full stop."""
    return prompt.lower().rstrip(".")


def main() -> None:
    """Write both sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=embedded("tiny-wan").folder)
    options = parser.parse_args()
    taken = [*SHEET.read_text(encoding="utf-8").splitlines(), *VIDEO_PROMPTS, *VIDEO_CALIBRATION]
    options.output.mkdir(parents=True, exist_ok=True)
    for name, chosen in make_sets(load_vocabulary(), taken).items():
        write_lines(options.output / f"{name}.jsonl", chosen)
        print(f"{len(chosen)} prompts -> {options.output / name}.jsonl")


if __name__ == "__main__":
    main()
