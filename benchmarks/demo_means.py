"""Figures over 24 prompts that the demo's page shows beside its own, from the committed records.

    python -m benchmarks.demo_means

This writes lab/src/tacache_lab/demo/measured.json.
"""

from pathlib import Path

from tacache_lab.demo.measured import Measured, MeasuredModels, MeasuredRun
from tacache_lab.demo.record import PAPER, PLAIN
from tacache_lab.report.confidence import FIFTH
from tacache_lab.report.nearness import EQUIVALENT
from tacache_lab.report.studies import read_study
from tacache_lab.report.summary import Row

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "lab" / "src" / "tacache_lab" / "demo" / "measured.json"
RULES = {"fewer": PLAIN, "instant": "linear", "fitted": "fitted", "tasu": PAPER}
# Of two studies with the same method the first one counts.
RUNS = {
    ("tiny-flux", 50): ("main", "flow"),
    ("tiny-flux", 28): ("steps-28",),
    ("tiny-flux-turbo", 8): ("turbo",),
    ("tiny-wan", 50): ("wan-main", "wan-instant"),
}
FLOWS = {"tiny-flux": "flow", "tiny-wan": "wan-flow"}


def collected() -> MeasuredModels:
    """Return what the records say."""
    runs = [
        MeasuredRun(model=model, steps=steps, plans=plans(studies))
        for (model, steps), studies in RUNS.items()
    ]
    return MeasuredModels(
        runs=tuple(runs),
        equivalent_steps={model: equivalent_steps(study) for model, study in FLOWS.items()},
    )


def plans(studies: tuple[str, ...]) -> tuple[Measured, ...]:
    """Return the means of all plans and plain steps of some studies, the largest budgets first."""
    figures: dict[tuple[str, int], Measured] = {}
    for study in studies:
        for row in rows(study):
            if row.method in RULES and row.evaluations is not None and "full.psnr" in row.values:
                measured = measured_of(row, row.evaluations)
                figures.setdefault((measured.rule, measured.evaluations), measured)
    order = list(RULES.values())
    return tuple(sorted(figures.values(), key=lambda m: (-m.evaluations, order.index(m.rule))))


def measured_of(row: Row, evaluations: int) -> Measured:
    """Return the figures of a row of a study."""
    psnr = row.values["full.psnr"]
    return Measured(
        rule=RULES[row.method],
        evaluations=evaluations,
        prompts=psnr.samples,
        psnr=round(psnr.mean, 2),
        p5=round(row.values[f"full.{FIFTH}"].mean, 2),
    )


def equivalent_steps(study: str) -> dict[int, float]:
    """Return the Euler steps that plans fitted to the flow equal, by their evaluations."""
    return {
        row.evaluations: round(row.values[EQUIVALENT].mean, 1)
        for row in rows(study)
        if row.method == "fitted-flow" and row.evaluations is not None and EQUIVALENT in row.values
    }


def rows(study: str) -> list[Row]:
    """Return the rows of a study's committed records."""
    return read_study(RESULTS / f"{study}.jsonl.gz").rows


def text() -> str:
    """Return the file that says so."""
    return collected().model_dump_json(indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
