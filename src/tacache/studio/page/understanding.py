"""The view Understand: what was measured, thresholds and their anchors, plans, and drift."""

import math
from typing import Any, NamedTuple

import gradio as gr

from tacache.errors import TACacheError
from tacache.instant import default_evaluations
from tacache.plan import make_plan, step_variation
from tacache.profile import Profile
from tacache.ssc import MAX_SKIP
from tacache.studio import words
from tacache.studio.charts import drift_chart, frontier_chart, profile_charts, strip
from tacache.studio.page.trying import INNER
from tacache.studio.sessions import Studio

NO_PROFILE = "There is no profile of this model yet: measure or load one under Make."
NOTCHES = 200  # of a slider


class SliderRange(NamedTuple):
    """How far a slider goes, its notch, and where it stands first."""

    highest: float
    notch: float
    first: float


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

    def _profile(self, request: gr.Request) -> Profile | None:
        return self._studio.known(self._studio.session(request.session_hash)).profile

    def moved(self, tau_k: float, tau_d: float, request: gr.Request) -> str:
        """Return the anchors of the thresholds."""
        return anchors_of(self._profile(request), tau_k, tau_d)

    def charts(self, request: gr.Request) -> list[str]:
        """Return the curves, the frontier of stored plans, and the drift of the last run."""
        session = self._studio.session(request.session_hash)
        known = self._studio.known(session)
        profile = known.profile
        curves = words.said(NO_PROFILE) if profile is None else profile_charts(profile)
        frontier = frontier_chart(known.shelf.plans())
        return [curves, frontier, drift_chart(session.drift)]

    def sliders(self, request: gr.Request) -> list[Any]:
        """Return the sliders as far as they go for the profile, and the anchors they give."""
        profile = self._profile(request)
        if profile is None:
            return [gr.update(interactive=False)] * 2 + [words.said(NO_PROFILE)]
        both = ranges(profile)
        sliders = [
            gr.update(maximum=span.highest, step=span.notch, value=span.first, interactive=True)
            for span in both
        ]
        return [*sliders, anchors_of(profile, both[0].first, both[1].first)]


def anchors_of(profile: Profile | None, tau_k: float, tau_d: float) -> str:
    """Return the anchor strip of a pair of thresholds, with the speedup that it predicts."""
    if profile is None:
        return words.said(NO_PROFILE)
    try:
        plan = make_plan(profile, tau_k=float(tau_k), tau_d=float(tau_d))
    except (TACacheError, ValueError, TypeError) as error:
        return words.refused(error)
    return words.said(words.speed(plan)) + strip(plan)


def ranges(profile: Profile) -> tuple[SliderRange, SliderRange]:
    """Return the sliders of tau_k and tau_d: from nothing skipped to all that any threshold skips.

    They stand first where the usual number of steps is evaluated.
    """
    start = make_plan(profile, evaluations=default_evaluations(profile.steps))
    pairs = zip(step_variation(profile), (start.tau_k, start.tau_d), strict=True)
    return tuple(_range(variation, first or 0.0) for variation, first in pairs)  # type: ignore[return-value]


def _range(variation: tuple[float, ...], first: float) -> SliderRange:
    """Return up to three times the usual, in round notches: beyond, hardly anything changes."""
    widest = max(
        sum(variation[n : n + MAX_SKIP]) for n in range(1, max(2, len(variation) - MAX_SKIP + 1))
    )
    reach = min(max(3 * first, 1e-6), max(widest, 1e-6) * 1.01)
    notch = 10.0 ** math.floor(math.log10(reach / NOTCHES))
    notch *= next(factor for factor in (1, 2, 5, 10) if notch * factor >= reach / NOTCHES)
    count = math.ceil(reach / notch)
    return SliderRange(round(count * notch, 10), notch, round(round(first / notch) * notch, 10))


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
    gr.HTML("<h2>Plans, and the last run</h2>")
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
