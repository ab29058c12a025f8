"""The main job end to end on an analytic flow, whose exact velocity is known."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tacache.calibration import calibrate
from tacache.decomposition import relative_distance
from tacache.flows import GaussianMixtureFlow
from tacache.grid import time_grid
from tacache.plan import Plan, make_plan
from tacache.stepper import sample
from tacache.storage.files import Frozen
from tacache.work.progress import track

SHIFT = 3.0
SIZE = 24


class DemoRow(Frozen):
    """One budget: the relative distance to the full-step result, by way of getting there."""

    evaluations: int
    speedup: float
    tasu: float
    reuse: float
    fewer_steps: float


class Demo(Frozen):
    """What the demo measured and the files it wrote."""

    steps: int
    samples: int
    rows: tuple[DemoRow, ...]
    profile: str
    plans: tuple[str, ...]


def run_demo(
    out: Path,
    *,
    steps: int = 50,
    budgets: Sequence[int] = (25, 17, 13, 10, 7),
    samples: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> Demo:
    """Calibrate on one set of noise, then compare every budget on another; write the files."""
    flow = picture_flow()
    generator = torch.Generator().manual_seed(seed)
    calibration, test = torch.randn(2, samples, 3, SIZE, SIZE, generator=generator)
    times = time_grid(steps, SHIFT)
    profile = calibrate(flow, calibration, times, batch_size=4, progress=progress)
    profile.save(out / "demo.profile.json")
    reference = sample(flow, test, Plan.full(times))
    rows, plans = [], []
    for budget in track(budgets, "comparing", progress):
        plan = make_plan(profile, evaluations=budget)
        plans.append(plan.save(out / f"demo-{budget}.plan.json"))
        rows.append(_compare(flow, test, reference, plan))
    return Demo(
        steps=steps,
        samples=samples,
        rows=tuple(rows),
        profile=str(out / "demo.profile.json"),
        plans=tuple(map(str, plans)),
    )


def picture_flow() -> GaussianMixtureFlow:
    """A flow whose data are soft discs and bars of several colours, with some noise."""
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    discs = [((x - cx) ** 2 + (y - cy) ** 2) / 0.15 for cx, cy in ((-0.4, -0.3), (0.4, 0.3))]
    bars = [(x / 0.3) ** 2, (y / 0.3) ** 2, ((x + y) / 0.4) ** 2]
    colours = torch.tensor([[1.0, -0.5, -0.8], [-0.8, 0.9, -0.2], [-0.5, 0.1, 1.0]])
    pictures = [
        colour[:, None, None] * (2 * torch.exp(-shape) - 0.5)
        for shape in (*discs, *bars)
        for colour in colours
    ]
    return GaussianMixtureFlow(
        torch.stack(pictures), [0.1] * len(pictures), [1 / len(pictures)] * len(pictures)
    )


def _compare(flow: GaussianMixtureFlow, noise: Tensor, reference: Tensor, plan: Plan) -> DemoRow:
    def distance(other: Plan) -> float:
        return float(relative_distance(sample(flow, noise, other), reference).mean())

    reuse = plan.model_copy(update={"rule": "reuse"})
    return DemoRow(
        evaluations=plan.evaluations,
        speedup=plan.speedup,
        tasu=distance(plan),
        reuse=distance(reuse),
        fewer_steps=distance(Plan.full(time_grid(plan.evaluations, SHIFT))),
    )
