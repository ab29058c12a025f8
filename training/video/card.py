"""The model's card, filled with what its training measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.video.config import CHANNELS, FRAMES, GUIDANCE, SHIFT, SIZE, TOKENS

TEMPLATE = Path(__file__).parent / "card.md"
PARTS = ("transformer", "vae", "text_encoder")


def write_card(pipe: Any, work: Path, folder: Path) -> Path:
    """Write README.md into the model's folder from the curves in the work folder."""
    target = folder / "README.md"
    facts = {**sizes(pipe, folder), **measured(work)}
    target.write_text(TEMPLATE.read_text(encoding="utf-8").format(**facts), encoding="utf-8")
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


def measured(work: Path) -> dict[str, str]:
    """What its training came to."""
    autoencoder = json.loads((work / "autoencoder.json").read_text(encoding="utf-8"))
    flow, first = last_line(work / "flow.jsonl"), last_line(work / "autoencoder.jsonl")
    stamps = work / "stamps"
    seconds = float(stamps.read_text().split("\n")[-2].split()[0]) if stamps.is_file() else 0.0
    return {
        "psnr": f"{autoencoder['psnr']:.1f}",
        "autoencoder_steps": f"{first.get('step', 0):,}",
        "clips": f"{flow.get('clips', 0):,}",
        "flow_steps": f"{flow.get('step', 0):,}",
        "flow_minutes": f"{flow.get('seconds', 0) / 60:.1f}",
        "samples": f"{flow.get('samples', 0) / 1e6:.1f}M",
        "loss": f"{flow.get('loss', float('nan')):.4f}",
        "minutes": f"{seconds / 60:.1f}",
    }


def last_line(path: Path) -> dict[str, float]:
    """The last record of a curve; empty where training was too short for one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    record: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return record
