"""The model's card, filled with what its training measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from training.video.config import (
    CHANNELS,
    EARLIER,
    FACTS,
    FRAMES,
    GUIDANCE,
    SHIFT,
    SIZE,
    TOKENS,
)

TEMPLATE = Path(__file__).parent / "card.md"
PARTS = ("transformer", "vae", "text_encoder")
# over runs
ADDED = ("autoencoder_steps", "clips", "flow_steps", "flow_seconds", "samples", "seconds")
Facts = dict[str, float]


def write_card(pipe: Any, work: Path, folder: Path) -> Path:
    """Write README.md and the facts into the model's folder from the curves in the work folder."""
    facts = measured(work)
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    words = {**sizes(pipe, folder), **worded(facts)}
    target = folder / "README.md"
    target.write_text(TEMPLATE.read_text(encoding="utf-8").format(**words), encoding="utf-8")
    return target


def sizes(pipe: Any, folder: Path) -> dict[str, str]:
    """What the model is."""
    counts = {part: sum(p.numel() for p in getattr(pipe, part).parameters()) for part in PARTS}
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        **{part: f"{count / 1e6:.1f}M parameters" for part, count in counts.items()},
        "megabytes": f"{total / 1e6:.1f}",
        "size": str(SIZE),
        "frames": str(FRAMES),
        "tokens": str(TOKENS),
        "channels": str(CHANNELS),
        "guidance": str(GUIDANCE),
        "shift": str(SHIFT),
    }


def measured(work: Path) -> Facts:
    """What training came to, in this run and in those it went on from."""
    flow, autoencoder = last_line(work / "flow.jsonl"), read(work / "autoencoder.json")
    steps = last_line(work / "autoencoder.jsonl").get("step", 0)
    facts = {
        "psnr": autoencoder.get("psnr", float("nan")),
        "autoencoder_steps": steps if autoencoder else 0,  # of one that was finished
        "clips": flow.get("clips", 0),
        "flow_steps": flow.get("step", 0),
        "flow_seconds": flow.get("seconds", 0.0),
        "samples": flow.get("samples", 0),
        "loss": flow.get("loss", float("nan")),
        "seconds": last_stamp(work / "stamps"),
    }
    earlier = read(work / EARLIER)
    if not earlier:
        return facts
    added = {name: facts[name] + earlier[name] for name in ADDED}
    psnr = earlier["psnr"] if math.isnan(facts["psnr"]) else facts["psnr"]
    return {**added, "psnr": psnr, "loss": facts["loss"]}


def worded(facts: Facts) -> dict[str, str]:
    """The facts as the card says them."""
    return {
        "psnr": f"{facts['psnr']:.1f}",
        "autoencoder_steps": f"{facts['autoencoder_steps']:,}",
        "clips": f"{facts['clips']:,}",
        "flow_steps": f"{facts['flow_steps']:,}",
        "flow_minutes": f"{facts['flow_seconds'] / 60:.1f}",
        "samples": f"{facts['samples'] / 1e6:.1f}M",
        "loss": f"{facts['loss']:.4f}",
        "minutes": f"{facts['seconds'] / 60:.1f}",
    }


def read(path: Path) -> Facts:
    """A file of numbers; empty where there is none."""
    entries: Facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return entries


def last_line(path: Path) -> Facts:
    """The last record of a curve; empty where training was too short for one."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    record: Facts = json.loads(lines[-1]) if lines else {}
    return record


def last_stamp(path: Path) -> float:
    """Seconds of the chain until its last stage ended."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return float(lines[-1].split()[0]) if lines else 0.0
