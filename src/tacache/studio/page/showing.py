"""What the page shows of a run at each moment; every method is one update of its outputs."""

from typing import Any

import gradio as gr

from tacache.studio import words
from tacache.studio.attempts import Attempt
from tacache.studio.drawing import ACCELERATED, FULL_STEPS, Drawn
from tacache.studio.gallery import Gallery
from tacache.studio.model import StudioModel
from tacache.studio.turns import JobProgress, News, Part

OUTPUTS = ("status", "draw", "stop", "stage", "comparison", "gallery")


class Showing:
    """One run on the page; each method gives the values of `OUTPUTS`."""

    def __init__(self, model: StudioModel, prompt: str) -> None:
        self._fps, self._prompt = model.fps, prompt
        self._drawn: dict[str, Drawn | JobProgress] = {}

    def started(self) -> list[Any]:
        """Show that the run has begun; what the one before it showed goes."""
        said = words.said("Starting.")
        return _update(**_buttons(running=True), status=said, stage=self._stage(), comparison="")

    def heard(self, news: News) -> list[Any]:
        """Show the news there are."""
        if isinstance(news, Part):
            assert isinstance(news.value, Drawn)
            self._drawn[news.name] = news.value
            return _update(status=words.said(f"Done: {news.name}."), stage=self._stage())
        if isinstance(news, JobProgress) and news.preview is not None:
            self._drawn[news.part] = news
            return _update(status=words.progress(news), stage=self._stage())
        return _update(status=words.progress(news))

    def ended(self, status: str) -> list[Any]:
        """Show that the run did not finish."""
        return _update(**_buttons(running=False), status=status)

    def compared(self, attempt: Attempt, gallery: Gallery) -> list[Any]:
        """Show both pictures."""
        self._drawn |= {ACCELERATED: attempt.fast, FULL_STEPS: attempt.full}
        entries = [(str(entry.fast), entry.caption) for entry in reversed(gallery.entries)]
        return _update(
            **_buttons(running=False),
            status=words.said("Done."),
            stage=self._stage(),
            comparison=words.compared(attempt, self._fps),
            gallery=gr.update(value=entries),
        )

    def _stage(self) -> str:
        return words.stage(self._drawn, self._prompt, self._fps)


def _update(**changed: Any) -> list[Any]:
    return [changed.get(name, gr.skip()) for name in OUTPUTS]


def _buttons(*, running: bool) -> dict[str, Any]:
    return {"draw": gr.update(interactive=not running), "stop": gr.update(interactive=running)}
