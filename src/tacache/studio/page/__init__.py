"""The page itself, by Gradio: three views of one studio, and how it looks."""

from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from tacache.studio.page.making import make_view
from tacache.studio.page.trying import try_view
from tacache.studio.page.understanding import understand_view
from tacache.studio.sessions import Studio

CLEANED = (600, 7200)  # look every so many seconds for files older than so many
STYLE = Path(__file__).with_name("style.css")
SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "Consolas", "Menlo", "monospace")
# What Gradio leaves out of a style: the number that moves clips, which a browser must know as one.
HEAD = '<style>@property --clock { syntax: "<number>"; inherits: true; initial-value: 0; }</style>'
SCRIPT = '() => { document.documentElement.lang = "en"; }'


def build(studio: Studio) -> Any:
    """Return the page of a studio, ready to be served."""

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
                making = make_view(studio, tried, understood)
        making.begin(page)
        page.unload(leave)
    return page


def _heading(studio: Studio) -> str:
    return (
        "<header><h1>TACache studio</h1>"
        f"<p><b>{escape(studio.model.name)}</b>: a few steps of a run evaluate the model, the "
        "others are rebuilt. Look how few are enough.</p></header>"
    )


def theme() -> Any:
    """Return Gradio's plain theme in our colours, without any font that would be fetched."""
    plain = gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        font=SANS,
        font_mono=MONO,
    )
    return plain.set(  # words and buttons that can be read: a contrast of 4.5 at least
        color_accent="*primary_700",
        slider_color="*primary_700",
        slider_color_dark="*primary_500",
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
    )
