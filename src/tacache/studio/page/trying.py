"""The view Try: a prompt becomes a picture with few evaluations, beside the one with all."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr

from tacache.errors import TACacheError
from tacache.studio import words
from tacache.studio.attempts import MAX_PROMPT_LENGTH, PictureOptions, attempt, plan_for
from tacache.studio.choices import MIN_EVALUATIONS, RULES, rival_names, typical_choice
from tacache.studio.model import MAX_STEPS
from tacache.studio.page.showing import Showing
from tacache.studio.sessions import Studio
from tacache.studio.turns import Finished, JobProgress, news_of

ASKS = [
    ("Speed", "evaluations"),
    ("Same picture", "min_psnr"),
    ("Same quality", "like_steps"),
]
MIN_DB, MAX_DB, DEFAULT_DB = 25, 50, 35  # of the slider
INNER: Any = {"show_progress": "hidden", "api_visibility": "private"}  # of every event
CLICK = "() => document.querySelector('#archive a, a#archive, #archive').click()"


class TryView(NamedTuple):
    """The parts that other views change or hear of."""

    ask: Any
    rule: Any
    steps: Any
    finished: Any  # the event after a run
    steps_set: Any  # the event after other steps
    refresh: dict[str, Any]  # the event that says anew what the settings mean


class Trying:
    """What the events of the view do; what is `asked` are the fields that `_options` takes."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def draw(
        self, request: gr.Request, prompt: str, seed: float, *asked: Any
    ) -> Iterator[list[Any]]:
        """Yield the page, over and over, while a picture is drawn."""
        studio, session = self._studio, self._studio.session(request.session_hash)
        options = _options(*asked)._replace(prompt=prompt or "", seed=int(seed or 0))
        show, latest = Showing(studio.model, options.prompt), None
        yield show.started()
        stop = session.begin("draw")
        try:
            known = studio.known(session)
            for news in news_of(lambda watch: attempt(known, options, watch), stop):
                if isinstance(news, Finished):
                    result, session.drift = news.result, news.result.drift
                    session.gallery.add(result, studio.model.name, studio.model.fps)
                    yield show.compared(result, session.gallery)
                else:
                    latest = news if isinstance(news, JobProgress) else latest
                    yield show.heard(news)
        except Exception as error:
            yield show.ended(words.outcome(error, latest))

    def meaning(self, request: gr.Request, *asked: Any) -> str:
        """Return what the settings mean: speedup, anchors, and what the plan promises."""
        try:
            known = self._studio.known(self._studio.session(request.session_hash))
            options = _options(*asked)
            choice = plan_for(known, options)
        except TACacheError as error:
            return words.refused(error)
        if choice is None:
            return words.rival(rival_names()[options.rule], options.evaluations, known.model.steps)
        return words.meaning(choice)

    def set_steps(self, steps: float, rule: str, request: gr.Request) -> list[Any]:
        """Set the steps of full runs; return the evaluations and the rule that go with them."""
        session = self._studio.session(request.session_hash)
        try:
            session.steps = self._studio.model.with_steps(int(steps)).steps
            rule, evaluations = typical_choice(self._studio.known(session), rule)
        except TACacheError as error:
            return [gr.skip(), gr.skip(), words.refused(error)]
        return [gr.update(maximum=session.steps, value=evaluations), rule, gr.skip()]

    def stop(self, request: gr.Request) -> None:
        """Stop what this person draws."""
        self._studio.session(request.session_hash).stop("draw")

    def export(self, request: gr.Request) -> list[Any]:
        """Return the archive of the gallery, and what there is to say."""
        gallery = self._studio.session(request.session_hash).gallery
        if not gallery.entries:
            return [gr.skip(), words.said("There is nothing to export yet: draw a picture first.")]
        return [gr.update(value=str(gallery.export())), gr.skip()]


