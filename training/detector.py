"""Train the detector of the prompt-following score: `python -m training.detector --minutes 1.5`.

Scenes are described in worker processes, drawn and passed through the autoencoder (where
`vae` is in the work folder) once, and changed anew in every batch. The work folder gets
`detector.safetensors` and `detector.json`: how often the detector agrees with the description
of fresh scenes, and how often it rejects a wrong description of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tacache_lab.following import (
    DEFAULT_SIZE,
    SIDE,
    STRIDE,
    TAGS,
    Architecture,
    Detector,
    Item,
    Maps,
    check,
    detect,
    load_detector,
    save_detector,
    score,
)
from training.config import WORK
from training.corpus import load_bank
from training.emoji import Thing, load_vocabulary
from training.render import Arrays, Bank, pack, render_arrays
from training.scenes import COLOURS, MAX_OBJECTS, Scene, colour_of, relation, sample_scenes

BEGAN = time.monotonic()
SHARD = 4096
RATE, WARM_UP = 2e-3, 100
SPREAD = 0.8  # of the centre's target, in strides
LATENT_NOISE = 0.35  # at most, of the latents' deviation
CHANGED = 0.7  # share of pictures that each kind of change touches
RESERVE = 14.0  # seconds kept for validation
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


class Truth(NamedTuple):
    """What scenes show; `noun` is -1 where a scene has no further object."""

    noun: Tensor  # (count, 4)
    colour: Tensor  # (count, 4), the last is no clear colour
    place: Tensor  # (count, 4, 3) x, y, size


class Pool(NamedTuple):
    """Pictures of scenes, uint8; the first `len(decoded)` of them also through the autoencoder."""

    drawn: Tensor
    decoded: Tensor
    truth: Truth


def main() -> None:
    """Make scenes, train for some minutes, save, and validate what was saved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.5, help="of training steps, at most")
    parser.add_argument("--most", type=float, default=116, help="seconds in all; steps give way")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--scenes", type=int, default=60_000)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--validation", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--pictures", type=Path, default=WORK / "emoji.npz")
    parser.add_argument("--out", type=Path, default=WORK)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as workers:
        parts = [workers.submit(shard, i, seed=5) for i in range(-(-options.scenes // SHARD))]
        vae = load_vae(options.out / "vae", device)
        things, bank = load_vocabulary(), load_bank(options.pictures, device)
        say(f"{len(things)} objects, {'an' if vae else 'no'} autoencoder")
        detector = Detector(Architecture(nouns=tuple(t.noun for t in things), colours=COLOURS))
        detector = detector.to(device, memory_format=torch.channels_last)
        step_loss = compiled(detector, options.batch, device, options.eager)
        pool = make_pool(parts, options.scenes, things, bank, vae)
    history = train(detector, step_loss, pool, options)
    path = save_detector(detector, options.out / "detector.safetensors")
    say(f"{path}, {path.stat().st_size / 2**20:.2f} MiB")
    report = validate(load_detector(path).to(device), options.validation, things, bank, vae)
    report |= {"parameters": sum(p.numel() for p in detector.parameters())}
    report |= {"seconds": round(time.monotonic() - BEGAN, 1), "history": history}
    (options.out / "detector.json").write_text(json.dumps(report, indent=1) + "\n")
    say(json.dumps({name: part for name, part in report.items() if name != "history"}, indent=1))


def say(text: str) -> None:
    """Print with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def load_vae(folder: Path, device: str) -> Any:
    """The autoencoder, or None where there is none."""
    if not (folder / "config.json").exists():
        return None
    from diffusers import AutoencoderKL  # slow to import: not in the workers

    kind = torch.bfloat16 if device == "cuda" else torch.float32
    vae = AutoencoderKL.from_pretrained(folder, torch_dtype=kind)
    return vae.to(device).eval().requires_grad_(False)


def shard(i: int, seed: int) -> dict[str, NDArray[Any]]:
    """One part of the scenes as arrays; depends on the seed and i alone."""
    scenes = sample_scenes(SHARD, random.Random(f"{seed}-{i}").getrandbits(32), load_vocabulary())
    return packed(scenes)


def packed(scenes: Sequence[Scene]) -> dict[str, NDArray[Any]]:
    """Objects, their paint (the last: their own), places and backgrounds of scenes."""
    noun = np.full((len(scenes), MAX_OBJECTS), -1, dtype=np.int64)
    paint = np.full((len(scenes), MAX_OBJECTS), len(COLOURS), dtype=np.int64)
    place = np.zeros((len(scenes), MAX_OBJECTS, 3), dtype=np.float32)
    for n, scene in enumerate(scenes):
        for layer, placed in enumerate(scene.objects):
            noun[n, layer] = placed.thing
            if placed.colour:
                paint[n, layer] = COLOURS.index(placed.colour)
            place[n, layer] = placed.x, placed.y, placed.size
    shades = [(scene.background.first, scene.background.second) for scene in scenes]
    return {
        "noun": noun,
        "paint": paint,
        "place": place,
        "shades": np.array(shades, np.float32),
        "angle": np.array([scene.background.angle for scene in scenes], np.float32),
        "shadow": np.array([scene.shadow for scene in scenes], np.float32),
    }


def make_pool(
    parts: Sequence[Future[dict[str, NDArray[Any]]]],
    count: int,
    things: Sequence[Thing],
    bank: Bank,
    vae: Any,
) -> Pool:
    """All pictures on the bank's device; as many through the autoencoder as time allows."""
    shards = [part.result() for part in parts]
    arrays = {
        name: torch.from_numpy(np.concatenate([one[name] for one in shards])[:count])
        for name in shards[0]
    }
    say(f"{count} scenes described")
    noun, paint = arrays["noun"], arrays["paint"]
    row, colour = tables(things, bank)
    row = torch.where(noun >= 0, row[noun.clamp(min=0), paint], -1)
    colour = colour[noun.clamp(min=0), paint]
    looks = (arrays["shades"], arrays["angle"], arrays["shadow"])
    drawn = draw(Arrays(row, arrays["place"], *looks), bank)
    say("drawn")
    decoded = pass_through(vae, drawn, seconds=12.0) if vae else drawn[:0]
    say(f"{len(decoded)} of them through the autoencoder")
    truth = (part.to(drawn.device) for part in (noun, colour, arrays["place"]))
    return Pool(drawn, decoded, Truth(*truth))


def tables(things: Sequence[Thing], bank: Bank) -> tuple[Tensor, Tensor]:
    """The bank's row and the shown colour of every object in every paint, -1 where none."""
    row = torch.full((len(things), len(COLOURS) + 1), -1)
    colour = torch.full((len(things), len(COLOURS) + 1), len(COLOURS))
    for (thing, paint), number in bank.rows.items():
        own = things[thing].colors
        column = COLOURS.index(paint) if paint else len(COLOURS)
        row[thing, column] = number
        shown = paint or (own[0] if own else None)
        if shown in COLOURS:
            colour[thing, column] = COLOURS.index(shown)
    return row, colour


def draw(arrays: Arrays, bank: Bank, batch: int = 1024) -> Tensor:
    """Pictures of scenes, uint8, on the bank's device."""
    parts = [
        Arrays(*fields)
        for fields in zip(
            *(
                part.split(batch)
                for part in (arrays.row, arrays.place, arrays.shades, arrays.angle, arrays.shadow)
            ),
            strict=True,
        )
    ]
    return torch.cat([render_arrays(part, bank.sprites) for part in parts])


@torch.no_grad()
def pass_through(vae: Any, drawn: Tensor, seconds: float = math.inf, batch: int = 256) -> Tensor:
    """Pictures, uint8, encoded, disturbed a little and decoded, until the time is over."""
    started, done = time.monotonic(), []
    for part in drawn.split(batch):
        latents = vae.encode((part.float() / 127.5 - 1).to(vae.dtype)).latent_dist.sample()
        strength = LATENT_NOISE / (vae.config.scaling_factor or 1.0)
        strength = strength * torch.rand(len(part), 1, 1, 1, device=part.device).square()
        latents = latents + (strength * torch.randn_like(latents.float())).to(vae.dtype)
        decoded = vae.decode(latents).sample.float().clamp(-1, 1)
        done.append(((decoded + 1) * 127.5).round().to(torch.uint8))
        if part.is_cuda:
            torch.cuda.synchronize()
        if time.monotonic() - started > seconds:
            break
    return torch.cat(done)


def some(count: int, low: float, high: float, device: torch.device, still: float) -> Tensor:
    """A number for each picture, (count, 1, 1, 1); the given one where nothing shall change."""
    value = torch.empty(count, 1, 1, 1, device=device).uniform_(low, high)
    touched = torch.rand(count, 1, 1, 1, device=device) < CHANGED
    return torch.where(touched, value, still)


def change(pictures: Tensor, truth: Truth) -> tuple[Tensor, Truth]:
    """Pictures in [0, 1] turned, stretched, blurred, tinted and made noisy; the truth follows."""
    pictures, truth = warp(pictures, truth)
    count, device = len(pictures), pictures.device
    pictures = torch.lerp(pictures, blurred(pictures), some(count, 0.0, 1.0, device, 0.0))
    grey = pictures.mean(dim=1, keepdim=True)
    pictures = grey + turned(pictures - grey, some(count, -0.12, 0.12, device, 0.0))
    pictures = grey + (pictures - grey) * some(count, 0.85, 1.15, device, 1.0)
    mean = pictures.mean(dim=(1, 2, 3), keepdim=True)
    pictures = mean + (pictures - mean) * some(count, 0.85, 1.15, device, 1.0)
    pictures = pictures + some(count, -0.06, 0.06, device, 0.0)
    noise = torch.randn_like(pictures) * some(count, 0.0, 0.05, device, 0.0)
    return (pictures + noise).clamp(0, 1), truth


def warp(pictures: Tensor, truth: Truth) -> tuple[Tensor, Truth]:
    """Pictures turned, stretched and shifted a little, with the places of their objects."""
    count, device = len(pictures), pictures.device
    angle = some(count, -0.12, 0.12, device, 0.0)[:, 0, 0, 0]
    scales = [some(count, 0.92, 1.08, device, 1.0)[:, 0, 0, 0] for _ in range(2)]
    shift = torch.cat([some(count, -0.04, 0.04, device, 0.0)[:, 0, 0] for _ in range(2)], dim=1)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).reshape(-1, 2, 2)
    matrix = turn @ torch.diag_embed(torch.stack(scales, dim=1))  # of the result to the source
    grid = functional.affine_grid(
        torch.cat([matrix, shift[:, :, None]], dim=2), list(pictures.shape), align_corners=False
    )
    moved = functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
    middle = SIDE / 2
    source = truth.place[..., :2] / middle - 1 - shift[:, None]
    place = (torch.linalg.inv(matrix)[:, None] @ source[..., None])[..., 0]
    place = ((place + 1) * middle).clamp(0, SIDE - 1e-3)
    size = truth.place[..., 2:] / (scales[0] * scales[1]).sqrt()[:, None, None]
    return moved, truth._replace(place=torch.cat([place, size], dim=-1))


def blurred(pictures: Tensor, deviation: float = 1.6) -> Tensor:
    """Pictures under a Gaussian."""
    line = torch.arange(-4, 5, device=pictures.device).float()
    kernel = torch.softmax(-(line**2) / (2 * deviation**2), dim=0).repeat(3, 1, 1, 1)
    wide = functional.pad(pictures, (4, 4, 4, 4), mode="replicate")
    return functional.conv2d(
        functional.conv2d(wide, kernel, groups=3), kernel.transpose(2, 3), groups=3
    )


def turned(chroma: Tensor, angle: Tensor) -> Tensor:
    """Colours without their grey, their hue turned by an angle."""
    along, across = angle.cos(), angle.sin() / 3**0.5
    return along * chroma + across * (chroma.roll(1, dims=1) - chroma.roll(-1, dims=1))


def batch_of(pool: Pool, count: int) -> tuple[Tensor, Truth]:
    """Changed pictures, half of them through the autoencoder where there is one."""
    device, half = pool.drawn.device, count // 2 if len(pool.decoded) else 0
    first = torch.randint(max(1, len(pool.decoded)), (half,), device=device)
    rest = torch.randint(len(pool.drawn), (count - half,), device=device)
    chosen = torch.cat([first, rest])
    pictures = torch.cat([pool.decoded[first], pool.drawn[rest]]).float() / 255
    return change(pictures, Truth(*(part[chosen] for part in pool.truth)))


def centres(truth: Truth) -> tuple[Tensor, Tensor]:
    """The target of the centre map, (count, cells, cells), and where it is exactly a centre."""
    line = torch.arange(SIDE // STRIDE, device=truth.place.device)
    there = (truth.noun >= 0)[..., None, None]
    across = truth.place[..., 0, None, None] / STRIDE - 0.5 - line
    down = truth.place[..., 1, None, None] / STRIDE - 0.5 - line[:, None]
    target = torch.exp(-(across**2 + down**2) / (2 * SPREAD**2)) * there
    exact = (across.abs() <= 0.5) & (down.abs() <= 0.5) & there
    return target.amax(dim=1), exact.any(dim=1)


def losses(detector: Callable[[Tensor], Maps], pictures: Tensor, truth: Truth) -> Tensor:
    """Focal loss of centres, and at the four cells about each centre what, which and how large."""
    maps = Maps(*(part.float() for part in detector(pictures)))
    target, exact = centres(truth)
    logit = maps.centre[:, 0]
    chance = logit.sigmoid()
    objects = (truth.noun >= 0).sum().clamp(min=1)
    hits = (1 - chance) ** 2 * functional.logsigmoid(logit) * exact
    misses = chance**2 * (1 - target) ** 4 * functional.logsigmoid(-logit) * ~exact
    centre = -(hits + misses).sum() / objects

    cells = SIDE // STRIDE
    spot = truth.place[..., :2] / STRIDE - 0.5
    corner = spot.floor()
    near = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], device=spot.device)
    where = (corner[:, :, None] + near).clamp(0, cells - 1)  # (count, 4, 4, 2)
    weight = (1 - (spot[:, :, None] - corner[:, :, None] - near).abs()).prod(dim=-1)
    weight = (weight * (truth.noun >= 0)[..., None]).flatten(1)
    index = (where[..., 1] * cells + where[..., 0]).long().flatten(1)  # (count, 16)

    def at(values: Tensor) -> Tensor:
        flat = values.flatten(2)
        return flat.gather(2, index[:, None].expand(-1, flat.shape[1], -1))

    nouns = truth.noun.clamp(min=0).repeat_interleave(4, dim=1)
    colours = truth.colour.repeat_interleave(4, dim=1)
    offset = (spot[:, :, None] - where).flatten(1, 2).transpose(1, 2)
    size = (truth.place[..., 2].clamp(min=1.0) / DEFAULT_SIZE).log2().repeat_interleave(4, dim=1)
    box = torch.cat([offset, size[:, None]], dim=1)
    parts = (
        functional.cross_entropy(at(maps.nouns), nouns, reduction="none", label_smoothing=0.02)
        + 0.5 * functional.cross_entropy(at(maps.colours), colours, reduction="none")
        + functional.smooth_l1_loss(at(maps.box), box, reduction="none").sum(dim=1)
    )
    return centre + (parts * weight).sum() / objects


def compiled(detector: Detector, batch: int, device: str, eager: bool) -> Callable[..., Tensor]:
    """The loss, compiled where there is a GPU and it works; the detector is left as it was."""
    with torch.no_grad():
        detector.head.bias[0] = -4.0  # centres are rare
    plain = partial(losses, detector)
    if device != "cuda" or eager:
        return plain
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    quick = partial(torch.compile(losses, dynamic=False), detector)
    pictures = torch.rand(batch, 3, SIDE, SIDE, device=device)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    truth = Truth(
        torch.zeros(batch, MAX_OBJECTS, dtype=torch.int64, device=device),
        torch.zeros(batch, MAX_OBJECTS, dtype=torch.int64, device=device),
        torch.full((batch, MAX_OBJECTS, 3), 64.0, device=device),
    )
    try:
        with torch.autocast(device, torch.bfloat16):
            loss = quick(pictures, truth)
        loss.backward()
        torch.cuda.synchronize()
    except Exception as error:  # a slower run is better than none
        say(f"not compiled: {type(error).__name__}: {str(error)[:300]}")
        quick = plain
    detector.load_state_dict(before)
    detector.zero_grad(set_to_none=True)
    say("compiled")
    return quick


def train(
    detector: Detector, step_loss: Callable[..., Tensor], pool: Pool, options: argparse.Namespace
) -> list[dict[str, float]]:
    """AdamW with a learning rate that falls to zero over the time; the loss every 100 steps."""
    device = pool.drawn.device.type
    optimizer = torch.optim.AdamW(
        detector.parameters(), RATE, weight_decay=0.02, fused=device == "cuda"
    )
    left = options.most - RESERVE - (time.monotonic() - BEGAN)
    limit = min(options.minutes * 60, max(left, 1.0))
    detector.train()
    started, step, history, recent = time.monotonic(), 0, [], []
    while (done := (time.monotonic() - started) / limit) < 1:
        for group in optimizer.param_groups:
            group["lr"] = (
                RATE * min(1.0, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))
            )
        pictures, truth = batch_of(pool, options.batch)
        with torch.autocast(device, torch.bfloat16):
            loss = step_loss(pictures.contiguous(memory_format=torch.channels_last), truth)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        step += 1
        if step % 10 == 0:
            loss.item()  # the clock is the GPU's, not the queue's
        if step % 100 == 0:
            history.append({"step": step, "loss": round(torch.stack(recent).mean().item(), 4)})
            recent = []
            if step % 500 == 0:
                say(json.dumps(history[-1]))
    say(f"{step} steps of {options.batch} in {time.monotonic() - started:.0f} s")
    if not all(math.isfinite(record["loss"]) for record in history):
        raise SystemExit("the loss is not finite")
    detector.eval()
    return history


