"""The view Make: learn a plan from prompts, and take plans and profiles away or bring them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from tacache.errors import TACacheError
from tacache.instant import default_evaluations
from tacache.plan import Plan, make_plan
from tacache.studio import words
from tacache.studio.charts import strip
from tacache.studio.choices import choose, typical_choice
from tacache.studio.page.trying import INNER, TryView
from tacache.studio.page.understanding import UnderstandView
from tacache.studio.plan_learning import Lesson, learn
from tacache.studio.sessions import Studio
from tacache.studio.shelf import profile_on, read_upload
from tacache.studio.turns import Finished, JobProgress, Part, Waiting, news_of

TARGETS = [("The full-step run", "run"), ("The flow, a much finer run", "flow")]
SHOWN_PROMPTS = 8  # prompts that the field begins with


class Making:
    """What the events of the view do."""

    def __init__(self, studio: Studio) -> None:
        self._studio = studio

    def learn(
        self, prompts: str, evaluations: str, target: str, request: gr.Request
    ) -> Iterator[list[Any]]:
        """Yield the status, over and over, while plans are learned."""
        session, latest = self._studio.session(request.session_hash), None
        try:
            known = self._studio.known(session)
            lesson = Lesson.read(prompts or "", evaluations or "", target)
            yield _learning(words.said("Starting."), running=True)
            stop = session.begin("learn")
            for news in news_of(lambda watch: learn(known.model, lesson, watch), stop):
                if isinstance(news, Finished):
                    names = [known.shelf.put(plan).name for plan in news.result.plans]
                    session.profile, session.own = news.result.profile, news.result.plans[-1]
                    sentence = f"Learned, and put into the plan store: {', '.join(names)}."
                    yield _learning(words.said(sentence), running=False)
                elif isinstance(news, JobProgress | Waiting):
                    latest = news
                    yield _learning(words.progress(news), running=True)
                elif isinstance(news, Part):
                    yield _learning(words.said("The profile is measured."), running=True)
        except Exception as error:
            yield _learning(words.outcome(error, latest), running=False)

    def stop(self, request: gr.Request) -> None:
        """Stop what this person learns."""
        self._studio.session(request.session_hash).stop("learn")

    def bring(self, file: str | None, request: gr.Request) -> str:
        """Read a file that was dropped: a plan goes into the store, a profile into the session."""
        if file is None:
            return ""
        session = self._studio.session(request.session_hash)
        try:
            upload, known = read_upload(Path(file)), self._studio.known(session)
            if isinstance(upload, Plan):
                stored = known.shelf.put(upload)
                session.own = upload
                return words.said(f"Loaded into the plan store: {stored.title}.")
            session.profile = profile_on(upload, known.model.times, known.model.name)
            return words.said(f"Loaded: a profile of {upload.samples} runs.")
        except (TACacheError, OSError) as error:
            return words.refused(error)

    def use(self, tau_k: float, tau_d: float, request: gr.Request) -> list[Any]:
        """Make the plan of two thresholds this person's own, and choose it under Try."""
        session = self._studio.session(request.session_hash)
        profile = self._studio.known(session).profile
        if profile is None:
            return [gr.skip(), gr.skip(), gr.skip()]
        session.own = make_plan(profile, tau_k=float(tau_k), tau_d=float(tau_d))
        sentence = words.said("Set: the rule under Try is now My own plan.")
        return ["evaluations", "own", sentence + strip(session.own)]

    def files(self, request: gr.Request) -> list[Any]:
        """Return the list of plans and the file of the profile, as they are now."""
        session = self._studio.session(request.session_hash)
        known = self._studio.known(session)
        plans = known.shelf.plans()
        names = [(shelved.title, shelved.name) for shelved in plans]
        usual = choose(known, *typical_choice(known)).plan
        shown = [
            shelved.name
            for plan in (session.own, usual)
            for shelved in plans
            if shelved.plan == plan
        ]
        first = next(iter([*shown, *(shelved.name for shelved in plans)]), None)
        name = Path(self._studio.model.name).name
        if session.profile is None:
            profile = gr.update(interactive=False)
        else:
            path = session.profile.save(session.folder / f"{name}.profile.json")
            profile = gr.update(value=str(path), interactive=True)
        return [gr.update(choices=names, value=first), *self.chosen(first, request), profile]

    def chosen(self, name: str | None, request: gr.Request) -> list[Any]:
        """Return what a plan does, and its file."""
        if not name:
            return [words.said("There is no plan yet."), gr.update(interactive=False)]
        session = self._studio.session(request.session_hash)
        try:
            shelved = self._studio.known(session).shelf.named(name)
        except TACacheError as error:
            return [words.refused(error), gr.update(interactive=False)]
        path = shelved.plan.save(session.folder / f"{shelved.name}.plan.json")
        return [words.about(shelved.plan), gr.update(value=str(path), interactive=True)]


