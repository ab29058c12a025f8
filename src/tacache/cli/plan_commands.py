"""`tacache plan` (and its `push` and `pull`) and `tacache show`: no model is run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from tacache.cli.options import Json
from tacache.cli.printing import print_json, say
from tacache.cli.printing import show as show_view
from tacache.cli.render import plan_view, profile_view
from tacache.cli.stored_commands import is_file, named_plan
from tacache.errors import TACacheError
from tacache.plan import Plan, make_plan
from tacache.plots import plot_profile
from tacache.profile import Profile
from tacache.ssc import MAX_SKIP
from tacache.storage import hub
from tacache.storage.atomic import write_atomically
from tacache.storage.files import load_either
from tacache.storage.store import PlanStore
from tacache.tasu import PROFILE_RULES


@dataclass(frozen=True)
class PaperOptions:
    """What the paper calls the settings of a plan."""

    PANEL: ClassVar = "The paper's settings"
    tau_k: Annotated[
        float | None, typer.Option(help="Magnitude threshold, such as 0.04, with --tau-d.")
    ] = None
    tau_d: Annotated[
        float | None, typer.Option(help="Direction threshold, such as 0.4, with --tau-k.")
    ] = None
    ratio: Annotated[float | None, typer.Option(help="Keep tau_d = RATIO * tau_k.")] = None
    max_skip: Annotated[int, typer.Option(help="Longest interval, the paper's H_max.")] = MAX_SKIP
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILE_RULES)}.")] = "tasu"


def plan(
    profile: Annotated[Path, typer.Argument(help="A profile file.", show_default=False)],
    *,
    evaluations: Annotated[
        int | None, typer.Option(help="The budget: evaluations in one run, such as 13.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="The same as steps / evaluations, such as 4.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The plan file (default: beside the profile)."),
    ] = None,
    paper: PaperOptions,
    as_json: Json = False,
) -> None:
    """Turn a profile into a plan: by a budget, a speedup or the paper's thresholds.

    [bold]Examples[/bold]

    tacache plan flux.profile.json --evaluations 13

    tacache plan flux.profile.json --speedup 4 -o flux-4x.plan.json

    tacache plan flux.profile.json --tau-k 0.04 --tau-d 0.4
    """
    target = Plan.check_target(out or profile.with_name(_stem(profile) + hub.SUFFIX))
    new_plan = make_plan(
        Profile.load(profile),
        evaluations=evaluations,
        speedup=speedup,
        tau_k=paper.tau_k,
        tau_d=paper.tau_d,
        ratio=paper.ratio,
        max_skip=paper.max_skip,
        rule=paper.rule,  # type: ignore[arg-type]  # make_plan names the rules there are
    )
    new_plan.save(target)
    _print_written(new_plan, target, as_json)


def push(
    plan: Annotated[
        str, typer.Argument(help="A plan file, or a plan's name in the store.", show_default=False)
    ],
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the hub.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="What to call it there (default: the file's name).")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="If it is a new repository, let only you see it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a plan on the hub, with a card that says what its certificate says.

    [bold]Examples[/bold]

    tacache plan push flux.plan.json me/flux-plans

    tacache plan push flux.plan.json me/flux-plans --name flux-13 --private
    """
    pushed = named_plan(plan)
    file = (name or _stem(Path(plan))).removesuffix(hub.SUFFIX) + hub.SUFFIX
    address, carded = hub.push(pushed, repo, file, private=private)
    if as_json:
        return print_json({"file": file, "commit": address, "card": carded})
    if not carded:
        say(f"{repo} has a card that tacache did not write: it was left as it is")
    say(f"{file} is in {address}")


def pull(
    repo: Annotated[str, typer.Argument(help="OWNER/NAME on the hub.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the plan to this file.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which plan, if there are several.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="The same, by its budget.")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file or a stored plan that is there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Get a plan from the hub into your plan store.

    It is used unasked only for calls with the weights and settings that it was made for.

    [bold]Examples[/bold]

    tacache plan pull me/flux-plans --evaluations 13

    tacache plan pull me/flux-plans --evaluations 13 -o flux.plan.json
    """
    _, pulled = hub.pull(repo, name, evaluations=evaluations, revision=revision)
    text, store = pulled.to_json(), PlanStore()
    if out is not None and out.exists() and not force and out.read_bytes() != text.encode():
        raise TACacheError(f"{out} is there and is another plan: give another -o, or --force")
    there = store.like(pulled)
    if there is not None and there.plan != pulled and not force:
        raise TACacheError(
            f"the plan store has another plan for the same purpose, {there.name}: give --force to "
            "replace it"
        )
    if out is not None:
        write_atomically(out, text)
    kept = store.put(pulled)
    if as_json:
        return print_json(
            {"file": str(out or kept.path), "stored": kept.name, **_plan_facts(pulled)}
        )
    show_view(plan_view(pulled))
    say((f"Written to {out}; in" if out else "In") + f" the plan store as {kept.name}")


def show(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            help="A profile or plan file, or a plan's name in tacache plans.",
            show_default=False,
        ),
    ],
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw a profile's MI and DI to this .svg, .png or .pdf."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a profile or a plan: indicators, anchors and skips, predicted speedup.

    [bold]Examples[/bold]

    tacache show flux.plan.json

    tacache show tiny-flux-13

    tacache show flux.profile.json --plot flux.svg
    """
    shown = load_either(Path(source), Profile, Plan) if is_file(source) else named_plan(source)
    if plot is not None:
        if isinstance(shown, Plan):
            raise TACacheError(f"--plot draws a profile, and {source} is a plan: give its profile")
        plot_profile(shown, plot)
    if as_json:
        print_json(_plan_facts(shown) if isinstance(shown, Plan) else shown.model_dump())
    elif isinstance(shown, Plan):
        show_view(plan_view(shown))
    else:
        show_view(profile_view(shown))


def _stem(file: Path) -> str:
    """Return the name of a profile or plan file without its suffixes."""
    return file.name.removesuffix(".json").removesuffix(".profile").removesuffix(".plan")


def _print_written(plan: Plan, target: Path, as_json: bool) -> None:
    """Print a plan that was written to a file, and where."""
    if as_json:
        return print_json({"file": str(target), **_plan_facts(plan)})
    show_view(plan_view(plan))
    say(f"Written to {target}")


def _plan_facts(plan: Plan) -> dict[str, Any]:
    derived = {
        "steps": plan.steps,
        "evaluations": plan.evaluations,
        "speedup": plan.speedup,
        "intervals": plan.intervals,
    }
    return {**derived, **plan.model_dump()}
