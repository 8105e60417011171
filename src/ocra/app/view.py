"""A pass of one or two models as HTML: every step is in it, and view.js only picks which one shows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ocra.app.looking import Force, Look, movable
from ocra.app.subjects import Subject
from ocra.images.fitting import Step
from ocra.model.trace import Windows
from ocra.prediction import FoundObject
from ocra.viz.record import in_words, same

MARGIN = 0.1
"""Room around the image, as a share of its longer side, where windows may reach beyond it."""
MOST_ROWS = 14
MOST_CONDITIONS = 6
WEAK = 0.2
"""A winner shorter than this hardly says that it has seen anything."""
UNSURE = 0.55
"""Below this confidence a class is hardly ahead of the best one that was not chosen (0.5: level with it)."""
SILENCE = '<p class="silence" role="alert" hidden></p>'
"""Where the page says that the server does not answer."""
_PLAY = """<button type="button" class="play" aria-label="Play the glimpses">
<svg viewBox="0 0 16 16" aria-hidden="true"><path class="start" d="M4 2.5v11l9.5-5.5z"/>
<path class="stop" d="M4 3h3v10H4zM9 3h3v10H9z"/></svg></button>"""
_FORCE = """<div class="force">
<p>Point at the image to move <b>glimpse <span class="number">1</span></b>.</p>
<label>Size <input type="range" class="extent" min="0.1" max="1.5" step="0.01" value="1"
 aria-label="Size of the window"><output></output></label>
<span class="release"><button type="button" class="let-go" aria-disabled="true">Release it</button>
<button type="button" class="let-all-go" aria-disabled="true">Release all</button></span></div>"""
_LINK = """<button type="button" class="link" title="Copy a link to what is shown here">Copy link</button>"""
_SAVE = """<div class="save"><span>Save</span>
<button type="button" data-file="figure.png" title="The figure as PNG">PNG</button>
<button type="button" data-file="figure.pdf" title="The figure as PDF">PDF</button>
<button type="button" data-file="animation.gif" title="The animation">GIF</button>
<button type="button" data-file="scanpath.csv" title="Where it looked, as a table">CSV</button>
<button type="button" class="python" title="Copy Python that does the same">Copy Python</button></div>"""
_BAR = '<span class="bar"><i></i><u hidden></u></span><data></data>'
_TOUCH = 'tabindex="0" role="application" aria-label="Point here, or press the arrow keys, to move the gaze"'


def render(
    subject: Subject,
    looks: Sequence[Look],
    forced: Sequence[Force],
    run: int = 0,
    turn: int = 0,
    *,
    address: str = "",
    token: str = "",
    code: Sequence[str] = (),
    changes: Sequence[Sequence[str]] = (),
) -> str:
    """The whole view.

    run: changes when the glimpses are to be played from the first. turn: which change to the forced windows is
    answered. address: the query string that leads here. token: by which files of it can be had. code, changes: for
    each look, Python that does the same, and what was done to the model in a few words.
    """
    steps = max(look.glimpses for look in looks)
    articles = [
        _article(look, subject, python, done)
        for look, python, done in zip(looks, code or [""] * 2, changes or [()] * 2, strict=False)
    ]
    windows = escape(json.dumps([vars(force) for force in forced]))
    kind = ' data-test="1"' if subject.exact is not None else ""
    truth = (
        f"<span>in it: {escape(in_words(subject.truth, subject.is_number))}</span>" if subject.truth else ""
    )
    return (
        f'<section class="ocra-view" data-run="{run}" data-turn="{turn}" data-steps="{steps}" '
        f'data-address="{escape(address)}" data-token="{escape(token)}" '
        f'data-forced="{windows}"{kind}><div class="transport">{_PLAY}'
        f'<input type="range" class="step" min="1" max="{steps}" value="{steps}" aria-label="Glimpse">'
        f'<output class="count" aria-live="polite">Glimpse {steps} of {steps}</output>'
        f'<p class="subject"><span>{escape(subject.title)}</span>{truth}</p>{_LINK}</div>'
        f"{SILENCE}"
        f'<div class="looks {"two" if len(looks) > 1 else "one"}">'
        f"{''.join(articles)}</div></section>"
    )


def empty(message: str) -> str:
    """What stands in place of a view."""
    return f'<section class="ocra-view nothing"><p>{escape(message)}</p>{SILENCE}</section>'


def notice(message: str, kind: str = "note") -> str:
    """One sentence below the tabs; empty for none. kind: note or error."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="ocra-notice {kind}" role="{role}">{escape(message)}</p>' if message else ""


