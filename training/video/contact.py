"""Clips of the training data to look at: `python -m training.video.contact -o clips`."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from training.emoji import WORK as STILLS
from training.emoji import load_vocabulary
from training.video.captions import caption
from training.video.config import WORK
from training.video.corpus import load_bank
from training.video.render import pack, render, signed
from training.video.scenes import KINDS, sample_clips
from training.video.sheets import save_frames, save_moving, to_pixels


def main() -> None:
    """Draw some clips of one kind or of all, with their captions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), help="only these [default: all]")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, default=STILLS / "emoji.npz")
    parser.add_argument("--animations", type=Path, default=WORK / "animations.npz")
    parser.add_argument("-o", "--output", type=Path, default=WORK / "clips", help="without suffix")
    options = parser.parse_args()
    bank, things = load_bank(options.pictures, options.animations, "cpu"), load_vocabulary()
    animated = sorted(bank.animations)
    clips = sample_clips(options.count, options.seed, things, animated, options.kind)
    rng = random.Random(options.seed)
    captions = [caption(clip, rng, things) for clip in clips]
    pixels = to_pixels(signed(render(pack(clips, bank), bank)))
    save_frames(pixels, captions, options.output.with_name(options.output.name + ".png"))
    save_moving(pixels, captions, options.output.with_name(options.output.name + ".gif"))


if __name__ == "__main__":
    main()
