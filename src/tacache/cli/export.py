"""`tacache export`: samples for the benchmarks of the field, and their scores back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.table import Table
from rich.text import Text

from tacache.cli import hosts
from tacache.cli.arguments import check_folder
from tacache.cli.options import (
    OUTPUT,
    SAMPLES,
    Calibration,
    CalibrationCount,
    Call,
    Count,
    FirstSeed,
    Json,
    Load,
)
from tacache.cli.printing import print_json, say, show, tell
from tacache.errors import TACacheError, printable
from tacache.host import Host
from tacache.plan import Plan
from tacache.prompts import read_prompts

if TYPE_CHECKING:
    from tacache.lab.bench.records import Record
    from tacache.lab.export.benchmarks import SampleFile
    from tacache.lab.export.orders import Order

STEPS, CALIBRATION = 50, 8


@dataclass(frozen=True)
class Way:
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
class Samples:
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
        texts = read_prompts(hosts.prompts_of(model, self.calibration))
        count = self.calibration_count or CALIBRATION
        return {"calibration": texts[:count], "calibration_source": self.calibration}


@dataclass(frozen=True)
class Instead:
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
    way: Way,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder (default: the benchmark's name).")
    ] = None,
    samples: Samples,
    call: Call,
    load: Load,
    instead: Instead,
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
    from tacache.lab.export.benchmarks import plan_samples, read_entries

    folder, texts = out or Path(benchmark), metadata or []
    entries = read_entries(benchmark, texts, samples.count)
    if instead.score:
        return _score(benchmark, folder, instead.score, texts[0].stem, as_json)
    if model is None:
        raise TACacheError("give a MODEL to draw with, or --score to read results back")
    wanted = plan_samples(benchmark, entries, samples=samples.samples, seed=samples.seed)
    asked, order = load.checked(model), _order(benchmark, model, way, call, fps)
    if instead.dry_run:
        return _say_what_would_be(order, len(entries), wanted, folder, as_json)
    check_folder(folder)
    order = replace(order, **samples.calibration_fields(model))
    host = hosts.load(model, asked)
    with hosts.threads(model, host):
        _draw(host, order, entries, wanted, folder, as_json)


def _draw(
    host: Host,
    order: "Order",
    entries: Sequence[Any],
    wanted: Sequence["SampleFile"],
    folder: Path,
    as_json: bool,
) -> None:
    """Draw the samples, and say where they are."""
    from tacache.lab.export.runner import run_export

    records = run_export(host, order, entries, wanted, folder, progress=not as_json)
    if host.processes().rank == 0:
        _report(records, folder, as_json)


def _order(benchmark: str, model: str, way: Way, call: Call, fps: int) -> "Order":
    """Return what to export, with names and budgets checked before a model is loaded."""
    from tacache.lab.bench.judging import FULL
    from tacache.lab.bench.methods import resolve
    from tacache.lab.export.orders import Order

    named = way.followed()
    plan = None if named is None else named[1]
    if plan is None and call.steps is None:
        call = replace(call, steps=STEPS)
    arguments = hosts.call_arguments(model, call, plan)
    steps = hosts.steps_of(model, arguments)
    if plan is not None and way.method != FULL:
        raise TACacheError("a plan is a method of its own: give --plan or --method")
    if way.method != FULL:
        resolve(way.method)
    order = Order(benchmark, arguments, steps, way.method, way.evaluations, named, fps=fps)
    if plan is None and (order.evaluations_each or 1) > steps:
        raise TACacheError(f"a run of {steps} steps has no {order.evaluations_each} evaluations")
    return order


def _say_what_would_be(
    order: "Order", prompts: int, wanted: Sequence["SampleFile"], folder: Path, as_json: bool
) -> None:
    """Print what an export would draw: samples, evaluations, and files that cannot be made."""
    each = order.evaluations_each
    troubled = [one for one in wanted if one.trouble is not None]
    facts = {
        "folder": str(folder),
        "prompts": prompts,
        "samples": len(wanted) - len(troubled),
        "method": order.name,
        "evaluations": each,
        "first_file": wanted[0].file,
        "cannot_be": [{"prompt": one.sample.prompt, "reason": one.trouble} for one in troubled],
    }
    if as_json:
        return print_json(facts)
    spent = (
        "evaluations of its own number" if each is None else f"{each} evaluations of {order.steps}"
    )
    say(f"{prompts} prompts, {facts['samples']} samples by {order.name}, {spent} steps each")
    if each is not None:
        say(f"{each * (len(wanted) - len(troubled))} evaluations in all, calibration apart")
    for one in troubled:
        say(f"cannot be: {one.sample.prompt!r}: {one.trouble}")
    say(f"The first would be {folder / wanted[0].file}; nothing was drawn")


def _report(records: Sequence["Record"], folder: Path, as_json: bool) -> None:
    """Print where the samples are, and what failed."""
    from tacache.lab.export import records_file

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
    from tacache.lab.export import records_file
    from tacache.lab.export.scores import add_scores, means

    records = add_scores(benchmark, folder, results, category)
    found = means(records)
    if as_json:
        scores = {name: {"mean": mean, "samples": n} for name, (mean, n) in found.items()}
        return print_json({"file": str(records_file(folder)), "scores": scores})
    table = Table("score", "mean", "samples", box=None)
    for name, (mean, number) in found.items():
        table.add_row(Text(printable(name)), f"{mean:.4f}", f"{number} of {len(records)}")
    show(table)
    say(f"Written to {records_file(folder)}")
