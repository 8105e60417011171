"""Colours and type of Gradio's own controls: the same tokens as in style.css, fonts of the system only."""

from __future__ import annotations

import gradio as gr

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

# (light, dark) of each token
PAPER = ("#f7f6f3", "#141517")
CARD = ("#ffffff", "#1c1d20")
FIELD = ("#faf9f7", "#242629")
LINE = ("#dddad3", "#35373b")
INK = ("#1d1c1a", "#ececea")
FAINT = ("#66635d", "#a3a29d")
ACCENT = ("#0072b2", "#56b4e9")
ON_ACCENT = ("#ffffff", "#10222e")


def theme() -> gr.themes.Base:
    """A plain theme; nothing in it is fetched from elsewhere."""
    chosen = {
        "body_background_fill": PAPER,
        "body_text_color": INK,
        "body_text_color_subdued": FAINT,
        "block_background_fill": CARD,
        "block_border_color": LINE,
        "block_label_text_color": FAINT,
        "block_label_background_fill": CARD,
        "block_title_text_color": FAINT,
        "border_color_primary": LINE,
        "border_color_accent": ACCENT,
        "background_fill_primary": CARD,
        "background_fill_secondary": FIELD,
        "input_background_fill": FIELD,
        "input_border_color": LINE,
        "input_border_color_focus": ACCENT,
        "slider_color": ACCENT,
        "checkbox_background_color_selected": ACCENT,
        "checkbox_border_color_selected": ACCENT,
        "checkbox_label_background_fill": CARD,
        "button_primary_background_fill": ACCENT,
        "button_primary_background_fill_hover": ACCENT,
        "button_primary_text_color": ON_ACCENT,
        "button_primary_border_color": ACCENT,
        "button_secondary_background_fill": CARD,
        "button_secondary_background_fill_hover": FIELD,
        "button_secondary_text_color": INK,
        "button_secondary_border_color": LINE,
        "color_accent": (ACCENT[0],),
        "link_text_color": ACCENT,
    }
    values: dict[str, str] = {}
    for name, (light, *dark) in chosen.items():
        values[name] = light
        if dark:
            values[f"{name}_dark"] = dark[0]
    base = gr.themes.Base(font=SANS, font_mono=MONO, radius_size="sm", text_size="md", spacing_size="md")
    return base.set(**values, block_shadow="none", button_primary_shadow="none", block_label_shadow="none")
