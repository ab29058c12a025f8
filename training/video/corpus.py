"""Clips with captions in bulk: described, worded and cut into tokens on all cores.

``python -m training.video.corpus`` writes ``tokenizer/`` and ``corpus.pt`` for the flow; it
needs no GPU, so it can run while the autoencoder trains. To go on from an exported model, ``--start
FOLDER --seed 3`` takes its tokenizer and autoencoder and makes other clips.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import features
from torch import Tensor

from training.emoji import WORK as STILLS
from training.emoji import load_pictures, load_vocabulary
from training.video.captions import caption
from training.video.config import EARLIER, FACTS, WORK
from training.video.emoji import load_animations
from training.video.render import Arrays, Bank, make_bank, pack
from training.video.scenes import sample_clips
from training.video.text import make_tokenizer, token_ids

SHARD = 5000
SEED = 2
KEPT = ("tokenizer", "vae")  # of a model to go on from
LEARNED = 40_000  # captions the tokenizer is made from


class Corpus(NamedTuple):
    """Clips as arrays, with the tokens of the same number of captions each."""

    arrays: Arrays
    ids: Tensor  # (clips, captions, TOKENS) int16


class Names(NamedTuple):
    """Where each object's pictures lie, without the pictures: cheap to send to workers."""

    rows: dict[tuple[int, str | None], int]
    animations: dict[int, int]

    def bank(self) -> Bank:
        """A bank that can pack clips but not draw them."""
        return Bank(torch.empty(0), torch.empty(0), self.rows, self.animations)


def main() -> None:
    """Make the tokenizer and the flow's corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=360_000)
    parser.add_argument("--captions", type=int, default=3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--start", type=Path, help="folder of an exported model to go on from")
    parser.add_argument("--pictures", type=Path, default=STILLS / "emoji.npz")
    parser.add_argument("--animations", type=Path, default=WORK / "animations.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    started = time.monotonic()
    names = names_of(load_bank(options.pictures, options.animations, "cpu"))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.start:
        take_over(options.start, options.out)
    else:
        make_tokenizer(example_captions(LEARNED, names)).save_pretrained(options.out / "tokenizer")
    shard = partial(
        make_shard,
        seed=options.seed,
        captions=options.captions,
        names=names,
        folder=options.out / "tokenizer",
    )
    corpus = make_corpus(options.clips, shard, options.workers)
    torch.save({"ids": corpus.ids, **vars(corpus.arrays)}, options.out / "corpus.part")
    (options.out / "corpus.part").replace(options.out / "corpus.pt")
    print(f"{len(corpus.ids)} clips in {time.monotonic() - started:.0f} s")


def load_bank(pictures: Path, animations: Path, device: str) -> Bank:
    """The drawable objects on their device."""
    readable = features.check("webp")
    if not readable:
        print("no WebP here: clips are made without animations", flush=True)
    moving = load_animations(animations) if readable else None
    return make_bank(load_pictures(pictures), load_vocabulary(), moving).to(device)


def names_of(bank: Bank) -> Names:
    """The part of a bank that describing clips needs."""
    return Names(bank.rows, bank.animations)


def load_corpus(path: Path) -> Corpus:
    """What ``main`` wrote."""
    kept = torch.load(path, weights_only=True)
    return Corpus(Arrays(*(kept[field.name] for field in fields(Arrays))), kept["ids"])


def example_captions(count: int, names: Names) -> list[str]:
    """Captions of other clips than the corpus has."""
    things, rng = load_vocabulary(), random.Random("captions")
    clips = sample_clips(count, "captions", things, sorted(names.animations))
    return [caption(clip, rng, things) for clip in clips]


def make_arrays(count: int, seed: int, names: Names) -> Arrays:
    """Clips without captions, for the autoencoder."""
    clips = sample_clips(count, seed, load_vocabulary(), sorted(names.animations))
    return pack(clips, names.bank())


def take_over(start: Path, out: Path) -> None:
    """The parts of an exported model to go on with, and what its training came to.

    A part that is there already stays: the autoencoder may have been trained further meanwhile.
    """
    for part in KEPT:
        if not (out / part).is_dir():
            shutil.copytree(start / part, out / part)
    if (start / FACTS).is_file():
        shutil.copy(start / FACTS, out / EARLIER)


Shard = tuple[NDArray[Any], ...]  # the fields of Arrays, and ids


def make_corpus(count: int, shard: Callable[[int], Shard], workers: int) -> Corpus:
    """`count` clips; shard i depends on i alone."""
    numbers = range(-(-count // SHARD))
    if workers <= 1:
        parts = [shard(i) for i in numbers]
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(shard, numbers))
    whole = [torch.from_numpy(np.concatenate(part)[:count]) for part in zip(*parts, strict=True)]
    return Corpus(Arrays(*whole[:-1]), whole[-1])


def make_shard(i: int, seed: int, captions: int, names: Names, folder: Path) -> Shard:
    """Clips as arrays and tokens: plain ones, which need no shared memory on their way back."""
    from transformers import PreTrainedTokenizerFast

    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    things, rng = load_vocabulary(), random.Random(f"{seed}-{i}")
    clips = sample_clips(SHARD, rng.getrandbits(32), things, sorted(names.animations))
    texts = [caption(clip, rng, things) for clip in clips for _ in range(captions)]
    ids = token_ids(tokenizer, texts).reshape(SHARD, captions, -1)
    arrays = pack(clips, names.bank())
    return (*(getattr(arrays, field.name).numpy() for field in fields(Arrays)), ids.numpy())


if __name__ == "__main__":
    main()
