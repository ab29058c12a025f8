"""How much a direct optimisation of a fitted plan's weights gains on the lock-step fit.

python -m benchmarks.direct -o benchmarks/results/direct.jsonl

On a Gaussian-mixture flow, whose velocity can be differentiated: anchors and starting weights are
those of `fit_plan`; L-BFGS then lowers the mean log error of the final state over the same samples,
through all intervals at once. Errors are geometric means of the drift, on the fitted samples and
on others. One record a budget.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tests.flows import GaussianMixtureFlow
from torch import Tensor

from tacache import fit_plan, sample, time_grid
from tacache.plan import Plan

STEPS, SHIFT, FITTED, OTHERS, ROUNDS = 50, 3.0, 16, 256, 60
COMPONENTS, SIZE = 8, 24


def main() -> None:
    """One record a budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--budgets", default="5,7,10,13")
    options = parser.parse_args()
    torch.manual_seed(0)
    means = 2 * torch.randn(COMPONENTS, SIZE, dtype=torch.float64)
    flow = GaussianMixtureFlow(means, [0.3] * COMPONENTS, [1 / COMPONENTS] * COMPONENTS)
    noise = torch.randn(FITTED + OTHERS, SIZE, dtype=torch.float64)
    times = time_grid(STEPS, shift=SHIFT)
    wanted = sample(flow, noise, Plan.full(times))
    with options.out.open("w") as file:
        for budget in map(int, options.budgets.split(",")):
            plan = fit_plan(
                flow, noise[:FITTED], times, evaluations=budget, condition={}, search=False
            )
            assert plan.weights is not None
            weights = [torch.tensor(row, dtype=torch.float64) for row in plan.weights]
            better = optimised(flow, noise[:FITTED], wanted[:FITTED], plan, weights)
            record = {"evaluations": budget, "anchors": list(plan.anchors)}
            for name, chosen in (("lock-step", weights), ("direct", better)):
                parts = log_drift(walked(flow, noise, plan, chosen), wanted)
                record[name] = {
                    "fitted": round(float(parts[:FITTED].mean().exp()), 6),
                    "others": round(float(parts[FITTED:].mean().exp()), 6),
                }
            file.write(json.dumps(record) + "\n")
            print(json.dumps(record))


def walked(
    flow: Callable[[Tensor, float], Tensor], noise: Tensor, plan: Plan, weights: Sequence[Tensor]
) -> Tensor:
    """The plan's result with these weights, differentiable in them."""
    x, v, memory = noise, torch.zeros_like(noise), torch.zeros_like(noise)
    for (n, m), row in zip(pairwise((*plan.anchors, plan.steps)), weights, strict=True):
        memory = v + row[2] * memory if len(row) > 2 else v
        v = flow(x, plan.times[n])
        average = row[0] * v + row[1] * memory if len(row) > 1 else row[0] * v
        x = x - (plan.times[n] - plan.times[m]) * average
    return x


def log_drift(x: Tensor, wanted: Tensor) -> Tensor:
    """Of each sample."""
    return ((x - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)).log()


def optimised(
    flow: GaussianMixtureFlow, noise: Tensor, wanted: Tensor, plan: Plan, start: list[Tensor]
) -> list[Tensor]:
    """The weights after L-BFGS on the final error."""
    weights = [row.clone().requires_grad_() for row in start]
    optimizer = torch.optim.LBFGS(weights, max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = log_drift(walked(flow, noise, plan, weights), wanted).mean()
        value.backward()
        return value

    optimizer.step(loss)
    return [row.detach() for row in weights]


if __name__ == "__main__":
    main()
