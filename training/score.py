"""Score a model's prompt following: `python -m training.score`, about ten minutes on a CPU.

Draws the prompts of `following.jsonl` with full steps into the work folder, one seed a prompt; run
again, it goes on where it stopped. The detector then looks at all pictures. The output holds the
scores by kind and, for each failure, what was found; a sheet of the failures lies beside the
pictures, to be looked at.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tacache import models
from tacache_lab.following import TAGS, Found, Item, check, detect, load_detector, read_items, score
from training.config import WORK
from training.sheets import save_sheet

FOLDER = Path(__file__).parent
MODELS = {"tiny-flux": "following", "tiny-flux-turbo": "following-turbo"}  # names of their files


def main() -> None:
    """Draw what is not drawn yet, then score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="tiny-flux")
    parser.add_argument("-o", "--output", type=Path, default=None)
    parser.add_argument("--prompts", type=Path, default=FOLDER / "following.jsonl")
    parser.add_argument("--pictures", type=Path, default=None)
    parser.add_argument("--detector", type=Path, default=None, help="another than the shipped one")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    items, name = read_items(options.prompts), MODELS[options.model]
    folder = options.pictures or WORK / name
    images = draw_missing(options.model, items, folder)
    found = detect(load_detector(options.detector), images)
    report = report_of(options.model, items, found)
    output = options.output or FOLDER / "results" / f"{name}.json"
    output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = [n for n, item in enumerate(items) if not check(found[n], item)]
    if wrong:
        prompts = [items[n].prompt for n in wrong]
        save_sheet(images[wrong] * 2 - 1, folder / "failures.png", captions=prompts)
    print(json.dumps(report["scores"], indent=1))


def draw_missing(model: str, items: Sequence[Item], folder: Path) -> Tensor:
    """The picture of every prompt in [0, 1], drawn where its file is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{n:03d}.png" for n in range(len(items))]
    missing = [n for n, file in enumerate(files) if not file.exists()]
    if missing:
        pipe = models.load(model)
        pipe.set_progress_bar_config(disable=True)
    started = time.monotonic()
    for done, n in enumerate(missing, start=1):
        pixels = draw(pipe, items[n].prompt, n, models.default_call(model))
        Image.fromarray(pixels).save(files[n].with_suffix(".part"), "png")
        files[n].with_suffix(".part").replace(files[n])
        if done % 10 == 0 or done == len(missing):
            print(f"{done} of {len(missing)} after {time.monotonic() - started:.0f} s", flush=True)
    pictures = np.stack([np.array(Image.open(file)) for file in files])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255


def draw(pipe: Any, prompt: str, seed: int, call: dict[str, Any]) -> Any:
    """One picture with full steps, as bytes."""
    generator = torch.Generator().manual_seed(seed)
    picture = pipe(prompt, generator=generator, output_type="np", **call).images[0]
    return (picture * 255).round().astype(np.uint8)


def report_of(model: str, items: Sequence[Item], found: Sequence[list[Found]]) -> dict[str, Any]:
    """Scores and counts by kind, and what was found where a prompt was not followed."""
    right = [check(objects, item) for objects, item in zip(found, items, strict=True)]
    results = list(zip([item.tag for item in items], right, strict=True))
    return {
        "model": model,
        "call": models.default_call(model),
        "prompts": len(items),
        "scores": {name: round(share, 4) for name, share in score(results).items()},
        "followed": {tag: sum(ok for kind, ok in results if kind == tag) for tag in TAGS},
        "failures": [
            {
                "number": n,
                "tag": item.tag,
                "prompt": item.prompt,
                "found": [shown(one) for one in found[n]],
            }
            for n, item in enumerate(items)
            if not right[n]
        ],
    }


def shown(one: Found) -> str:
    """An object in words."""
    colour = f"{one.colour} " if one.colour else ""
    return f"{colour}{one.noun} at {one.x:.0f},{one.y:.0f} ({one.confidence:.2f})"


if __name__ == "__main__":
    main()
