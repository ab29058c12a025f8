"""What the page says, as HTML in which every word from outside is escaped: never markup."""

from collections.abc import Mapping
from html import escape

from tacache.errors import TACacheError, counted, first_line
from tacache.fidelity import CAP
from tacache.instant import default_evaluations
from tacache.plan import Certificate, Plan
from tacache.studio.attempts import Attempt
from tacache.studio.charts import strip
from tacache.studio.choices import PlanChoice
from tacache.studio.drawing import ACCELERATED, FULL_STEPS, Drawn
from tacache.studio.model import full_steps
from tacache.studio.pictures import AMPLIFIED, difference, shown, small, together
from tacache.studio.psnr_scale import Mark, in_words, psnr_scale
from tacache.studio.turns import JobProgress, News, StoppedError, Waiting


def said(words: str) -> str:
    """Return a sentence of the page's status."""
    return f'<p class="said" role="status">{escape(words)}</p>'


def refused(error: Exception) -> str:
    """Return what went wrong, as a sentence that ends."""
    words = str(error) if isinstance(error, TACacheError) else f"that failed: {first_line(error)}"
    return f'<p class="said refused" role="alert">{escape(_sentence(words))}</p>'


def stopped(latest: News | None) -> str:
    """Return how far a job had come when it was stopped."""
    if not isinstance(latest, JobProgress):
        return said("Stopped before the first step.")
    total = "" if latest.total is None else f" of {latest.total}"
    return said(f"Stopped after {latest.done}{total} steps ({latest.part}).")


def progress(news: News) -> str:
    """Return a bar with what is going on."""
    if isinstance(news, Waiting):
        others = "one other job" if news.ahead == 1 else f"{news.ahead} other jobs"
        return said(f"Waiting for {others} on the model.")
    assert isinstance(news, JobProgress)
    if news.total is None:
        return f'<p class="said">{escape(news.part)}: {news.done}</p><progress></progress>'
    words = f"{news.part}: step {news.done} of {news.total}"
    bar = f'<progress max="{news.total}" value="{news.done}"></progress>'
    return f'<p class="said">{escape(words)}</p>{bar}'


def meaning(choice: PlanChoice) -> str:
    """Return what a choice means before anything is drawn: speedup, anchors, plan and promise."""
    return about(choice.plan, choice.sentence)


def rival(name: str, evaluations: int, steps: int) -> str:
    """Return what is to be expected of a method of others."""
    return said(
        f"{name} with up to {evaluations} of {steps} evaluations. The first picture takes longer, "
        "since the method is tuned for this number where it can be."
    )


def about(plan: Plan, origin: str = "") -> str:
    """Return a plan's speedup and anchors, where it comes from, and what it promises."""
    marks = [] if plan.certificate is None else promised(plan.certificate)
    sentences = f"{origin} {promise(plan)}".strip()
    scale = "" if plan.is_full else psnr_scale(marks)
    return f"{said(speed(plan))}{strip(plan)}{said(sentences)}{scale}"


def promise(plan: Plan) -> str:
    """Return what is to be expected of a plan's pictures: its certificate, if it has one."""
    certificate = plan.certificate
    if plan.is_full:
        return "The picture is the full run's."
    if certificate is None:
        return f"Not measured on this model: draw to see.{_hope(plan)}"
    words = f"Promise, measured on {counted(certificate.held_out, 'held-out sample')}: "
    if certificate.psnr is None:
        words += f"a drift of {certificate.drift:.2g} in the latents; of pictures nothing is known."
    else:
        words += (
            f"{certificate.psnr:.1f} dB to the full run in the mean, {in_words(certificate.psnr)}."
        )
        tail = [f"{mark.name} {mark.psnr:.1f} dB" for mark in promised(certificate)[1:]]
        words += f" {_sentence(', '.join(tail))}" if tail else " The worst was not measured."
    if certificate.equivalent_steps is not None:
        words += f" It is as near to the flow as {certificate.equivalent_steps:.0f} Euler steps."
    return words


def promised(certificate: Certificate) -> list[Mark]:
    """Return the figures of a certificate that have a place on the scale."""
    figures = (
        Mark("mean", certificate.psnr or 0.0),
        Mark("5th percentile", certificate.p5_psnr or 0.0, hollow=True),
        Mark("worst", certificate.worst_psnr or 0.0, hollow=True),
    )
    return [mark for mark in figures if mark.psnr]


def _hope(plan: Plan) -> str:
    """Return what instant plans did elsewhere, in a sentence; empty for other plans."""
    if plan.rule != "linear" or plan.grid is not None:
        return ""
    steps = plan.steps
    usual = default_evaluations(steps)
    return (
        " On tiny-flux and tiny-wan, instant plans keep 35 dB "
        f"from {usual} of {steps} evaluations on."
    )