def describe(scene: Scene, things: Sequence[Thing]) -> Item | None:
    """The prompt that a scene answers; None where its kind's question has no clear answer."""
    include: list[dict[str, Any]] = [
        {"class": things[placed.thing].noun, "count": 1} for placed in scene.objects
    ]
    if scene.kind == "counting":
        include = [{**include[0], "count": len(scene.objects)}]
    elif len({entry["class"] for entry in include}) < len(include):
        return None
    if scene.kind in ("colors", "color_attr"):
        for entry, placed in zip(include, scene.objects, strict=True):
            entry["color"] = colour_of(placed, things)
            if entry["color"] not in COLOURS:
                return None
    if scene.kind == "position":
        where = relation(*scene.objects)
        if where is None:
            return None
        include[0]["position"] = (where, 1)
    return Item.model_validate({"tag": scene.kind, "prompt": "", "include": include})


def falsify(item: Item, rng: random.Random, things: Sequence[Thing]) -> Item:
    """The same question with a wrong answer."""
    include = [wanted.model_dump(by_alias=True) for wanted in item.include]
    entry = include[0]
    if item.tag == "counting":
        entry["count"] += rng.choice((-1, 1)) if entry["count"] > 2 else 1
    elif item.tag == "position":
        entry["position"] = (OPPOSITE[entry["position"][0]], 1)
    elif item.tag == "color_attr":
        entry["color"], include[1]["color"] = include[1]["color"], entry["color"]
        if entry["color"] == include[1]["color"]:
            entry["color"] = rng.choice([c for c in COLOURS if c != entry["color"]])
    elif item.tag == "colors":
        entry["color"] = rng.choice([c for c in COLOURS if c != entry["color"]])
    else:
        named = {one["class"] for one in include}
        entry["class"] = rng.choice([t.noun for t in things if t.noun not in named])
    return Item.model_validate({"tag": item.tag, "prompt": "", "include": include})


