"""Tables of the simulation's records, for the page in docs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
BEGIN, END = "<!-- serving: begin -->", "<!-- serving: end -->"
HEAD = (
    "| policy | GPUs | arrivals | load | served | p50 | p99 | missed | mean budget | rows |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)
SHOWN = {8: (0.9, 2.0, 4.0, 6.0), 1000: (0.9, 4.0)}  # loads by GPUs


def render(records: Iterable[Record]) -> str:
    """A table for every model and device; times are those of a request alone with all steps."""
    found = [one for one in records if one["what"] == "simulated"]
    kinds = dict.fromkeys((one["model"], one["device"], one["rows"]) for one in found)
    parts = []
    for kind in kinds:
        own = [one for one in found if (one["model"], one["device"], one["rows"]) == kind]
        model, device, rows = kind
        alone = own[0]["deadline_seconds"] / 2
        title = f"### {model} on {device}\nRows: {rows}. A request alone with all steps takes"
        parts.append(f"{title} {alone:.2f} s.\n\n{HEAD}\n{table(own)}")
    return "\n\n".join(parts)


def table(records: Sequence[Record]) -> str:
    """The rows that are shown, Poisson arrivals before bursts."""
    chosen = [one for one in records if one["load"] in SHOWN.get(one["gpus"], ())]
    chosen = [one for one in chosen if one["arrivals"] == "poisson" or one["load"] == 4.0]
    return "\n".join(row(one) for one in chosen)


def row(one: Record) -> str:
    """One line of the table."""
    alone = one["deadline_seconds"] / 2
    cells = (
        one["policy"],
        one["gpus"],
        one["arrivals"],
        f"{one['load']:g}",
        f"{one['requests_per_second'] * alone / one['gpus']:.2f}",
        f"{one['p50_seconds'] / alone:.2f}",
        f"{one['p99_seconds'] / alone:.2f}",
        f"{100 * one['missed']:.1f} %",
        f"{one['mean_budget']:.1f}",
        f"{one['rows_per_wave']:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def between_markers(text: str) -> str:
    """What a document has between the two markers."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def write(path: Path, rendered: str) -> None:
    """Put tables between a document's markers."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path} has no markers {BEGIN} and {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{rendered}\n{END}{after}", encoding="utf-8")
