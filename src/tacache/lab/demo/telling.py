"""A demo in words: the sentences and the table that the terminal, the page and the docs share."""

from collections.abc import Sequence

from tacache.fidelity import CAP
from tacache.lab.demo.record import KEPT, LOST, PAPER, Budget, ModelDemo, chosen, headline, nearest

NAMES = {
    None: "full steps",
    "fitted": "ours, fitted",
    "linear": "ours, instant",
    PAPER: "paper's rule",
}
MEANINGS = {
    "fitted": "Ours, fitted (the rule fitted): the steps to evaluate, and the weights that rebuild "
    "the steps between, were fitted once to full runs of other prompts.",
    PAPER: "The paper's rule (tasu): steps and rebuilding follow from how fast the velocity turned "
    "and grew in full runs of other prompts.",
    "linear": "Ours, instant (the rule linear): nothing was measured. The steps between are "
    "extrapolated from the last two that were evaluated.",
}
HEADINGS = ("", "evaluations", "time", "speedup", "PSNR", "lowest PSNR", "SSIM", "below 25 dB")
OF_CHANGES = ("PSNR of changes", "SSIM of changes")


def name_of(rule: str | None) -> str:
    """What a rule is called in tables and under pictures."""
    return NAMES.get(rule, str(rule))


def meanings(made: ModelDemo) -> list[str]:
    """A sentence for each rule that was run."""
    run = {one.rule for one in made.budgets}
    return [text for rule, text in MEANINGS.items() if rule in run]


def first_sentences(made: ModelDemo) -> list[str]:
    """What the best budget is worth: the fewest evaluations of ours that keep 35 dB."""
    best, found = headline(made.budgets), nearest(made.budgets)
    if best is not None:
        fewest = f"This is the smallest of these budgets that keeps {KEPT:.0f} dB."
        return [_worth(made, best), fewest, *_paper_beside(made, best)]
    if found is None:
        return [f"No plan of ours was run, only all {made.steps} steps."]
    none = f"None of these plans keeps {KEPT:.0f} dB to the {made.noun}s of all {made.steps} steps."
    return [none, _worth(made, found), "No other of ours is nearer.", *_paper_beside(made, found)]


def _worth(made: ModelDemo, one: Budget) -> str:
    """How fast a plan is, and how near to full steps."""
    if one.psnr is not None and one.psnr >= CAP:
        near = f"It is the same {made.noun}"
    else:
        near = f"Its PSNR to the full-step {made.noun} is {one.psnr:.1f} dB ({_over(made)})"
    return (
        f"With {one.evaluations} instead of {made.steps} evaluations of the model "
        f"({name_of(one.rule)}), a {made.noun} takes {one.seconds:.2f} s instead of "
        f"{made.full.seconds:.2f} s: {one.speedup:.1f} times faster. {near}."
    )


def _over(made: ModelDemo) -> str:
    count = len(made.prompts)
    return f"mean over {count} prompts" if count > 1 else "one prompt"


def _paper_beside(made: ModelDemo, one: Budget) -> list[str]:
    paper = made.found(PAPER, one.evaluations)
    if paper is None or paper.psnr is None:
        return []
    return [f"The paper's rule has {paper.psnr:.1f} dB with as many evaluations."]


def nearness(made: ModelDemo) -> str | None:
    """What plans that are fitted to the flow are worth in steps; None where none is known."""
    if not made.equivalent_steps:
        return None
    worth = ", ".join(
        f"{evaluations} evaluations are as near to it as {steps:.0f} Euler steps"
        for evaluations, steps in sorted(made.equivalent_steps.items(), reverse=True)
    )
    return (
        f"All {made.steps} steps only approximate the flow, which is where ever more steps would "
        f"lead. Of the shipped plans that are fitted to the flow, {worth} (measured on other "
        "prompts when they were fitted)."
    )


def how_to_read(made: ModelDemo) -> str:
    """What the table's numbers are."""
    of_clips = (
        " PSNR and SSIM are means over the frames; those of changes compare the differences of "
        "neighbouring frames, and say whether it moves alike."
    )
    return (
        f"Each prompt was drawn in all ways before the next one, on {made.machine or 'a CPU'}; "
        f"times are medians of processor time. PSNR and SSIM compare with the full-step "
        f"{made.noun} from the same noise ({_over(made)}).{'' if made.fps is None else of_clips} "
        f"As a rule of thumb, two {made.noun}s are hard to tell apart above {KEPT:.0f} dB, and "
        f"differ plainly below {LOST:.0f} dB."
    )


def headings(made: ModelDemo) -> tuple[str, ...]:
    """The table's first line."""
    return HEADINGS if made.fps is None else (*HEADINGS, *OF_CHANGES)


def cells(made: ModelDemo, row: Budget) -> list[str]:
    """A line of the table; full steps have no fidelity."""
    found = [
        name_of(row.rule), str(row.evaluations), f"{row.seconds:.2f} s", f"{row.speedup:.2f}x"
    ]  # fmt: skip
    lost = "" if row.lost is None else f"{row.lost} of {len(made.prompts)}"
    found += [_db(row.psnr), _db(row.lowest), _share(row.ssim), lost]
    return found if made.fps is None else [*found, _db(row.change_psnr), _share(row.change_ssim)]


def markdown(made: ModelDemo, *, short: bool = False) -> str:
    """The table for a page of the documentation, and what its numbers are.

    A short one has full steps, and ours and the paper's with the most and the fewest evaluations.
    """
    rows = chosen(made) if short else made.budgets
    lines: list[Sequence[str]] = [headings(made), ["---"] * len(headings(made))]
    lines += [cells(made, row) for row in rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{how_to_read(made)}\n"


def _db(value: float | None) -> str:
    if value is None:
        return ""
    return "identical" if value >= CAP else f"{value:.2f} dB"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
