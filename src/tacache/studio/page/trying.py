"""The view Try: a prompt becomes a picture with few evaluations, beside the one with all."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gradio as gr

from tacache.errors import TACacheError
from tacache.studio import words
from tacache.studio.choices import FEWEST, RULES, first_rule
from tacache.studio.jobs import Finished, Progress, news_of
from tacache.studio.page.showing import Showing
from tacache.studio.rivals import RIVALS
from tacache.studio.sessions import Studio
from tacache.studio.trying import LONGEST_PROMPT, Wish, attempt, plan_for

EXAMPLES = {False: "three penguins on a blue background", True: "a cat moves to the left"}
INNER: Any = {"show_progress": "hidden", "api_visibility": "private"}  # of every event
CLICK = "() => document.querySelector('#archive a, a#archive, #archive').click()"


class TryView(NamedTuple):
    """The parts that other views change or hear of."""

    rule: Any
    finished: Any  # the event after a run
    refresh: dict[str, Any]  # the event that says anew what the settings mean


class Trying:
    """What the events of the view do."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def draw(
        self, prompt: str, seed: float, evaluations: float, rule: str, request: gr.Request
    ) -> Iterator[list[Any]]:
        """The page, over and over, while a wish is drawn."""
        studio, session = self._studio, self._studio.session(request.session_hash)
        wish = Wish(prompt or "", int(seed or 0), int(evaluations), rule)
        show, latest, known = Showing(studio.model, wish.prompt), None, studio.known(session)
        yield show.started()
        stop = session.begin("draw")
        try:
            for news in news_of(lambda watch: attempt(known, studio.rivals, wish, watch), stop):
                if isinstance(news, Finished):
                    made, session.drift = news.result, news.result.drift
                    session.gallery.add(made, studio.model.name, studio.model.fps)
                    yield show.compared(made, session.gallery)
                else:
                    latest = news if isinstance(news, Progress) else latest
                    yield show.heard(news)
        except Exception as error:
            yield show.ended(words.outcome(error, latest))

    def meaning(self, evaluations: float, rule: str, request: gr.Request) -> str:
        """What the settings mean: the speedup and the anchors."""
        known = self._studio.known(self._studio.session(request.session_hash))
        try:
            choice = plan_for(known, Wish("", 0, int(evaluations), rule))
        except TACacheError as error:
            return words.refused(error)
        if choice is None:
            return words.rival(RIVALS[rule], int(evaluations), self._studio.model.steps)
        return words.budget(choice)

    def stop(self, request: gr.Request) -> None:
        """Stop what this person draws."""
        self._studio.session(request.session_hash).stop("draw")

    def export(self, request: gr.Request) -> list[Any]:
        """The archive of the gallery, and what there is to say."""
        gallery = self._studio.session(request.session_hash).gallery
        if not gallery.entries:
            return [gr.skip(), words.said("There is nothing to export yet: draw a picture first.")]
        return [gr.update(value=str(gallery.export())), gr.skip()]


def try_view(studio: Studio) -> TryView:
    """Build the view."""
    events = Trying(studio)
    with gr.Row(elem_classes="view"):
        with gr.Column(scale=2, min_width=300, elem_classes="controls"):
            wish = _wish(studio)
            meaning = gr.HTML(elem_id="meaning")
            with gr.Row():
                draw = gr.Button("Draw", variant="primary", min_width=100, elem_id="draw")
                stop = gr.Button("Stop", interactive=False, min_width=100, elem_id="stop")
            status = gr.HTML(words.said("Ready."), elem_id="status")
        with gr.Column(scale=3, min_width=300):
            results = _results()
    with gr.Column(elem_classes="made"):
        gallery = gr.Gallery(
            label="What you have made", columns=6, height="auto", elem_id="gallery"
        )
        export = gr.Button("Export pictures and settings", size="sm", elem_id="export")
        archive = gr.DownloadButton(visible="hidden", elem_id="archive")
    prompt, _, evaluations, rule = wish
    finished = gr.on(
        [draw.click, prompt.submit],
        events.draw,
        wish,
        [status, draw, stop, *results, gallery],
        concurrency_limit=None,
        trigger_mode="once",
        **INNER,
    )
    stop.click(events.stop, queue=False, **INNER)
    refresh = {"fn": events.meaning, "inputs": [evaluations, rule], "outputs": meaning, **INNER}
    gr.on([evaluations.input, rule.input], **refresh, trigger_mode="always_last", queue=False)
    exported = export.click(events.export, outputs=[archive, status], **INNER)
    exported.success(None, js=CLICK)
    return TryView(rule, finished, refresh)


def _wish(studio: Studio) -> list[Any]:
    """The fields of a wish, in the order of `Trying.draw`."""
    ours = [(word, name) for name, (word, _) in RULES.items()]
    others = [(f"{word} (method of others)", name) for name, word in RIVALS.items()]
    steps = studio.model.steps
    return [
        gr.Textbox(
            label="Prompt",
            value=EXAMPLES[studio.model.makes_clips],
            lines=2,
            max_length=LONGEST_PROMPT,
            elem_id="prompt",
        ),
        gr.Number(label="Seed", value=0, precision=0, minimum=0, elem_id="seed"),
        gr.Slider(
            FEWEST,
            steps,
            value=max(FEWEST, steps // 4 + 1),
            step=1,
            label="Evaluations: how many steps run the model",
            elem_id="evaluations",
        ),
        gr.Dropdown(
            [*ours, *others],
            value=first_rule(studio.known(studio.session(None))),
            label="Rule: how the other steps are rebuilt",
            elem_id="rule",
        ),
    ]


def _results() -> list[Any]:
    """Where pictures and figures appear, in the order of `Showing`."""
    return [gr.HTML(words.stage({}, "", 1), elem_id="stage"), gr.HTML(elem_id="comparison")]
