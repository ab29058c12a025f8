"""`tacache fit`: plans fitted to a model, for one budget or several."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import typer

from tacache.cli import named_models
from tacache.cli.arguments import numbers, seeds_of
from tacache.cli.options import (
    SAMPLES,
    FullCallOptions,
    Json,
    LoadOptions,
    Model,
    Prompts,
    QualityOptions,
    Seeds,
)
from tacache.cli.printing import print_json, say, show, tell
from tacache.cli.render import frontier_view, plan_view
from tacache.cli.saving import PlanTarget, frontier_of
from tacache.errors import TACacheError
from tacache.fitting import chosen_plan
from tacache.fitting.fit_options import MAX_EVALUATIONS, MAX_QUICK_EVALUATIONS, FitOptions, Target
from tacache.fitting.quality_goal import QualityGoal, check_one_budget
from tacache.grid import budget_for
from tacache.instant import default_evaluations
from tacache.models import shipped
from tacache.plan import MAX_HISTORY, Plan
from tacache.prompts import read_prompts
from tacache.storage.store import Stored

DEFAULT_PROMPTS, QUICK_PROMPTS = 16, 8
MIN_EACH = 250  # evaluations that a fit may spend for each of its samples, or five of its runs
FLOW = 1.5  # times as many where the flow is the target
GENERAL = (
    "The prompts are a general set that ships with tacache: with --prompts FILE, some of your own "
    "make a better plan for what you draw."
)


@dataclass(frozen=True)
class FullRunOptions:
    """The full runs that plans are fitted to."""

    PANEL: ClassVar = SAMPLES
    prompts: Prompts = "calibration"
    count: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"Use only the first COUNT prompts (default: {DEFAULT_PROMPTS}; "
            f"{QUICK_PROMPTS} with --fast, --target flow or --like-steps).",
        ),
    ] = None
    seeds: Seeds = "0"

    def texts(self, model: str, usual: int) -> list[str]:
        """Return so many prompts as are asked for or usual; a general set is told as such."""
        if self.prompts == "calibration" and model not in shipped():
            tell(GENERAL)
        return read_prompts(named_models.prompts_of(model, self.prompts))[: self.count or usual]


@dataclass(frozen=True)
class SearchOptions:
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
            max=MAX_HISTORY,
            help="What a plan rebuilds steps from: 1 the newest velocity, 2 the last two, 3 a "
            "memory of all.",
        ),
    ] = MAX_HISTORY
    most: Annotated[
        int | None,
        typer.Option(
            "--max-evaluations",
            help=f"Evaluations that one budget may spend (default: {MIN_EACH} for each sample, at "
            f"most {MAX_EVALUATIONS:,}; {MAX_QUICK_EVALUATIONS:,} with --fast).",
        ),
    ] = None

    def options(
        self,
        budgets: Sequence[int],
        fast: bool,
        samples: int,
        steps: int,
        quality: QualityOptions = QualityOptions(),  # noqa: B008
    ) -> FitOptions:
        """Return what a fit is asked for; few samples mean a short fit."""
        if self.target not in get_args(Target):
            raise TACacheError(f"--target is {' or '.join(get_args(Target))}, not {self.target!r}")
        aims_at_flow = self.aims_at_flow(quality)
        if self.reference_steps is not None and not aims_at_flow:
            raise TACacheError("--reference-steps goes with --target flow or --like-steps")
        each = max(MIN_EACH, 5 * steps) * (FLOW if aims_at_flow else 1)
        return FitOptions(
            evaluations=tuple(budgets),
            **quality.options(),
            target=self.target,  # type: ignore[arg-type]  # checked above
            reference_steps=self.reference_steps,
            history=self.history,
            max_evaluations=self.most or min(MAX_EVALUATIONS, round(each * samples)),
            search=not fast,
        )

    def aims_at_flow(self, quality: QualityOptions) -> bool:
        """Return whether plans are fitted to the flow, which takes more runs of each sample."""
        return self.target == "flow" or quality.like_steps is not None


FitBudgets = Annotated[
    str | None,
    typer.Option(
        help="Budgets, such as 13 or 7,10,13 (default: the usual number for the steps: 13 of "
        "28 or 50)."
    ),
]
FitSpeedup = Annotated[
    float | None, typer.Option(help="One budget, as steps / evaluations, such as 4.")
]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="Fewer prompts, and no search for better anchors."),
]
FitOut = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Also write the plan to this file, or several to this folder."
    ),
]


def fit(
    model: Model,
    *,
    evaluations: FitBudgets = None,
    speedup: FitSpeedup = None,
    fast: Fast = False,
    out: FitOut = None,
    quality: QualityOptions,
    runs: FullRunOptions,
    search: SearchOptions,
    call: FullCallOptions,
    load: LoadOptions,
    as_json: Json = False,
) -> None:
    """Fit plans to a model: anchors and weights from a few full runs, judged on held-out prompts.

    Plans go into your plan store (tacache plans), where generate and accelerate find them.
    Full runs are made once for all budgets. A fit that was killed goes on where it stopped.
    Under torchrun or accelerate launch the processes share the prompts.

    With --like-steps or --min-psnr several budgets are tried. All of their plans are stored; the
    one with the fewest evaluations that reaches the quality is shown, and written to --out.

    [bold]Examples[/bold]

    tacache fit tiny-flux

    tacache fit tiny-flux --fast -o tiny.plan.json

    tacache fit black-forest-labs/FLUX.1-dev --evaluations 5,7,10,13,17,25 -o flux

    tacache fit tiny-flux --evaluations 17 --target flow -o tiny.plan.json

    tacache fit tiny-flux --min-psnr 35

    tacache fit tiny-flux --like-steps 50 -o tiny.plan.json
    """
    from tacache.work.processes import Processes

    loading, arguments = load.checked(model), named_models.call_arguments(model, call)
    steps, seeds = named_models.steps_of(model, arguments), seeds_of(runs.seeds)
    asked = {"evaluations": evaluations, "speedup": speedup, **quality.options()}
    del asked["psnr_of"]
    check_one_budget(asked)
    goal = QualityGoal.of(**quality.options())
    budgets = _budgets(evaluations, speedup, steps) if goal is None else []
    is_short = fast or search.aims_at_flow(quality)
    texts = runs.texts(model, QUICK_PROMPTS if is_short else DEFAULT_PROMPTS)
    place = PlanTarget(out, goal is not None or len(budgets) == 1).checked()
    options = search.options(budgets, fast, len(texts) * len(seeds), steps, quality)
    kept = place.kept(model, [loading, texts, arguments, seeds, asdict(options)])
    options = replace(options, resume=kept, progress=not as_json)
    plans = named_models.fit_plans(model, loading, texts, arguments, options=options, seeds=seeds)
    best = None if goal is None else goal.fewest(plans, lambda plan: plan)
    saved = _saved(place, plans, best, goal) if Processes.current().rank == 0 else None
    named_models.forget_runs(kept, [plan.evaluations for plan in plans])
    if goal is not None:
        best = chosen_plan(plans, options)  # or an error that says how near the best one is
    if saved is not None:
        _tell(plans if best is None else [best], place, saved, as_json)


def _saved(
    place: PlanTarget, plans: Sequence[Plan], best: Plan | None, goal: QualityGoal | None
) -> list[Stored]:
    """Return what was saved; for a quality all tries are stored, the best one first.

    Where none reaches it, no file is written.
    """
    if goal is None:
        return place.save(plans)
    if best is None:
        return replace(place, out=None).save(plans)
    return place.save([best, *(plan for plan in plans if plan is not best)])


def _budgets(evaluations: str | None, speedup: float | None, steps: int) -> list[int]:
    if speedup is not None:
        if not 1 <= speedup <= steps:
            raise TACacheError(f"--speedup is a number from 1 to {steps}, not {speedup:g}")
        return [budget_for(steps, speedup)]
    if evaluations is None:
        return [default_evaluations(steps)]
    return sorted(set(numbers(evaluations)))


def _tell(plans: Sequence[Plan], place: PlanTarget, saved: Sequence[Stored], as_json: bool) -> None:
    """Print what was written: a plan, or what each budget reaches."""
    facts: dict[str, Any] = {"stored": [stored.name for stored in saved]}
    if place.alone:
        facts["file"] = str(place.out or saved[0].path)
        return _say(plans[0], facts, place.where(saved), as_json)
    frontier = frontier_of(plans, place.names(plans, saved))
    if as_json:
        facts |= {"folder": str(place.out or place.store.folder), **frontier.model_dump()}
        return print_json(facts)
    show(frontier_view(frontier))
    say(place.where(saved))


def _say(plan: Plan, facts: dict[str, Any], where: str, as_json: bool) -> None:
    if as_json:
        return print_json({**facts, **plan.model_dump()})
    show(plan_view(plan))
    say(where)
