"""The view Understand: what was measured, thresholds and their anchors, plans, and drift."""

from typing import Any, NamedTuple

import gradio as gr

from tacache.errors import TACacheError
from tacache.studio import words
from tacache.studio.charts import drift_chart, frontier_chart, profile_charts, strip
from tacache.studio.page.trying import INNER
from tacache.studio.sessions import Session, Studio
from tacache.studio.thresholds import planned, ranges

NO_PROFILE = "There is no profile of this model yet: measure or load one under Make."


class UnderstandView(NamedTuple):
    """The parts that other views change or hear of, with what writes them anew."""

    charts: list[Any]
    sliders: list[Any]
    use: Any
    events: "Understanding"


class Understanding:
    """What the events of the view do."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def moved(self, tau_k: float, tau_d: float, request: gr.Request) -> str:
        """The anchors of the thresholds."""
        return anchors_of(self._studio.session(request.session_hash), tau_k, tau_d)

    def charts(self, request: gr.Request) -> list[str]:
        """The curves, the frontier of stored plans, and the drift of the last run."""
        session, steps = self._studio.session(request.session_hash), self._studio.model.steps
        profile = session.profile
        curves = words.said(NO_PROFILE) if profile is None else profile_charts(profile)
        frontier = frontier_chart(self._studio.shelf.plans())
        return [curves, frontier, drift_chart(session.drift, steps)]

    def sliders(self, request: gr.Request) -> list[Any]:
        """The sliders as far as they go for the profile, and the anchors where they stand."""
        session = self._studio.session(request.session_hash)
        if session.profile is None:
            return [gr.update(interactive=False)] * 2 + [words.said(NO_PROFILE)]
        both = ranges(session.profile)
        found = [
            gr.update(maximum=one.highest, step=one.notch, value=one.first, interactive=True)
            for one in both
        ]
        return [*found, anchors_of(session, both[0].first, both[1].first)]


def anchors_of(session: Session, tau_k: float, tau_d: float) -> str:
    """The anchor strip of a pair of thresholds, with the speedup that it predicts."""
    if session.profile is None:
        return words.said(NO_PROFILE)
    try:
        plan = planned(session.profile, float(tau_k), float(tau_d))
    except (TACacheError, ValueError, TypeError) as error:
        return words.refused(error)
    return words.said(words.speed(plan)) + strip(plan)


def understand_view(studio: Studio) -> UnderstandView:
    """Build the view."""
    events = Understanding(studio)
    gr.HTML("<h2>What full runs measured</h2>")
    curves = gr.HTML(elem_id="curves", elem_classes="charts")
    gr.HTML("<h2>Thresholds of the paper's rule</h2>")
    with gr.Row():
        tau_k = gr.Slider(0, 1, label="tau_k, for the size", min_width=260, elem_id="tau-k")
        tau_d = gr.Slider(0, 1, label="tau_d, for the direction", min_width=260, elem_id="tau-d")
    anchors = gr.HTML(elem_id="anchors")
    use = gr.Button("Use these thresholds under Try", size="sm", elem_id="use-thresholds")
    gr.HTML("<h2>Stored plans, and the last run</h2>")
    with gr.Row():
        frontier = gr.HTML(min_width=280, elem_id="frontier", elem_classes="charts")
        drift = gr.HTML(min_width=280, elem_id="drift", elem_classes="charts")
    gr.on(
        [tau_k.input, tau_d.input],
        events.moved,
        [tau_k, tau_d],
        anchors,
        trigger_mode="always_last",
        queue=False,
        **INNER,
    )
    return UnderstandView([curves, frontier, drift], [tau_k, tau_d, anchors], use, events)
