"""What a quality that is asked for becomes on prompts that no fit has seen.

    python -m benchmarks.asked tiny-flux tiny-wan -o asked.jsonl
    python -m benchmarks.asked --table -o asked.jsonl

Two questions: as near to the flow as the Euler steps of the full run (`like_steps=50`), and a mean
PSNR to the full run (`min_psnr=35`). Each is answered by a fit on a few calibration prompts, by the
committed table of instant plans, and by the certificates of the plans that ship. What an answer
draws of the test prompts is compared with the full run and with the flow. Where there is no plan,
the run is made in full.

Calibration prompts have a seed each, as in `tacache bench`, so that no fit has seen the noise of
the test prompts. The flow is the benchmark's own: a run of second order with 300 steps. PSNR is of
a whole picture or clip, as in certificates. A record that is there is not made again. On a GPU the
models are replayed from CUDA graphs.
"""

import argparse
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from benchmarks.certificates import Row, read, shipped_plans
from benchmarks.plans import OwnSeeds
from torch import Tensor

from tacache import hosts, models
from tacache.diffusers.pipeline import PipelineHost
from tacache.errors import PlanError
from tacache.fidelity import capped, psnr
from tacache.fitting import chosen_plan
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.quality_goal import QualityGoal
from tacache.hosts.quality_choice import instant_for
from tacache.plan import Plan
from tacache.prompts import Sample, fingerprint, read_prompts
from tacache.storage.signature import RunSignature
from tacache_lab.bench.flow_runs import FLOW_STEPS, flow_end, flow_times
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.machines import this_machine
from tacache_lab.methods import SamplingProblem

RECORDS = Path(__file__).parent / "results" / "asked.jsonl"
COUNT, SAMPLES, MIN_PSNR = 24, 8, 35.0
SEED = 0  # of the test prompts, as in the benchmark
WITH_FLOW = [name for name, shipped in models.shipped().items() if "flow" in shipped.targets]


class Asked(NamedTuple):
    """One question about a model's run of so many steps, and the way in which it is answered."""

    model: str
    steps: int
    goal: QualityGoal
    way: str

    @property
    def question(self) -> str:
        """The question as an option of `accelerate`."""
        if self.goal.like_steps is not None:
            return f"like_steps={self.goal.like_steps}"
        return f"min_psnr={self.goal.min_psnr:g}"


class Answer(NamedTuple):
    """The plan to follow, or the reason why all steps are made, and what led to it."""

    plan: Plan | None
    reason: str | None = None
    spent: int = 0  # evaluations of the model
    tried: tuple[Plan, ...] = ()  # the plans that it was chosen from


class References(NamedTuple):
    """What the test prompts look like by the full run and by the flow."""

    full: Tensor
    flow: Tensor
    noise_sha256: tuple[str, ...]  # one of each prompt
    passes: int  # of the transformer in one evaluation


def questions(name: str, steps: int) -> list[Asked]:
    """Everything that is asked of a model; no table of instant plans answers for a PSNR."""
    near, alike = QualityGoal(like_steps=steps), QualityGoal(min_psnr=MIN_PSNR)
    pairs = [*product([near], WAYS), *((alike, way) for way in WAYS if way != "instant")]
    return [Asked(name, steps, goal, way) for goal, way in pairs]


def key(row: Row) -> tuple[Any, ...]:
    """What one record is of."""
    return tuple(row[name] for name in ("model", "steps", "question", "way", "prompts", "samples"))


