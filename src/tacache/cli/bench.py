"""`tacache bench`: methods against each other on one model, as records."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacache.cli import bagel
from tacache.cli.arguments import call_arguments, numbers, parsed, threads
from tacache.cli.options import (
    PROMPTS_HELP,
    Compiled,
    Device,
    Dtype,
    Frames,
    Guidance,
    Height,
    Json,
    Model,
    More,
    Offload,
    Width,
    check_folder,
    print_json,
    words,
)
from tacache.errors import printable
from tacache.models import own_prompts
from tacache.prompts import read_prompts

if TYPE_CHECKING:
    from tacache.lab.bench.jobs import Job
    from tacache.lab.bench.records import Record

SAME_PROMPTS = (
    "the general prompts are those that all others are made ready on: --calibration FILE names "
    "prompts of the model's own"
)


def bench(
    model: Model,
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas between; a wrong one lists them all.")
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="A preset: main, ablation, thresholds, pareto, calibration, drift, indicators."
        ),
    ] = None,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, with commas between (default: 7,10,13,17,25).")
    ] = None,
    prompts: Annotated[str, typer.Option(help=PROMPTS_HELP)] = "test",
    count: Annotated[int | None, typer.Option(min=1, help="Use the first COUNT prompts.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds a prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed; the others count on.")] = 0,
    calibration: Annotated[
        str, typer.Option(help="Prompts that methods are made ready on, as for --prompts.")
    ] = "calibration",
    calibration_count: Annotated[
        int | None, typer.Option(min=1, help="How many of them (default: 8).")
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            help="Metrics, with commas between, such as psnr,ssim,lpips,following; a wrong one "
            "lists them all."
        ),
    ] = "psnr,ssim",
    fine: Annotated[
        int | None, typer.Option(min=2, help="Also compare to so many full steps, such as 500.")
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, help="From 2 on: warm every run up, then time it so often; the median counts."
        ),
    ] = 1,
    trace: Annotated[
        bool, typer.Option("--trace", help="Record drift, MI and DI of every step too.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep all pictures in this folder.")] = None,
    retry: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what is recorded as failed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The records (default: by MODEL's name).")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of the full run.")] = 50,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    more: More = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    compiled: Compiled = False,
    bagel_path: bagel.BagelPath = None,
    weights: bagel.Weights = None,
    as_json: Json = False,
) -> None:
    """Run methods from the same noise on the same model; append a record a sample and method.

    Killed, it goes on where it stopped. Under torchrun or accelerate launch the work is shared out
    between the processes. A method is named as in these examples:

    tasu (its best ratio of thresholds), tasu-10 (the paper's), tasu:0.06/0.6 (thresholds), fitted,
    magcache (tuned for each budget), magcache:flux (as published), tasu@30 (30 prompts to
    calibrate on), tasu@mine.txt:30 (of a file).

    Full steps are the pipeline's own grid walked by Euler's method, as is the fine reference, also
    where the pipeline has another solver (UniPC): all methods share one ordinary differential
    equation and one noise. Times are warm; several processes on one device slow each other down.
    docs/bench.md has all names, suites, and how the comparison is kept fair.

    [bold]Examples[/bold]

    tacache bench tiny-flux --methods tasu,fitted,magcache,fewer --evaluations 13,7 --count 4

    tacache bench tiny-flux --methods tasu,fewer --evaluations 7 --metrics psnr,following

    tacache bench black-forest-labs/FLUX.1-dev --suite main --count 24 -o flux.jsonl --keep pictures

    torchrun --nproc-per-node 8 -m tacache bench MODEL --suite pareto --prompts mine.txt -o m.jsonl

    tacache bench bagel --bagel-path Bagel --weights W --methods tasu,fewer --evaluations 13
    """
    from tacache.lab.bench.hosts import processes_of
    from tacache.lab.bench.jobs import Job
    from tacache.lab.bench.runner import drop_failed, run_bench
    from tacache.lab.bench.suites import check_names, choose, expanded, within_steps
    from tacache.lab.following import read_answers

    is_bagel = bagel.is_asked(model, bagel_path, weights)
    chosen = choose(
        suite,
        methods=methods and tuple(words(methods)),
        evaluations=evaluations and tuple(numbers(evaluations)),
        calibration_count=calibration_count,
        fine=fine,
        trace=trace,
    )
    check_names(chosen.methods)
    given: dict[str, Any] = {"steps": steps, "height": height, "width": width, "frames": frames}
    if is_bagel:
        call = bagel.call_arguments(parsed(more), guidance=guidance, **given)
        steps -= 1  # BAGEL counts noise levels
    else:
        call = call_arguments(model, more, guidance=guidance, **given)
    source = own_prompts(model, prompts)
    job = Job(
        methods=chosen.methods,
        evaluations=(
            chosen.evaluations if evaluations else within_steps(chosen.evaluations, steps)
        ),
        prompts=read_prompts(source)[:count],
        calibration=read_prompts(own_prompts(model, calibration))[: chosen.calibration_count],
        call=call,
        seeds=range(seed, seed + seeds),
        calibration_source=calibration,
        metrics=words(metrics),
        answers=read_answers(source) if "following" in words(metrics) else {},
        fine=chosen.fine,
        keep=keep,
        repeats=repeats,
        trace=chosen.trace,
    )
    job.check()
    if keep is not None:
        check_folder(keep)
    target = out or Path(f"{Path(model).name}.bench.jsonl")
    check_folder(target.parent)
    if is_bagel:
        asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
        pipe, family = bagel.load(asked), bagel.NAME
    else:
        pipe, family = _pipeline(model, dtype, device, offload, compiled)
    first = processes_of(pipe).rank == 0
    job = replace(job, methods=expanded(chosen.methods, family))
    if not methods:
        job = _without_doubles(job, tell=first)
    if retry and first:
        drop_failed(target)
    with threads(model, pipe):
        records = run_bench(pipe, job, target, progress=not as_json)
    if first:
        _report(records, target, job.metrics, as_json)


def _pipeline(model: str, *options: Any) -> tuple[Any, str]:
    """A pipeline of diffusers without bars of its own, and the name of its class."""
    from tacache.diffusers.loading import Loading, load_pipeline

    pipe = load_pipeline(model, Loading(*options))
    pipe.set_progress_bar_config(disable=True)
    return pipe, type(pipe).__name__


def _without_doubles(job: "Job", *, tell: bool) -> "Job":
    """A suite's job without another source of prompts that is none, which is said."""
    from tacache.lab.bench.suites import without_doubles

    kept, left_out = without_doubles(job.methods, job.calibration)
    if left_out and tell:
        print(f"left out: {', '.join(left_out)}; {SAME_PROMPTS}", file=sys.stderr)
    return replace(job, methods=kept)


def _report(
    records: Sequence["Record"], target: Path, metrics: Sequence[str], as_json: bool
) -> None:
    """Where the records are, and their means in short."""
    counts = Counter(record.status for record in records)
    if as_json:
        return print_json({"file": str(target), "records": len(records), **counts})
    Console().print(_table(records, metrics))
    for note in (*_notes(records), *_not_measured(records, metrics)):
        print(printable(note))
    troubles = {
        (record.method, record.evaluations): record.reason
        for record in records
        if record.status != "done"
    }
    for (method, evaluations), reason in troubles.items():
        print(printable(f"{method} at {evaluations or 'its own budget'}: {reason}"))
    print(f"{len(records)} records in {target}; {target}.work speeds up what is added to them")


def _notes(records: Sequence["Record"]) -> Iterator[str]:
    """What must be known to read the table."""
    if any(record.worth is not None for record in records):
        yield (
            "worth: the evaluations that all work of a cache inside the model amounts to; compare "
            "it by these"
        )
    crowd = max((record.crowd for record in records), default=1)
    if crowd > 1:
        yield f"seconds: {crowd} processes shared a device, so that times are not comparable"


def _not_measured(records: Sequence["Record"], metrics: Sequence[str]) -> list[str]:
    """Why a metric has no number, each reason once."""
    found = {(name, _value(record, name)) for record in records for name in metrics}
    reasons = sorted(f"{name}: {reason}" for name, reason in found if isinstance(reason, str))
    judged = [record for record in records if record.status == "done" and record.to_full]
    for name in metrics:
        if lacking := sum(_value(record, name) is None for record in judged):
            reasons.append(f"{name}: {lacking} records were made without it; name another file")
    return reasons


def _value(record: "Record", metric: str) -> float | str | None:
    """A metric's value, or why it has none; nothing where it was not asked for."""
    compared = {} if record.to_full is None else record.to_full.metrics
    return compared.get(metric, record.scores.get(metric))


def _table(records: Sequence["Record"], metrics: Sequence[str]) -> Table:
    inside = any(record.worth is not None for record in records)
    worth = ("worth",) if inside else ()
    table = Table(title="Means over samples, to full steps")
    for heading in ("method", "asked", "evaluations", *worth, "seconds", "drift", *metrics):
        justify: Literal["left", "right"] = "left" if heading == "method" else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        if record.status == "done":
            groups.setdefault((record.method, record.evaluations), []).append(record)
    for (method, evaluations), group in groups.items():
        compared = [record.to_full for record in group if record.to_full is not None]
        table.add_row(
            Text(printable(method)),
            str(evaluations or ""),
            f"{fmean(record.spent for record in group):.4g}",
            *([_worth(group)] if inside else []),
            f"{fmean(record.seconds or 0.0 for record in group):.2f}",
            f"{fmean(one.drift for one in compared):.4f}" if compared else "",
            *(_mean(group, metric) for metric in metrics),
        )
    return table


def _mean(group: Sequence["Record"], metric: str) -> str:
    values = [x for x in (_value(record, metric) for record in group) if isinstance(x, float)]
    return f"{fmean(values):.{2 if 'psnr' in metric else 4}f}" if values else ""


def _worth(group: Sequence["Record"]) -> str:
    """What a cache inside the model really costs, in evaluations; nothing for other methods."""
    found = [record.worth for record in group if record.worth is not None]
    return f"{fmean(found):.1f}" if found else ""
