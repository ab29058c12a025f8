"""Models by their names: what loads one as a host, and what commands do with it then.

What differs between kinds of model is in `model_kinds`; what follows from a loaded host is the
same for all.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tacache.cli.arguments import parsed
from tacache.cli.model_kinds import KINDS, ModelKind, PipelineKind
from tacache.cli.options import DEFAULT_STEPS, CallOptions, FullCallOptions
from tacache.fitting import forget
from tacache.hosts import Host, Request, file_stem, generate, kept_by, warm_up
from tacache.hosts import fit_plans as fit_host
from tacache.models import shipped, steady_threads
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.work.processes import Processes

PIPELINES = PipelineKind()
MakeOne = Callable[[int, str, int], Any]


def kind_of(model: str) -> ModelKind:
    """Return what the commands know of a model's kind."""
    return KINDS.get(model, PIPELINES)


def load(model: str, loading: dict[str, Any], *, bars: bool = False) -> Host:
    """Return the model's host, loaded as --load says, with progress bars of its own or without."""
    return kind_of(model).load(model, loading, bars)


def prompts_of(model: str, source: str) -> str | Path:
    """Return where to read prompts from; only pipelines and models that ship have own sets."""
    return kind_of(model).prompts_of(model, source)


def call_arguments(model: str, call: CallOptions, plan: Plan | None = None) -> dict[str, Any]:
    """Return the model's arguments: its defaults, then the plan's, our options, and --call."""
    options = ("steps", "height", "width", "frames", "guidance")
    values = {name: getattr(call, name) for name in options}
    kind = kind_of(model)
    arguments = kind.call_arguments(model, plan, **values)
    if isinstance(call, FullCallOptions):
        arguments.setdefault(kind.steps_argument, DEFAULT_STEPS)
    arguments |= parsed(call.more)
    if kind.steps_argument in arguments:
        steps_of(model, arguments)  # refuses what no run has, before a model is loaded
    return arguments


def known_steps(model: str, call: dict[str, Any]) -> int | None:
    """Return the number of steps of a full run, or None where the model's own default decides."""
    return steps_of(model, call) if kind_of(model).steps_argument in call else None


def steps_of(model: str, call: dict[str, Any]) -> int:
    """Return the number of steps of a full run."""
    return kind_of(model).steps_of(call)


def threads(model: str, host: Host) -> AbstractContextManager[None]:
    """Fix the number of threads for the small models that ship, and for no other."""
    return steady_threads(host.pipe) if model in shipped() else nullcontext()


def fit_plans(
    model: str,
    loading: dict[str, Any],
    texts: Sequence[str],
    call: dict[str, Any],
    **work: Any,
) -> list[Plan]:
    """Load the model and fit a plan for each budget."""
    host = load(model, loading)
    with threads(model, host):
        return fit_host(host, texts, call=call, **work)


def forget_runs(kept: Path, budgets: Sequence[int]) -> None:
    """Remove what this process kept to go on from, once the plans are saved."""
    forget(kept_by(kept, Processes.current()), budgets)


def may_carry_plan(model: str) -> bool:
    """Return whether a model of this name may have been saved with a plan."""
    return model not in (*KINDS, *shipped())


def carries_plan(host: Host) -> bool:
    """Return whether a loaded pipeline was saved with a plan, which it then follows."""
    return getattr(getattr(host.pipe, "scheduler", None), "plan", None) is not None


def accelerate(model: str, host: Host, options: dict[str, Any]) -> None:
    """Make the calls of a loaded host faster, as `tacache.diffusers.accelerate` does."""
    kind_of(model).accelerate(host.pipe, options)


def generator(host: Host, request: Request, out: Path, *, warming: str | None = None) -> MakeOne:
    """Return a function that makes the output of a prompt's number, text and seed.

    `warming` is a prompt to warm up with, where times are compared.
    """
    if warming is not None:
        with host.full():
            warm_up(host, warming, request.call)

    def make_one(i: int, text: str, seed: int) -> Any:
        return generate(host, Sample(text, seed), request, out / file_stem(i, text, seed))

    return make_one
