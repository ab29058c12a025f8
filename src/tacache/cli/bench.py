"""`tacache bench`: methods against each other on one model, as records."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacache.cli import bagel
from tacache.cli.models import call_arguments, numbers, parsed, threads
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
    print_json,
)
from tacache.models import own_prompts
from tacache.prompts import read_prompts

if TYPE_CHECKING:
    from tacache.bench.records import Record


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
        str, typer.Option(help="Metrics, with commas between; a wrong one lists them all.")
    ] = "psnr,ssim",
    fine: Annotated[
        int | None, typer.Option(min=2, help="Also compare to so many full steps, such as 500.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Time every run so often; its time is the median.")
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

    tacache bench black-forest-labs/FLUX.1-dev --suite main --count 24 -o flux.jsonl --keep pictures

    torchrun --nproc-per-node 8 -m tacache bench MODEL --suite pareto --prompts mine.txt -o m.jsonl

    tacache bench bagel --bagel-path Bagel --weights W --methods tasu,fewer --evaluations 13
    """
    from tacache.bench.hosts import processes_of
    from tacache.bench.jobs import Job
    from tacache.bench.runner import drop_failed, run_bench
    from tacache.bench.suites import check_names, choose, expanded, within_steps

    is_bagel = bagel.is_asked(model, bagel_path, weights)
    chosen = choose(
        suite,
        methods=methods and tuple(methods.split(",")),
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
    job = Job(
        methods=chosen.methods,
        evaluations=(
            chosen.evaluations if evaluations else within_steps(chosen.evaluations, steps)
        ),
        prompts=read_prompts(own_prompts(model, prompts))[:count],
        calibration=read_prompts(own_prompts(model, calibration))[: chosen.calibration_count],
        call=call,
        seeds=range(seed, seed + seeds),
        calibration_source=calibration,
        metrics=metrics.split(","),
        fine=chosen.fine,
        keep=keep,
        repeats=repeats,
        trace=chosen.trace,
    )
    job.check()
    target = out or Path(f"{Path(model).name}.bench.jsonl")
    if is_bagel:
        asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
        pipe, family = bagel.load(asked), bagel.NAME
    else:
        pipe, family = _pipeline(model, dtype, device, offload, compiled)
    job = replace(job, methods=expanded(chosen.methods, family))
    first = processes_of(pipe).rank == 0
    if retry and first:
        drop_failed(target)
    with threads(model, pipe):
        records = run_bench(pipe, job, target, progress=not as_json)
    if first:
        _report(records, target, as_json)


def _pipeline(model: str, *options: Any) -> tuple[Any, str]:
    """A pipeline of diffusers without bars of its own, and the name of its class."""
    from tacache.diffusers.loading import Loading, load_pipeline

    pipe = load_pipeline(model, Loading(*options))
    pipe.set_progress_bar_config(disable=True)
    return pipe, type(pipe).__name__


def _report(records: Sequence["Record"], target: Path, as_json: bool) -> None:
    """Where the records are, and their means in short."""
    counts = Counter(record.status for record in records)
    if as_json:
        return print_json({"file": str(target), "records": len(records), **counts})
    Console().print(_table(records))
    troubles = {
        (record.method, record.evaluations): record.reason
        for record in records
        if record.status != "done"
    }
    for (method, evaluations), reason in troubles.items():
        print(f"{method} at {evaluations or 'its own budget'}: {reason}")
    print(f"{len(records)} records in {target}; {target}.work speeds up what is added to them")


def _table(records: Sequence["Record"]) -> Table:
    table = Table(title="Means over samples, to full steps")
    for heading in ("method", "asked", "evaluations", "seconds", "drift", "PSNR"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    groups: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        if record.status == "done":
            groups.setdefault((record.method, record.evaluations), []).append(record)
    for (method, evaluations), group in groups.items():
        compared = [record.to_full for record in group if record.to_full is not None]
        psnr = [x for x in (one.metrics.get("psnr") for one in compared) if isinstance(x, float)]
        table.add_row(
            method,
            str(evaluations or ""),
            f"{fmean(record.spent for record in group):g}",
            f"{fmean(record.seconds or 0.0 for record in group):.2f}",
            f"{fmean(one.drift for one in compared):.4f}" if compared else "",
            f"{fmean(psnr):.2f} dB" if psnr else "",
        )
    return table
