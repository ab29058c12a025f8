"""How the page looks: fonts of the system, two modes, and a style of its own."""

from pathlib import Path
from typing import Any

import gradio as gr

STYLE = Path(__file__).with_name("style.css")
SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "Consolas", "Menlo", "monospace")
# What Gradio leaves out of a style: the number that moves clips, which a browser must know as one.
HEAD = '<style>@property --clock { syntax: "<number>"; inherits: true; initial-value: 0; }</style>'
SCRIPT = '() => { document.documentElement.lang = "en"; }'


def theme() -> Any:
    """Gradio's plain theme in our colours, without any font that would be fetched."""
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
