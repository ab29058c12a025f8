"""A demo as a film: full steps and a plan side by side, and the anchors as they are evaluated.

A frame is one evaluation of the model in both runs. The pictures are those that each run is
heading for, so one sees when they are settled.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacache import models
from tacache.plan import Plan
from tacache.prompts import Sample
from tacache.stepper import Stepper
from tacache.storage.atomic import writing
from tacache.studio.previews import destination, preview
from tacache.velocity import euler
from tacache.work.progress import track
from tacache_lab.demo.demo_request import DemoRequest
from tacache_lab.demo.record import Budget, ModelDemo, headline, nearest
from tacache_lab.demo.strip import EDGE, GAP, INK, LINE, PAPER_WHITE, SOFT
from tacache_lab.demo.telling import name_of

COLUMNS, BETWEEN, BAR = 2, 20, 12  # of pictures, and pixels
ANCHOR, SKIP, AHEAD = "#2f6fd0", "#c3d7f5", "#e4e6e9"
FRAME, LAST = 100, 3500  # milliseconds
QUALITY = 30  # of WebP


class FilmedRun(NamedTuple):
    """One side of the film: what it is called, its anchors, and a sheet an evaluation."""

    title: str
    ending: str
    anchors: Sequence[int]
    sheets: Sequence[Any]


def write_film(
    result: ModelDemo, request: DemoRequest, out: Path, *, progress: bool = False
) -> Path:
    """Write film.webp beside the demo's files, of full steps and the plan that it puts first."""
    best = headline(result.budgets) or nearest(result.budgets)
    assert best is not None
    assert best.plan is not None
    plan = Plan.load(out / best.plan)
    pipe = models.load(result.model)
    call = {**models.default_call(result.model), "num_inference_steps": result.steps}
    with models.steady_threads(pipe):
        samples = [Sample(prompt, request.seed) for prompt in request.prompts]
        runs = [
            (followed(pipe, sample, call, None), followed(pipe, sample, call, plan))
            for sample in track(samples, "filming", progress)
        ]
    full, fast = ([*map(sheet, zip(*side, strict=True))] for side in zip(*runs, strict=True))
    return save_frames(frames(result, best, plan, full, fast), out / "film.webp")


def followed(pipe: Any, sample: Sample, call: dict[str, Any], plan: Plan | None) -> list[Any]:
    """Return the picture that a run heads for after each evaluation, and at last the one it made.

    Without a plan the model is evaluated at every step.
    """
    from tacache.diffusers import drive
    from tacache.diffusers.calls import run_arguments

    seen: list[Any] = []
    with drive(pipe, **run_arguments([sample], call)) as run:
        x, stepper = run.noise, None if plan is None else Stepper(plan)
        for n, (t, t_next) in enumerate(pairwise(run.times)):
            evaluates = stepper is None or stepper.evaluates

            def evaluate(x: Any = x, n: int = n) -> Any:
                return run.evaluate(x, n)

            v = evaluate() if stepper is None else stepper.velocity(x, evaluate)
            before, x = x, euler(x, v, t, t_next)
            if evaluates:
                ahead = destination(before, x, t, t_next)
                seen.append(preview(pipe, ahead, call["height"], call["width"]))
        seen[-1] = preview(pipe, x, call["height"], call["width"])
    return seen


def sheet(pictures: Sequence[Any]) -> Any:
    """Return pictures of all prompts as one, two beside each other."""
    from PIL import Image

    tiles = [
        Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8)) for picture in pictures
    ]
    width, height = (size + GAP for size in tiles[0].size)
    columns = min(COLUMNS, len(tiles))
    lines = -(-len(tiles) // columns)
    whole = Image.new("RGB", (columns * width - GAP, lines * height - GAP), PAPER_WHITE)
    for n, tile in enumerate(tiles):
        whole.paste(tile, (n % columns * width, n // columns * height))
    return whole


def frames(
    result: ModelDemo, best: Budget, plan: Plan, full: Sequence[Any], fast: Sequence[Any]
) -> list[Any]:
    """Return a frame an evaluation, until full steps have made all theirs."""
    sides = (
        FilmedRun(f"{result.steps} steps", "", range(result.steps), full),
        FilmedRun(
            f"TACache ({name_of(best.rule).removeprefix('ours, ')} plan)",
            f", {best.psnr:.1f} dB to the {result.steps} steps",
            plan.anchors,
            fast,
        ),
    )
    return [frame(result.steps, sides, done) for done in range(1, result.steps + 1)]


def frame(steps: int, sides: Sequence[FilmedRun], done: int) -> Any:
    """Return both runs after so many evaluations, each as far as it goes."""
    from PIL import Image, ImageDraw

    width, height = sides[0].sheets[0].size
    top = EDGE + LINE + 2
    across = len(sides) * (width + BETWEEN) - BETWEEN + 2 * EDGE
    whole = Image.new("RGB", (across, top + height + BAR + LINE + 4 * EDGE), PAPER_WHITE)
    pen = ImageDraw.Draw(whole)
    for n, side in enumerate(sides):
        left, evaluated = EDGE + n * (width + BETWEEN), min(done, len(side.anchors))
        pen.text((left, EDGE - 2), side.title, INK, font_size=15)
        whole.paste(side.sheets[evaluated - 1], (left, top))
        over = evaluated == len(side.anchors)
        reached = steps if over else side.anchors[evaluated - 1] + 1
        bar = (left, top + height + EDGE, width)
        draw_strip(pen, bar, steps, side.anchors[:evaluated], reached)
        ending = side.ending if over else ""
        text = f"{evaluated} evaluation{'s' * (evaluated > 1)}{ending}"
        pen.text((left, top + height + 2 * EDGE + BAR), text, SOFT, font_size=13)
    return whole


def draw_strip(
    pen: Any, place: tuple[int, int, int], steps: int, evaluated: Sequence[int], reached: int
) -> None:
    """Draw a run step by step, at a place of so much width: evaluated, rebuilt, still to come."""
    left, top, width = place
    for step in range(steps):
        colour = ANCHOR if step in evaluated else SKIP if step < reached else AHEAD
        start, end = (left + width * part // steps for part in (step, step + 1))
        pen.rectangle((start, top, end - 2, top + BAR), fill=colour)


def save_frames(pictures: Sequence[Any], path: Path) -> Path:
    """Write an animated WebP that stands still at its end for a while."""
    durations = [FRAME] * (len(pictures) - 1) + [LAST]
    first, *rest = pictures
    with writing(path) as draft:
        first.save(
            draft, format="WEBP", save_all=True, append_images=rest, duration=durations, loop=0,
            quality=QUALITY, method=6,
        )  # fmt: skip
    return path