def try_view(studio: Studio) -> TryView:
    """Build the view."""
    events = Trying(studio)
    with gr.Row(elem_classes="view"):
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            steps, options = _fields(studio)
            with gr.Row():
                draw = gr.Button("Draw", variant="primary", min_width=100, elem_id="draw")
                stop = gr.Button("Stop", interactive=False, min_width=100, elem_id="stop")
            status = gr.HTML(words.said("Ready."), elem_id="status")
        with gr.Column(scale=3, min_width=300):
            meaning = gr.HTML(elem_id="meaning")
            # Where pictures and figures appear, in the order of `Showing`.
            results = [
                gr.HTML(words.stage({}, "", 1), elem_id="stage"),
                gr.HTML(elem_id="comparison"),
            ]
    with gr.Column(elem_classes="made"):
        gallery = gr.Gallery(
            label="What you have made", columns=6, height="auto", elem_id="gallery"
        )
        export = gr.Button("Export pictures and settings", size="sm", elem_id="export")
        archive = gr.DownloadButton(visible="hidden", elem_id="archive")
    prompt, _, ask, *amounts, rule = options
    finished = gr.on(
        [draw.click, prompt.submit],
        events.draw,
        options,
        [status, draw, stop, *results, gallery],
        concurrency_limit=None,
        trigger_mode="once",
        **INNER,
    )
    stop.click(events.stop, queue=False, **INNER)
    refresh = {"fn": events.meaning, "inputs": options[2:], "outputs": meaning, **INNER}
    moved = [part.input for part in (*amounts, rule)]
    gr.on([ask.change, *moved], **refresh, trigger_mode="always_last", queue=False)
    ask.change(_shown_for, ask, [*amounts, rule], queue=False, **INNER)
    steps_set = steps.input(
        events.set_steps,
        [steps, rule],
        [amounts[0], rule, status],
        trigger_mode="always_last",
        **INNER,
    )
    exported = export.click(events.export, outputs=[archive, status], **INNER)
    exported.success(None, js=CLICK)
    return TryView(ask, rule, steps, finished, steps_set, refresh)


def _options(
    ask: str, evaluations: float, min_psnr: float, like_steps: float, rule: str
) -> PictureOptions:
    """Return what the fields ask for, without a prompt."""
    options = PictureOptions("", 0, int(evaluations or 0), rule)
    if ask == "min_psnr":
        return options._replace(min_psnr=float(min_psnr))
    return options._replace(like_steps=int(like_steps)) if ask == "like_steps" else options


def _shown_for(ask: str) -> list[Any]:
    """Show the slider of what is asked for, and the rule where it is a number of evaluations."""
    names = ("evaluations", "min_psnr", "like_steps", "evaluations")
    return [gr.update(visible=ask == name) for name in names]


def _fields(studio: Studio) -> tuple[Any, list[Any]]:
    """Return the field of the steps, and the others in the order of `Trying.draw`."""
    ours = [(word, name) for name, (word, _) in RULES.items()]
    others = [(f"{word} (method of others)", name) for name, word in rival_names().items()]
    model = studio.model
    usual_rule, usual = typical_choice(studio.known(studio.session(None)))
    prompt = gr.Textbox(
        label="Prompt",
        value=model.typical_prompt(),
        lines=2,
        max_length=MAX_PROMPT_LENGTH,
        elem_id="prompt",
    )
    with gr.Row():
        seed = gr.Number(
            label="Seed", value=0, precision=0, minimum=0, min_width=90, scale=1, elem_id="seed"
        )
        steps = gr.Slider(
            *model.steps_offered,
            value=model.steps,
            step=1,
            label="Steps of the full run",
            min_width=180,
            scale=3,
            elem_id="steps",
        )
    ask = gr.Radio(ASKS, value="evaluations", label="What you ask for", elem_id="ask")
    amounts = [
        gr.Slider(
            MIN_EVALUATIONS,
            model.steps,
            value=usual,
            step=1,
            label="Evaluations: how many steps run the model",
            elem_id="evaluations",
        ),
        gr.Slider(
            MIN_DB,
            MAX_DB,
            value=DEFAULT_DB,
            step=1,
            label="PSNR to the full run, at least so many dB",
            visible=False,
            elem_id="min-psnr",
        ),
        gr.Slider(
            MIN_EVALUATIONS,
            MAX_STEPS,
            value=min(model.steps, MAX_STEPS),
            step=1,
            label="As near to the flow as so many Euler steps",
            visible=False,
            elem_id="like-steps",
        ),
    ]
    rule = gr.Dropdown(
        [*ours, *others],
        value=usual_rule,
        label="Rule: how the other steps are rebuilt",
        elem_id="rule",
    )
    return steps, [prompt, seed, ask, *amounts, rule]
