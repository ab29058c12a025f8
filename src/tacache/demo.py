"""The main job end to end: calibrate, plan, sample, compare; on a model or an analytic flow."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tacache.calibration import calibrate
from tacache.diagnostics import relative
from tacache.files import Frozen, write_atomically
from tacache.flows import GaussianMixtureFlow
from tacache.grid import time_grid
from tacache.metrics import psnr, ssim
from tacache.models import steady_threads
from tacache.plan import Plan, make_plan
from tacache.profile import Profile
from tacache.progress import track
from tacache.stepper import sample

SHIFT = 3.0
SIZE = 24
LIMIT = 999.0  # dB, of equal pictures: JSON has no infinity
# What the embedded model draws: an object, other words, a count, a colour, two objects, a place.
PROMPTS = (
    "a rocket",
    "a puppy on a green background",
    "three penguins on a blue background",
    "a blue car",
    "a banana and a carrot",
    "a hamburger above a guitar",
)
# What it is calibrated on when that is asked for: none of the above.
CALIBRATION = (
    "a cat",
    "two strawberries on a blue background",
    "a purple umbrella",
    "an owl below a crescent moon",
)


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


class Picture(Frozen):
    """One prompt with one number of evaluations, and how it compares to full steps."""

    prompt: str
    evaluations: int
    file: str
    seconds: float
    psnr: float | None = None
    ssim: float | None = None


class Budget(Frozen):
    """One number of evaluations: means over the prompts; full steps have no plan."""

    evaluations: int
    seconds: float
    speedup: float
    psnr: float | None = None
    ssim: float | None = None
    plan: str | None = None


class ModelDemo(Frozen):
    """What the demo measured on a model; files are named from the demo's folder."""

    model: str
    steps: int
    seed: int
    prompts: tuple[str, ...]
    budgets: tuple[Budget, ...]
    pictures: tuple[Picture, ...]
    profile: str


class Comparison(NamedTuple):
    """What to compare: prompts and budgets, with the pipeline's arguments and a seed."""

    prompts: Sequence[str]
    budgets: Sequence[int]
    call: dict[str, Any]
    seed: int = 0


class Drawn(NamedTuple):
    """What one call of the pipeline gave: (channels, height, width) in [0, 1], and its time."""

    pixels: Tensor
    seconds: float


def run_model_demo(
    pipe: Any,
    out: Path,
    asked: Comparison,
    profile: Profile | None = None,
    *,
    progress: bool = False,
) -> ModelDemo:
    """Every prompt with full steps and with each budget, from the same noise; write the files.

    Without a profile, the pipeline is calibrated on a few other prompts first.
    """
    from tacache.diffusers import calibration
    from tacache.diffusers.flow import run_times
    from tacache.diffusers.generation import warm_up

    with steady_threads(pipe):
        if profile is None:
            profile = calibration.calibrate(pipe, CALIBRATION, progress=progress, **asked.call)
        warm_up(pipe, asked.prompts[0], asked.call)
        full = [_draw(pipe, text, asked) for text in track(asked.prompts, "full steps", progress)]
        profile = profile.resample(run_times(pipe.scheduler))
        profile.save(out / "demo.profile.json")
        plans = [make_plan(profile, evaluations=budget) for budget in asked.budgets]
        fast = [_draw_planned(pipe, plan, asked, progress) for plan in plans]
    rows = [_pictures("full", profile.steps, full, full, asked, out)]
    for plan, drawn in zip(plans, fast, strict=True):
        name = str(plan.evaluations)
        rows.append(_pictures(name, plan.evaluations, drawn, full, asked, out))
    files = [plan.save(out / f"demo-{plan.evaluations}.plan.json").name for plan in plans]
    result = ModelDemo(
        model=profile.host.model or type(pipe).__name__,
        steps=profile.steps,
        seed=asked.seed,
        prompts=tuple(asked.prompts),
        budgets=tuple(map(_means, rows, [rows[0]] * len(rows), [None, *files])),
        pictures=tuple(picture for row in rows for picture in row),
        profile="demo.profile.json",
    )
    write_atomically(out / "demo.json", result.model_dump_json(indent=2) + "\n")
    return result


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
        return float(relative(sample(flow, noise, other), reference).mean())

    reuse = plan.model_copy(update={"rule": "reuse"})
    return DemoRow(
        evaluations=plan.evaluations,
        speedup=plan.speedup,
        tasu=distance(plan),
        reuse=distance(reuse),
        fewer_steps=distance(Plan.full(time_grid(plan.evaluations, SHIFT))),
    )


def _draw(pipe: Any, prompt: str, asked: Comparison) -> Drawn:
    from tacache.diffusers.runs import Run, run_arguments

    arguments = run_arguments(Run((prompt,), (asked.seed,)), asked.call)
    started = time.perf_counter()
    pixels = pipe(**arguments, output_type="pt").images[0].float().cpu()  # waits for the device
    return Drawn(pixels, time.perf_counter() - started)


def _draw_planned(pipe: Any, plan: Plan, asked: Comparison, progress: bool) -> list[Drawn]:
    from tacache.diffusers import applied

    with applied(pipe, plan):
        prompts = track(asked.prompts, f"{plan.evaluations} evaluations", progress)
        return [_draw(pipe, prompt, asked) for prompt in prompts]


def _pictures(
    name: str,
    evaluations: int,
    drawn: Sequence[Drawn],
    full: Sequence[Drawn],
    asked: Comparison,
    out: Path,
) -> list[Picture]:
    """Write the pictures of one budget, and set each against its full-step picture."""
    from tacache.diffusers.generation import Request, file_stem, write

    made = []
    for i, (prompt, one, reference) in enumerate(zip(asked.prompts, drawn, full, strict=True)):
        stem = out / "pictures" / f"{file_stem(i, prompt, asked.seed)}-{name}"
        file = write(one.pixels.permute(1, 2, 0).numpy(), stem, Request(None, {}))
        pair = (reference.pixels[None], one.pixels[None])
        picture = Picture(
            prompt=prompt,
            evaluations=evaluations,
            file=file.relative_to(out).as_posix(),
            seconds=one.seconds,
            psnr=None if one is reference else min(float(psnr(*pair)), LIMIT),
            ssim=None if one is reference else float(ssim(*pair)),
        )
        made.append(picture)
    return made


def _means(row: list[Picture], full: list[Picture], plan: str | None) -> Budget:
    seconds = sum(picture.seconds for picture in row)
    return Budget(
        evaluations=row[0].evaluations,
        seconds=seconds / len(row),
        speedup=sum(picture.seconds for picture in full) / seconds,
        psnr=_mean([picture.psnr for picture in row]),
        ssim=_mean([picture.ssim for picture in row]),
        plan=plan,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