def validate(
    detector: Detector, count: int, things: Sequence[Thing], bank: Bank, vae: Any
) -> dict[str, Any]:
    """Shares of right descriptions accepted and of wrong ones rejected, by tag, on new scenes."""
    scenes, items, each = [], [], -(-count // len(TAGS))
    for number, tag in enumerate(TAGS):
        made = sample_scenes(each * 3 // 2 + 8, 900_000 + number, things, tag)
        both = [(scene, describe(scene, things)) for scene in made]
        kept = [(scene, item) for scene, item in both if item][:each]
        scenes += [scene for scene, _ in kept]
        items += [item for _, item in kept]
    rng = random.Random(0)
    wrong = [falsify(item, rng, things) for item in items]
    drawn = draw(pack(scenes, bank), bank)
    sets = {"drawn": drawn} | ({"decoded": pass_through(vae, drawn)} if vae else {})
    report: dict[str, Any] = {"scenes": len(scenes)}
    for name, pictures in sets.items():
        images = pictures.float() / 255
        found = detect(detector, images)
        right = [(item.tag, check(f, item)) for f, item in zip(found, items, strict=True)]
        false = [(item.tag, not check(f, item)) for f, item in zip(found, wrong, strict=True)]
        accepted, rejected = score(right), score(false)
        report[name] = {
            "accepted": {tag: round(share, 4) for tag, share in accepted.items()},
            "rejected": {tag: round(share, 4) for tag, share in rejected.items()},
        }
    return report


if __name__ == "__main__":
    main()
