"""Tables of the simulation's records, for the page in docs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fullsize.records import read

Record = dict[str, Any]
RESULTS = Path("benchmarks/results")
SHORT = {
    "whole batches": "whole requests, 10 evaluations",
    "continuous": "continuous, 10 evaluations",
    "by load": "continuous, 7 to 50 by load",
}
WAYS = {"one_after_another": "one after another", "whole_requests": "whole batches of 8"}
TOLD = {
    "calls_alone": "times of calls alone",
    "batches_of_the_run": "times of the run's own batches",
}
HEAD = (
    "| policy | GPUs | arrivals | load | served | p50 | p99 | missed | mean budget | rows |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)
SHOWN = {8: (0.9, 4.0, 6.0), 1000: (4.0,)}  # loads by GPUs


def render(records: Iterable[Record]) -> str:
    """A table for every model and device; times are those of a request alone with all steps."""
    simulated = [record for record in records if record["what"] == "simulated"]
    kinds = dict.fromkeys(
        (record["model"], record["device"], record["rows"]) for record in simulated
    )
    parts = []
    for kind in kinds:
        own = [
            record
            for record in simulated
            if (record["model"], record["device"], record["rows"]) == kind
        ]
        model, device, rows = kind
        alone = own[0]["deadline_seconds"] / 2
        title = f"### {model} on {device}\nRows: {rows}. A request alone with all steps takes"
        parts.append(f"{title} {alone:.2f} s.\n\n{HEAD}\n{table(own)}")
    return "\n\n".join(parts)


def table(records: Sequence[Record]) -> str:
    """The rows that are shown, Poisson arrivals before bursts."""
    chosen = [record for record in records if record["load"] in SHOWN.get(record["gpus"], ())]
    chosen = [
        record for record in chosen if record["arrivals"] == "poisson" or record["load"] == 4.0
    ]
    chosen = [record for record in chosen if record["arrivals"] == "poisson" or record["gpus"] == 8]
    return "\n".join(row(record) for record in chosen)


def row(record: Record) -> str:
    """One line of the table."""
    alone = record["deadline_seconds"] / 2
    cells = (
        record["policy"],
        record["gpus"],
        record["arrivals"],
        f"{record['load']:g}",
        f"{record['requests_per_second'] * alone / record['gpus']:.2f}",
        f"{record['p50_seconds'] / alone:.2f}",
        f"{record['p99_seconds'] / alone:.2f}",
        f"{100 * record['missed']:.1f} %",
        f"{record['mean_budget']:.1f}",
        f"{record['rows_per_batch']:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def summary(records: Iterable[Record], load: float = 6.0) -> str:
    """Which deadlines three policies miss on eight devices, a row for each model."""
    simulated = [
        record
        for record in records
        if (record["gpus"], record["arrivals"], record["load"]) == (8, "poisson", load)
    ]
    lines = [f"| model, device | {' | '.join(SHORT)} | evaluations by load |", "|---" * 5 + "|"]
    for kind in dict.fromkeys((record["model"], record["device"]) for record in simulated):
        own = {
            record["policy"]: record
            for record in simulated
            if (record["model"], record["device"]) == kind
        }
        cells = [f"{100 * own[policy]['missed']:.1f} %" for policy in SHORT.values()]
        mean_budget = own[SHORT["by load"]]["mean_budget"]
        lines.append(f"| {', '.join(kind)} | {' | '.join(cells)} | {mean_budget:.1f} |")
    return "\n".join(lines)


def measured(records: Iterable[Record]) -> str:
    """The batcher beside the two other ways on one device: the last run of each load."""
    lines = [
        "| model | arrivals | way | requests a second | p50 | p99 | rows a batch |",
        "|---|---|---|---|---|---|---|",
    ]
    latest = {(record["model"], record["times"], record["graphs"]): record for record in records}
    for record in latest.values():
        for name, title in (*WAYS.items(), ("batcher", f"the batcher{_manner(record)}")):
            way = record[name]
            rows = f"{way['rows_per_batch']:.1f}" if "rows_per_batch" in way else ""
            lines.append(
                f"| {record['model']} | {record['requests']}, {record['times']:g} times | "
                f"{title} | {way['requests_per_second']:.2f} | {way['p50_seconds']:.2f} s | "
                f"{way['p99_seconds']:.2f} s | {rows} |"
            )
    return "\n".join(lines)


def _manner(run: Record) -> str:
    """How a run differs from what the batcher does now."""
    turns = ", in turns" if run["order"] == "turns" else ""
    if not run["graphs"]:
        return f"{turns}, without CUDA graphs"
    return turns + ("" if run.get("graph_rows") == "few" else ", a graph for each number of rows")


def checks(records: Iterable[Record]) -> str:
    """What the simulation says of these runs, over what was measured."""
    lines = [
        "| run | told | requests a second | p50 | p99 | rows a batch |",
        "|---|---|---|---|---|---|",
    ]
    for record in records:
        run = record["model"] + _manner(record)
        for by, title in TOLD.items():
            cells = " | ".join(
                f"{value:.2f}" for value in record["simulated_over_measured"][by].values()
            )
            lines.append(f"| {run} | {title} | {cells} |")
    return "\n".join(lines)


def write_pages(root: Path) -> None:
    """Put all tables into the pages of the documentation."""
    for page, blocks in PAGES.items():
        path = root / page
        text = path.read_text(encoding="utf-8")
        for name, (records, render) in blocks.items():
            text = replaced(text, name, render(read(root / RESULTS / records)))
        path.write_text(text, encoding="utf-8")


def replaced(text: str, name: str, rendered: str) -> str:
    """A document with other contents between two markers."""
    begin, end = marks(name)
    if begin not in text or end not in text:
        raise SystemExit(f"the page has no markers {begin} and {end}")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{rendered}\n{end}{after}"


def marks(name: str) -> tuple[str, str]:
    """What stands before and after a table of this name."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


PAGES = {
    "docs/reference/serving.md": {"measured": ("serving-throughput.jsonl", measured)},
    "benchmarks/serving/README.md": {
        "missed": ("serving.jsonl", summary),
        "checks": ("serving-check.jsonl", checks),
        "simulated": ("serving.jsonl", render),
    },
}
