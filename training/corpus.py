"""Scenes with captions in bulk, for training: described and captioned on all cores."""

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training.captions import caption
from training.emoji import load_pictures, load_vocabulary
from training.render import Arrays, Bank, build_bank, pack, render_arrays
from training.scenes import sample_scenes

SHARD = 4096


class Corpus(NamedTuple):
    """Scenes as arrays, with the same number of captions each."""

    arrays: Arrays
    captions: list[list[str]]


def load_bank(pictures: Path, device: str) -> Bank:
    """The drawable objects on their device."""
    return build_bank(load_pictures(pictures), load_vocabulary()).to(device)


def make_corpus(count: int, seed: int, bank: Bank, captions: int = 2) -> Corpus:
    """`count` scenes; shard i depends on the seed and i alone."""
    shards = range(-(-count // SHARD))
    work = partial(_shard, seed=seed, rows=bank.rows, captions=captions)
    workers = min(len(shards), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(work, shards))
    texts = [text for _, part in parts for text in part][:count]
    return Corpus(_joined([arrays for arrays, _ in parts], count), texts)


def select(arrays: Arrays, chosen: Tensor) -> Arrays:
    """Some of the scenes."""
    return Arrays(*(getattr(arrays, field.name)[chosen] for field in fields(Arrays)))


def signed(pictures: Tensor) -> Tensor:
    """Pictures of bytes as numbers in [-1, 1]."""
    return pictures.float() / 127.5 - 1


def pictures_of(arrays: Arrays, chosen: Tensor, bank: Bank) -> Tensor:
    """Pictures in [-1, 1] of the chosen scenes, on the bank's device."""
    return signed(render_arrays(select(arrays, chosen), bank.sprites))


def _shard(
    i: int, seed: int, rows: dict[tuple[int, str | None], int], captions: int
) -> tuple[Arrays, list[list[str]]]:
    torch.set_num_threads(1)
    things, rng = load_vocabulary(), random.Random(f"{seed}-{i}")
    scenes = sample_scenes(SHARD, rng.getrandbits(32), things)
    texts = [[caption(scene, rng, things) for _ in range(captions)] for scene in scenes]
    return pack(scenes, Bank(torch.empty(0), rows)), texts


def _joined(parts: list[Arrays], count: int) -> Arrays:
    names = [field.name for field in fields(Arrays)]
    return Arrays(*(torch.cat([getattr(part, n) for part in parts])[:count] for n in names))
