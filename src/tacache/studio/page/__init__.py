"""The page itself, by Gradio: three views of one studio."""

from html import escape
from typing import Any

import gradio as gr

from tacache.studio.page.making import make_view
from tacache.studio.page.trying import try_view
from tacache.studio.page.understanding import understand_view
from tacache.studio.sessions import Studio

CLEANED = (600, 7200)  # look every so many seconds for files older than so many


def build(studio: Studio) -> Any:
    """The page of a studio, ready to be served."""

    def leave(request: gr.Request) -> None:
        studio.leave(request.session_hash)

    title = f"TACache studio: {studio.model.name}"
    with gr.Blocks(title=title, analytics_enabled=False, delete_cache=CLEANED) as page:
        gr.HTML(_heading(studio), elem_id="heading")
        with gr.Tabs(elem_id="views"):
            with gr.Tab("Try", id="try"):
                tried = try_view(studio)
            with gr.Tab("Understand", id="understand", render_children=True):
                understood = understand_view(studio)
            with gr.Tab("Make", id="make", render_children=True):
                made = make_view(studio, tried, understood)
        made.begin(page)
        page.unload(leave)
    return page


def _heading(studio: Studio) -> str:
    model = studio.model
    return (
        "<header><h1>TACache studio</h1>"
        f"<p><b>{escape(model.name)}</b>, {model.steps} steps. A few of them run the model, the "
        "others are rebuilt. Look how few are enough.</p></header>"
    )
