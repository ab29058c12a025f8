"""`tacache export`: samples for the benchmarks of the field, and their scores back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from tacache.cli import named_models
from tacache.cli.arguments import check_folder
from tacache.cli.options import (
    OUTPUT,
    SAMPLES,
    Calibration,
    CalibrationCount,
    CallOptions,
    Count,
    FirstSeed,
    Json,
    LoadOptions,
)
from tacache.cli.printing import print_json, say, show, tell
from tacache.errors import TACacheError
from tacache.hosts import Host
from tacache.plan import Plan
from tacache.prompts import read_prompts
from tacache_lab.renderer import grid, terminal_table

if TYPE_CHECKING:
    from tacache_lab.bench.records import Record
    from tacache_lab.export.benchmarks import SampleFile
    from tacache_lab.export.export_request import ExportRequest

STEPS, CALIBRATION = 50, 8


@dataclass(frozen=True)
class MethodOptions:
    """The method that draws the samples."""

    PANEL: ClassVar = None  # among the options that one needs first
    plan: Annotated[Path | None, typer.Option(help="A plan file, in place of a method.")] = None
    method: Annotated[
        str, typer.Option(help="full, or a method of tacache bench, at --evaluations.")
    ] = "full"
    evaluations: Annotated[int, typer.Option(min=1, help="The method's budget.")] = 13

    def followed(self) -> tuple[str, Plan] | None:
        """Return the plan with the name of its file, if one is given."""
        if self.plan is None:
            return None
        return self.plan.name.removesuffix(".json").removesuffix(".plan"), Plan.load(self.plan)


@dataclass(frozen=True)
class ExportSampleOptions:
    """How many samples are drawn, and what a method is tuned on."""

    PANEL: ClassVar = SAMPLES
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of each prompt (default: the benchmark's).")
    ] = None
    count: Count = None
    seed: FirstSeed = 0
    calibration: Calibration = "calibration"
    calibration_count: CalibrationCount = None

    def calibration_fields(self, model: str) -> dict[str, Any]:
        """Return the prompts that a method is tuned on, and where they are from."""
        texts = read_prompts(named_models.prompts_of(model, self.calibration))
        count = self.calibration_count or CALIBRATION
        return {"calibration": texts[:count], "calibration_source": self.calibration}


@dataclass(frozen=True)
class InsteadOptions:
    """What is done instead of drawing."""

    PANEL: ClassVar = "Instead of drawing"
    score: Annotated[
        list[Path] | None,
        typer.Option(help="Read a result file of the evaluator into the records."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and say what would be drawn.")
    ] = False


def export(
    benchmark: Annotated[
        str, typer.Argument(help="geneval, vbench, wise or compbench.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            help="A hub id, a pipeline's folder, tiny-flux, tiny-wan or bagel; not for --score."
        ),
    ] = None,
    *,
    metadata: Annotated[
        list[Path] | None,
        typer.Option(help="The prompts, from your own copy of the benchmark; WISE has several."),
    ] = None,
    way: MethodOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder (default: the benchmark's name).")
    ] = None,
    samples: ExportSampleOptions,
    call: CallOptions,
    load: LoadOptions,
    instead: InsteadOptions,
    fps: Annotated[
        int, typer.Option(min=1, help="Frames a second of a clip.", rich_help_panel=OUTPUT)
    ] = 16,
    as_json: Json = False,
) -> None:
    """Draw a benchmark's samples in the layout its evaluator reads, and read its scores back.

    Records lie beside the folder, in FOLDER.jsonl. An export that was killed goes on where it
    stopped and tries again what failed. Under torchrun or accelerate launch processes share it.

    [bold]Examples[/bold]

    tacache export geneval MODEL --metadata evaluation_metadata.jsonl --plan flux.plan.json -o g-13

    tacache export geneval --metadata evaluation_metadata.jsonl --score results.jsonl -o g-13
    """
    from tacache_lab.export.benchmarks import plan_samples, read_entries

    folder, texts = out or Path(benchmark), metadata or []
    entries = read_entries(benchmark, texts, samples.count)
    if instead.score:
        return _score(benchmark, folder, instead.score, texts[0].stem, as_json)
    if model is None:
        raise TACacheError("give a MODEL to draw with, or --score to read results back")
    wanted = plan_samples(benchmark, entries, samples=samples.samples, seed=samples.seed)
    asked, request = load.checked(model), _request(benchmark, model, way, call, fps)
    if instead.dry_run:
        return _say_what_would_be(request, len(entries), wanted, folder, as_json)
    check_folder(folder)
    request = replace(request, **samples.calibration_fields(model))
    host = named_models.load(model, asked)
    with named_models.threads(model, host):
        _draw(host, request, entries, wanted, folder, as_json)


def _draw(
    host: Host,
    request: "ExportRequest",
    entries: Sequence[Any],
    wanted: Sequence["SampleFile"],
    folder: Path,
    as_json: bool,
) -> None:
    """Draw the samples, and say where they are."""
    from tacache_lab.export.exporting import run_export

    records = run_export(host, request, entries, wanted, folder, progress=not as_json)
    if host.processes().rank == 0:
        _report(records, folder, as_json)


def _request(
    benchmark: str, model: str, way: MethodOptions, call: CallOptions, fps: int
) -> "ExportRequest":
    """Return what to export, with names and budgets checked before a model is loaded."""
    from tacache_lab.bench.judging import FULL
    from tacache_lab.bench.named_methods import resolve
    from tacache_lab.export.export_request import ExportRequest

    named = way.followed()
    plan = None if named is None else named[1]
    if plan is None and call.steps is None:
        call = replace(call, steps=STEPS)
    arguments = named_models.call_arguments(model, call, plan)
    steps = named_models.steps_of(model, arguments)
    if plan is not None and way.method != FULL:
        raise TACacheError("a plan is a method of its own: give --plan or --method")
    if way.method != FULL:
        resolve(way.method)
    request = ExportRequest(
        benchmark, arguments, steps, way.method, way.evaluations, named, fps=fps
    )
    if plan is None and (request.evaluations_each or 1) > steps:
        raise TACacheError(f"a run of {steps} steps has no {request.evaluations_each} evaluations")
    return request


def _say_what_would_be(
    request: "ExportRequest",
    prompts: int,
    wanted: Sequence["SampleFile"],
    folder: Path,
    as_json: bool,
) -> None:
    """Print what an export would draw: samples, evaluations, and files that cannot be made."""
    each = request.evaluations_each
    troubled = [sample_file for sample_file in wanted if sample_file.trouble is not None]
    facts = {
        "folder": str(folder),
        "prompts": prompts,
        "samples": len(wanted) - len(troubled),
        "method": request.name,
        "evaluations": each,
        "first_file": wanted[0].file,
        "cannot_be": [
            {"prompt": sample_file.sample.prompt, "reason": sample_file.trouble}
            for sample_file in troubled
        ],
    }
    if as_json:
        return print_json(facts)
    spent = (
        "evaluations of its own number"
        if each is None
        else f"{each} evaluations of {request.steps}"
    )
    say(f"{prompts} prompts, {facts['samples']} samples by {request.name}, {spent} steps each")
    if each is not None:
        say(f"{each * (len(wanted) - len(troubled))} evaluations in all, calibration apart")
    for sample_file in troubled:
        say(f"cannot be: {sample_file.sample.prompt!r}: {sample_file.trouble}")
    say(f"The first would be {folder / wanted[0].file}; nothing was drawn")


def _report(records: Sequence["Record"], folder: Path, as_json: bool) -> None:
    """Print where the samples are, and what failed."""
    from tacache_lab.export import records_file

    failed = [record for record in records if record.status != "done"]
    done = len(records) - len(failed)
    if as_json:
        reasons = [{"prompt": r.prompt, "seed": r.seed, "reason": r.reason} for r in failed]
        print_json({"folder": str(folder), "samples": done, "failed": reasons})
    else:
        for record in failed:
            reason = f"{record.prompt!r} with seed {record.seed} failed: {record.reason}"
            tell(f"tacache: {reason}")
        where = f"in {folder}/, their records in {records_file(folder)}"
        say(f"{done} of {len(records)} samples {where}")
    if failed:
        raise typer.Exit(1)


def _score(
    benchmark: str, folder: Path, results: Sequence[Path], category: str, as_json: bool
) -> None:
    """Read results into the records, and say what they come to."""
    from tacache_lab.export import records_file
    from tacache_lab.export.scores import add_scores, means

    records = add_scores(benchmark, folder, results, category)
    scores_by_name = means(records)
    if as_json:
        scores = {name: {"mean": mean, "samples": n} for name, (mean, n) in scores_by_name.items()}
        return print_json({"file": str(records_file(folder)), "scores": scores})
    lines = [
        [name, f"{mean:.4f}", f"{count} of {len(records)}"]
        for name, (mean, count) in scores_by_name.items()
    ]
    show(terminal_table(grid(["score", "mean", "samples"], lines)))
    say(f"Written to {records_file(folder)}")
