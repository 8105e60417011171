"""A pass of one or two models as HTML: every step is in it, and view.js only picks which one shows."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ocra.app.looking import Force, Look
from ocra.app.subjects import Subject
from ocra.images.fitting import Step
from ocra.model.trace import Windows
from ocra.prediction import FoundObject
from ocra.viz.record import in_words, same

MARGIN = 0.1
"""Room around the image, as a share of its longer side, where windows may reach beyond it."""
MOST_ROWS = 14
WEAK = 0.2
"""A winner shorter than this hardly says that it has seen anything."""
UNSURE = 0.55
"""Below this confidence a class is hardly ahead of the best one that was not chosen (0.5: level with it)."""
_PLAY = """<button type="button" class="play" aria-label="Play the glimpses">
<svg viewBox="0 0 16 16" aria-hidden="true"><path class="start" d="M4 2.5v11l9.5-5.5z"/>
<path class="stop" d="M4 3h3v10H4zM9 3h3v10H9z"/></svg></button>"""
_FORCE = """<div class="force">
<p>Point at the image to move <b>glimpse <span class="number">1</span></b>.</p>
<label>Size <input type="range" class="extent" min="0.1" max="1.5" step="0.01" value="1"
 aria-label="Size of the window"><output></output></label>
<span class="release"><button type="button" class="let-go" aria-disabled="true">Release it</button>
<button type="button" class="let-all-go" aria-disabled="true">Release all</button></span></div>"""
_BAR = '<span class="bar"><i></i><u hidden></u></span><data></data>'
_TOUCH = 'tabindex="0" role="application" aria-label="Point here, or press the arrow keys, to move the gaze"'


def render(
    subject: Subject, looks: Sequence[Look], forced: Sequence[Force], run: int = 0, turn: int = 0
) -> str:
    """The whole view.

    `run` changes when the glimpses are to be played from the first, `turn` says which change to the forced
    windows is answered.
    """
    steps = max(look.glimpses for look in looks)
    windows = escape(json.dumps([vars(force) for force in forced]))
    truth = (
        f"<span>in it: {escape(in_words(subject.truth, subject.is_number))}</span>" if subject.truth else ""
    )
    return (
        f'<section class="ocra-view" data-run="{run}" data-turn="{turn}" data-steps="{steps}" '
        f'data-forced="{windows}"><div class="transport">{_PLAY}'
        f'<input type="range" class="step" min="1" max="{steps}" value="{steps}" aria-label="Glimpse">'
        f'<output class="count" aria-live="polite">Glimpse {steps} of {steps}</output>'
        f'<p class="subject"><span>{escape(subject.title)}</span>{truth}</p></div>'
        f'<div class="looks {"two" if len(looks) > 1 else "one"}">'
        f"{''.join(_article(look, subject) for look in looks)}</div></section>"
    )


def empty(message: str) -> str:
    """What stands in place of a view."""
    return f'<section class="ocra-view nothing"><p>{escape(message)}</p></section>'


def notice(message: str, kind: str = "note") -> str:
    """One sentence below the tabs; empty for none. kind: note or error."""
    role = "alert" if kind == "error" else "status"
    return f'<p class="ocra-notice {kind}" role="{role}">{escape(message)}</p>' if message else ""


def _article(look: Look, subject: Subject) -> str:
    """One column: the answer, the image with the windows, and what the model makes of them."""
    config = look.config
    placement = json.dumps([*look.prepared.placement.scale, *look.prepared.placement.offset])
    steps = escape(json.dumps(steps_of(look), separators=(",", ":")))
    assert look.trace.glimpses is not None and look.trace.canvases is not None
    write = '<span class="write"></span>' if look.trace.write_windows is not None else ""
    return (
        f'<article class="look" data-model="{escape(look.name)}" data-w="{config.width}" '
        f'data-h="{config.height}" data-m="{margin(look):g}" data-movable="{int(config.attention)}" '
        f'data-placement="{placement}" data-steps="{steps}">{_verdict(look, subject)}<div class="panels">'
        f'<div class="gaze">{_stage(look)}{_FORCE if config.attention else ""}{_film(look)}</div>'
        f'<div class="insight">{_stack("reads", "What it reads", look.trace.glimpses[-1])}'
        f"{_stack('draws', 'What it draws', look.trace.canvases[-1], write)}{_capsules(look)}</div></div>"
        f"{_preparation(look.prepared.steps) if subject.explain else ''}</article>"
    )


# The answer in words


def _verdict(look: Look, subject: Subject) -> str:
    """The header above a look: the answer after each glimpse, right or wrong after the last."""
    last = look.glimpses - 1
    said = "".join(
        f'<div data-t="{t}" class="{"now" if t == last else ""}">'
        f"{_said(look, answer, subject if t == last else None)}</div>"
        for t, answer in enumerate(look.answers)
    )
    resized = ""
    if subject.exact is not None and not subject.fits(look.model):
        sizes = f"from {_size(subject.exact)} to {_size(look.prepared.image)}"
        resized = f'<p class="resized">resized for this model, {sizes}</p>'
    return (
        f'<header class="verdict"><p class="model"><b>{escape(look.name)}</b></p>'
        f'<div class="said" role="status">{said}</div>{resized}</header>'
    )


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
    if unsure := _labels([found for found in objects if found.confidence < UNSURE]):
        verb = "is" if len(unsure) == 1 else "are"
        said += f'<p class="doubt">{escape(in_words(unsure))} {verb} hardly ahead of the next class</p>'
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


def _style(box: Sequence[float]) -> str:
    """CSS for a place given as left, top, width, height in per cent."""
    return "left:{}%;top:{}%;width:{}%;height:{}%".format(*box)


def margin(look: Look) -> float:
    """Pixels around the image on the stage."""
    return MARGIN * max(look.config.width, look.config.height) if look.config.attention else 0.0


def window_box(look: Look, windows: Windows, t: int, size: int, around: float) -> list[float]:
    """Left, top, width, height of a window of the last image, in per cent of the image with a margin around.

    Pixel centres have whole coordinates, so the image begins at −0.5.
    """
    x, y = windows.center[-1, t].tolist()
    extent = float(windows.width(size)[-1, t])
    across, down = look.config.width + 2 * around, look.config.height + 2 * around
    left, top = x - extent / 2 + 0.5 + around, y - extent / 2 + 0.5 + around
    return [round(100 * share, 3) for share in (left / across, top / down, extent / across, extent / down)]


def steps_of(look: Look) -> list[dict[str, Any]]:
    """What view.js shows at each step: windows in per cent of their image, lengths and sums of the rows."""
    config, trace, rows = look.config, look.trace, _rows(look)
    reads, writes = trace.read_windows, trace.write_windows
    lengths = trace.capsule_lengths.double()
    sums = lengths.cumsum(1)
    top = max(1.0, float(sums[:, -1, : config.classes].max()))
    assert trace.winners is not None
    made: list[dict[str, Any]] = []
    for t, winner in enumerate(trace.winners[-1].tolist()):
        believed = set(_labels(look.answers[t]))
        step: dict[str, Any] = {
            "lengths": [round(float(lengths[-1, t, k]), 3) for k in rows],
            "sums": [round(float(sums[-1, t, k]), 3) if k < config.classes else None for k in rows],
            "top": round(top, 3),
            "winner": rows.index(winner) if winner in rows else -1,
            "chosen": [row for row, k in enumerate(rows) if look.names[k] in believed],
            "forced": t in look.forced,
        }
        if look.forced:
            step["free"] = [round(float(lengths[0, t, k]), 3) for k in rows]
            step["free_sums"] = [round(float(sums[0, t, k]), 3) for k in rows]
        if reads is not None and writes is not None:
            x, y = reads.center[-1, t].tolist()
            step |= {
                "window": window_box(look, reads, t, config.glimpse_size, margin(look)),
                "write": window_box(look, writes, t, config.write_size, 0),
                "x": round(x, 2),
                "y": round(y, 2),
                "width": round(float(reads.width(config.glimpse_size)[-1, t]), 2),
            }
        made.append(step)
    return made


def _stage(look: Look) -> str:
    """The image with the window of this step, those of earlier steps, and the order of their centres."""
    config, around = look.config, margin(look)
    across, down = config.width + 2 * around, config.height + 2 * around
    place = (around / across, around / down, config.width / across, config.height / down)
    marks = ""
    if (windows := look.trace.read_windows) is not None:
        boxes = [window_box(look, windows, t, config.glimpse_size, around) for t in range(look.glimpses)]
        marks = f'<span class="window" style="{_style(boxes[-1])}"></span>'
        for t, box in enumerate(boxes):
            kind = " forced" if t in look.forced else ""
            x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
            marks += (
                f'<span class="trail{kind}" data-t="{t}" style="{_style(box)}"></span>'
                f'<b class="spot{kind}" data-t="{t}" style="left:{x:.3f}%;top:{y:.3f}%">{t + 1}</b>'
            )
    return (
        f'<figure class="where"><div class="stage" {_TOUCH if config.attention else ""} '
        f'style="aspect-ratio:{across:g}/{down:g}"><img class="image" alt="What the model is shown" '
        f'src="{_data_url(look.prepared.image)}" style="{_style([round(100 * share, 3) for share in place])}">'
        f"{marks}</div>"
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
    """Bars of capsule lengths, at this step and summed up; view.js fills them in."""
    rows, total = _rows(look), look.config.object_capsules
    lines = "".join(
        f'<tr><th scope="row" title="{escape(look.names[k])}">{escape(_short(look, k))}</th>'
        f'<td class="length">{_BAR}</td><td class="sum">{_BAR}</td></tr>'
        for k in rows
    )
    notes = [] if len(rows) == total else [f"the {len(rows)} longest of {total} capsules"]
    notes += ["<u></u> when left to itself"] if look.forced else []
    caption = f"<caption>{', '.join(notes)}</caption>" if notes else ""
    return (
        f'<table class="capsules">{caption}<thead><tr><th></th><th scope="col">capsule lengths</th>'
        f'<th scope="col">summed so far</th></tr></thead><tbody>{lines}</tbody></table>'
    )


def _film(look: Look) -> str:
    """Every step in small, to compare and to jump to."""
    assert look.trace.glimpses is not None and look.trace.winners is not None
    lengths = look.trace.capsule_lengths[-1]
    frames = "".join(
        f'<li><button type="button" data-t="{t}" class="{"forced" if t in look.forced else ""}" '
        f'aria-label="Glimpse {t + 1}: {escape(look.names[winner])}">'
        f'<img alt="" src="{_data_url(look.trace.glimpses[-1, t])}"><span>{t + 1}</span>'
        f'<b class="{"weak" if lengths[t, winner] < WEAK else ""}">{escape(_short(look, winner))}</b>'
        "</button></li>"
        for t, winner in enumerate(look.trace.winners[-1].tolist())
    )
    return f'<ol class="film{" many" if look.glimpses > 6 else ""}">{frames}</ol>'


def _short(look: Look, capsule: int) -> str:
    """The name of a class; a short one for the background."""
    return look.names[capsule] if capsule < look.config.classes else "bg"


def _preparation(steps: Sequence[Step]) -> str:
    """How an uploaded image became what the model is shown."""
    figures = ""
    for step in steps:
        rows, columns = step.pixels.shape[:2]
        box = ""
        if step.box is not None:
            left, top, right, bottom = step.box
            place = (left / columns, top / rows, (right - left) / columns, (bottom - top) / rows)
            box = f'<span style="{_style([round(100 * share, 2) for share in place])}"></span>'
        note = f" <i>{escape(step.note)}</i>" if step.note else ""
        figures += (
            f'<figure><div><img alt="" src="{_data_url(step.pixels)}">{box}</div>'
            f"<figcaption>{escape(step.name)}{note}</figcaption></figure>"
        )
    return f'<details class="prepared"><summary>How the image was prepared</summary><div>{figures}</div></details>'