def measure(name: str, options: argparse.Namespace) -> None:
    """Append the records of a model that are missing."""
    there = {key(row) for row in read(options.output)}
    steps = options.steps or models.embedded(name).steps
    left = [
        asked
        for asked in questions(name, steps)
        if (name, steps, asked.question, asked.way, options.count, samples_of(asked, options))
        not in there
    ]
    if not left:
        return print(f"{name} has its records already", flush=True)
    study = Study(name, steps, options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with models.steady_threads(study.pipe), torch.no_grad(), study.host.quiet():
        for asked in left:
            row = study.record(asked)
            with options.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(told(row), flush=True)


def samples_of(asked: Asked, options: argparse.Namespace) -> int:
    """How many samples the answer is fitted to; certificates and tables are there already."""
    return int(options.samples) if asked.way == "fitted" else 0


class Study:
    """A model with its test prompts, and how each question is answered for it."""

    def __init__(self, name: str, steps: int, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.pipe = models.load(name).to(options.device)
        self.host = PipelineHost(self.pipe)
        self.call = {**models.default_call(name), "num_inference_steps": steps}
        texts = read_prompts(models.embedded(name).prompts("test"))[: options.count]
        self.tested = [Sample(text, SEED) for text in texts]
        self.calls = Calls(self.host, self.call, self.tested[0])

    def record(self, asked: Asked) -> Row:
        """Answer a question and say what the answer does on the test prompts."""
        references = self.references
        print(f"{self.name}, {asked.question}, {asked.way}", flush=True)
        answer = WAYS[asked.way](self, asked)
        plan = answer.plan
        drawn = references.full if plan is None else self.drawn(plan)
        figure = asked.goal.reached_by(plan.certificate) if plan else None
        return {
            "model": self.name,
            "steps": asked.steps,
            "question": asked.question,
            "way": asked.way,
            "evaluations": asked.steps if plan is None else plan.evaluations,
            "reason": answer.reason,
            "promised": figure,
            "tried": {p.evaluations: asked.goal.reached_by(p.certificate) for p in answer.tried},
            "spent": answer.spent,
            "samples": samples_of(asked, self.options),
            "prompts": len(self.tested),
            "prompts_sha256": fingerprint([sample.text for sample in self.tested]),
            "seed": SEED,
            "noise_sha256": sorted(set(references.noise_sha256)),
            "flow_steps": self.options.flow_steps,
            "to_run": summary(references.full, drawn),
            "to_flow": summary(references.flow, drawn),
            "euler_to_flow": summary(references.flow, references.full),
            "plan": None if plan is None else {"times": plan.times, "anchors": plan.anchors},
            "machine": this_machine(self.calls.device).model_dump(mode="json"),
        }

    @functools.cached_property
    def references(self) -> References:
        """Draw the test prompts by the full run, and lead them along the flow."""
        print(f"{self.name}: {len(self.tested)} prompts in full and to the flow", flush=True)
        with counted_passes(self.pipe) as passes:
            full = self.drawn()
        ends = [self.along_flow(sample) for sample in self.tested]
        return References(
            full=full,
            flow=torch.stack([pixels for pixels, _ in ends]),
            noise_sha256=tuple(noise for _, noise in ends),
            passes=round(passes() / (len(self.tested) * self.calls.steps)),
        )

    def along_flow(self, sample: Sample) -> tuple[Tensor, str]:
        """Return where the flow leads a sample, and a hash of its noise."""
        times = flow_times(self.calls.grid(self.options.flow_steps))
        with self.calls.open(sample, times) as velocity:
            problem = SamplingProblem(velocity, velocity.run.noise, times)
            end = flow_end(problem, times, self.calls.breaks)
            return torch.from_numpy(velocity.finish(end)), velocity.noise_sha256

    def drawn(self, plan: Plan | None = None) -> Tensor:
        """Return what the pipeline draws of the test prompts by a plan, or in full."""
        with self.host.follow(plan, self.call) as call:
            return torch.stack(
                [torch.from_numpy(self.host.draw(sample, call)) for sample in self.tested]
            )

    def fitted(self, asked: Asked) -> Answer:
        """What `fit_plan` chooses, from samples with a seed each."""
        texts = read_prompts(models.embedded(self.name).prompts("calibration"))
        prompts = texts[: self.options.samples]
        wanted = FitOptions(
            like_steps=asked.goal.like_steps, min_psnr=asked.goal.min_psnr, progress=True
        )
        with counted_passes(self.pipe) as passes:
            host = OwnSeeds(self.pipe, prompts)
            plans = tuple(hosts.fit_plans(host, prompts, call=self.call, options=wanted))
        spent = passes() // self.references.passes
        try:
            return Answer(chosen_plan(plans, wanted), spent=spent, tried=plans)
        except PlanError as error:
            return Answer(None, str(error), spent, plans)

    def instant(self, asked: Asked) -> Answer:
        """What `accelerate` follows where no plan is stored: the committed table's."""
        run = RunSignature(self.calls.host, self.calls.times, self.calls.breaks)
        plan = instant_for(asked.goal, run)
        return Answer(plan, None if plan else "the table ends before, or has more than all steps")

    def certified(self, asked: Asked) -> Answer:
        """What the certificates of the shipped plans promise with the fewest evaluations."""
        plans = shipped_plans(self.name).values()
        own = tuple(plan for plan in plans if plan.full_steps == asked.steps)
        plan = asked.goal.fewest(own, lambda plan: plan)
        return Answer(plan, None if plan else "no certificate promises it")


WAYS: dict[str, Callable[[Study, Asked], Answer]] = {
    "fitted": Study.fitted,
    "instant": Study.instant,
    "certificates": Study.certified,
}


@contextmanager
def counted_passes(pipe: Any) -> Iterator[Callable[[], int]]:
    """Count the passes of the transformer, graphs included; hooks would keep graphs away."""
    kind, passes = type(pipe.transformer), 0
    plain = kind.forward

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        return plain(*args, **kwargs)

    with mock.patch.object(kind, "forward", forward):
        yield lambda: passes


def summary(reference: Tensor, drawn: Tensor) -> Row:
    """Return the PSNR of each sample, their mean, their 5th percentile and the worst."""
    each = [round(capped(value), 3) for value in psnr(reference, drawn).tolist()]
    p5 = float(np.quantile(each, 0.05))
    return {"mean": fmean(each), "p5": p5, "worst": min(each), "each": each}


def told(row: Row) -> str:
    """Return a record as a row of the table."""
    near = row["question"].startswith("like_steps")
    figure, euler = row["to_flow" if near else "to_run"], row["euler_to_flow"]["mean"]
    beside = f"{euler:.2f} | {figure['mean'] - euler:+.2f}" if near else "- | -"
    return (
        f"| {row['model']} | {row['question']} | {row['way']} | {row['evaluations']} | "
        f"{row['spent']} | {figure['mean']:.2f} | {figure['p5']:.2f} | {figure['worst']:.2f} | "
        f"{beside} |"
    )


def table(rows: Sequence[Row]) -> str:
    """Return the records as a table: PSNR to what was asked for, in dB."""
    heads = "model, asked, answer, evaluations, spent on it, mean, p5, worst, Euler steps, gain"
    names = heads.split(", ")
    return "\n".join(
        [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(told(row) for row in rows)]
    )


def main() -> None:
    """Measure the models that are named, or print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(WITH_FLOW))
    parser.add_argument("-o", "--output", type=Path, default=RECORDS)
    parser.add_argument("--table", action="store_true", help="read the records")
    parser.add_argument("--count", type=int, default=COUNT, help="test prompts")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="calibration prompts of a fit")
    parser.add_argument("--steps", type=int, help="of the full run, default: the model's own")
    parser.add_argument("--flow-steps", type=int, default=FLOW_STEPS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if unknown := set(options.models) - set(WITH_FLOW):
        parser.error(f"no plans for the flow ship with {', '.join(sorted(unknown))}")
    if options.table:
        return print(table(read(options.output)))
    if not options.models:
        parser.error(f"name models to measure: {', '.join(WITH_FLOW)}")
    torch.backends.cudnn.allow_tf32 = False  # plans are for float32
    if options.device.startswith("cuda"):
        from benchmarks.graphed import replay_models

        replay_models()
    for name in options.models:
        measure(name, options)


if __name__ == "__main__":
    main()