def tally(trials: Sequence[tuple[str, int, bool]]) -> str:
    """A table of the conditions that were tried, the last ones first: how many of their trials were right."""
    answers: dict[str, list[bool]] = {}
    for condition, _, right in trials:
        answers[condition] = [*answers.pop(condition, []), right]
    rows = "".join(
        f"<tr><th scope='row'>{escape(condition)}</th><td>{sum(rights)} of {len(rights)}</td></tr>"
        for condition, rights in list(answers.items())[: -MOST_CONDITIONS - 1 : -1]
    )
    return f'<table class="ocra-tally"><caption>Right so far</caption>{rows}</table>' if rows else ""


def _article(look: Look, subject: Subject, code: str, changes: Sequence[str]) -> str:
    """One column: the answer, the image with the windows, and what the model makes of them."""
    config, can_move = look.config, movable(look.model)
    placement = json.dumps([*look.prepared.placement.scale, *look.prepared.placement.offset])
    steps = escape(json.dumps(steps_of(look), separators=(",", ":")))
    assert look.trace.glimpses is not None and look.trace.canvases is not None
    write = ""
    if look.trace.write_windows is not None:
        write = f'<svg viewBox="-0.5 -0.5 {config.width} {config.height}"><rect class="write"/></svg>'
    drawn = '<figure class="draws"><div class="stack none"><p>It draws nothing.</p></div></figure>'
    if look.draws:
        drawn = _stack("draws", "What it draws", look.trace.canvases[-1, : look.glimpses], write)
    return (
        f'<article class="look" data-model="{escape(look.name)}" data-w="{config.width}" '
        f'data-h="{config.height}" data-trained="{look.model.info.glimpses}" data-movable="{int(can_move)}" '
        f'data-placement="{placement}" data-steps="{steps}" data-python="{escape(code)}">'
        f'{_verdict(look, subject, changes)}<div class="panels">'
        f'<div class="gaze">{_stage(look)}{_film(look)}{_FORCE if can_move else ""}{_SAVE}</div>'
        f'<div class="insight">{_stack("reads", "What it reads", look.trace.glimpses[-1, : look.glimpses])}'
        f"{drawn}{_capsules(look)}</div></div>"
        f"{_preparation(look.prepared.steps) if subject.explain else ''}</article>"
    )


# The answer in words


def _verdict(look: Look, subject: Subject, changes: Sequence[str] = ()) -> str:
    """The header above a look: the answer after each glimpse, right or wrong after the last."""
    last = look.glimpses - 1
    said = "".join(
        f'<div data-t="{t}" class="{"now" if t == last else ""}">'
        f"{_said(look, answer, subject if t == last else None)}</div>"
        for t, answer in enumerate(look.answers)
    )
    about = [_ability(look), f"trained with {_counted(look.model.info.glimpses, 'glimpse')}"]
    if subject.exact is not None and not subject.fits(look.model):
        about.append(f"resized for this model, from {_size(subject.exact)} to {_size(look.prepared.image)}")
    changed = " · ".join([*changes, *look.unable])
    plain = " · ".join(about)
    shown = f"{escape(plain)} · <em>{escape(changed)}</em>" if changed else escape(plain)
    return (
        f'<header class="verdict"><p class="model" title="{escape(" · ".join(filter(None, [plain, changed])))}">'
        f"<b>{escape(look.name)}</b> {shown}</p>"
        f'<div class="said" role="status">{said}</div></header>'
    )