class MakeView(NamedTuple):
    """The view with what it needs to begin."""

    events: Making
    files: list[Any]
    tried: TryView
    understood: UnderstandView

    def begin(self, page: Any) -> None:
        """Fill in all views for somebody who has just come."""
        self.renew(page.load(self.events.files, None, self.files, **INNER))

    def renew(self, event: Any) -> None:
        """Write everything anew, after an event, that follows from profile and plans."""
        understood = self.understood
        event.then(understood.events.charts, None, understood.charts, **INNER)
        event.then(understood.events.sliders, None, understood.sliders, **INNER)
        event.then(**self.tried.refresh)


def make_view(studio: Studio, tried: TryView, understood: UnderstandView) -> MakeView:
    """Build the view, and let the others follow what happens in it."""
    events = Making(studio)
    with gr.Row(elem_classes="view"):
        with gr.Column(min_width=300):
            gr.HTML("<h2>Learn a plan</h2>")
            lesson = _lesson(studio)
            with gr.Row():
                go = gr.Button("Learn", variant="primary", min_width=100, elem_id="learn")
                stop = gr.Button("Stop", interactive=False, min_width=100, elem_id="stop-learning")
            status = gr.HTML(words.said("Ready."), elem_id="learning")
        with gr.Column(min_width=300):
            gr.HTML("<h2>Plans and profiles</h2>")
            files, upload, loaded = _files()
    view = MakeView(events, files, tried, understood)
    learned = go.click(
        events.learn,
        lesson,
        [status, go, stop],
        concurrency_limit=None,
        trigger_mode="once",
        **INNER,
    )
    stop.click(events.stop, queue=False, **INNER)
    brought = upload.upload(events.bring, upload, loaded, **INNER)
    for event in (learned, brought):
        view.renew(event.then(events.files, None, files, **INNER))
    files[0].input(events.chosen, files[0], files[1:3], **INNER)
    sliders = understood.sliders
    used = understood.use.click(
        events.use, sliders[:2], [tried.ask, tried.rule, sliders[2]], **INNER
    )
    used.then(**tried.refresh)
    view.renew(tried.steps_set.then(events.files, None, files, **INNER))
    tried.steps_set.then(_usual_budget, tried.steps, lesson[1], **INNER)
    tried.finished.then(understood.events.charts, None, understood.charts, **INNER)
    return view


def _lesson(studio: Studio) -> list[Any]:
    """Return the fields of a lesson, in the order of `Making.learn`."""
    taught = "\n".join(studio.model.prompts()[:SHOWN_PROMPTS])
    return [
        gr.Textbox(taught, label="Prompts, one a line", lines=8, max_lines=16, elem_id="lesson"),
        gr.Textbox(
            _usual_budget(studio.model.steps),
            label="Evaluations, with commas between",
            elem_id="budgets",
        ),
        gr.Radio(TARGETS, value="run", label="Aim at", elem_id="target"),
    ]


def _usual_budget(steps: float) -> str:
    return str(default_evaluations(int(steps)))


def _files() -> tuple[list[Any], Any, Any]:
    """Return the list of plans with its buttons, where files are dropped, and what is said."""
    plans = gr.Dropdown([], label="Plans for this model", elem_id="plans")
    about = gr.HTML(elem_id="about-plan")
    with gr.Row():
        plan_file = gr.DownloadButton("Download plan", size="sm", elem_id="download-plan")
        profile_file = gr.DownloadButton("Download profile", size="sm", elem_id="download-profile")
    upload = gr.File(
        label="Load a plan or a profile: drop its JSON file here", height=170, elem_id="upload"
    )
    loaded = gr.HTML(elem_id="loaded")
    return [plans, about, plan_file, profile_file], upload, loaded


def _learning(status: str, *, running: bool) -> list[Any]:
    return [status, gr.update(interactive=not running), gr.update(interactive=running)]
