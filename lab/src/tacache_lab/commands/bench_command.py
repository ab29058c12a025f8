"""`tacache bench`: methods against each other on one model, as records."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from tacache.cli import named_models, printing
from tacache.cli.arguments import check_folder, numbers, words
from tacache.cli.model_kinds import KINDS
from tacache.cli.options import (
    OUTPUT,
    SAMPLES,
    Calibration,
    CalibrationCount,
    Count,
    FirstSeed,
    FullCallOptions,
    Json,
    LoadOptions,
    Model,
    Prompts,
)
from tacache.prompts import read_prompts
from tacache_lab import third_party
from tacache_lab.commands.bench_table import print_records

if TYPE_CHECKING:
    from tacache_lab.bench.records import Record
    from tacache_lab.bench.suites import Suite
    from tacache_lab.bench.tasks import BenchJob

SAME_PROMPTS = (
    "the general prompts are those that all others are tuned on: --calibration FILE names "
    "prompts of the model's own"
)

KINDS.update(third_party.KINDS)


@dataclass(frozen=True)
class BenchSampleOptions:
    """The samples that every method draws, and those that it is tuned on."""

    PANEL: ClassVar = SAMPLES
    count: Count = None
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each prompt has.")] = 1
    seed: FirstSeed = 0
    calibration: Calibration = "calibration"
    calibration_count: CalibrationCount = None
    tries: Annotated[
        int | None, typer.Option(min=1, help="Try at most so many settings of each rival.")
    ] = None


@dataclass(frozen=True)
class MeasureOptions:
    """What is measured of every run."""

    PANEL: ClassVar = "What is measured"
    metrics: Annotated[
        str,
        typer.Option(
            help="Metrics, such as psnr,ssim,lpips,following; a wrong name lists them all."
        ),
    ] = "psnr,ssim"
    reference: Annotated[
        str | None,
        typer.Option(help="What methods are tuned to end near: run (full steps) or flow."),
    ] = None
    fine: Annotated[
        int | None,
        typer.Option(min=2, help="Also compare with a run of so many steps, such as 500."),
    ] = None
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            help="From 2 on: time every run so often, after one to warm up, and take the median.",
        ),
    ] = 1
    trace: Annotated[
        bool, typer.Option("--trace", help="Record drift, MI and DI of every step too.")
    ] = False


@dataclass(frozen=True)
class KeepOptions:
    """What is kept beside the records, and what is run again."""

    PANEL: ClassVar = OUTPUT
    keep: Annotated[Path | None, typer.Option(help="Keep all pictures in this folder.")] = None
    retry: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what is recorded as failed.")
    ] = False

    def folder(self) -> Path | None:
        """Return the folder for pictures, which no file may stand in the place of."""
        if self.keep is not None:
            check_folder(self.keep)
        return self.keep


SuiteName = Annotated[
    str | None,
    typer.Option(
        help="A preset: quick (for a model of your own), main, ablation, thresholds, pareto, "
        "calibration, drift, flow, indicators, others, others-flow."
    ),
]


MethodNames = Annotated[
    str | None,
    typer.Option(help="Methods, such as tasu,fitted,fewer; a wrong name lists them all."),
]


def bench(
    model: Model,
    *,
    methods: MethodNames = None,
    suite: SuiteName = None,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13,7 (default: 7,10,13,17,25).")
    ] = None,
    prompts: Prompts = "test",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The records (default: named after MODEL).")
    ] = None,
    samples: BenchSampleOptions,
    measured: MeasureOptions,
    call: FullCallOptions,
    load: LoadOptions,
    kept: KeepOptions,
    as_json: Json = False,
) -> None:
    """Run methods from the same noise on the same model, and append a record for each sample.

    A benchmark that was killed goes on where it stopped. Under torchrun or accelerate launch the
    processes share the work. docs/reference/bench.md has the suites, the names of methods, such as
    tasu-10 (at the paper's ratio) or magcache:flux (as published), and how it is kept fair.

    [bold]Examples[/bold]

    tacache bench black-forest-labs/FLUX.1-dev --suite quick

    tacache bench tiny-flux --methods tasu,fitted,magcache,fewer --evaluations 13,7 --count 4

    tacache bench black-forest-labs/FLUX.1-dev --suite main --count 24 -o flux.jsonl --keep pictures

    torchrun --nproc-per-node 8 -m tacache bench MODEL --suite pareto --prompts mine.txt -o m.jsonl
    """
    from tacache_lab.bench.runner import drop_failed, run_bench
    from tacache_lab.bench.suites import expanded

    asked, arguments = load.checked(model), named_models.call_arguments(model, call)
    steps = named_models.steps_of(model, arguments)
    chosen = _chosen(suite, methods, evaluations, steps, samples, measured)
    target = _target(out, model)
    page = _page(target) if chosen.makes_page else None
    job = _job(model, chosen, arguments, prompts, samples, measured)
    job = replace(job, keep=kept.folder() or (page and page / "pictures"))
    job.check()
    host = named_models.load(model, asked)
    first = host.processes().rank == 0
    job = replace(job, methods=expanded(job.methods, host.family))
    if not methods:
        job = _without_doubles(job, tell=first)
    if kept.retry and first:
        drop_failed(target)
    with named_models.threads(model, host):
        told = None if as_json else printing.tell
        records = run_bench(host, job, target, progress=not as_json, tell=told)
    if first:
        print_records(records, target, job.metrics, as_json)
    if first and page:
        _write_page(records, target, page, tell=not as_json)


def _target(out: Path | None, model: str) -> Path:
    """Return the file of the records, after a look at whether its folder takes files."""
    target = out or Path(f"{Path(model).name}.bench.jsonl")
    check_folder(target.parent)
    return target


def _page(target: Path) -> Path:
    """Return the folder of a page, after a look at whether one can be written."""
    from tacache_lab.report import figures, report_page

    figures.check()
    report_page.check()
    return target.with_name(f"{target.name}.report")


def _write_page(records: list["Record"], target: Path, page: Path, *, tell: bool) -> None:
    """Write the page of the records, and a file of them without what is private."""
    from tacache_lab.bench.sharing import write_shareable
    from tacache_lab.report.writing import write_report

    to_send = target.with_name(f"{target.name.removesuffix('.jsonl')}.send.jsonl")
    write_report([target], page)
    write_shareable(records, to_send)
    if tell:
        printing.say(f"look at {page / 'index.html'}, which has prompts and pictures")
        printing.say(f"{to_send} has neither: send it to us, and others see what you measured")


def _chosen(
    suite: str | None,
    methods: str | None,
    evaluations: str | None,
    steps: int,
    samples: BenchSampleOptions,
    measured: MeasureOptions,
) -> "Suite":
    """Return the preset, or what is given in its place, with names and budgets that can be."""
    from tacache_lab.bench.suites import check_names, choose, within_steps

    chosen = choose(
        suite,
        methods=methods and tuple(words(methods)),
        evaluations=evaluations and tuple(numbers(evaluations)),
        calibration_count=samples.calibration_count,
        fine=measured.fine,
        trace=measured.trace,
        reference=measured.reference,
        tries=samples.tries,
    )
    check_names(chosen.methods)
    if evaluations:
        return chosen
    return chosen._replace(evaluations=tuple(within_steps(chosen.evaluations, steps)))


def _job(
    model: str,
    chosen: "Suite",
    call: dict[str, Any],
    prompts: str,
    samples: BenchSampleOptions,
    measured: MeasureOptions,
) -> "BenchJob":
    """Return the benchmark that is asked for, with its prompts read."""
    from tacache_lab.bench.tasks import BenchJob
    from tacache_lab.following import read_answers

    source, calibration = (
        named_models.prompts_of(model, prompts),
        named_models.prompts_of(model, samples.calibration),
    )
    metrics = words(measured.metrics)
    return BenchJob(
        methods=chosen.methods,
        evaluations=chosen.evaluations,
        prompts=read_prompts(source)[: samples.count or chosen.prompt_count],
        calibration=read_prompts(calibration)[: chosen.calibration_count],
        call=call,
        seeds=range(samples.seed, samples.seed + samples.seeds),
        calibration_source=samples.calibration,
        metrics=metrics,
        answers=read_answers(source) if "following" in metrics else {},
        fine=chosen.fine,
        repeats=measured.repeats,
        trace=chosen.trace,
        reference=chosen.reference,
        tries=chosen.tries,
    )


def _without_doubles(job: "BenchJob", *, tell: bool) -> "BenchJob":
    """Return the job without methods that differ only in a set of prompts that is the same."""
    from tacache_lab.bench.suites import without_doubles

    kept, left_out = without_doubles(job.methods, job.calibration)
    if left_out and tell:
        printing.tell(f"left out: {', '.join(left_out)}; {SAME_PROMPTS}")
    return replace(job, methods=kept)
