"""Figures of the simulation: latency and missed deadlines over load, one panel a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacache.plots import drawing

Record = dict[str, Any]
PANELS = {
    "requests_per_second": ("served, in times of one after another", "linear"),
    "p50_seconds": ("median latency, in times of a request alone", "log"),
    "missed": ("share of missed deadlines", "linear"),
}


def draw(records: Sequence[Record], folder: Path) -> None:
    """One figure a model and device: `serving-MODEL-DEVICE.svg`."""
    simulated = [record for record in records if record["what"] == "simulated"]
    kinds = dict.fromkeys((record["model"], record["device"]) for record in simulated)
    folder.mkdir(parents=True, exist_ok=True)
    for model, device in kinds:
        own = [
            record for record in simulated if (record["model"], record["device"]) == (model, device)
        ]
        where = device.split()[-1].lower() if "NVIDIA" in device else "cpu"
        _draw(own, f"{model}, {device}", folder / f"serving-{model}-{where}.svg")


def _draw(records: Sequence[Record], title: str, path: Path) -> None:
    """Poisson arrivals, eight GPUs where they were simulated."""
    gpus = 8 if any(record["gpus"] == 8 for record in records) else records[0]["gpus"]
    own = [
        record for record in records if record["arrivals"] == "poisson" and record["gpus"] == gpus
    ]
    with drawing() as figure_class:
        figure = figure_class(figsize=(11, 3.6), layout="constrained")
        figure.suptitle(f"Simulated: {title}, {gpus} devices", fontsize=10)
        panels = figure.subplots(1, len(PANELS))
        for panel, (name, (label, scale)) in zip(panels, PANELS.items(), strict=True):
            for policy in dict.fromkeys(record["policy"] for record in own):
                points = [
                    (record["load"], _scaled(record, name))
                    for record in own
                    if record["policy"] == policy
                ]
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=policy)
            panel.set_yscale(scale)
            panel.set_xlabel("load, in times of one after another")
            panel.set_title(label, fontsize=9)
            panel.grid(alpha=0.3)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(path, metadata={"Date": None})


def _scaled(record: Record, name: str) -> float:
    """A figure in times of one request alone with all steps."""
    alone = record["deadline_seconds"] / 2
    value = float(record[name])
    if name == "requests_per_second":
        return value * alone / record["gpus"]
    return value / alone if name == "p50_seconds" else value
