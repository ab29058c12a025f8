"""`tacache fit`: plans fitted to a model, for one budget or several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import typer

from tacache.cli import hosts
from tacache.cli.arguments import numbers, seeds_of
from tacache.cli.options import SAMPLES, FullCall, Json, Load, Model, Prompts, Seeds
from tacache.cli.printing import print_json, say, show, tell
from tacache.cli.render import frontier_view, plan_view
from tacache.cli.saving import Place, frontier_of
from tacache.errors import PlanError, TACacheError
from tacache.fitting.flow import Target
from tacache.models import EMBEDDED
from tacache.plan import LONGEST, Plan
from tacache.prompts import read_prompts
from tacache.storage.store import Stored

BUDGETS = "5,7,10,13,17,25"
COUNT, FAST = 16, 8
GENERAL = (
    "The prompts are a general set that ships with tacache: with --prompts FILE, some of your own "
    "make a better plan for what you draw."
)
NO_VARY = (
    "--vary was removed, because plans fitted to several values were no better than chance: "
    "fit at the value you use, such as --guidance 3.5"
)


@dataclass(frozen=True)
class Runs:
    """The full runs that plans are fitted to."""

    PANEL: ClassVar = SAMPLES
    prompts: Prompts = "calibration"
    count: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Use only the first COUNT prompts (default: {COUNT}; {FAST} with --fast or "
            "--target flow).",
        ),
    ] = None
    seeds: Seeds = "0"

    def texts(self, model: str, usual: int) -> list[str]:
        """Return so many prompts as are asked for or usual; a general set is told as such."""
        if self.prompts == "calibration" and model not in EMBEDDED:
            tell(GENERAL)
        return read_prompts(hosts.prompts_of(model, self.prompts))[: self.count or usual]


@dataclass(frozen=True)
class Search:
    """How much work a fit may do."""

    PANEL: ClassVar = "How plans are fitted"
    target: Annotated[
        str,
        typer.Option(
            metavar="run|flow",
            help="What to come close to: the full run, or the flow that the full run approximates. "
            "The flow takes a second run of twice as many steps.",
        ),
    ] = "run"
    reference_steps: Annotated[
        int | None, typer.Option(help="Steps of that second run, such as 200, with --target flow.")
    ] = None
    history: Annotated[
        int,
        typer.Option(
            min=1,
            max=LONGEST,
            help="What a plan rebuilds steps from: 1 the newest velocity, 2 the last two, 3 a "
            "memory of all.",
        ),
    ] = LONGEST
    most: Annotated[
        int, typer.Option("--max-evaluations", help="Evaluations that one budget may spend.")
    ] = 3000
    vary: Annotated[list[str] | None, typer.Option(hidden=True)] = None

    def work(self, runs: Runs, fast: bool) -> dict[str, Any]:
        """Return these options by the names that fits have for them."""
        if self.vary:
            raise TACacheError(NO_VARY)
        if self.target not in get_args(Target):
            raise TACacheError(f"--target is {' or '.join(get_args(Target))}, not {self.target!r}")
        if self.reference_steps is not None and self.target == "run":
            raise TACacheError("--reference-steps goes with --target flow")
        seeds = seeds_of(runs.seeds)
        limits = {"history": self.history, "max_evaluations": self.most, "search": not fast}
        aim = {"target": self.target, "reference_steps": self.reference_steps}
        return {"seeds": seeds, **limits, **aim}


def fit(
    model: Model,
    *,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13 or 7,10,13 (default: 13).")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="One budget, as steps / evaluations, such as 4.")
    ] = None,
    psnr: Annotated[
        float | None,
        typer.Option(help=f"Fit {BUDGETS} and take the fastest that reaches this, in dB."),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Fewer prompts, no search, at most 1,500 evaluations."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Also write the plan to this file, or several to this folder."
        ),
    ] = None,
    runs: Runs,
    search: Search,
    call: FullCall,
    load: Load,
    as_json: Json = False,
) -> None:
    """Fit plans to a model: anchors and weights from a few full runs, judged on held-out prompts.

    Plans go into your plan store (tacache plans), where generate and accelerate find them.
    Full runs are made once for all budgets. A fit that was killed goes on where it stopped.
    Under torchrun or accelerate launch the processes share the prompts.

    [bold]Examples[/bold]

    tacache fit tiny-flux

    tacache fit tiny-flux --fast -o tiny.plan.json

    tacache fit black-forest-labs/FLUX.1-dev --evaluations 5,7,10,13,17,25 -o flux

    tacache fit tiny-flux --evaluations 17 --target flow -o tiny.plan.json
    """
    from tacache.work.processes import Processes

    asked, arguments = load.checked(model), hosts.call_arguments(model, call)
    budgets = _budgets(evaluations, speedup, psnr, hosts.steps_of(model, arguments))
    texts = runs.texts(model, FAST if fast or search.target == "flow" else COUNT)
    place = Place(out, len(budgets) == 1 and psnr is None).checked()
    work = {**search.work(runs, fast), "evaluations": budgets}
    kept = place.kept(model, [asked, texts, arguments, work])
    work |= {"resume": kept, "progress": not as_json}
    plans = hosts.fit_plans(model, asked, texts, arguments, **work)
    first = Processes.current().rank == 0
    saved = place.save(plans) if first else []
    hosts.forget_runs(kept, budgets)
    if first:
        _tell(plans, place, saved, psnr, as_json)


def _budgets(
    evaluations: str | None, speedup: float | None, psnr: float | None, steps: int
) -> list[int]:
    if speedup is not None and (evaluations is not None or psnr is not None):
        raise TACacheError("give one of --evaluations, --speedup and --psnr, or the first and last")
    if speedup is not None:
        if not 1 <= speedup <= steps:
            raise TACacheError(f"--speedup is a number from 1 to {steps}, not {speedup:g}")
        return [math.floor(steps / speedup + 1e-9)]
    if evaluations is None:
        evaluations = "13" if psnr is None else BUDGETS
    wanted = sorted(set(numbers(evaluations)))
    if psnr is None:
        return wanted
    if wanted[0] > steps:
        raise TACacheError(f"{steps} steps are too few for {wanted[0]} evaluations or more")
    return [budget for budget in wanted if budget <= steps]


def _tell(
    plans: Sequence[Plan], place: Place, saved: Sequence[Stored], psnr: float | None, as_json: bool
) -> None:
    """Print what was written, and which plan reaches the wanted PSNR; raise if none does."""
    facts: dict[str, Any] = {"stored": [one.name for one in saved]}
    if place.alone:
        facts["file"] = str(place.out or saved[0].path)
        return _say(plans[0], facts, place.where(saved), as_json)
    frontier, missed = frontier_of(plans, place.names(plans, saved)), None
    try:
        chosen = None if psnr is None else frontier.for_psnr(psnr)
    except PlanError as error:
        chosen, missed = None, error
    if as_json:
        facts |= {"folder": str(place.out or place.store.folder), **frontier.model_dump()}
        print_json(facts if chosen is None else {**facts, "chosen": chosen.plan})
    else:
        show(frontier_view(frontier))
        say(place.where(saved))
    if missed is not None:
        raise missed
    if chosen is not None and not as_json:
        named = chosen.plan if place.out is None else place.out / chosen.plan
        say(f"{psnr:g} dB: {named}, {chosen.evaluations} evaluations")


def _say(plan: Plan, facts: dict[str, Any], where: str, as_json: bool) -> None:
    if as_json:
        return print_json({**facts, **plan.model_dump()})
    show(plan_view(plan))
    say(where)