def _ability(look: Look) -> str:
    """What the model can say, whatever it is shown."""
    objects = look.model.info.answer.objects
    if look.is_number:
        return f"reads a number of up to {_counted(look.config.readout_digits, 'digit')}"
    return "names what it finds" if objects is None else f"always names {_counted(objects, 'object')}"


def _counted(number: int, what: str) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return f"{words[number] if number < len(words) else number} {what}{'s' if number != 1 else ''}"


def _size(image: Tensor) -> str:
    channels, height, width = image.shape
    return f"{width} × {height} px{' in colour' if channels == 3 else ''}"


def _said(look: Look, answer: Sequence[FoundObject], subject: Subject | None) -> str:
    """An answer; of the last one (with its subject) also how sure it is, whether right, and how it was changed."""
    if look.prepared.blank:
        return '<p class="answer"><i>an empty image</i></p>'
    objects = _in_order(look, answer)
    words = _emphasised(objects, look.is_number)
    if subject is None:
        return f'<p class="answer"><span>{words}</span><span class="mark">so far</span></p>'
    mark = ""
    if subject.truth:
        ordered = subject.is_number and look.is_number
        right = same(_labels(answer), subject.truth, ordered)
        mark = (
            f'<span class="mark {"right" if right else "wrong"}">{"✓ right" if right else "✗ wrong"}</span>'
        )
    said = f'<p class="answer"><span>{words}</span>{mark}</p>'
    if objects:
        values = ", ".join(f"{found.confidence:.2f}" for found in objects)
        said += f'<p class="sure">confidence {values} (0.5: level with the next class)</p>'
    behind = _labels([found for found in objects if found.confidence < 0.5])
    level = _labels([found for found in objects if 0.5 <= found.confidence < UNSURE])
    doubts = [(behind, "behind another class"), (level, "hardly ahead of the next class")]
    if doubt := ", ".join(
        f"{escape(in_words(who))} {'is' if len(who) == 1 else 'are'} {what}" for who, what in doubts if who
    ):
        said += f'<p class="doubt">{doubt}</p>'
    if look.forced and same(_labels(answer), _labels(look.free), look.is_number):
        said += '<p class="was">the same as when left to itself</p>'
    elif look.forced:
        free = in_words(_labels(_in_order(look, look.free)), look.is_number)
        said += f'<p class="was changed">left to itself it says {escape(free)}</p>'
    return said


def _labels(objects: Sequence[FoundObject]) -> list[str]:
    return [found.label for found in objects]


def _in_order(look: Look, objects: Sequence[FoundObject]) -> Sequence[FoundObject]:
    """Objects in the order of their classes, so that the same answer always reads the same."""
    return objects if look.is_number else sorted(objects, key=lambda found: look.names.index(found.label))


def _emphasised(objects: Sequence[FoundObject], is_number: bool) -> str:
    """Labels in bold, doubtful ones faint."""
    words = [
        f'<b class="{"unsure" if found.confidence < UNSURE else ""}">{escape(found.label)}</b>'
        for found in objects
    ]
    if not words:
        return "<i>no number</i>" if is_number else "<i>nothing it knows</i>"
    if is_number or len(words) == 1:
        return "".join(words)
    return f"{'<i>,</i> '.join(words[:-1])} <i>and</i> {words[-1]}"


# What it sees and draws


