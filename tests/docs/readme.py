"""Small tables of a few pages, from records: `python -m tests.docs.readme` renews them."""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import optimised, quality

from tacache.fitting.flow import equivalent_steps
from tacache.instant import line_share, spread_anchors
from tacache_lab.report.confidence import percentile

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
OURS = re.compile(r"(fitted|instant|tasu|damped|magnitude|direction|reuse|full|fine)\b")
KEPT = 35.0  # dB: hardly anybody tells two pictures apart above it

# Steps of the full run -> how it is called, its budgets, and the studies that measured them.
RUNS = {
    50: ("50 steps", (25, 17, 13, 10, 7), ("main", "flow")),
    28: ("28 steps", (12, 10), ("steps-28",)),
    8: ("8 steps, distilled", (6, 5), ("turbo",)),
}
COLUMNS = {"fewer": "plain steps", "instant": "instant", "fitted": "fitted", "tasu": "the paper's"}

Pictures = dict[tuple[str, int], list[float]]  # PSNR of each picture, by method and budget


def between(name: str) -> re.Pattern[str]:
    """Return what finds the text between the two markers of a table."""
    return re.compile(rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)


def packed(study: str) -> list[dict[str, Any]]:
    """Return the records of a study."""
    with gzip.open(RESULTS / f"{study}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def pictures(study: str) -> Pictures:
    """Return the PSNR of each picture to the full run's, of all methods that have a budget."""
    values: Pictures = defaultdict(list)
    for record in packed(study):
        if record["status"] == "done" and record.get("evaluations") and record.get("to_full"):
            key = record["method"], record["evaluations"]
            values[key].append(record["to_full"]["metrics"]["psnr"])
    return values


def means() -> dict[tuple[str, int], float]:
    """Return the mean PSNR on tiny-flux in 50 steps, by method and budget."""
    return {key: mean(values) for key, values in pictures("main").items()}


def joined(steps: int) -> Pictures:
    """Return the pictures of all studies of one number of steps; the first study goes before."""
    return {key: of for study in reversed(RUNS[steps][2]) for key, of in pictures(study).items()}


def cell(values: list[float]) -> str:
    """Return the mean and the 5th percentile."""
    return f"{mean(values):.1f} ({percentile(values):.1f})"


def best_rival(measured: Pictures, budget: int) -> str:
    """Return the rival with the best mean, with its figures, or a dash where none was run."""
    rivals = {
        name: values
        for (name, evaluations), values in measured.items()
        if evaluations == budget and not OURS.match(name) and name != "fewer"
    }
    if not rivals:
        return "-"
    best = max(rivals, key=lambda name: mean(rivals[name]))
    return f"{cell(rivals[best])} {best}"


def table() -> str:
    """Return the loss against the full run's pictures, by steps and evaluations."""
    lines = [
        f"| full run | evaluations | fewer by | {' | '.join(COLUMNS.values())} | best rival |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for steps, (said, budgets, _) in RUNS.items():
        measured = joined(steps)
        for budget in budgets:
            ours = [cell(measured[method, budget]) for method in COLUMNS]
            rest = " | ".join([*ours, best_rival(measured, budget)])
            lines.append(f"| {said} | {budget} | {steps / budget:.1f}x | {rest} |")
    return "\n".join(lines)


PLAIN_AND_INSTANT = ("plain", "instant")


@cache
def measured_apart(model: str) -> dict[tuple[str, int, int], dict[str, float]]:
    """Return PSNR of plain steps and of today's instant plans, by method, steps and evaluations.

    They are those of the study of instant plans, to the full run.
    """
    values = {}
    for record in packed("instant"):
        about = (record["model"], record["to"], record.get("prompts", 24))
        if about == (model, "run", 24) and record["method"] in PLAIN_AND_INSTANT:
            steps, budget = record["steps"], record["evaluations"]
            is_of_today = record["method"] == "plain" or (
                tuple(record["anchors"]) == spread_anchors(steps, budget)
                and record.get("linear", line_share(steps, budget)) == line_share(steps, budget)
            )
            if is_of_today:
                values[record["method"], steps, budget] = record["psnr"]
    return values


def cells_apart(model: str, steps: int, budget: int) -> list[str]:
    """Return the cells of plain steps and of the instant plan, from the study of instant plans."""
    psnr = (measured_apart(model)[method, steps, budget] for method in PLAIN_AND_INSTANT)
    return [f"{of['mean']:.1f} ({of['p5']:.1f})" for of in psnr]


def clips_table() -> str:
    """Return what plain steps and instant plans keep of tiny-wan's clips."""
    budgets = {50: (25, 17, 13, 12, 10, 7), 28: (24, 17, 13, 12, 10, 7), 20: (13, 12, 11, 9, 7)}
    lines = [
        f"| {steps} steps | {budget} | {' | '.join(cells_apart('tiny-wan', steps, budget))} |"
        for steps, of in budgets.items()
        for budget in of
    ]
    return "\n".join(
        ["| full run | evaluations | plain steps | instant |", "|---|---|---|---|", *lines]
    )


def budgets_table() -> str:
    """Return what plain steps, instant and fitted plans keep of the full run's picture."""
    lines = [
        "| full run | evaluations | plain steps | instant | fitted |",
        "|---|---|---|---|---|",
    ]
    for steps, (said, budgets, _) in RUNS.items():
        if steps == 8:
            rows = {k: [*cells_apart("tiny-flux", 20, k), "-"] for k in (13, 12, 11)}
            lines += [f"| 20 steps | {k} | {' | '.join(cells)} |" for k, cells in rows.items()]
        measured = joined(steps)
        for budget in (*budgets, 4) if steps == 8 else budgets:
            cells = [cell(measured[method, budget]) for method in ("fewer", "instant", "fitted")]
            lines.append(f"| {said} | {budget} | {' | '.join(cells)} |")
    return "\n".join(lines)


def same_picture(steps: int) -> Iterator[str]:
    """Yield the fewest evaluations at which fitted and instant plans keep the picture."""
    measured = joined(steps)
    for method in ("fitted", "instant"):
        budgets = [
            budget
            for name, budget in measured
            if name == method and mean(measured[name, budget]) >= KEPT
        ]
        fewest = min(budgets)
        yield f"{fewest} ({steps / fewest:.1f}x, {mean(measured[method, fewest]):.1f} dB)"


def same_quality(steps: int) -> str:
    """Return the fewest evaluations that are as near to the flow as so many Euler steps."""
    _, nearer = nearness("flow")
    budgets = [budget for budget in (7, 10, 13, 17, 20, 25) if nearer(budget) >= steps]
    return f"{min(budgets)} ({steps / min(budgets):.1f}x)"


def questions() -> str:
    """Return what a run of so many steps needs for the same picture, and for the same quality."""
    lines = [
        "| your run | same picture: fitted | same picture: instant | same quality |",
        "|---|---|---|---|",
    ]
    for steps, (said, _, _) in RUNS.items():
        quality = "-" if steps == 8 else same_quality(steps)
        lines.append(f"| {said} | {' | '.join([*same_picture(steps), quality])} |")
    return "\n".join(lines)


Means = dict[tuple[str, int], float]


def distances(study: str) -> tuple[Means, Means]:
    """Return the mean PSNR and the mean drift to the flow, by method and budget."""
    psnr, drifts = defaultdict(list), defaultdict(list)
    for record in packed(study):
        if record["status"] == "done" and "to_fine" in record:
            method = record["method"]
            is_euler = method[:6] in ("full", "fewer", "euler:")
            name = "euler" if is_euler else method
            spent = len(record["evaluated"]) if is_euler else record.get("evaluations")
            psnr[name, spent].append(record["to_fine"]["metrics"]["psnr"])
            drifts[name, spent].append(record["to_fine"]["drift"])
    near, far = ({key: mean(of[key]) for key in of} for of in (psnr, drifts))
    return near, far


def nearness(study: str, fits: str | None = None) -> tuple[Means, Callable[[int], float]]:
    """Return PSNR to the flow by method and budget, and the Euler steps that fitted plans equal.

    The plans are those of the study `fits`, or of the same one.
    """
    near, far = distances(study)
    own = far if fits is None else distances(fits)[1]
    euler = {steps: far[name, steps] for name, steps in far if name == "euler"}
    return near, lambda budget: equivalent_steps(own["fitted-flow", budget], euler)


def quality_table() -> str:
    """Return FID and prompt following of all methods."""
    return quality.table(quality.read(RESULTS / "quality.jsonl"))


def optimised_table() -> str:
    """Return what an optimisation through the model gains."""
    return optimised.table(quality.read(RESULTS / "optimised.jsonl"))


ANSWERS = {"fitted": "a fit", "instant": "the table", "certificates": "shipped plans"}


def asked_table() -> str:
    """Return how near to the flow the answers to like_steps=50 are, beside the 50 Euler steps."""
    lines = [
        "| model | answered by | evaluations | the answer | 50 Euler steps |",
        "|---" * 5 + "|",
    ]
    for line in (RESULTS / "asked.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if not record["question"].startswith("like_steps"):
            continue
        answer, euler = (cell(record[name]["each"]) for name in ("to_flow", "euler_to_flow"))
        way = ANSWERS[record["way"]]
        lines.append(
            f"| {record['model']} | {way} | {record['evaluations']} | {answer} | {euler} |"
        )
    return "\n".join(lines)


GUIDE = ROOT / "docs/how-to/choose-a-budget.md"
LANDING = ROOT / "docs/index.md"
TABLES = {
    "questions": (README, questions),
    "landing": (LANDING, questions),
    "table": (README, table),
    "budgets": (GUIDE, budgets_table),
    "optimised": (ROOT / "docs/reference/rivals.md", optimised_table),
    "quality": (ROOT / "docs/reference/results.md", quality_table),
    "clips": (GUIDE, clips_table),
    "asked": (GUIDE, asked_table),
}


def main() -> None:
    """Write the tables into their pages."""
    for name, (page, table_of) in TABLES.items():
        text = page.read_text(encoding="utf-8")
        lines = table_of() + "\n"
        page.write_text(between(name).sub(lambda _, lines=lines: lines, text), encoding="utf-8")


if __name__ == "__main__":
    main()
