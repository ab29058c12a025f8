"""The command line: parse, call the library, print."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import tacache
from tacache.demo import Demo, run_demo
from tacache.errors import TACacheError
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.render import plan_view, profile_view
from tacache.rules import PROFILE_RULES


class Commands(TyperGroup):
    """Ends on a user's error with one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (TACacheError, OSError) as error:
            print(f"tacache: {error}", file=sys.stderr)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Rectified-flow image and video generators several times faster, without training.

    [bold]Examples[/bold]

    tacache demo

    tacache plan flux.profile.json --evaluations 13 -o flux.plan.json

    tacache show flux.plan.json
    """,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs to read.")]


def _version(show: bool) -> None:
    if show:
        print(f"tacache {tacache.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before a command; the application's help is on the application."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where files go.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=10, help="Steps of the full run.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    as_json: Json = False,
) -> None:
    """Calibrate, plan and compare on an analytic flow: no model, no download, seconds.

    [bold]Example[/bold]: tacache demo --out demo
    """
    budgets = [steps * share // 50 for share in (25, 17, 13, 10, 7)]
    result = run_demo(out, steps=steps, budgets=budgets, seed=seed, progress=not as_json)
    if as_json:
        _print_json(result.model_dump())
        return
    console = Console()
    console.print(_demo_table(result))
    middle = Plan.load(result.plans[len(result.plans) // 2])
    console.print(plan_view(middle))
    console.print(f"Files are in {out}/; next: tacache show {result.profile}", highlight=False)


@app.command()
def plan(
    profile: Annotated[Path, typer.Argument(help="A profile file.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The plan file [default: beside the profile]."),
    ] = None,
    evaluations: Annotated[int | None, typer.Option(help="The budget: evaluations a run.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The same as steps / evaluations.")] = None,
    tau_k: Annotated[float | None, typer.Option(help="Magnitude threshold, with --tau-d.")] = None,
    tau_d: Annotated[float | None, typer.Option(help="Direction threshold, with --tau-k.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Keep tau_d = RATIO * tau_k.")] = None,
    max_skip: Annotated[int, typer.Option(help="Longest interval, the paper's H_max.")] = 12,
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILE_RULES)}.")] = "tasu",
    as_json: Json = False,
) -> None:
    """Turn a profile into a plan: by a budget, a speedup or the paper's thresholds.

    [bold]Examples[/bold]

    tacache plan flux.profile.json --evaluations 13

    tacache plan flux.profile.json --speedup 4 -o flux-4x.plan.json

    tacache plan flux.profile.json --tau-k 0.04 --tau-d 0.4
    """
    made = make_plan(
        Profile.load(profile),
        evaluations=evaluations,
        speedup=speedup,
        tau_k=tau_k,
        tau_d=tau_d,
        ratio=ratio,
        max_skip=max_skip,
        rule=rule,  # type: ignore[arg-type]  # make_plan names the rules there are
    )
    target = made.save(out or _plan_path(profile))
    if as_json:
        _print_json({"file": str(target), **_plan_facts(made)})
    else:
        Console().print(plan_view(made))
        print(f"Written to {target}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A profile or plan file.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show a profile or a plan: indicators, anchors and skips, predicted speedup.

    [bold]Example[/bold]: tacache show flux.plan.json
    """
    shown = _load_any(file)
    if as_json:
        _print_json(_plan_facts(shown) if isinstance(shown, Plan) else shown.model_dump())
    elif isinstance(shown, Plan):
        Console().print(plan_view(shown))
    else:
        Console().print(profile_view(shown))


def main() -> None:
    """The entry point of the command `tacache`."""
    app()


def _load_any(path: Path) -> Profile | Plan:
    """A profile or a plan, by the format its file names."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TACacheError(f"{path} is not JSON ({error}): give a profile or a plan") from error
    formats: dict[Any, type[Profile] | type[Plan]] = {
        Profile.FORMAT: Profile,
        Plan.FORMAT: Plan,
    }
    found = content.get("format") if isinstance(content, dict) else None
    if found not in formats:
        raise TACacheError(f"{path} is neither a profile nor a plan: its format is {found!r}")
    return formats[found].from_json(text, name=str(path))


def _plan_path(profile: Path) -> Path:
    return profile.with_name(
        profile.name.removesuffix(".json").removesuffix(".profile") + ".plan.json"
    )


def _plan_facts(made: Plan) -> dict[str, Any]:
    derived = {
        "steps": made.steps,
        "evaluations": made.evaluations,
        "speedup": made.speedup,
        "intervals": made.intervals,
    }
    return {**derived, **made.model_dump()}


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


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