def _data_url(pixels: Tensor | NDArray[np.uint8]) -> str:
    """A PNG for an <img>, from [channels, height, width] in [0, 1] or bytes [height, width(, 3)]."""
    if isinstance(pixels, Tensor):
        values = (pixels.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        pixels = values[:, :, 0] if values.shape[2] == 1 else values
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def margin(look: Look) -> float:
    """Pixels around the image on the stage."""
    return MARGIN * max(look.config.width, look.config.height) if look.config.attention else 0.0


def _squares(windows: Windows | None, size: int) -> list[list[float]] | None:
    """Centre x, y and width of each window of the last image, in its pixels."""
    if windows is None:
        return None
    squares = torch.cat([windows.center[-1], windows.width(size)[-1, :, None]], 1)
    return [[round(value, 2) for value in square] for square in squares.tolist()]


def steps_of(look: Look) -> list[dict[str, Any]]:
    """What view.js shows at each step: windows in pixels of the model's image, lengths and sums of the rows."""
    config, trace, rows = look.config, look.trace, _rows(look)
    assert trace.winners is not None
    reads = _squares(trace.read_windows, config.glimpse_size)
    writes = _squares(trace.write_windows, config.write_size)
    lengths = trace.capsule_lengths.double().numpy().round(3)
    sums = trace.capsule_lengths.double().cumsum(1).numpy().round(3)
    made: list[dict[str, Any]] = []
    for t, winner in enumerate(trace.winners[-1, : look.glimpses].tolist()):
        believed = set(_labels(look.answers[t]))
        step: dict[str, Any] = {
            "lengths": lengths[-1, t, rows].tolist(),
            "sums": [float(sums[-1, t, k]) if k < config.classes else None for k in rows],
            "top": max(1.0, float(sums[:, -1, : config.classes].max())),
            "winner": rows.index(winner) if winner in rows else -1,
            "chosen": [row for row, k in enumerate(rows) if look.names[k] in believed],
            "forced": t in look.forced,
        }
        if look.forced:
            step |= {"free": lengths[0, t, rows].tolist(), "free_sums": sums[0, t, rows].tolist()}
        step |= {"read": reads[t]} if reads else {}
        step |= {"write": writes[t]} if writes else {}
        made.append(step)
    return made


def _stage(look: Look) -> str:
    """The image with the window of this step and the one before it, and the path: a line with a dot for each glimpse.

    All in pixels of the model's image, whose centres have whole coordinates: it begins at −0.5.
    """
    config, around = look.config, margin(look)
    across, down = config.width + 2 * around, config.height + 2 * around
    marks = ""
    if squares := _squares(look.trace.read_windows, config.glimpse_size):
        marks = '<rect class="shade"/><polyline class="path"/>'
        for t, (x, y, width) in enumerate(squares[: look.glimpses]):
            marks += (
                f'<g data-t="{t}" class="{"forced" if t in look.forced else ""}"><rect class="trail" '
                f'x="{x - width / 2:g}" y="{y - width / 2:g}" width="{width:g}" height="{width:g}"/>'
                f'<circle cx="{x:g}" cy="{y:g}" r="{0.011 * across:g}"><title>Glimpse {t + 1}</title></circle></g>'
            )
        marks += '<rect class="window"/>'
    return (
        f'<figure class="where"><svg class="stage" {_TOUCH if movable(look.model) else ""} '
        f'viewBox="{-0.5 - around:g} {-0.5 - around:g} {across:g} {down:g}"><image class="image" x="-0.5" y="-0.5" '
        f'width="{config.width}" height="{config.height}" href="{_data_url(look.prepared.image)}"/>'
        f'<rect class="edge" x="-0.5" y="-0.5" width="{config.width}" height="{config.height}"/>{marks}</svg>'
        '<figcaption><b>Where it looks</b> <span class="place" aria-live="polite"></span></figcaption></figure>'
    )


def _stack(name: str, title: str, images: Tensor, mark: str = "") -> str:
    """Images [steps, channels, height, width] on top of each other, one of which shows, below a mark."""
    last = len(images) - 1
    shown = "".join(
        f'<img data-t="{t}" class="{"now" if t == last else ""}" alt="{title}, glimpse {t + 1}" '
        f'src="{_data_url(image)}">'
        for t, image in enumerate(images)
    )
    return (
        f'<figure class="{name}"><div class="stack" style="aspect-ratio:{images.shape[3]}/{images.shape[2]}">'
        f"{shown}{mark}</div><figcaption><b>{title}</b></figcaption></figure>"
    )


def _rows(look: Look) -> list[int]:
    """The capsules that get a row: all of them or, where they are many, those that ever were longest."""
    count = look.config.object_capsules
    if count <= MOST_ROWS + 1:
        return list(range(count))
    return sorted(look.trace.capsule_lengths.amax((0, 1)).topk(MOST_ROWS).indices.tolist())


def _capsules(look: Look) -> str:
    """Bars of capsule lengths, at this step and summed up; view.js fills them in. None for an empty image."""
    if look.prepared.blank:
        return ""
    rows, total = _rows(look), look.config.object_capsules
    lines = "".join(
        f'<tr><th scope="row" title="{escape(look.names[k])}">{escape(_plain(look.names[k]))}</th>'
        f'<td class="length">{_BAR}</td><td class="sum">{_BAR}</td></tr>'
        for k in rows
    )
    notes = [] if len(rows) == total else [f"the {len(rows)} strongest of {total}"]
    notes += ["<u></u> when left to itself"] if look.forced else []
    caption = f"<caption>{', '.join(notes)}</caption>" if notes else ""
    return (
        f'<table class="capsules">{caption}<thead><tr><th></th>'
        '<th scope="col" title="the length of its capsule, from 0 to 1">seen in this glimpse</th>'
        '<th scope="col" title="the sum of these lengths">seen so far</th></tr></thead>'
        f"<tbody>{lines}</tbody></table>"
    )


def _film(look: Look) -> str:
    """Every step in small, to compare and to jump to."""
    assert look.trace.glimpses is not None and look.trace.winners is not None
    lengths = look.trace.capsule_lengths[-1]
    frames = "".join(
        f'<li><button type="button" data-t="{t}" class="{"forced" if t in look.forced else ""}" '
        f'aria-label="Glimpse {t + 1}: {escape(_plain(look.names[winner]))}">'
        f'<img alt="" src="{_data_url(look.trace.glimpses[-1, t])}"><span>{t + 1}</span>'
        f'<b class="{"weak" if lengths[t, winner] < WEAK else ""}">{escape(_tag(look, winner))}</b>'
        "</button></li>"
        for t, winner in enumerate(look.trace.winners[-1, : look.glimpses].tolist())
    )
    return f'<ol class="film{" many" if look.glimpses > 6 else ""}">{frames}</ol>'


def _tag(look: Look, winner: int) -> str:
    """What a frame of the film strip says: the class, a dash for the background, nothing of an empty image."""
    return "" if look.prepared.blank else look.names[winner] if winner < look.config.classes else "–"


def _plain(name: str) -> str:
    """The name of a capsule in plain words: those of house numbers that count the digits are named <5, <4 …"""
    return f"under {name[1:]} digits" if name.startswith("<") else name


def _preparation(steps: Sequence[Step]) -> str:
    """How an uploaded image became what the model is shown."""
    figures = ""
    for step in steps:
        rows, columns = step.pixels.shape[:2]
        box = ""
        if step.box is not None:
            left, top, right, bottom = step.box
            box = (
                f'<svg viewBox="0 0 {columns} {rows}"><rect x="{left:g}" y="{top:g}" width="{right - left:g}" '
                f'height="{bottom - top:g}"/></svg>'
            )
        note = f" <i>{escape(step.note)}</i>" if step.note else ""
        figures += (
            f'<figure><div><img alt="" src="{_data_url(step.pixels)}">{box}</div>'
            f"<figcaption>{escape(step.name)}{note}</figcaption></figure>"
        )
    return f'<details class="prepared"><summary>How the image was prepared</summary><div>{figures}</div></details>'
