"""The fitted plans that ship with an embedded model, each fitted to the run and to the flow.

    python -m benchmarks.plans tiny-flux tiny-wan
    python -m benchmarks.plans tiny-flux --target flow --evaluations 13,17 --device cuda
    python -m benchmarks.plans tiny-flux --steps 28,20

A plan whose file is there is kept: delete it to have it made anew. A fit that was killed goes on
where it stopped. To the flow, plans of other steps than the model's own are those of its own steps
on the other grid: the nodes of a plan for the flow lie at any levels. What such plans do on that
grid, `python -m benchmarks.certificates` measures. Every calibration prompt has a seed of its own,
as in `tacache bench`, so that no plan has seen the noise of the demo or of a benchmark. On a GPU
the models are replayed from CUDA graphs, and several such commands, for other models, targets or
budgets, may run side by side.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tacache import hosts, models
from tacache.diffusers.pipeline import PipelineHost
from tacache.diffusers.trajectory import PipelineTrajectory
from tacache.fitting import forget
from tacache.fitting.fit_options import FitOptions, Target
from tacache.hosts import Call
from tacache.plan import Plan
from tacache.prompts import Sample, read_prompts
from tacache_lab.bench.calibration_sets import FIRST_SEED

COUNT, WORK = 16, Path("build/plans")
# A fit to the flow runs every sample once more, with twice as many steps.
MAX_EVALUATIONS: dict[Target, int] = {"run": 3000, "flow": 6000}


class OwnSeeds(PipelineHost):
    """A pipeline whose calibration prompts have a seed each."""

    def __init__(self, pipe: Any, prompts: Sequence[str]) -> None:
        super().__init__(pipe)
        self.seeds = {prompt: FIRST_SEED + i for i, prompt in enumerate(prompts)}

    def seeded(self, sample: Sample) -> Sample:
        """The prompt with its own seed."""
        return Sample(sample.prompt, self.seeds[sample.text])

    @contextmanager
    def open(
        self, sample: Sample, call: Call, times: Sequence[float] | None = None
    ) -> Iterator[PipelineTrajectory]:
        """The call of the prompt with its own seed."""
        with super().open(self.seeded(sample), call, times) as run:
            yield run

    def draw(self, sample: Sample, call: Call) -> hosts.Pixels:
        """The picture of the prompt with its own seed."""
        return super().draw(self.seeded(sample), call)


def missing(
    shipped: models.Embedded, budgets: Sequence[int], target: Target, steps: int | None = None
) -> list[int]:
    """The budgets below so many steps that the model has no plan for."""
    below = [k for k in budgets if k < (steps or shipped.steps)]
    return [k for k in below if not shipped.plan_file(k, target, steps).is_file()]


def make(
    name: str, target: Target, steps: int, budgets: Sequence[int], options: argparse.Namespace
) -> None:
    """Fit the missing plans of a model to the run or to the flow, and write them."""
    shipped = models.embedded(name)
    left = missing(shipped, budgets, target, steps)
    if not left:
        return print(f"{name} has its plans of {steps} steps for the {target} already")
    if target == "flow" and steps != shipped.steps:
        return move(name, steps, left, options.device)
    prompts = read_prompts(shipped.prompts("calibration"))[: options.count]
    resume = WORK / f"{name}-{steps}-{target}-{'-'.join(map(str, left))}.runs"
    resume.parent.mkdir(parents=True, exist_ok=True)
    pipe = models.load(name).to(options.device)
    with models.steady_threads(pipe):
        plans = hosts.fit_plans(
            OwnSeeds(pipe, prompts),
            prompts,
            call={**models.default_call(name), "num_inference_steps": steps},
            options=FitOptions(
                evaluations=tuple(left),
                target=target,
                max_evaluations=options.max_evaluations or MAX_EVALUATIONS[target],
                search=not options.fast,
                resume=resume,
                progress=True,
            ),
        )
    for plan in plans:
        tell(name, target, plan, plan.save(shipped.plan_file(plan.evaluations, target, steps)))
    forget(resume, left)


def move(name: str, steps: int, budgets: Sequence[int], device: str) -> None:
    """Write the plans for the flow of the model's own steps for runs of other steps."""
    shipped = models.embedded(name)
    pipe = models.load(name).to(device)
    call = {**models.default_call(name), "num_inference_steps": steps}
    with PipelineHost(pipe).open(Sample("", 0), call) as run:
        for budget in budgets:
            plan = on_grid(shipped.plan(budget, "flow"), run.times, call)
            print(f"{name}: {plan.save(shipped.plan_file(budget, 'flow', steps))}", flush=True)


def on_grid(plan: Plan, times: tuple[float, ...], call: Call) -> Plan:
    """The plan with its anchors as nodes at free times, for a run over other times.

    Its certificate says nothing of that run.
    """
    nodes = (*(plan.times[n] for n in plan.anchors), plan.times[-1])
    known = {"psnr": None, "p5_psnr": None, "worst_psnr": None, "worst_drift": None}
    assert plan.certificate is not None
    moved = {
        "times": nodes,
        "anchors": tuple(range(len(plan.anchors))),
        "grid": times,
        "origin": plan.origin.model_copy(update={"call": {**(plan.origin.call or {}), **call}}),
        "certificate": plan.certificate.model_copy(update=known),
    }
    return Plan.model_validate(plan.model_copy(update=moved).model_dump())


def tell(name: str, target: str, plan: Plan, file: Path) -> None:
    """Print what a plan reached on the prompts that were held out."""
    certificate = plan.certificate
    assert certificate is not None
    nearness = certificate.nearness(plan.evaluations)
    print(
        f"{name}, to the {target}, {plan.evaluations} evaluations of {plan.full_steps} steps: "
        f"{certificate.psnr:.2f} dB to the full run on {certificate.held_out} held-out prompts"
        f"{'; ' + nearness if nearness else ''} ({file})",
        flush=True,
    )


def numbers(text: str) -> list[int]:
    """The whole numbers of a list with commas."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Make the plans of the models that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", choices=list(models.shipped()))
    parser.add_argument("--target", choices=list(MAX_EVALUATIONS), help="default: both")
    parser.add_argument("--steps", type=numbers, help="of the full runs, default: the model's own")
    parser.add_argument("--evaluations", type=numbers, help="default: all budgets below the steps")
    parser.add_argument("--count", type=int, default=COUNT, help="calibration prompts")
    parser.add_argument(
        "--max-evaluations", type=int, help=f"of one budget, default: {MAX_EVALUATIONS}"
    )
    parser.add_argument("--fast", action="store_true", help="without a search of anchors")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # plans are for float32
    if options.device.startswith("cuda"):
        from benchmarks.graphed import replay_models

        replay_models()
    for name in options.models:
        shipped = models.embedded(name)
        for steps in options.steps or [shipped.steps]:
            for target in [options.target] if options.target else shipped.targets:
                make(name, target, steps, options.evaluations or shipped.budgets, options)


if __name__ == "__main__":
    main()
