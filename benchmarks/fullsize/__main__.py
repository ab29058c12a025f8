"""Measure pipelines at full size, and make tables of the records.

    python -m benchmarks.fullsize measure --models flux -o benchmarks/results/fullsize.jsonl
    python -m benchmarks.fullsize table benchmarks/results/fullsize.jsonl

What is in the file already is left out, so a run that was stopped goes on where it was.
"""

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from benchmarks.fullsize import tables
from benchmarks.fullsize.measuring import (
    Bench,
    Thoroughness,
    measure_fit,
    measure_run,
    measure_stepping,
    measure_waiting,
    stepping,
)
from benchmarks.fullsize.methods import METHODS, RIVALS
from benchmarks.fullsize.models import MODELS, Built, build
from benchmarks.fullsize.records import Record, Records, device_name, read, versions
from benchmarks.fullsize.timing import Clock, probe, timed_run

from tacache.errors import TACacheError

WHATS = ("run", "stepping", "waiting", "fit")


class Job(NamedTuple):
    """One measurement: the key of its record and what makes it."""

    what: str
    method: str
    budget: int | None
    measure: Callable[[Bench], dict[str, Any]]


def main(arguments: list[str] | None = None) -> None:
    """Parse and do."""
    words = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(words, argparse.Namespace(command_line=" ".join(words)))
    if options.command == "table":
        make = tables.summary if options.summary else tables.render
        rendered = make(read(options.records))
        if options.write is None:
            print(rendered)
        else:
            tables.write(options.write, rendered)
        return
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    measure(options)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="benchmarks.fullsize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="append records")
    measuring.add_argument("-o", "--out", type=Path, required=True, help="the file of records")
    measuring.add_argument("--models", nargs="+", choices=MODELS, default=["flux", "wan"])
    measuring.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    measuring.add_argument("--what", nargs="+", choices=WHATS, default=list(WHATS[:3]))
    measuring.add_argument("--budgets", nargs="+", type=int, default=[13, 7])
    measuring.add_argument("--rival-budgets", nargs="+", type=int, help="where not the same")
    measuring.add_argument("--steps", type=int, default=50)
    measuring.add_argument("--repeats", type=int, default=3, help="whole runs by a method")
    measuring.add_argument("--full-repeats", type=int, default=1, help="whole runs of full steps")
    measuring.add_argument("--rival-repeats", type=int, default=1, help="whole runs by a rival")
    measuring.add_argument(
        "--decode",
        nargs="*",
        choices=METHODS,
        default=list(METHODS),
        metavar="METHOD",
        help="methods whose first run is decoded; the other runs end with latents",
    )
    measuring.add_argument("--fit-budgets", nargs="+", type=int, default=[13])
    measuring.add_argument(
        "--compile", action="store_true", help="with torch.compile, block by block"
    )
    measuring.add_argument("--fit-samples", type=int, default=8)
    measuring.add_argument("--search", action="store_true", help="fit with a search of the anchors")
    measuring.add_argument(
        "--seconds", type=float, default=500, help="begin nothing after this long"
    )
    measuring.add_argument("--tiny", action="store_true", help="the same classes, small: for tests")
    measuring.add_argument("--threads", type=int, help="of torch on the processor")
    rendering = commands.add_parser("table", help="tables of a file of records, in markdown")
    rendering.add_argument("records", type=Path)
    rendering.add_argument("--summary", action="store_true", help="one short table, for the README")
    rendering.add_argument("--write", type=Path, help="a document with markers to put them in")
    return top


