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
    found = [one for one in records if one["what"] == "simulated"]
    kinds = dict.fromkeys((one["model"], one["device"]) for one in found)
    folder.mkdir(parents=True, exist_ok=True)
    for model, device in kinds:
        own = [one for one in found if (one["model"], one["device"]) == (model, device)]
        where = device.split()[-1].lower() if "NVIDIA" in device else "cpu"
        _draw(own, f"{model}, {device}", folder / f"serving-{model}-{where}.svg")


def _draw(records: Sequence[Record], title: str, path: Path) -> None:
    """Poisson arrivals, eight GPUs where they were simulated."""
    gpus = 8 if any(one["gpus"] == 8 for one in records) else records[0]["gpus"]
    own = [one for one in records if one["arrivals"] == "poisson" and one["gpus"] == gpus]
    with drawing() as figure_class:
        figure = figure_class(figsize=(11, 3.6), layout="constrained")
        figure.suptitle(f"Simulated: {title}, {gpus} devices", fontsize=10)
        panels = figure.subplots(1, len(PANELS))
        for panel, (name, (label, scale)) in zip(panels, PANELS.items(), strict=True):
            for policy in dict.fromkeys(one["policy"] for one in own):
                points = [
                    (one["load"], _scaled(one, name)) for one in own if one["policy"] == policy
                ]
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=policy)
            panel.set_yscale(scale)
            panel.set_xlabel("load, in times of one after another")
            panel.set_title(label, fontsize=9)
            panel.grid(alpha=0.3)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.savefig(path, metadata={"Date": None})


def _scaled(one: Record, name: str) -> float:
    """A figure in times of one request alone with all steps."""
    alone = one["deadline_seconds"] / 2
    value = float(one[name])
    if name == "requests_per_second":
        return value * alone / one["gpus"]
    return value / alone if name == "p50_seconds" else value
