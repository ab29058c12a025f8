r"""Simulate many GPUs with the batch times that were measured, and draw what comes out.

    python -m benchmarks.serving simulate benchmarks/results/serving-batches-*.json \
        -o benchmarks/results/serving.jsonl
    python -m benchmarks.serving check benchmarks/results/serving-throughput.jsonl \
        benchmarks/results/serving-batches-h200.json -o benchmarks/results/serving-check.jsonl
    python -m benchmarks.serving draw benchmarks/results/serving.jsonl -o docs/figures
    python -m benchmarks.serving pages -o .

`check` simulates the runs of the batcher that `benchmarks.serving.throughput` measured.

A load of 1 is as many requests as the GPUs could serve one after another with all 50 steps. A
deadline is twice the time of such a request alone.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fullsize.records import read
from benchmarks.serving import tables
from benchmarks.serving.arrivals import ARRIVALS, poisson
from benchmarks.serving.figures import draw
from benchmarks.serving.simulation import Machine, Policy, simulate, summary

from tacache.serving.costs import BatchTimes

STEPS = 50
POLICIES = (
    Policy("whole requests, 50 steps", (STEPS,), is_whole=True, max_rows=8),
    Policy("whole requests, 10 evaluations", (10,), is_whole=True, max_rows=8),
    Policy("continuous, 50 steps", (STEPS,)),
    Policy("continuous, 10 evaluations", (10,)),
    Policy("continuous, 7 to 50 by load", (7, 10, 13, 25, STEPS)),
)
LOADS = (0.5, 0.9, 2.0, 4.0, 6.0, 9.0)
FEWER_LOADS = (0.9, 4.0)  # for more than SMALL GPUs
SMALL = 8
GPUS = (1, 8, 64, 1000)
REQUESTS = {1: 400, 8: 1600, 64: 3200, 1000: 12000}  # in all
PATIENCE = 2.0  # a deadline, in times of a request alone with all steps
TURNS = "turns"  # the order of runs in which who waited longest went first
FIGURES = ("requests_per_second", "p50_seconds", "p99_seconds", "rows_per_batch")
FULLSIZE = Path("benchmarks/results/fullsize.jsonl")


def machines(files: Sequence[Path]) -> Iterator[tuple[Machine, dict[str, str]]]:
    """What was measured, and what of the full-size records has one row alone."""
    measured = set()
    for path in files:
        measurement = json.loads(path.read_text())
        for batch in measurement["batches"]:
            times = {int(rows): seconds for rows, seconds in batch["seconds"].items()}
            measured.add((batch["model"], measurement["device"]))
            yield (
                machine(batch["model"], times, batch["passes"], batch["decode_seconds"]),
                {"device": measurement["device"], "rows": f"measured at {sorted(times)}"},
            )
    for record in read(FULLSIZE):
        key = (record["model"], record["mode"], record["what"], record["method"])
        name = {"flux": "flux-1024", "wan": "wan-480p-81f"}.get(record["model"])
        if key[1:] != ("eager", "run", "full") or not name or (name, record["device"]) in measured:
            continue
        passes = 2 if record["model"] == "wan" else 1
        times = {1: record["evaluated_seconds"]["median"] / passes}
        yield (
            machine(name, times, passes, record["rest_seconds"]["median"]),
            {"device": record["device"], "rows": "1 measured, more assumed in proportion"},
        )


def machine(name: str, times: dict[int, float], passes: int, decode: float) -> Machine:
    """A GPU by its measured times."""
    known = BatchTimes()
    for rows, seconds in times.items():
        known.add(rows, seconds)
    return Machine(name, known, passes, decode)


def records(files: Sequence[Path], gpus: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One record for every model, policy, kind of arrivals, number of GPUs and load."""
    for served, said in machines(files):
        deadline = PATIENCE * served.alone(STEPS)
        for count in gpus:
            for kind, arrive in ARRIVALS.items():
                for load in LOADS if count <= SMALL else FEWER_LOADS:
                    rate = load * count / served.alone(STEPS)
                    times = arrive(REQUESTS[count], rate, seed=0, gpus=count).tolist()
                    for policy in POLICIES:
                        outcome = simulate(served, policy, times, count, deadline)
                        yield {
                            "what": "simulated",
                            "model": served.name,
                            **said,
                            "policy": policy.name,
                            "arrivals": kind,
                            "gpus": count,
                            "load": load,
                            "requests": len(times),
                            "deadline_seconds": deadline,
                            **{k: round(v, 5) for k, v in summary(*outcome, deadline).items()},
                        }


def checks(measured: Path, batches: Path) -> Iterator[dict[str, Any]]:
    """Runs of the batcher on one device, beside what the simulation says of them.

    It is told the times of calls alone, as `measure` has them, and those that the batcher itself
    had while it ran, with all that it does between two batches.
    """
    for record in read(measured):
        known = [m for m, said in machines([batches]) if said["device"] == record["device"]]
        alone = next(machine for machine in known if machine.name == record["model"])
        real = record["batcher"]
        figures = {"calls_alone": simulated(record, alone)}
        if "batch_seconds" in real:
            times = {int(rows): seconds for rows, seconds in real["batch_seconds"].items()}
            own = machine(record["model"], times, alone.passes, real["decode_seconds"])
            figures["batches_of_the_run"] = simulated(record, own)
        yield {
            "what": "check",
            **{
                name: record[name]
                for name in ("model", "device", "order", "graphs", "graph_rows")
                if name in record
            },
            "measured": {name: real[name] for name in FIGURES if name in real},
            "simulated": figures,
            "simulated_over_measured": {
                by: {
                    name: round(simulation[name] / real[name], 3)
                    for name in FIGURES
                    if name in real
                }
                for by, simulation in figures.items()
            },
        }


def simulated(record: dict[str, Any], served: Machine) -> dict[str, float]:
    """What the simulation says of a run that was measured."""
    times = poisson(record["requests"], record["arrivals_per_second"], seed=0).tolist()
    budgets = [record["budgets"][n % len(record["budgets"])] for n in range(len(times))]
    limits = {name: record[name] for name in ("max_rows", "max_active")}
    policy = Policy("", (), **limits, takes_turns=record["order"] == TURNS)
    figures = summary(*simulate(served, policy, times, budgets=budgets), float("inf"))
    return {name: round(figures[name], 5) for name in FIGURES}


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, check, draw, or write tables into the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    simulating, drawing, pages = (
        commands.add_parser(name) for name in ("simulate", "draw", "pages")
    )
    simulating.add_argument("batches", nargs="+", type=Path)
    simulating.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=GPUS)
    drawing.add_argument("records", type=Path)
    checking = commands.add_parser("check")
    checking.add_argument("measured", type=Path)
    checking.add_argument("batches", type=Path)
    for command in (simulating, drawing, checking, pages):
        command.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "draw":
        draw(read(options.records), options.out)
        return
    if options.command == "pages":
        tables.write_pages(options.out)
        return
    if options.command == "check":
        lines = checks(options.measured, options.batches)
    else:
        lines = records(options.batches, options.gpus)
    options.out.write_text("".join(json.dumps(record) + "\n" for record in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
