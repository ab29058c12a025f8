"""Fitted plans beside the paper's rule on tiny-flux, on prompts never used in calibration.

python benchmarks/fitted.py -o benchmarks/results/fitted.jsonl

One record a method and budget: PSNR to the 50-step pictures, mean and standard error over the
prompts, and the evaluations spent on calibrating. `tasu` has its best ratio of thresholds for each
budget, chosen on the test prompts themselves, which favours it. Goes on where it stopped; about
half an hour on one core.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacache import Plan, PlanError, diagnose, hosts, make_plan, models
from tacache.diagnostics import damp
from tacache.diffusers import applied, drive
from tacache.diffusers.calls import run_arguments
from tacache.diffusers.pipeline import PipelineHost
from tacache.fitting.fit_options import FitOptions
from tacache.profile import Profile
from tacache.prompts import Sample, read_prompts
from tacache_lab.picture_metrics import psnr

MODEL, TESTED, FITTED, QUICK, DAMPED, BATCH = "tiny-flux", 24, 16, 8, 4, 8
BUDGETS = (5, 7, 10, 13, 17, 25)
RATIOS = (None, 2.0, 5.0, 10.0, 20.0)


def main() -> None:
    """Measure every method at every budget that is not in the file yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--budgets", type=lambda text: [int(k) for k in text.split(",")])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pipe = models.load(MODEL).to(options.device)
    pipe.set_progress_bar_config(disable=True)
    bench = Bench(pipe, options.out)
    budgets = options.budgets or list(BUDGETS)
    bench.profile_rules(budgets)
    bench.fitted("fitted, fast", budgets, QUICK, search=False)
    bench.fitted("fitted", budgets, FITTED, search=True)


class Bench:
    """The pipeline, its test pictures with full steps, and the records so far."""

    def __init__(self, pipe: Any, out: Path) -> None:
        self.pipe, self.out = pipe, out
        lines = out.read_text().splitlines() if out.exists() else []
        self.done = [json.loads(line) for line in lines]
        self.call = models.default_call(MODEL)
        folder = models.embedded(MODEL).folder
        self.tested = read_prompts(folder / "test.jsonl")[:TESTED]
        self.calibration = read_prompts(folder / "calibration.jsonl")
        self.profile = Profile.load(models.embedded(MODEL).profile)
        self._full: Tensor | None = None

    def profile_rules(self, budgets: list[int]) -> None:
        """`tasu` at each ratio; of its best one also the other rules, damped among them."""
        for k in budgets:
            best: tuple[float, Plan] | None = None
            for ratio in RATIOS:
                try:
                    plan = make_plan(self.profile, evaluations=k, ratio=ratio)
                except PlanError:
                    continue  # this ratio cannot meet the budget
                record = self.measured("tasu", k, {"ratio": ratio}, lambda plan=plan: (plan, 3000))
                if best is None or record["psnr"] > best[0]:
                    best = (record["psnr"], plan)
            if best is None:
                print(f"tasu cannot meet {k} evaluations")
                continue
            plan = best[1]
            self.measured("damped", k, {}, lambda plan=plan: self.damped(plan))
            for rule in ("magnitude", "reuse"):
                changed = plan.model_copy(update={"rule": rule})
                self.measured(rule, k, {}, lambda changed=changed: (changed, 3000))

    def damped(self, plan: Plan) -> tuple[Plan, int]:
        """The plan with d cos(theta), measured on a few calibration prompts."""
        diagnoses = []
        for text in self.calibration[:DAMPED]:
            arguments = run_arguments([Sample(text, 0)], {**self.call, "output_type": "latent"})
            with drive(self.pipe, **arguments) as run:
                known = plan.model_copy(update={"times": run.times})
                diagnoses.append(diagnose(run.evaluate_at, run.noise, known))
        return damp(plan, diagnoses), 3000 + DAMPED * (plan.steps + plan.evaluations)

    def fitted(self, name: str, budgets: list[int], count: int, search: bool) -> None:
        """All budgets from the same full runs."""
        left = [k for k in budgets if not self.known(name, k, {})]
        if not left:
            return
        options = FitOptions(
            evaluations=tuple(left),
            search=search,
            resume=self.out.with_name(f".{self.out.name}.{count}.runs"),
            progress=True,
        )
        prompts = self.calibration[:count]
        plans = hosts.fit_plans(PipelineHost(self.pipe), prompts, call=self.call, options=options)
        for k, plan in zip(left, plans, strict=True):
            assert plan.certificate is not None
            spent = plan.certificate.evaluations_spent
            self.measured(name, k, {}, lambda plan=plan, spent=spent: (plan, spent))

    def known(self, method: str, evaluations: int, settings: dict[str, Any]) -> Any:
        """The record of an earlier run, if there is one."""
        key = {"method": method, "evaluations": evaluations, "settings": settings}
        return next((r for r in self.done if all(r[n] == key[n] for n in key)), None)

    def measured(
        self,
        method: str,
        evaluations: int,
        settings: dict[str, Any],
        make: Callable[[], tuple[Plan, int]],
    ) -> dict[str, Any]:
        """The record of a method at a budget, measured unless it is known."""
        if record := self.known(method, evaluations, settings):
            return dict(record)
        plan, spent = make()
        if self._full is None:
            self._full = self.pictures()
        with applied(self.pipe, plan):
            values = psnr(self._full, self.pictures())
        record = {
            "method": method,
            "evaluations": evaluations,
            "settings": settings,
            "psnr": round(float(values.mean()), 3),
            "error": round(float(values.std() / len(values) ** 0.5), 3),
            "lowest": round(float(values.min()), 3),
            "prompts": len(values),
            "spent": spent,
            "anchors": list(plan.anchors),
            "guidance": self.call["true_cfg_scale"],
            "device": self.pipe.device.type,
            "torch": torch.__version__,
        }
        self.done.append(record)
        with self.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(
            f"{method:14} {evaluations:3} {record['psnr']:7.2f} dB  {settings} {spent}", flush=True
        )
        return record

    def pictures(self) -> Tensor:
        """The test prompts' pictures, by the pipeline as it stands."""
        pictures = []
        for start in range(0, len(self.tested), BATCH):
            texts = self.tested[start : start + BATCH]
            seeds = tuple(1000 + start + i for i in range(len(texts)))
            arguments = run_arguments(
                [Sample(*pair) for pair in zip(texts, seeds, strict=True)], self.call
            )
            arguments["negative_prompt"] = [""] * len(texts)
            pictures.append(self.pipe(**arguments, output_type="pt").images.float().cpu())
        return torch.cat(pictures)


if __name__ == "__main__":
    main()
