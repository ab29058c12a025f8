"""`tacache fit`: plans fitted to a model, for one budget or several."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tacache.cli import bagel
from tacache.cli.arguments import (
    argument_names,
    call_arguments,
    numbers,
    parsed,
    seeds_of,
    threads,
)
from tacache.cli.options import (
    PROMPTS_HELP,
    Compiled,
    Device,
    Dtype,
    Frames,
    Guidance,
    Height,
    Json,
    Model,
    More,
    Offload,
    Width,
    check_folder,
    print_json,
)
from tacache.cli.render import frontier_view, plan_view
from tacache.errors import PlanError, TACacheError
from tacache.fitting import forget
from tacache.models import own_prompts
from tacache.plan import LONGEST, Plan
from tacache.prompts import read_prompts
from tacache.storage.frontier import Frontier, point_of

BUDGETS = "5,7,10,13,17,25"
COUNT, FAST = 16, 8


def fit(
    model: Model,
    evaluations: Annotated[
        str | None, typer.Option(help="Budgets, such as 13 or 7,10,13 (default: 13).")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option(help="One budget, as steps / evaluations.")
    ] = None,
    psnr: Annotated[
        float | None,
        typer.Option(help=f"Fit {BUDGETS} and take the fastest that reaches this, in dB."),
    ] = None,
    prompts: Annotated[str, typer.Option(help=PROMPTS_HELP)] = "calibration",
    count: Annotated[
        int | None, typer.Option(min=2, help=f"Use the first COUNT prompts (default: {COUNT}).")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds; every prompt runs with each.")] = "0",
    steps: Annotated[int, typer.Option(min=2, help="Steps of the full run.")] = 50,
    history: Annotated[
        int,
        typer.Option(
            min=1,
            max=LONGEST,
            help="An interval may use 1, the newest velocity; 2, the last two; 3, a memory of all.",
        ),
    ] = LONGEST,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help=f"{FAST} prompts unless COUNT is given, and at most 1,500 evaluations.",
        ),
    ] = False,
    most: Annotated[
        int, typer.Option("--max-evaluations", help="Evaluations a budget may spend in all.")
    ] = 3000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The plan file, or a folder for several.")
    ] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="Values that the prompts take in turn, such as guidance=2,3,4."),
    ] = None,
    more: More = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = None,
    compiled: Compiled = False,
    bagel_path: bagel.BagelPath = None,
    weights: bagel.Weights = None,
    as_json: Json = False,
) -> None:
    """Fit plans to a model: weights and anchors from a few full runs, judged on held-out prompts.

    Full runs are made once for all budgets. Killed, it goes on where it stopped. Under
    torchrun or accelerate launch the prompts are shared out between the processes. With
    --vary one plan serves a range of guidance.

    [bold]Examples[/bold]

    tacache fit tiny-flux --fast -o tiny.plan.json

    tacache fit black-forest-labs/FLUX.1-dev --evaluations 5,7,10,13,17,25 -o flux

    tacache fit black-forest-labs/FLUX.1-dev --psnr 35 --guidance 3.5 -o flux

    tacache fit tiny-flux --vary guidance=2,3,4 -o tiny.plan.json

    tacache fit bagel --bagel-path Bagel --weights BAGEL-7B-MoT --evaluations 13 -o bagel.plan.json
    """
    is_bagel = bagel.is_asked(model, bagel_path, weights)
    budgets = _budgets(evaluations, speedup, psnr, steps - is_bagel)
    source = prompts if is_bagel else own_prompts(model, prompts)
    texts = read_prompts(source)[: count or (FAST if fast else COUNT)]
    target = out or Path(Path(model).name + (".plan.json" if len(budgets) == 1 else "-plans"))
    alone = len(budgets) == 1 and psnr is None
    if alone:
        Plan.check_target(target)
    else:
        check_folder(target)
    kept = target.with_name(f"{target.name}.runs")
    given: dict[str, Any] = {"steps": steps, "height": height, "width": width, "frames": frames}
    work: dict[str, Any] = {
        "evaluations": budgets,
        "seeds": seeds_of(seeds),
        "history": history,
        "max_evaluations": most,
        "search": not fast,
        "resume": kept,
        "progress": not as_json,
    }
    mix = _mix(model, vary, parsed(more), guidance)
    if is_bagel:
        import tacache.bagel as host

        if mix:
            raise TACacheError("BAGEL is fitted at one setting: leave --vary out")
        call = bagel.call_arguments(parsed(more), guidance=guidance, **given)
        asked = bagel.Asked(bagel_path, weights, dtype, device, offload, compiled)
        plans = host.fit_plans(bagel.load(asked), texts, **work, **call)
        _save(plans, target, alone)
        forget(kept, budgets)
        return _tell(plans, target, psnr, as_json)
    from tacache.diffusers.fitting import fit_plans, share_of
    from tacache.diffusers.loading import Loading, load_pipeline
    from tacache.work.processes import Processes

    call = call_arguments(model, more, guidance=guidance, **given)
    call = {name: value for name, value in call.items() if name not in mix}  # the model's default
    pipe = load_pipeline(model, Loading(dtype, device, offload, compiled))
    pipe.set_progress_bar_config(disable=True)
    with threads(model, pipe):
        plans = fit_plans(pipe, texts, vary=mix, **work, **call)
    first = Processes.current().rank == 0
    if first:
        _save(plans, target, alone)
    forget(share_of(kept, Processes.current()), budgets)
    if first:
        _tell(plans, target, psnr, as_json)


def _budgets(
    evaluations: str | None, speedup: float | None, psnr: float | None, steps: int
) -> list[int]:
    if sum(value is not None for value in (evaluations, speedup, psnr)) > 1 and not (
        evaluations and psnr is not None
    ):
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


def _mix(
    model: str, vary: list[str] | None, given: dict[str, Any], guidance: float | None
) -> dict[str, list[Any]]:
    """The arguments of --vary with their values, none of which is also given once."""
    names, mix = argument_names(model), dict[str, list[Any]]()
    once = given.keys() | ({names["guidance"]} if guidance is not None else set())
    for pair in vary or []:
        word, found, text = pair.partition("=")
        if not found or not word or not all(text.split(",")):
            raise TACacheError(f"--vary takes NAME=V1,V2,V3, not {pair!r}")
        name = names.get(word, word)
        if name in once:
            raise TACacheError(f"{name} is given and varied: leave one of them out")
        mix[name] = list(parsed([f"{i}={one}" for i, one in enumerate(text.split(","))]).values())
    return mix


def _save(plans: Sequence[Plan], target: Path, alone: bool) -> None:
    """One plan is a file; several are a folder with their frontier."""
    if alone:
        plans[0].save(target)
        return
    for plan in plans:
        plan.save(target / _name_of(plan))
    _frontier(plans).save(target / "frontier.json")


def _tell(plans: Sequence[Plan], target: Path, psnr: float | None, as_json: bool) -> None:
    """What was written, and which of it reaches a wanted fidelity; none is an error after that."""
    if target.is_file():
        return _say(plans[0], target, as_json)
    frontier, missed = _frontier(plans), None
    try:
        chosen = None if psnr is None else frontier.for_psnr(psnr)
    except PlanError as error:
        chosen, missed = None, error
    if as_json:
        facts: dict[str, Any] = {"folder": str(target), **frontier.model_dump()}
        print_json(facts if chosen is None else {**facts, "chosen": chosen.plan})
    else:
        Console().print(frontier_view(frontier))
        print(f"Written to {target}/")
    if missed is not None:
        raise missed
    if chosen is not None and not as_json:
        print(f"{psnr:g} dB: {target / chosen.plan}, {chosen.evaluations} evaluations")


def _frontier(plans: Sequence[Plan]) -> Frontier:
    return Frontier(points=tuple(point_of(plan, _name_of(plan)) for plan in plans))


def _name_of(plan: Plan) -> str:
    return f"{plan.evaluations}.plan.json"


def _say(plan: Plan, target: Path, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(target), **plan.model_dump()})
    else:
        Console().print(plan_view(plan))
        print(f"Written to {target}")
