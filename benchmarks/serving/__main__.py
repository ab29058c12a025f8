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
        found = json.loads(path.read_text())
        for one in found["batches"]:
            times = {int(rows): seconds for rows, seconds in one["seconds"].items()}
            measured.add((one["model"], found["device"]))
            yield (
                machine(one["model"], times, one["passes"], one["decode_seconds"]),
                {"device": found["device"], "rows": f"measured at {sorted(times)}"},
            )
    for one in read(FULLSIZE):
        key = (one["model"], one["mode"], one["what"], one["method"])
        name = {"flux": "flux-1024", "wan": "wan-480p-81f"}.get(one["model"])
        if key[1:] != ("eager", "run", "full") or not name or (name, one["device"]) in measured:
            continue
        passes = 2 if one["model"] == "wan" else 1
        times = {1: one["evaluated_seconds"]["median"] / passes}
        yield (
            machine(name, times, passes, one["rest_seconds"]["median"]),
            {"device": one["device"], "rows": "1 measured, more assumed in proportion"},
        )


def machine(name: str, times: dict[int, float], passes: int, decode: float) -> Machine:
    """A GPU by its measured times."""
    known = BatchTimes()
    for rows, seconds in times.items():
        known.add(rows, seconds)
    return Machine(name, known, passes, decode)


def records(files: Sequence[Path], gpus: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One record for every model, policy, kind of arrivals, number of GPUs and load."""
    for one, said in machines(files):
        deadline = PATIENCE * one.alone(STEPS)
        for count in gpus:
            for kind, arrive in ARRIVALS.items():
                for load in LOADS if count <= SMALL else FEWER_LOADS:
                    rate = load * count / one.alone(STEPS)
                    times = arrive(REQUESTS[count], rate, seed=0, gpus=count).tolist()
                    for policy in POLICIES:
                        found = simulate(one, policy, times, count, deadline)
                        yield {
                            "what": "simulated",
                            "model": one.name,
                            **said,
                            "policy": policy.name,
                            "arrivals": kind,
                            "gpus": count,
                            "load": load,
                            "requests": len(times),
                            "deadline_seconds": deadline,
                            **{k: round(v, 5) for k, v in summary(*found, deadline).items()},
                        }


def checks(measured: Path, batches: Path) -> Iterator[dict[str, Any]]:
    """Runs of the batcher on one device, beside what the simulation says of them.

    It is told the times of calls alone, as `measure` has them, and those that the batcher itself
    had while it ran, with all that it does between two batches.
    """
    for one in read(measured):
        known = [m for m, said in machines([batches]) if said["device"] == one["device"]]
        alone = next(machine for machine in known if machine.name == one["model"])
        real = one["batcher"]
        found = {"calls_alone": simulated(one, alone)}
        if "batch_seconds" in real:
            times = {int(rows): seconds for rows, seconds in real["batch_seconds"].items()}
            own = machine(one["model"], times, alone.passes, real["decode_seconds"])
            found["batches_of_the_run"] = simulated(one, own)
        yield {
            "what": "check",
            **{
                name: one[name]
                for name in ("model", "device", "order", "graphs", "graph_rows")
                if name in one
            },
            "measured": {name: real[name] for name in FIGURES if name in real},
            "simulated": found,
            "simulated_over_measured": {
                by: {name: round(made[name] / real[name], 3) for name in FIGURES if name in real}
                for by, made in found.items()
            },
        }


def simulated(one: dict[str, Any], served: Machine) -> dict[str, float]:
    """What the simulation says of a run that was measured."""
    times = poisson(one["requests"], one["arrivals_per_second"], seed=0).tolist()
    budgets = [one["budgets"][n % len(one["budgets"])] for n in range(len(times))]
    limits = {name: one[name] for name in ("max_rows", "max_active")}
    policy = Policy("", (), **limits, takes_turns=one["order"] == TURNS)
    made = summary(*simulate(served, policy, times, budgets=budgets), float("inf"))
    return {name: round(made[name], 5) for name in FIGURES}


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, check, draw, or write tables into the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one, two, four = (commands.add_parser(name) for name in ("simulate", "draw", "pages"))
    one.add_argument("batches", nargs="+", type=Path)
    one.add_argument("--gpus", nargs="+", type=int, choices=GPUS, default=GPUS)
    two.add_argument("records", type=Path)
    three = commands.add_parser("check")
    three.add_argument("measured", type=Path)
    three.add_argument("batches", type=Path)
    for command in (one, two, three, four):
        command.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "draw":
        draw(read(options.records), options.out)
        return
    if options.command == "pages":
        tables.write_pages(options.out)
        return
    if options.command == "check":
        found = checks(options.measured, options.batches)
    else:
        found = records(options.batches, options.gpus)
    options.out.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")


if __name__ == "__main__":
    main()
