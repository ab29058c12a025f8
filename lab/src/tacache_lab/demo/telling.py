"""A demo in words: the sentences and the table that the terminal, the page and the docs share."""

from tacache.fidelity import CAP
from tacache_lab.demo.record import KEPT, LOST, PAPER, PLAIN, Budget, ModelDemo, headline, nearest
from tacache_lab.renderer import grid, markdown_table

NAMES = {
    None: "full steps",
    PLAIN: "plain steps",
    "fitted": "ours, fitted",
    "linear": "ours, instant",
    PAPER: "paper's rule",
}
MEANINGS = {
    PLAIN: "Plain steps: the model is called with fewer steps, and nothing is rebuilt.",
    "linear": "Ours, instant (the rule linear): nothing was measured. The steps between are "
    "extrapolated from the last two that were evaluated.",
    "fitted": "Ours, fitted (the rule fitted): the steps to evaluate, and the weights that rebuild "
    "the steps between, were fitted once to full runs of other prompts.",
    PAPER: "The paper's rule (tasu): steps and rebuilding follow from how fast the velocity turned "
    "and grew in full runs of other prompts.",
}
HEADINGS = ("", "evaluations", "time", "speedup", "PSNR", "lowest PSNR", "SSIM", "below 25 dB")
OF_CHANGES = ("PSNR of changes", "SSIM of changes")
OF_MORE = ("PSNR over more prompts", "5th percentile")


def name_of(rule: str | None) -> str:
    """Return what a rule is called in tables and under pictures."""
    return NAMES.get(rule, str(rule))


def meanings(result: ModelDemo) -> list[str]:
    """Return a sentence for each rule that was run."""
    run = {budget.rule for budget in result.budgets}
    return [text for rule, text in MEANINGS.items() if rule in run]


def take_home(result: ModelDemo) -> str:
    """Return the one sentence to remember of a demo."""
    best = headline(result.budgets)
    if best is None:
        return f"{result.model}: {result.steps} steps beside fewer evaluations"
    return (
        f"Nearly the same {result.noun}s from {best.evaluations} evaluations of the model as from "
        f"{result.steps}, {best.speedup:.1f} times faster"
    )


def nearness_in_words(psnr: float) -> str:
    """Return what a PSNR means to the eye."""
    if psnr >= CAP:
        return "identical"
    if psnr >= KEPT:
        return "hard to tell apart"
    return "differs in details" if psnr >= LOST else "differs plainly"


def first_sentences(result: ModelDemo) -> list[str]:
    """Return what the best budget gives: the fewest evaluations of ours that keep 35 dB."""
    best, near = headline(result.budgets), nearest(result.budgets)
    if best is not None:
        fewest = f"This is the smallest of these budgets that keeps {KEPT:.0f} dB on these prompts."
        return [_gain(result, best), fewest, *_others_beside(result, best)]
    if near is None:
        return [f"No plan of ours was run, only all {result.steps} steps."]
    none = (
        f"None of these plans keeps {KEPT:.0f} dB to the {result.noun}s of all {result.steps} "
        "steps."
    )
    return [none, _gain(result, near), "No other of ours is nearer.", *_others_beside(result, near)]


def _gain(result: ModelDemo, budget: Budget) -> str:
    """Return how fast a plan is, and how near to full steps."""
    if budget.psnr is not None and budget.psnr >= CAP:
        near = f"It is the same {result.noun}"
    else:
        near = f"Its PSNR to the full-step {result.noun} is {budget.psnr:.1f} dB ({_over(result)})"
    return (
        f"With {budget.evaluations} instead of {result.steps} evaluations of the model "
        f"({name_of(budget.rule)}), a {result.noun} takes {budget.seconds:.2f} s instead of "
        f"{result.full.seconds:.2f} s: {budget.speedup:.1f} times faster. {near}."
    )


def _over(result: ModelDemo) -> str:
    count = len(result.prompts)
    return f"mean over {count} prompts" if count > 1 else "one prompt"


def _others_beside(result: ModelDemo, budget: Budget) -> list[str]:
    """Return what plain steps and the paper's rule have with as many evaluations."""
    pairs = [(PAPER, "The paper's rule has"), (PLAIN, "As many plain steps have")]
    rows = [(result.reached(rule, budget.evaluations), text) for rule, text in pairs]
    return [
        f"{text} {row.psnr:.1f} dB{' with as many evaluations' * (row.rule == PAPER)}."
        for row, text in rows
        if row is not None and row.psnr is not None
    ]


def how_to_read(result: ModelDemo) -> str:
    """Return what the table's numbers are."""
    of_clips = (
        " PSNR and SSIM are means over the frames; those of changes compare the differences of "
        "neighbouring frames, and say whether it moves alike."
    )
    more = sorted({row.prompts for row in result.measured}, reverse=True)
    of_more = (
        f" Columns over more prompts are of benchmarks on {' or '.join(map(str, more))} prompts."
        if more
        else ""
    )
    return (
        f"The ways took turns, prompt by prompt, on {result.machine or 'a CPU'}; "
        f"times are medians of processor time. PSNR and SSIM compare with the full-step "
        f"{result.noun} from the same noise ({_over(result)})."
        f"{'' if result.fps is None else of_clips}{of_more} "
        f"As a rule of thumb, two {result.noun}s are hard to tell apart above {KEPT:.0f} dB, and "
        f"differ plainly below {LOST:.0f} dB."
    )


def headings(result: ModelDemo) -> tuple[str, ...]:
    """Return the table's first line."""
    more = OF_MORE if result.measured else ()
    return (*HEADINGS, *more, *(() if result.fps is None else OF_CHANGES))


def cells(result: ModelDemo, row: Budget) -> list[str]:
    """Return a line of the table; full steps have no fidelity."""
    texts = [
        name_of(row.rule), str(row.evaluations), f"{row.seconds:.2f} s", f"{row.speedup:.2f}x"
    ]  # fmt: skip
    lost = "" if row.lost is None else f"{row.lost} of {len(result.prompts)}"
    texts += [_db(row.psnr), _db(row.lowest), _share(row.ssim), lost]
    if result.measured:
        more = result.known(str(row.rule), row.evaluations)
        texts += ["", ""] if more is None else [_db(more.psnr), _db(more.p5)]
    return texts if result.fps is None else [*texts, _db(row.change_psnr), _share(row.change_ssim)]


def markdown(result: ModelDemo) -> str:
    """Return the tables for a page of the documentation, and what their numbers are."""
    runs = list(result.all_runs())
    tables = [
        markdown_table(grid(headings(run), [cells(run, row) for row in run.budgets]))
        for run in runs
    ]
    titles = [f"**{run.model}, {run.steps} steps**\n\n" if result.others else "" for run in runs]
    parts = [title + table for title, table in zip(titles, tables, strict=True)]
    return "\n\n".join([*parts, how_to_read(result)]) + "\n"


def _db(value: float | None) -> str:
    if value is None:
        return ""
    return "identical" if value >= CAP else f"{value:.2f} dB"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
