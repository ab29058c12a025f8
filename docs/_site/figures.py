"""The drawings of the explanation: `python docs/_site/figures.py` writes them into docs/figures."""

from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

import tacache

FIGURES = Path(__file__).parents[1] / "figures"
CENTRES = torch.tensor([[2.2, 1.0], [2.2, -1.0]])
SPREAD = 0.15
STEPS, BUDGET = 50, 9
GREY, OURS, MISS = "#9a9a9a", "#1f6feb", "#d1242f"


def two_centres(x: Tensor, t: float) -> Tensor:
    """The velocity of a flow in the plane, whose data lie around two centres."""
    variance = ((1 - t) * SPREAD) ** 2 + t**2
    offset = x[:, None] - (1 - t) * CENTRES
    share = torch.softmax(-offset.square().sum(-1) / (2 * variance), dim=1)[..., None]
    velocity = offset * (t - (1 - t) * SPREAD**2) / variance - CENTRES
    return (share * velocity).sum(1)


def states(noise: Tensor, plan: tacache.Plan) -> Tensor:
    """The states of a run under a plan, from noise to data, with the steps along dim 0."""
    stepper, x, found = tacache.Stepper(plan), noise, [noise]
    for t, t_next in zip(plan.times, plan.times[1:], strict=False):
        v = stepper.velocity(x, evaluate=lambda x=x, t=t: two_centres(x, t))
        x = x - (t - t_next) * v
        found.append(x)
    return torch.stack(found)


def draw_trajectory(axes: Any, noise: Tensor, times: tuple[float, ...]) -> None:
    """Full runs of several samples in grey; one of them under a plan, its anchors marked."""
    plan = tacache.instant_plan(times, evaluations=BUDGET)
    for path in states(noise, tacache.Plan.full(times)).unbind(1):
        axes.plot(*path.T, color=GREY, linewidth=1)
    path = states(noise[:1], plan)[:, 0]
    axes.plot(*path.T, color=OURS, linewidth=2, label=f"{BUDGET} evaluations")
    anchors = path[list(plan.anchors)]
    axes.plot(*anchors.T, "o", color=OURS, markersize=6, label="anchors")
    axes.plot([], [], color=GREY, label=f"{STEPS} full steps")
    axes.plot(*CENTRES.T, "x", color="black", markersize=8, label="centres of the data")
    axes.set(title="From noise (left) to data", ylim=(-2.7, 3.4), xticks=[], yticks=[])
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def draw_drift(axes: Any, noise: Tensor, times: tuple[float, ...]) -> None:
    """How far the states of three rules are from the full run at every step."""
    profile = tacache.calibrate(two_centres, noise, times)
    plans = {
        "reuse": (tacache.make_plan(profile, evaluations=BUDGET, rule="reuse"), MISS),
        "the paper's rule": (tacache.make_plan(profile, evaluations=BUDGET), "#8250df"),
        "instant": (tacache.instant_plan(times, evaluations=BUDGET), OURS),
    }
    for name, (plan, colour) in plans.items():
        drift = tacache.diagnose(two_centres, noise, plan).state_drift
        axes.plot(drift, color=colour, label=name)
        axes.plot(plan.anchors, [drift[n] for n in plan.anchors], "o", color=colour, markersize=4)
    axes.set(title=f"Drift, {BUDGET} evaluations", xlabel="step", ylabel="distance to the full run")
    axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Draw both into one file."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "tacache", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot

    noise = torch.randn(16, 2, generator=torch.Generator().manual_seed(5))
    noise[0] = torch.tensor([-1.4, 0.3])  # a path that bends late, for the run under a plan
    times = tuple(tacache.time_grid(STEPS, shift=3.0))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    draw_trajectory(left, noise, times)
    draw_drift(right, noise, times)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURES / "trajectory.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
