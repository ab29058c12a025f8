"""Draw the loss curves kept in `results`: `python -m training.curves` writes `losses.svg` there."""

import argparse
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def main() -> None:
    """One panel for each part that was trained."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tacache"  # the same file from the same curves
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "losses.svg")
    options = parser.parse_args()
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3), layout="constrained")
    autoencoder = read_lines(FOLDER / "autoencoder.jsonl")
    draw(left, autoencoder, ["error", "edge"], "autoencoder", log=True)
    flow = read_lines(FOLDER / "flow.jsonl")
    draw(middle, flow, ["loss"], "flow transformer", log=False)
    middle.set_ylim(0.9 * flow[-1]["loss"], flow[min(10, len(flow) - 1)]["loss"])
    detector = json.loads((FOLDER / "detector.json").read_text(encoding="utf-8"))["history"]
    draw(right, detector, ["loss"], "detector", log=True)
    figure.savefig(options.output, metadata={"Date": None} if is_svg(options.output) else None)


def is_svg(path: Path) -> bool:
    """Whether the name asks for a vector file, whose date would change on every run."""
    return path.suffix == ".svg"


def read_lines(path: Path) -> list[dict[str, float]]:
    """The records of a curve."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def draw(
    axes: Any, records: list[dict[str, float]], names: list[str], title: str, log: bool
) -> None:
    """Curves over steps; those without the fields, such as a closing summary, are left out."""
    kept = [record for record in records if "step" in record and names[0] in record]
    for name in names:
        axes.plot([r["step"] for r in kept], [r[name] for r in kept], label=name, linewidth=1)
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_yscale("log" if log else "linear")
    axes.grid(alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    main()
