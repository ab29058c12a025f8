"""`tacache export`: samples for the benchmarks of the field, and their scores back."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacache.cli import bagel
from tacache.cli.arguments import call_arguments, parsed, threads
from tacache.cli.options import (
    PROMPTS_HELP,
    Compiled,
    Device,
    Dtype,
    Frames,
    Guidance,
    Height,
    Json,
    More,
    Offload,
    Width,
    check_folder,
    print_json,
)
from tacache.errors import TACacheError, printable
from tacache.models import own_prompts
from tacache.plan import Plan
from tacache.prompts import read_prompts

if TYPE_CHECKING:
    from tacache.lab.bench.records import Record
    from tacache.lab.export.benchmarks import Sample
    from tacache.lab.export.drawing import Studio
    from tacache.lab.export.orders import Order

STEPS = 50


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
    metadata: Annotated[
        list[Path] | None,
        typer.Option(help="The prompts, from your own copy of the benchmark; WISE has several."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="full, or a method of tacache bench, at --evaluations.")
    ] = "full",
    plan: Annotated[Path | None, typer.Option(help="A plan file, in place of a method.")] = None,
    evaluations: Annotated[int, typer.Option(min=1, help="The method's budget.")] = 13,
    score: Annotated[
        list[Path] | None,
        typer.Option(help="Read a result file of the evaluator into the records; draw nothing."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples a prompt (default: the benchmark's).")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Use the first COUNT prompts.")] = None,
    seed: Annotated[int, typer.Option(help="The first seed of a prompt; others count on.")] = 0,
    calibration: Annotated[
        str, typer.Option(help="What a method is made ready on. " + PROMPTS_HELP)
    ] = "calibration",
    calibration_count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 8,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and say what would be drawn.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder (default: the benchmark's name).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help=f"Steps (default: the plan's, else {STEPS}).")
    ] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    more: More = None,
    fps: Annotated[int, typer.Option(min=1, help="Frames a second of a clip.")] = 16,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    compiled: Compiled = False,
    bagel_path: bagel.BagelPath = None,
    weights: bagel.Weights = None,
    as_json: Json = False,
) -> None:
    """Draw a benchmark's samples in the layout its evaluator reads, and read its scores back.

    Records lie beside the folder, in FOLDER.jsonl. Killed, it goes on where it stopped; run again,
    it tries again what failed. Under torchrun or accelerate launch the samples are shared out.

    [bold]Examples[/bold]

    tacache export geneval black-forest-labs/FLUX.1-dev --metadata evaluation_metadata.jsonl
    --plan flux.plan.json -o geneval-13

    tacache export vbench MODEL --metadata VBench_full_info.json --method magcache -o v-magcache

    tacache export geneval --metadata evaluation_metadata.jsonl --score results.jsonl -o geneval-13
    """
    from tacache.lab.export.benchmarks import plan_samples, read_entries

    folder, texts = out or Path(benchmark), metadata or []
    entries = read_entries(benchmark, texts, count)
    if score:
        return _score(benchmark, folder, score, texts[0].stem, as_json)
    if model is None:
        raise TACacheError("give a MODEL to draw with, or --score to read results back")
    wanted = plan_samples(benchmark, entries, samples=samples, seed=seed)
    followed = None if plan is None else (_plan_name(plan), Plan.load(plan))
    given: dict[str, Any] = {"steps": steps, "height": height, "width": width, "frames": frames}
    is_bagel = bagel.is_asked(model, bagel_path, weights)
    arguments = _bagel_call if is_bagel else _pipeline_call
    call, full = arguments(model, more, followed, {**given, "guidance": guidance})
    order = _order(benchmark, call, full, method, evaluations, followed, fps)
    if not is_bagel and followed is None and (order.evaluations_each or 1) > full:
        raise TACacheError(f"a run of {full} steps has no {order.evaluations_each} evaluations")
    if dry_run:
        return _say_what_would_be(order, len(entries), wanted, folder, as_json)
    from tacache.lab.export.runner import run_export
    from tacache.work.processes import Processes

    check_folder(folder)
    taught = read_prompts(own_prompts(model, calibration))[:calibration_count]
    order = replace(order, calibration=taught, calibration_source=calibration)
    asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
    with _studio(model, asked) as studio:
        records = run_export(studio, order, entries, wanted, folder, progress=not as_json)
    if Processes.current().rank == 0:
        _report(records, folder, as_json)


def _pipeline_call(
    model: str, more: list[str] | None, plan: tuple[str, Plan] | None, given: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """A pipeline's arguments and its number of steps: a plan's own, then those given."""
    remembered: dict[str, Any] = {"num_inference_steps": STEPS}
    if plan is not None:
        remembered = {"num_inference_steps": plan[1].steps, **(plan[1].host.call or {})}
    call = call_arguments(model, more, remembered, **given)
    return call, int(call["num_inference_steps"])


def _bagel_call(
    model: str, more: list[str] | None, plan: tuple[str, Plan] | None, given: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """The same for BAGEL, whose run has one step less than it has times."""
    remembered = bagel.remembered_call(None if plan is None else plan[1])
    call = bagel.call_arguments(parsed(more), {"num_timesteps": STEPS, **remembered}, **given)
    return call, int(call["num_timesteps"]) - 1


@contextmanager
def _studio(model: str, asked: bagel.Asked) -> Iterator["Studio"]:
    """The model, loaded and ready to draw."""
    if model == bagel.NAME:
        from tacache.lab.export.bagel import BagelStudio

        yield BagelStudio(bagel.load(asked))
        return
    from tacache.diffusers.loading import Loading, load_pipeline
    from tacache.lab.export.pipelines import PipelineStudio

    how = Loading(asked.dtype, asked.device, asked.offload, asked.compiled)
    pipe = load_pipeline(model, how)
    pipe.set_progress_bar_config(disable=True)
    with threads(model, pipe):
        yield PipelineStudio(pipe)


def _order(
    benchmark: str,
    call: dict[str, Any],
    steps: int,
    method: str,
    evaluations: int,
    plan: tuple[str, Plan] | None,
    fps: int,
) -> "Order":
    """What to export, with names checked before a model is loaded."""
    from tacache.lab.bench.judging import FULL
    from tacache.lab.bench.methods import resolve
    from tacache.lab.export.orders import Order

    if plan is not None and method != FULL:
        raise TACacheError("a plan is a method of its own: give --plan or --method")
    if method != FULL:
        resolve(method)
    return Order(benchmark, call, steps, method, evaluations, plan, fps=fps)


def _plan_name(path: Path) -> str:
    return path.name.removesuffix(".json").removesuffix(".plan")


def _say_what_would_be(
    order: "Order", prompts: int, samples: Sequence["Sample"], folder: Path, as_json: bool
) -> None:
    """What a dry run prints: samples, evaluations and files that cannot be."""
    each = order.evaluations_each
    troubled = [sample for sample in samples if sample.trouble is not None]
    facts = {
        "folder": str(folder),
        "prompts": prompts,
        "samples": len(samples) - len(troubled),
        "method": order.name,
        "evaluations": each,
        "first_file": samples[0].file,
        "cannot_be": [{"prompt": one.prompt, "reason": one.trouble} for one in troubled],
    }
    if as_json:
        return print_json(facts)
    spent = (
        "evaluations of its own number" if each is None else f"{each} evaluations of {order.steps}"
    )
    print(f"{prompts} prompts, {facts['samples']} samples by {order.name}, {spent} steps each")
    if each is not None:
        print(f"{each * (len(samples) - len(troubled))} evaluations in all, calibration apart")
    for one in troubled:
        print(f"cannot be: {one.prompt!r}: {one.trouble}")
    print(f"The first would be {folder / samples[0].file}; nothing was drawn")


def _report(records: Sequence["Record"], folder: Path, as_json: bool) -> None:
    """Where the samples are, and what failed."""
    from tacache.lab.export import records_file

    failed = [record for record in records if record.status != "done"]
    done = len(records) - len(failed)
    if as_json:
        reasons = [{"prompt": r.prompt, "seed": r.seed, "reason": r.reason} for r in failed]
        print_json({"folder": str(folder), "samples": done, "failed": reasons})
    else:
        for record in failed:
            reason = f"{record.prompt!r} with seed {record.seed} failed: {record.reason}"
            print(printable(f"tacache: {reason}"), file=sys.stderr)
        where = f"in {folder}/, their records in {records_file(folder)}"
        print(f"{done} of {len(records)} samples {where}")
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
    Console().print(table)
    print(f"Written to {records_file(folder)}")
