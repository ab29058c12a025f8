"""`tacache plans`: the plans of the store, listed, shown, removed and exported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tacache.cli.options import Json
from tacache.cli.printing import print_json, say
from tacache.cli.printing import show as show_view
from tacache.cli.render import plan_view
from tacache.errors import TACacheError, printable
from tacache.plan import Plan
from tacache.storage.hub import SUFFIX
from tacache.storage.store import PlanStore, Stored, target_of

SIZE = ("height", "width", "num_frames")
GUIDANCE = ("guidance_scale", "guidance_scale_2", "true_cfg_scale", "cfg_text_scale", "cfg")
Name = Annotated[
    str, typer.Argument(help="A plan's name, as tacache plans lists it.", show_default=False)
]


def plans(
    shipped: Annotated[
        bool, typer.Option("--shipped", help="List the plans that come with tacache instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the plans of your plan store, which generate and accelerate use by themselves.

    tacache fit, tacache plan pull and accelerate(pipe, learn=8) put plans there. The environment
    variable TACACHE_HOME says where the store is. Nothing is ever uploaded.

    [bold]Examples[/bold]

    tacache plans

    tacache plans show tiny-flux-13of50-1a2b3c4d
    """
    store = PlanStore()
    found = store.shipped_plans() if shipped else store.plans()
    if as_json:
        return print_json({"folder": str(store.folder), "plans": [_facts(one) for one in found]})
    if not found:
        say(f"There is no plan in {store.folder}; tacache fit MODEL makes one.")
        return
    show_view(table(found))


def show(name: Name, as_json: Json = False) -> None:
    """Show a plan of the store: anchors and skips, and what it was measured to do.

    [bold]Examples[/bold]

    tacache plans show tiny-flux-13of50-1a2b3c4d
    """
    stored = PlanStore().get(name)
    if as_json:
        return print_json({**_facts(stored), **stored.plan.model_dump()})
    show_view(plan_view(stored.plan))
    say(f"{stored.path}")


def remove(names: Annotated[list[str], typer.Argument(help="Names of plans.")]) -> None:
    """Delete plans from the store.

    [bold]Examples[/bold]

    tacache plans remove tiny-flux-13of50-1a2b3c4d
    """
    store = PlanStore()
    for name in names:
        store.path_of(name)  # all names are right, or nothing is removed
    for name in names:
        say(f"Removed {store.remove(name)}")


def export(
    name: Name,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The plan file (default: NAME.plan.json).")
    ] = None,
) -> None:
    """Write a plan of the store to a file of its own, to keep or to share.

    [bold]Examples[/bold]

    tacache plans export tiny-flux-13of50-1a2b3c4d -o tiny.plan.json
    """
    stored = PlanStore().get(name)
    target = stored.plan.save(out or Path(f"{stored.name}{SUFFIX}"))
    say(f"Written to {target}")


def named_plan(given: str) -> Plan:
    """Return the plan of a file, or of the store by its name."""
    path = Path(given)
    if path.exists() or given.endswith(".json") or os.sep in given:
        return Plan.load(path)
    try:
        return PlanStore().get(given).plan
    except TACacheError as error:
        raise TACacheError(f"{given} is no file, and {error}") from error


def table(found: Sequence[Stored]) -> Table:
    """Return plans as rows of two lines: what each was measured to do, and what it is for."""
    view = Table(box=None, pad_edge=False)
    view.add_column("name", overflow="fold")
    for head in ("evaluations", "speedup", "rule", "PSNR, dB", "drift"):
        view.add_column(head, no_wrap=True)
    for one in found:
        name, *cells = map(printable, _row(one))
        lines = Text(name).append(f"\n  {printable(_about(one.plan))}", style="dim")
        view.add_row(lines, *map(Text, cells))
    return view


def _row(stored: Stored) -> list[str]:
    plan, known = stored.plan, stored.plan.certificate
    measured = ["-", "-"]
    if known is not None:
        psnr = "-" if known.psnr is None else f"{known.psnr:.2f}"
        measured = [psnr, f"{known.drift:.4f}"]
    budget = [f"{plan.evaluations} of {plan.steps}", f"{plan.speedup:.2f}x"]
    return [stored.name, *budget, plan.rule, *measured]


def _about(plan: Plan) -> str:
    """Return the model, size and guidance of a plan, its worth in Euler steps, and its date."""
    model = Path(plan.host.model or plan.host.pipeline or plan.host.kind).name
    known = plan.certificate
    worth = None if known is None else known.equivalent_steps
    near = "" if worth is None else f"equivalent to {worth:.0f} steps"
    date = "" if known is None else known.date
    return ", ".join(part for part in (model, _made_for(plan), near, date) if part)


def _made_for(plan: Plan) -> str:
    """Return size and guidance, such as 1024x1024, guidance 3.5."""
    call = plan.host.call or {}
    numbers = [call.get(name) for name in SIZE]
    sizes = call.get("image_shapes")
    size = [one for one in (sizes if isinstance(sizes, list) else numbers) if one is not None]
    guidance = [f"{call[name]:g}" for name in GUIDANCE if isinstance(call.get(name), int | float)]
    parts = ["x".join(map(str, size)), f"guidance {'/'.join(guidance)}" if guidance else ""]
    return ", ".join(part for part in parts if part)


def _facts(stored: Stored) -> dict[str, Any]:
    """Return a plan for programs to read."""
    plan, known = stored.plan, stored.plan.certificate
    return {
        "name": stored.name,
        "file": str(stored.path),
        "model": plan.host.model,
        "pipeline": plan.host.pipeline,
        "evaluations": plan.evaluations,
        "steps": plan.steps,
        "speedup": plan.speedup,
        "rule": plan.rule,
        "target": target_of(plan),
        "psnr": None if known is None else known.psnr,
        "drift": None if known is None else known.drift,
        "equivalent_steps": None if known is None else known.equivalent_steps,
        "call": plan.host.call,
        "date": None if known is None else known.date,
        "used_unasked": plan.rule == "fitted" and plan.host.weights is not None,
    }
