"""The small table of README, from committed records: `python -m tests.docs.readme` renews it."""

import gzip
import json
import re
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BUDGETS = (25, 17, 13, 10, 7)
OURS = re.compile(r"(fitted|instant|tasu|damped|magnitude|direction|reuse|full|fine)\b")
HEAD = "| evaluations of 50 | fewer by | ours, fitted | the paper's rule | best of the rivals |"
TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)


def means() -> dict[tuple[str, int], float]:
    """Mean PSNR to the full pictures on tiny-flux, by method and budget, of what has a budget."""
    found: dict[tuple[str, int], list[float]] = {}
    with gzip.open(RESULTS / "main.jsonl.gz", "rt", encoding="utf-8") as lines:
        for one in map(json.loads, lines):
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


def main() -> None:
    """Write the table into README."""
    text = README.read_text(encoding="utf-8")
    README.write_text(TABLE.sub(lambda _: table() + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
