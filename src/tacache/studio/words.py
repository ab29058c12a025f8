"""What the page says, as HTML in which every word from outside is escaped: never markup."""

from collections.abc import Mapping
from html import escape

from tacache.errors import TACacheError, first_line
from tacache.fidelity import CAP
from tacache.plan import Plan
from tacache.studio.charts import strip
from tacache.studio.choices import Choice
from tacache.studio.drawing import FAST, FULL, Drawn
from tacache.studio.jobs import News, Progress, StoppedError, Waiting
from tacache.studio.pictures import AMPLIFIED, difference, shown, small, together
from tacache.studio.trying import Attempt


def said(words: str) -> str:
    """A sentence of the page's status."""
    return f'<p class="said" role="status">{escape(words)}</p>'


def refused(error: Exception) -> str:
    """What went wrong, as a sentence that ends."""
    words = str(error) if isinstance(error, TACacheError) else f"that failed: {first_line(error)}"
    return f'<p class="said refused" role="alert">{escape(_sentence(words))}</p>'


def stopped(latest: News | None) -> str:
    """How far a job had come when it was stopped."""
    if not isinstance(latest, Progress):
        return said("Stopped before the first step.")
    total = "" if latest.total is None else f" of {latest.total}"
    return said(f"Stopped after {latest.done}{total} steps ({latest.part}).")


def progress(news: News) -> str:
    """A bar with what is going on."""
    if isinstance(news, Waiting):
        others = "one other job" if news.ahead == 1 else f"{news.ahead} other jobs"
        return said(f"Waiting for {others} on the model.")
    assert isinstance(news, Progress)
    if news.total is None:
        return f'<p class="said">{escape(news.part)}: {news.done}</p><progress></progress>'
    words = f"{news.part}: step {news.done} of {news.total}"
    bar = f'<progress max="{news.total}" value="{news.done}"></progress>'
    return f'<p class="said">{escape(words)}</p>{bar}'


def budget(choice: Choice) -> str:
    """What a number of evaluations means: the speedup, where the plan is from, its anchors."""
    return f'<p class="said">{escape(speed(choice.plan))} {escape(choice.sentence)}</p>' + strip(
        choice.plan
    )


def rival(name: str, evaluations: int, steps: int) -> str:
    """What is to be expected of a method of others."""
    return said(
        f"{name} with up to {evaluations} of {steps} evaluations. The first picture takes longer, "
        "since the method is tuned for this number where it can be."
    )


def certified(plan: Plan) -> str:
    """A plan's speedup and anchors, and what its certificate says."""
    sentence, found = speed(plan), plan.certificate
    if found is not None:
        sentence += f" On {found.held_out} held-out samples it drifts by {found.drift:.3f}"
        sentence += "." if found.psnr is None else f", and reaches {found.psnr:.1f} dB."
        nearness = found.nearness(plan.evaluations)
        sentence += "" if nearness is None else f" {nearness[0].upper()}{nearness[1:]}."
    return said(sentence) + strip(plan)


def speed(plan: Plan) -> str:
    """How many steps are evaluated, and the speedup that this means."""
    return (
        f"{plan.evaluations} of {plan.steps} steps run the model: up to {plan.speedup:.1f} times "
        "as fast."
    )


def stage(drawn: Mapping[str, Drawn | Progress], prompt: str, fps: int) -> str:
    """The accelerated picture and the full-step one beside each other, or their previews."""
    names = {FAST: "Accelerated", FULL: "Full steps"}
    finished = [one.pixels for one in drawn.values() if isinstance(one, Drawn)]
    figures = "".join(
        f'<figure class="pane" data-part="{part}"><div class="screen">'
        f"{_screen(drawn.get(part), prompt)}</div><figcaption>{name}</figcaption></figure>"
        for part, name in names.items()
    )
    return together(finished[0] if finished else None, fps, figures)


def _screen(drawn: Drawn | Progress | None, prompt: str) -> str:
    """A finished picture or clip, or a preview, which the page blurs."""
    if isinstance(drawn, Drawn):
        return shown(drawn.pixels, prompt)
    if drawn is None or drawn.preview is None:
        return ""
    label = f"Preview, step {drawn.done} of {drawn.total}"
    return f'<div class="preview">{shown(small(drawn.preview), label)}</div>'


def compared(made: Attempt, fps: int) -> str:
    """A comparison with a line to move, the difference, and the figures."""
    panes = _comparison(made) + _difference(made)
    return together(made.fast.pixels, fps, panes) + facts(made)


def _comparison(made: Attempt) -> str:
    """Both on top of each other, with a line that a pointer or the arrow keys move.

    On the left of it is the full-step one, on the right the accelerated one.
    """
    full, fast = shown(made.full.pixels, "Full steps"), shown(made.fast.pixels, "Accelerated")
    return (
        '<figure class="pane"><div class="screen compare" style="--at:50%">'
        f'{full}<div class="upper">{fast}</div>'
        '<input type="range" min="0" max="100" value="50" aria-label="Where the line stands: full '
        'steps on its left, accelerated on its right" '
        "oninput=\"this.parentElement.style.setProperty('--at', this.value + '%')\"></div>"
        "<figcaption>Full steps left of the line, accelerated right</figcaption></figure>"
    )


def _difference(made: Attempt) -> str:
    """The difference of both, amplified."""
    picture = shown(difference(made.full.pixels, made.fast.pixels), "Difference")
    return (
        f'<figure class="pane"><div class="screen">{picture}</div>'
        f"<figcaption>Difference, {AMPLIFIED} times amplified</figcaption></figure>"
    )


def facts(made: Attempt) -> str:
    """Times, evaluations and fidelity of a comparison, as a table."""
    fast, full = made.fast, made.full
    alike = "equal" if made.psnr >= CAP else f"{made.psnr:.2f} dB"
    rows: list[tuple[str, str, str]] = [
        ("evaluations", str(fast.evaluations), str(full.evaluations)),
        ("time", f"{fast.seconds:.2f} s", f"{full.seconds:.2f} s"),
        ("speedup", f"{full.seconds / max(fast.seconds, 1e-9):.2f} times", ""),
        ("PSNR", alike, ""),
        ("SSIM", f"{made.ssim:.4f}", ""),
    ]
    if made.equivalent_steps is not None:
        rows.append(("equivalent steps", f"{made.equivalent_steps:.0f}", str(full.evaluations)))
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{first}</td><td>{second}</td></tr>'
        for name, first, second in rows
    )
    head = "<thead><tr><td></td><th scope='col'>accelerated</th><th scope='col'>full steps</th>"
    return f'<table class="facts">{head}</tr></thead><tbody>{body}</tbody></table>'


def outcome(error: Exception, latest: News | None) -> str:
    """What a job that did not finish came to."""
    return stopped(latest) if isinstance(error, StoppedError) else refused(error)


def _sentence(words: str) -> str:
    """The words with a capital and a full stop."""
    words = words.strip()
    ended = words if words.endswith((".", "!", "?")) else f"{words}."
    return ended[:1].upper() + ended[1:]