def speed(plan: Plan) -> str:
    """Return how many steps are evaluated, and the speedup that this means."""
    return (
        f"{plan.evaluations} of {full_steps(plan)} steps run the model: up to {plan.speedup:.1f} "
        "times as fast."
    )


def stage(drawn: Mapping[str, Drawn | JobProgress], prompt: str, fps: int) -> str:
    """Return the accelerated picture and the full-step one beside each other, or their previews."""
    names = {ACCELERATED: "Accelerated", FULL_STEPS: "Full steps"}
    finished = [picture.pixels for picture in drawn.values() if isinstance(picture, Drawn)]
    figures = "".join(
        f'<figure class="pane" data-part="{part}"><div class="screen">'
        f"{_screen(drawn.get(part), prompt)}</div><figcaption>{name}</figcaption></figure>"
        for part, name in names.items()
    )
    return together(finished[0] if finished else None, fps, figures)


def _screen(drawn: Drawn | JobProgress | None, prompt: str) -> str:
    """Return a finished picture or clip, or a preview, which the page blurs."""
    if isinstance(drawn, Drawn):
        return shown(drawn.pixels, prompt)
    if drawn is None or drawn.preview is None:
        return ""
    label = f"Preview, step {drawn.done} of {drawn.total}"
    return f'<div class="preview">{shown(small(drawn.preview), label)}</div>'


def compared(attempt: Attempt, fps: int) -> str:
    """Return a comparison with a line to move, the difference, and the figures."""
    panes = _comparison(attempt) + _difference(attempt)
    return together(attempt.fast.pixels, fps, panes) + facts(attempt)


def _comparison(attempt: Attempt) -> str:
    """Return both on top of each other, with a line that a pointer or the arrow keys move.

    On the left of it is the full-step one, on the right the accelerated one.
    """
    full, fast = shown(attempt.full.pixels, "Full steps"), shown(attempt.fast.pixels, "Accelerated")
    return (
        '<figure class="pane"><div class="screen compare" style="--at:50%">'
        f'{full}<div class="upper">{fast}</div>'
        '<input type="range" min="0" max="100" value="50" aria-label="Where the line stands: full '
        'steps on its left, accelerated on its right" '
        "oninput=\"this.parentElement.style.setProperty('--at', this.value + '%')\"></div>"
        "<figcaption>Full steps left of the line, accelerated right</figcaption></figure>"
    )


def _difference(attempt: Attempt) -> str:
    """Return the difference of both, amplified."""
    picture = shown(difference(attempt.full.pixels, attempt.fast.pixels), "Difference")
    return (
        f'<figure class="pane"><div class="screen">{picture}</div>'
        f"<figcaption>Difference, {AMPLIFIED} times amplified</figcaption></figure>"
    )


def facts(attempt: Attempt) -> str:
    """Return times, evaluations and fidelity of a comparison, as a table."""
    fast, full = attempt.fast, attempt.full
    alike = "equal" if attempt.psnr >= CAP else f"{attempt.psnr:.1f} dB, {in_words(attempt.psnr)}"
    rows: list[tuple[str, str, str]] = [
        ("evaluations", str(fast.evaluations), str(full.evaluations)),
        ("time", f"{fast.seconds:.2f} s", f"{full.seconds:.2f} s"),
        ("speedup", f"{full.seconds / max(fast.seconds, 1e-9):.2f} times", ""),
        ("PSNR", alike, ""),
        ("SSIM", f"{attempt.ssim:.4f}", ""),
    ]
    if attempt.equivalent_steps is not None:
        rows.append(("equivalent steps", f"{attempt.equivalent_steps:.0f}", str(full.evaluations)))
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{first}</td><td>{second}</td></tr>'
        for name, first, second in rows
    )
    head = "<thead><tr><td></td><th scope='col'>accelerated</th><th scope='col'>full steps</th>"
    marks = [Mark("this picture", attempt.psnr)]
    marks += [] if attempt.plan is None or attempt.plan.certificate is None else [
        mark._replace(name=f"promised {mark.name}", hollow=True)
        for mark in promised(attempt.plan.certificate)[:1]
    ]  # fmt: skip
    return f'<table class="facts">{head}</tr></thead><tbody>{body}</tbody></table>' + psnr_scale(
        marks, explained=False
    )


def outcome(error: Exception, latest: News | None) -> str:
    """Return what a job that did not finish came to."""
    return stopped(latest) if isinstance(error, StoppedError) else refused(error)


def _sentence(words: str) -> str:
    """Return the words with a capital and a full stop."""
    words = words.strip()
    ended = words if words.endswith((".", "!", "?")) else f"{words}."
    return ended[:1].upper() + ended[1:]
