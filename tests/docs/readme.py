"""The small tables of README, from committed records: `python -m tests.docs.readme` renews them."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from tacache.fitting.flow import equivalent_steps

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BUDGETS = (25, 17, 13, 10, 7)
OURS = re.compile(r"(fitted|instant|tasu|damped|magnitude|direction|reuse|full|fine)\b")
HEAD = "| evaluations of 50 | fewer by | ours, fitted | the paper's rule | best of the rivals |"
TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)
FLOW_BUDGETS = (25, 17, 13)
FLOW_HEAD = "| evaluations | pictures, aimed at the flow | as near as | clips | as near as |"
FLOW_TABLE = re.compile(r"(?<=<!-- flow: begin -->\n).*?(?=<!-- flow: end -->)", re.DOTALL)


def packed(study: str) -> list[dict[str, Any]]:
    """The records of a study."""
    with gzip.open(RESULTS / f"{study}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def means() -> dict[tuple[str, int], float]:
    """Mean PSNR to the full pictures on tiny-flux, by method and budget, of what has a budget."""
    found: dict[tuple[str, int], list[float]] = {}
    for one in packed("main"):
        if one["status"] == "done" and one["evaluations"] and one["to_full"]:
            key = one["method"], one["evaluations"]
            found.setdefault(key, []).append(one["to_full"]["metrics"]["psnr"])
    return {key: mean(values) for key, values in found.items()}


def row(psnr: dict[tuple[str, int], float], budget: int) -> str:
    """A budget, ours, the paper's rule, and whichever rival is best there."""
    rivals = {name: psnr[name, k] for name, k in psnr if k == budget and not OURS.match(name)}
    best = max(rivals, key=rivals.__getitem__)
    cells = [
        f"{budget}",
        f"{50 / budget:.1f}x",
        f"{psnr['fitted', budget]:.1f} dB",
        f"{psnr['tasu', budget]:.1f} dB",
        f"{rivals[best]:.1f} dB ({best})",
    ]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The whole table."""
    psnr = means()
    return "\n".join([HEAD, "|---|---|---|---|---|", *(row(psnr, budget) for budget in BUDGETS)])


def nearness(study: str) -> tuple[dict[tuple[str, int], float], Callable[[int], float]]:
    """PSNR to the flow by method and budget, and the Euler steps that our plans are worth."""
    pictures, drifts = defaultdict(list), defaultdict(list)
    for one in packed(study):
        if one["status"] == "done" and one["to_fine"]:
            name = "euler" if one["method"][:6] in ("full", "fewer", "euler:") else one["method"]
            spent = len(one["evaluated"]) if name == "euler" else one["evaluations"]
            pictures[name, spent].append(one["to_fine"]["metrics"]["psnr"])
            drifts[name, spent].append(one["to_fine"]["drift"])
    found, far = ({key: mean(of[key]) for key in of} for of in (pictures, drifts))
    euler = {k: far[name, k] for name, k in far if name == "euler"}
    return found, lambda budget: equivalent_steps(far["fitted-flow", budget], euler)


def flow_table() -> str:
    """How near plans come to the flow of both models, beside 50 Euler steps."""
    studies = [nearness(study) for study in ("flow", "wan-flow")]
    lines = [FLOW_HEAD, "|---|---|---|---|---|"]
    for budget in FLOW_BUDGETS:
        cells = [
            f"{found['fitted-flow', budget]:.1f} dB | {steps(budget):.0f} Euler steps"
            for found, steps in studies
        ]
        lines.append(f"| {budget} | {' | '.join(cells)} |")
    full = " | ".join(f"{found['euler', 50]:.1f} dB | " for found, _ in studies)
    return "\n".join([*lines, f"| 50 Euler steps | {full}|"])


def main() -> None:
    """Write the tables into README."""
    text = README.read_text(encoding="utf-8")
    for place, made in ((TABLE, table()), (FLOW_TABLE, flow_table())):
        text = place.sub(lambda _, made=made: made + "\n", text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