def measure(options: argparse.Namespace) -> None:
    """All measurements of all models that are not in the file, until time is up."""
    deadline = time.monotonic() + options.seconds
    device = current_device()
    records = Records(options.out)
    for name in options.models:
        todo = [job for job in jobs(options) if not records.has(key(options, name, job, device))]
        if not todo or time.monotonic() > deadline:
            say(f"{name}: {len(todo)} measurements left")
            continue
        measure_model(name, todo, options, records, deadline)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure_model(
    name: str, todo: list[Job], options: argparse.Namespace, records: Records, deadline: float
) -> None:
    """These measurements of one model; what cannot be built is a record too."""
    device, command = current_device(), {"command": options.command_line}
    started = time.perf_counter()
    try:
        bench = prepare(build(name, device, tiny=options.tiny), options)
    except Exception as error:  # the other models are still to be measured
        known = key(options, name, Job("build", "", None, measure_stepping), device)
        failed = failure(error)
        records.add(known | failed | {"versions": versions()} | command)
        say(f"{name}: not built, {failed['error']}")
        return
    say(f"{name}: built and warm in {time.perf_counter() - started:.1f} s")
    for i, job in enumerate(todo):
        if time.monotonic() > deadline:
            say(f"{name}: time is up, {len(todo) - i} measurements left")
            return
        records.add(one_record(bench, job, key(options, name, job, device)) | command)


def current_device() -> torch.device:
    """The GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def prepare(built: Built, options: argparse.Namespace) -> Bench:
    """The model's bench, warm; the run's noise levels are read off its first steps."""
    clock, decoded = Clock(built.device), frozenset(options.decode)
    timed_run(built, clock, options.steps, decode=bool(decoded), stop_after=2)
    seen = probe(built, clock, options.steps)
    for way in stepping(seen.latents, built.device).values():
        way()
    repeats = options.repeats, options.full_repeats, options.rival_repeats
    return Bench(built, clock, seen, Thoroughness(*repeats, decoded), options.compile)


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """The measurements that are asked for: ours before the rivals, the fit last."""
    if "run" in options.what:
        yield from runs(options, [name for name in METHODS if name not in RIVALS])
    if "stepping" in options.what and not options.compile:
        yield Job("stepping", "", None, measure_stepping)
    if "waiting" in options.what and not options.compile:
        yield Job("waiting", "tasu", None, measure_waiting)
    if "run" in options.what:
        yield from runs(options, RIVALS)
    if "fit" in options.what:
        for budget in options.fit_budgets:
            yield Job("fit", "fitted", budget, _fit_of(budget, options))


def runs(options: argparse.Namespace, methods: Iterable[str]) -> Iterator[Job]:
    """Whole runs by those of the methods that are asked for."""
    for method in (name for name in methods if name in options.methods):
        theirs = options.rival_budgets if method in RIVALS else None
        for budget in [None] if method == "full" else theirs or options.budgets:
            yield Job("run", method, budget, _run_of(method, budget or options.steps))


def _run_of(method: str, budget: int) -> Callable[[Bench], dict[str, Any]]:
    return lambda bench: measure_run(bench, method, budget)


def _fit_of(budget: int, options: argparse.Namespace) -> Callable[[Bench], dict[str, Any]]:
    samples, search, out = options.fit_samples, options.search, options.out
    return lambda bench: measure_fit(bench, budget, samples, search, out)


def key(options: argparse.Namespace, name: str, job: Job, device: torch.device) -> Record:
    """The part of a record that says which measurement it is."""
    return {
        "model": name,
        "mode": "compiled" if options.compile else "eager",
        "what": job.what,
        "method": job.method,
        "budget": job.budget,
        "steps": options.steps,
        "device": device_name(device) + (", tiny" if options.tiny else ""),
    }


def one_record(bench: Bench, job: Job, known: Record) -> Record:
    """A measurement's record; what fails is recorded with its reason, and tried again next time."""
    label = " ".join(str(known[name]) for name in ("model", "mode", "what", "method", "budget"))
    started = time.perf_counter()
    try:
        figures = job.measure(bench)
    except Exception as error:  # a rival that fails on a model must not end the session
        figures = failure(error)
    spent = time.perf_counter() - started
    say(f"{label}: {spent:.1f} s {figures.get('error', '')}")
    gc.collect()  # what is freed stays with the allocator: a first step must not wait for more
    about = {"spent_seconds": round(spent, 2), "note": bench.built.model.note}
    return {**known, **figures, **about, "versions": versions()}


def failure(error: Exception) -> Record:
    """An error as a part of a record; where it came from is printed unless it says so itself."""
    if not isinstance(error, TACacheError | ImportError):
        traceback.print_exception(error, file=sys.stderr)
    return {"error": f"{type(error).__name__}: {error}"}


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
