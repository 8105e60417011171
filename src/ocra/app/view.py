"""A pass of one or two networks as HTML: every step is in it, and view.js only picks which one shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ocra.app.looking import Force, Look
from ocra.app.panels import capsules, data_url, draws, film, margin, reads, stage, steps_of, style
from ocra.app.subjects import Subject
from ocra.app.verdict import in_words, verdict
from ocra.images.fitting import Step

_PLAY = """<button type="button" class="play" aria-label="Play the glimpses">
<svg viewBox="0 0 16 16" aria-hidden="true"><path class="start" d="M4 2.5v11l9.5-5.5z"/>
<path class="stop" d="M4 3h3v10H4zM9 3h3v10H9z"/></svg></button>"""
_FORCE = """<div class="force">
<p>Point at the picture to move <b>glimpse <span class="number">1</span></b>.</p>
<label>Size <input type="range" class="extent" min="0.1" max="1.5" step="0.01" value="1"
 aria-label="Size of the window"><output></output></label>
<span class="release"><button type="button" class="let-go" aria-disabled="true">Release it</button>
<button type="button" class="let-all-go" aria-disabled="true">Release all</button></span></div>"""


def render(
    subject: Subject, looks: Sequence[Look], forced: Sequence[Force], run: int = 0, turn: int = 0
) -> str:
    """The whole view.

    `run` changes when the glimpses are to be played from the first, `turn` says which change to the forced
    windows is answered.
    """
    steps = max(look.glimpses for look in looks)
    windows = escape(json.dumps([vars(force) for force in forced]))
    articles = "".join(_article(look, subject) for look in looks)
    return (
        f'<section class="ocra-view" data-run="{run}" data-turn="{turn}" data-steps="{steps}" '
        f'data-forced="{windows}">{_transport(subject, steps)}'
        f'<div class="looks {"two" if len(looks) > 1 else "one"}">{articles}</div></section>'
    )


def empty(message: str) -> str:
    """What stands in place of a view."""
    return f'<section class="ocra-view nothing"><p>{escape(message)}</p></section>'


def notice(message: str, kind: str = "note") -> str:
    """One sentence below the picture tabs; empty for none. kind: note or error."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="ocra-notice {kind}" role="{role}">{escape(message)}</p>' if message else ""


def _transport(subject: Subject, steps: int) -> str:
    """Play button, slider, and what is being looked at."""
    words = escape(in_words(subject.truth, subject.is_number))
    truth = f"<span>in it: {words}</span>" if subject.truth else ""
    return (
        f'<div class="transport">{_PLAY}'
        f'<input type="range" class="step" min="1" max="{steps}" value="{steps}" aria-label="Glimpse">'
        f'<output class="count" aria-live="polite">Glimpse {steps} of {steps}</output>'
        f'<p class="subject"><span>{escape(subject.title)}</span>{truth}</p></div>'
    )


def _article(look: Look, subject: Subject) -> str:
    """One column: the answer, the image with the windows, and what the network makes of them."""
    config = look.network.config
    placement = json.dumps([*look.placement.scale, *look.placement.offset])
    gaze = f"{stage(look)}{_FORCE if config.attention else ''}{film(look)}"
    return (
        f'<article class="look" data-model="{escape(look.network.name)}" data-w="{config.width}" '
        f'data-h="{config.height}" data-m="{margin(look):g}" data-movable="{int(config.attention)}" '
        f'data-placement="{placement}" '
        f'data-steps="{escape(json.dumps(steps_of(look), separators=(",", ":")))}">'
        f'{verdict(look, subject)}<div class="panels"><div class="gaze">{gaze}</div>'
        f'<div class="insight">{reads(look)}{draws(look)}{capsules(look)}</div></div>'
        f"{_preparation(look.steps)}</article>"
    )


def _preparation(steps: Sequence[Step]) -> str:
    """How an uploaded picture became what the network is shown."""
    if not steps:
        return ""
    figures = "".join(_prepared(step) for step in steps)
    summary = "<summary>How the picture was prepared</summary>"
    return f'<details class="prepared">{summary}<div>{figures}</div></details>'


def _prepared(step: Step) -> str:
    rows, columns = step.picture.shape[:2]
    box = ""
    if step.box is not None:
        left, top, right, bottom = step.box
        place = (left / columns, top / rows, (right - left) / columns, (bottom - top) / rows)
        box = f'<span style="{style([round(100 * share, 2) for share in place])}"></span>'
    note = f" <i>{escape(step.note)}</i>" if step.note else ""
    return (
        f'<figure><div><img alt="" src="{data_url(step.picture)}">{box}</div>'
        f"<figcaption>{escape(step.name)}{note}</figcaption></figure>"
    )
