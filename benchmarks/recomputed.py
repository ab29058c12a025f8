"""Are records what they say: those of a file beside the same ones, made again.

    tacache bench tiny-flux --methods fewer --evaluations 13 --count 2 ... -o mine.jsonl
    python -m benchmarks.recomputed benchmarks/results/main.jsonl.gz mine.jsonl

A row for each method and budget that both files have: whether all samples start from the same
noise, whether the settings are the same, and by how many decibels PSNR differs at most. The exit
status is 1 where another noise was drawn or a difference is larger than 0.01 dB.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tacache_lab.bench.records import Record, read_records

TOLERANCE = 0.01  # dB


class Recomputed(NamedTuple):
    """A method at a budget in both files."""

    method: str
    evaluations: int | None
    samples: int
    same_noise: bool
    same_settings: bool
    difference: float  # dB, the largest of all samples and references

    @property
    def holds(self) -> bool:
        """Whether the record was made again."""
        return self.same_noise and self.difference <= TOLERANCE


def recomputed(published: Iterable[Record], own: Iterable[Record]) -> Iterator[Recomputed]:
    """Each method and budget that both have, in the order of the first."""
    done = {record.key: record for record in own if record.status == "done"}
    pairs: dict[tuple[str, int | None], list[tuple[Record, Record]]] = {}
    for record in published:
        if record.status == "done" and record.key in done:
            place = record.method, record.evaluations
            pairs.setdefault(place, []).append((record, done[record.key]))
    for (method, evaluations), both in pairs.items():
        yield Recomputed(
            method,
            evaluations,
            len(both),
            all(a.noise_sha256 == b.noise_sha256 for a, b in both),
            all(a.settings == b.settings for a, b in both),
            max((gap for a, b in both for gap in gaps(a, b)), default=0.0),
        )


def gaps(first: Record, second: Record) -> Iterator[float]:
    """By how much PSNR differs, to full steps and to the fine run, where both records have it."""
    for a, b in ((first.to_full, second.to_full), (first.to_fine, second.to_fine)):
        if a is not None and b is not None and {"psnr"} <= a.metrics.keys() & b.metrics.keys():
            values = float(a.metrics["psnr"]), float(b.metrics["psnr"])
            yield 0.0 if values[0] == values[1] else abs(values[0] - values[1])


def table(rows: Iterable[Recomputed]) -> str:
    """The rows as Markdown."""
    lines = [
        "| method | evaluations | samples | noise | settings | largest difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        words = ["the same" if same else "other" for same in (row.same_noise, row.same_settings)]
        cells = [row.method, row.evaluations or "its own", row.samples, *words]
        lines.append(f"| {' | '.join(map(str, cells))} | {row.difference:.3f} dB |")
    return "\n".join(lines)


def main() -> None:
    """Print the rows; end with 1 where a record was not made again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("published", type=Path)
    parser.add_argument("own", type=Path)
    options = parser.parse_args()
    rows = list(recomputed(read_records(options.published), read_records(options.own)))
    if not rows:
        sys.exit("the two files share no record: name the same model, methods and prompts")
    print(table(rows))
    sys.exit(0 if all(row.holds for row in rows) else 1)


if __name__ == "__main__":
    main()
