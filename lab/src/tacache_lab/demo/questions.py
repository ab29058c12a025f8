"""Answers that need more prompts than a demo draws: how fast, and which plan is nearer."""

from typing import NamedTuple

from tacache_lab.demo.measured import Measured
from tacache_lab.demo.record import KEPT, OURS, PLAIN, ModelDemo
from tacache_lab.demo.telling import name_of


class Question(NamedTuple):
    """A question that a visitor has, and an answer for each number of steps."""

    question: str
    meaning: str
    answers: list[tuple[str, str]]  # for how many steps, and what they take


def questions(result: ModelDemo) -> list[Question]:
    """Return the two questions with their answers, over more prompts than were drawn here."""
    runs, noun = list(result.all_runs()), result.noun
    counts = sorted({row.prompts for row in map(fewest_kept, runs) if row is not None})
    over = f", in the mean of {' or '.join(map(str, counts))} prompts" if counts else ""
    return [
        Question(
            f"The same {noun}, how fast?",
            f"The fewest evaluations that keep {KEPT:.0f} dB to the {noun}s of all steps{over}.",
            [(_run_name(run, result), _same_result(run)) for run in runs],
        ),
        Question(
            "The same quality, how fast?",
            "All steps only approximate the model's flow. A plan that is fitted to the flow can be "
            "as near to it as more steps are.",
            [(_run_name(run, result), _same_quality(run)) for run in runs],
        ),
    ]


def fewest_kept(run: ModelDemo) -> Measured | None:
    """Return our plan of the fewest evaluations that keeps 35 dB over more prompts, if any."""
    kept = [row for row in run.measured if row.rule in OURS and row.psnr >= KEPT]
    return min(kept, key=lambda row: (row.evaluations, -row.psnr), default=None)


def _run_name(run: ModelDemo, first: ModelDemo) -> str:
    steps = f"{run.steps} steps"
    return steps if run.model == first.model else f"{steps} of {run.model}"


def _same_result(run: ModelDemo) -> str:
    best = fewest_kept(run)
    if best is None:
        return "not measured."
    plain = run.known(PLAIN, best.evaluations)
    beside = "" if plain is None else f"; {plain.evaluations} plain steps: {plain.psnr:.1f} dB"
    tail = "" if best.p5 is None else f", 5th percentile {best.p5:.1f} dB"
    return (
        f"{best.evaluations} evaluations, {run.steps / best.evaluations:.1f} times fewer: "
        f"{best.psnr:.1f} dB{tail} ({name_of(best.rule)}){beside}."
    )


def _same_quality(run: ModelDemo) -> str:
    near = [row for row in sorted(run.equivalent_steps.items()) if row[1] >= run.steps]
    if not run.equivalent_steps:
        return "no plan for the flow ships with this model."
    if not near:
        return "no plan that ships is as near to the flow as all steps."
    evaluations, steps = near[0]
    return (
        f"{evaluations} evaluations, {run.steps / evaluations:.1f} times fewer: as near to the "
        f"flow as {steps:.0f} Euler steps."
    )


def about_the_mean(result: ModelDemo, evaluations: int) -> str | None:
    """Return how instant and fitted plans compare over more prompts, where both are known."""
    fitted, instant = (result.known(rule, evaluations) for rule in OURS)
    if fitted is None or instant is None:
        return None
    text = (
        f"In the mean of {fitted.prompts} prompts {evaluations} evaluations have "
        f"{fitted.psnr:.1f} dB fitted and {instant.psnr:.1f} dB instant"
    )
    if fitted.p5 is None or instant.p5 is None or fitted.prompts != instant.prompts:
        return f"{text}."
    tail = f"{fitted.p5:.1f} and {instant.p5:.1f} dB"
    remark = " The instant plan is nearer on the worst prompts." * (instant.p5 > fitted.p5)
    return f"{text}; at the 5th percentile they have {tail}.{remark}"


def instant_ahead(result: ModelDemo, prompt: str) -> dict[int, str]:
    """Return a sentence by budget where the instant plan is nearer on a prompt than the fitted one.

    The mean over more prompts stands beside it: a plan is fitted to the mean.
    """
    ahead = {}
    for budget in result.evaluations:
        pair = [result.picture(prompt, rule, budget) for rule in OURS]
        fitted, instant = (None if picture is None else picture.psnr for picture in pair)
        if fitted is not None and instant is not None and instant > fitted:
            mean = about_the_mean(result, budget) or "Over more prompts this was not measured."
            ahead[budget] = (
                f"On this prompt the instant plan is nearer than the fitted one, {instant:.1f} to "
                f"{fitted:.1f} dB. {mean}"
            )
    return ahead
