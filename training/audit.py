"""Look at the detector object by object, on scenes of other seeds: `python -m training.audit`.

Draws scenes, passes them through the shipped autoencoder too, and counts what the detector finds
there at several thresholds. Runs on a CPU in a minute or two and adds `objects` to `detector.json`:
precision and recall of objects (right noun, in place), the share of right colours, how far off the
places are, and how often a scene is found exactly as it is. `disturbed` is how that falls when
noise is added to the latents, in units of their deviation.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache import models
from tacache_lab.following import Found, check, detect, load_detector
from training.corpus import load_bank
from training.detector import describe, draw, falsify, load_vae, pass_through
from training.emoji import WORK, Thing, load_vocabulary
from training.render import pack
from training.scenes import COLOURS, KINDS, Scene, colour_of, sample_scenes

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
STRENGTHS = (0.5, 1.0, 1.5, 2.0)
SEED = 4_000_000
RESULTS = Path(__file__).parent / "results" / "detector.json"


def main() -> None:
    """Count, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=100, help="of every kind")
    parser.add_argument("--pictures", type=Path, default=WORK / "emoji.npz")
    parser.add_argument("--detector", type=Path, default=None, help="another than the shipped one")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    things, bank = load_vocabulary(), load_bank(options.pictures, "cpu")
    scenes = [
        scene
        for number, kind in enumerate(KINDS)
        for scene in sample_scenes(options.scenes, SEED + number, things, kind)
    ]
    drawn = draw(pack(scenes, bank), bank)
    vae = load_vae(models.embedded("tiny-flux").folder / "vae", "cpu")
    decoded = pass_through(vae, drawn)
    detector = load_detector(options.detector)
    report: dict[str, Any] = {"scenes": len(scenes), "seeds": [SEED, SEED + len(KINDS) - 1]}
    for name, pictures in {"drawn": drawn, "decoded": decoded}.items():
        report[name] = {}
        for threshold in THRESHOLDS:
            found = detect(detector, pictures.float() / 255, threshold)
            report[name][str(threshold)] = counted(found, scenes, things)
    every = slice(None, None, 5)
    report["disturbed"] = {
        str(strength): counted(
            detect(detector, disturbed(vae, drawn[every], strength)), scenes[every], things
        )
        for strength in STRENGTHS
    }
    print(json.dumps(report, indent=1))
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    options.output.write_text(json.dumps({**kept, "objects": report}, indent=1) + "\n")


@torch.no_grad()
def disturbed(vae: Any, drawn: Tensor, strength: float) -> Tensor:
    """Pictures in [0, 1] decoded from latents with so much noise added."""
    done = []
    for part in drawn.split(64):
        latents = vae.encode(part.float() / 127.5 - 1).latent_dist.mode()
        noise = torch.randn_like(latents) * strength / vae.config.scaling_factor
        done.append((vae.decode(latents + noise).sample / 2 + 0.5).clamp(0, 1))
    return torch.cat(done)


def counted(
    found: Sequence[list[Found]], scenes: Sequence[Scene], things: Sequence[Thing]
) -> dict[str, float]:
    """Figures over all scenes at one threshold."""
    there = sum(len(scene.objects) for scene in scenes)
    seen = sum(len(objects) for objects in found)
    right, colours, coloured, exact = 0, 0, 0, 0
    distance = 0.0
    for scene, objects in zip(scenes, found, strict=True):
        pairs = matches(scene, objects, things)
        right += len(pairs)
        exact += len(pairs) == len(scene.objects) == len(objects)
        for placed, one in pairs:
            distance += ((placed.x - one.x) ** 2 + (placed.y - one.y) ** 2) ** 0.5
            if (shown := colour_of(placed, things)) in COLOURS:
                coloured += 1
                colours += one.colour == shown
    accepted, rejected, asked = answers(found, scenes, things)
    return {
        "precision": round(right / max(seen, 1), 4),
        "recall": round(right / there, 4),
        "colours": round(colours / max(coloured, 1), 4),
        "pixels off": round(distance / max(right, 1), 2),
        "exact scenes": round(exact / len(scenes), 4),
        "accepted": round(accepted / asked, 4),
        "rejected": round(rejected / asked, 4),
    }


def matches(
    scene: Scene, objects: Sequence[Found], things: Sequence[Thing]
) -> list[tuple[Any, Found]]:
    """Each object of the scene with the nearest unused finding of its noun within half its size."""
    pairs, free = [], list(objects)
    for placed in scene.objects:
        near = [
            (max(abs(placed.x - one.x), abs(placed.y - one.y)), n)
            for n, one in enumerate(free)
            if one.noun == things[placed.thing].noun
        ]
        if near and min(near)[0] <= placed.size / 2:
            pairs.append((placed, free.pop(min(near)[1])))
    return pairs


def answers(
    found: Sequence[list[Found]], scenes: Sequence[Scene], things: Sequence[Thing]
) -> tuple[int, int, int]:
    """Right descriptions accepted and wrong ones rejected, of so many with a clear answer."""
    rng = random.Random(1)
    accepted = rejected = asked = 0
    for scene, objects in zip(scenes, found, strict=True):
        item = describe(scene, things)
        if item is None:
            continue
        asked += 1
        accepted += check(objects, item)
        rejected += not check(objects, falsify(item, rng, things))
    return accepted, rejected, asked


if __name__ == "__main__":
    main()
