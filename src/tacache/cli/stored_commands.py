"""`tacache plans`: the plans of the store, listed, shown, removed and exported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
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
        bool, typer.Option("--shipped", help="List only the plans that come with small models.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List your plans and those that ship: accelerate, and generate at their speed, follow them.

    tacache fit, tacache plan pull and accelerate(pipe, learn=8) put plans into your plan store. The
    environment variable TACACHE_HOME says where it is. Nothing is ever uploaded.

    [bold]Examples[/bold]

    tacache plans

    tacache plans show tiny-flux-13
    """
    store = PlanStore()
    listed = [*([] if shipped else store.plans()), *store.shipped_plans()]
    listed.sort(key=_place)
    if as_json:
        facts = [_facts(stored, store) for stored in listed]
        return print_json({"folder": str(store.folder), "plans": facts})
    if not listed:
        say(f"There is no plan in {store.folder}; tacache fit MODEL makes one.")
        return
    show_view(table(listed, store))


def show(name: Name, as_json: Json = False) -> None:
    """Show a plan of the store: anchors and skips, and what it was measured to do.

    [bold]Examples[/bold]

    tacache plans show tiny-flux-13of50-1a2b3c4d
    """
    store = PlanStore()
    stored = store.get(name)
    if as_json:
        return print_json({**_facts(stored, store), **stored.plan.model_dump()})
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


def named_plan(source: str) -> Plan:
    """Return the plan of a file, or a stored or shipped one by its name."""
    if is_file(source):
        return Plan.load(Path(source))
    try:
        return PlanStore().get(source).plan
    except TACacheError as error:
        raise TACacheError(f"{source} is no file, and {error}") from error


def is_file(source: str) -> bool:
    """Return whether a text names a file, and not a plan."""
    return Path(source).exists() or source.endswith(".json") or os.sep in source


def table(listed: Sequence[Stored], store: PlanStore) -> Table:
    """Return plans as rows of two lines: what each was measured to do, and what it is for."""
    view = Table(box=None, pad_edge=False)
    view.add_column("name", overflow="fold")
    for head in ("evaluations", "speedup", "PSNR, dB", "drift"):
        view.add_column(head, no_wrap=True)
    for stored in listed:
        about = printable(_about(stored.plan, store.ships(stored)))
        indented = Padding(Text(about, style="dim"), (0, 0, 0, 2))
        view.add_row(Group(Text(printable(stored.name)), indented), *_measured(stored.plan))
    return view


def _place(stored: Stored) -> tuple[str, int, str, int, str]:
    """Return where a plan stands in the list: by model, steps and target, then by evaluations."""
    plan = stored.plan
    return (_model(plan), plan.full_steps, target_of(plan), plan.evaluations, stored.name)


def _measured(plan: Plan) -> list[str]:
    """Return the cells of a plan: its budget, and what its certificate says."""
    known = plan.certificate
    psnr = "-" if known is None or known.psnr is None else f"{known.psnr:.2f}"
    drift = "-" if known is None else f"{known.drift:.4f}"
    return [f"{plan.evaluations} of {plan.full_steps}", f"{plan.speedup:.2f}x", psnr, drift]


def _about(plan: Plan, ships: bool) -> str:
    """Return what a plan is for, the Euler steps that it is as near as, whether it ships."""
    known = plan.certificate
    steps = None if known is None else known.equivalent_steps
    near = "" if steps is None else f"equivalent to {steps:.0f} steps"
    source = "shipped" if ships else ""
    return ", ".join(
        part for part in (source, plan.rule, _model(plan), _made_for(plan), near) if part
    )


def _model(plan: Plan) -> str:
    """Return the name of the model that a plan was made for."""
    return Path(plan.origin.model or plan.origin.pipeline or plan.origin.kind).name


def _made_for(plan: Plan) -> str:
    """Return size and guidance, such as 1024x1024, guidance 3.5."""
    call = plan.origin.call or {}
    numbers = [call.get(name) for name in SIZE]
    sizes = call.get("image_shapes")
    size = [side for side in (sizes if isinstance(sizes, list) else numbers) if side is not None]
    guidance = [f"{call[name]:g}" for name in GUIDANCE if isinstance(call.get(name), int | float)]
    parts = ["x".join(map(str, size)), f"guidance {'/'.join(guidance)}" if guidance else ""]
    return ", ".join(part for part in parts if part)


def _facts(stored: Stored, store: PlanStore) -> dict[str, Any]:
    """Return a plan for programs to read."""
    plan, known = stored.plan, stored.plan.certificate
    return {
        "name": stored.name,
        "file": str(stored.path),
        "shipped": store.ships(stored),
        "model": plan.origin.model,
        "pipeline": plan.origin.pipeline,
        "evaluations": plan.evaluations,
        "steps": plan.full_steps,
        "speedup": plan.speedup,
        "rule": plan.rule,
        "target": target_of(plan),
        "psnr": None if known is None else known.psnr,
        "drift": None if known is None else known.drift,
        "equivalent_steps": None if known is None else known.equivalent_steps,
        "call": plan.origin.call,
        "date": None if known is None else known.date,
        "used_unasked": plan.rule == "fitted" and plan.origin.weights is not None,
    }
