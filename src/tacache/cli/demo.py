"""`tacache demo`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacache.cli.options import Json, print_json
from tacache.demo import Demo, run_demo
from tacache.plan import Plan
from tacache.render import plan_view
from tacache.schedule import MAX_SKIP, walk


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where files go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=10, help="Steps of the full run.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Calibrate, plan and compare on an analytic flow: no model, no download, seconds.

    [bold]Example[/bold]: tacache demo --out demo
    """
    fewest = len(walk([MAX_SKIP] * steps))
    budgets = sorted({max(fewest, steps * share // 50) for share in (25, 17, 13, 10, 7)})[::-1]
    result = run_demo(out, steps=steps, budgets=budgets, seed=seed, progress=not as_json)
    if as_json:
        print_json(result.model_dump())
        return
    console = Console()
    console.print(_demo_table(result))
    middle = Plan.load(result.plans[len(result.plans) // 2])
    console.print(plan_view(middle))
    print(f"Files are in {out}/; next: tacache show {result.profile}")


def _demo_table(result: Demo) -> Table:
    table = Table(
        title=f"Distance to the {result.steps}-step result, mean of {result.samples} samples",
        caption="No model is embedded yet: this runs on an analytic flow, a Gaussian mixture of "
        "pictures whose exact velocity is known.",
    )
    for heading in (
        "evaluations",
        "speedup",
        "TACache",
        "reuse, same anchors",
        "fewer Euler steps",
    ):
        table.add_column(heading, justify="right")
    for row in result.rows:
        table.add_row(
            str(row.evaluations),
            f"{row.speedup:.2f}x",
            *(f"{value:.2%}" for value in (row.tasu, row.reuse, row.fewer_steps)),
        )
    return table
