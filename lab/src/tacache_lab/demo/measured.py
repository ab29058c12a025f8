"""What the benchmarks measured of the demo's plans, over more prompts than a demo draws.

`measured.json` follows from the committed records: `python -m benchmarks.demo_means` makes it.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from tacache.plan import Plan
from tacache.storage.files import Frozen


class Measured(Frozen):
    """Mean and 5th percentile of PSNR to full steps, over so many prompts that no plan has seen."""

    rule: str
    evaluations: int
    prompts: int
    psnr: float
    p5: float | None = None


class MeasuredRun(Frozen):
    """What is known of a model at a number of steps."""

    model: str
    steps: int
    plans: tuple[Measured, ...]


class MeasuredModels(Frozen):
    """What is known of all models; equivalent Euler steps are of plans fitted to the flow."""

    runs: tuple[MeasuredRun, ...]
    equivalent_steps: dict[str, dict[int, float]]


@cache
def known() -> MeasuredModels:
    """Return what ships with this package."""
    text = files("tacache_lab.demo").joinpath("measured.json").read_text(encoding="utf-8")
    return MeasuredModels.model_validate_json(text)


def measured_for(model: str, steps: int, plans: Sequence[Plan]) -> tuple[Measured, ...]:
    """Return what is known of a model's plans at so many steps.

    A fitted plan that no benchmark has measured has the figures of its own certificate.
    """
    runs = [run for run in known().runs if (run.model, run.steps) == (model, steps)]
    figures = [plan for run in runs for plan in run.plans]
    there = {(row.rule, row.evaluations) for row in figures}
    certified = [plan for plan in plans if (plan.rule, plan.evaluations) not in there]
    return (*figures, *(row for plan in certified for row in _certified(plan)))


def equivalent_steps(model: str) -> dict[int, float]:
    """Return how many Euler steps the plans for the flow equal, by their evaluations."""
    return known().equivalent_steps.get(model, {})


def _certified(plan: Plan) -> list[Measured]:
    certificate = plan.certificate
    if certificate is None or certificate.psnr is None:
        return []
    return [
        Measured(
            rule=plan.rule,
            evaluations=plan.evaluations,
            prompts=certificate.held_out,
            psnr=certificate.psnr,
            p5=certificate.p5_psnr,
        )
    ]
