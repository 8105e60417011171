"""The panels of a look as HTML: where it looks, what it reads, what it draws, how long its capsules are."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ocra.app.looking import Look
from ocra.model.trace import Windows

# Room around the image, as a share of its longer side, where windows may reach beyond it.
MARGIN = 0.1
MOST_ROWS = 14
# A winner shorter than this hardly says that it has seen anything.
WEAK = 0.2
_BAR = '<span class="bar"><i></i><u hidden></u></span><data></data>'
_TOUCH = 'tabindex="0" role="application" aria-label="Point here, or press the arrow keys, to move the gaze"'


def data_url(pixels: Tensor | NDArray[np.uint8]) -> str:
    """A PNG for an <img>, from [channels, height, width] in [0, 1] or bytes [height, width(, 3)]."""
    if isinstance(pixels, Tensor):
        values = (pixels.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        pixels = values[:, :, 0] if values.shape[2] == 1 else values
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def style(box: Sequence[float]) -> str:
    """CSS for a place given as left, top, width, height in per cent."""
    return "left:{}%;top:{}%;width:{}%;height:{}%".format(*box)


def margin(look: Look) -> float:
    """Pixels around the image on the stage."""
    config = look.network.config
    return MARGIN * max(config.width, config.height) if config.attention else 0.0


def window_box(look: Look, windows: Windows, t: int, size: int, around: float) -> list[float]:
    """Left, top, width, height of a window of the last image, in per cent of the image with a margin around.

    Pixel centres have whole coordinates, so the image begins at −0.5.
    """
    config = look.network.config
    x, y = windows.center[-1, t].tolist()
    extent = float(windows.width(size)[-1, t])
    across, down = config.width + 2 * around, config.height + 2 * around
    left, top = x - extent / 2 + 0.5 + around, y - extent / 2 + 0.5 + around
    return [round(100 * share, 3) for share in (left / across, top / down, extent / across, extent / down)]


def steps_of(look: Look) -> list[dict[str, Any]]:
    """What view.js shows at each step: windows in per cent of their picture, lengths and sums of the rows."""
    config, trace, rows = look.network.config, look.trace, _rows(look)
    lengths = trace.capsule_lengths.double()
    sums = lengths.cumsum(1)
    top = max(1.0, float(sums[:, -1, : config.classes].max()))
    assert trace.winners is not None
    made: list[dict[str, Any]] = []
    for t, winner in enumerate(trace.winners[-1].tolist()):
        step: dict[str, Any] = {
            "lengths": [round(float(lengths[-1, t, k]), 3) for k in rows],
            "sums": [round(float(sums[-1, t, k]), 3) if k < config.classes else None for k in rows],
            "top": round(top, 3),
            "winner": rows.index(winner) if winner in rows else -1,
            "forced": t in look.forced,
        }
        if look.forced:
            step["free"] = [round(float(lengths[0, t, k]), 3) for k in rows]
            step["free_sums"] = [round(float(sums[0, t, k]), 3) for k in rows]
        made.append(step | _windows_of(look, t))
    return made


def _windows_of(look: Look, t: int) -> dict[str, Any]:
    """Where step t read and wrote."""
    config, trace = look.network.config, look.trace
    if trace.read_windows is None or trace.write_windows is None:
        return {}
    x, y = trace.read_windows.center[-1, t].tolist()
    return {
        "window": window_box(look, trace.read_windows, t, config.glimpse_size, margin(look)),
        "write": window_box(look, trace.write_windows, t, config.write_size, 0),
        "x": round(x, 2),
        "y": round(y, 2),
        "width": round(float(trace.read_windows.width(config.glimpse_size)[-1, t]), 2),
    }


def stage(look: Look) -> str:
    """The image with the window of this step, those of earlier steps, and the order of their centres."""
    config, around = look.network.config, margin(look)
    across, down = config.width + 2 * around, config.height + 2 * around
    place = (around / across, around / down, config.width / across, config.height / down)
    image = (
        f'<img class="picture" alt="What the model is shown" src="{data_url(look.image)}" '
        f'style="{style([round(100 * share, 3) for share in place])}">'
    )
    touch = _TOUCH if config.attention else ""
    return (
        f'<figure class="where"><div class="stage" {touch} style="aspect-ratio:{across:g}/{down:g}">'
        f"{image}{_marks(look)}</div>"
        '<figcaption><b>Where it looks</b> <span class="place" aria-live="polite"></span></figcaption></figure>'
    )


def _marks(look: Look) -> str:
    windows, size = look.trace.read_windows, look.network.config.glimpse_size
    if windows is None:
        return ""
    boxes = [window_box(look, windows, t, size, margin(look)) for t in range(look.glimpses)]
    kinds = [" forced" if t in look.forced else "" for t in range(look.glimpses)]
    trails = [
        f'<span class="trail{kinds[t]}" data-t="{t}" style="{style(box)}"></span>'
        for t, box in enumerate(boxes)
    ]
    spots = [
        f'<b class="spot{kinds[t]}" data-t="{t}" style="left:{x + width / 2:.3f}%;top:{y + height / 2:.3f}%">'
        f"{t + 1}</b>"
        for t, (x, y, width, height) in enumerate(boxes)
    ]
    return f'<span class="window" style="{style(boxes[-1])}"></span>{"".join(trails + spots)}'


def reads(look: Look) -> str:
    """The glimpse of this step, in the resolution the network gets."""
    assert look.trace.glimpses is not None
    stack = _stack(look.trace.glimpses[-1], "What it reads")
    return f'<figure class="reads">{stack}<figcaption><b>What it reads</b></figcaption></figure>'


def draws(look: Look) -> str:
    """The canvas after this step, and where the step wrote."""
    assert look.trace.canvases is not None
    window = '<span class="write"></span>' if look.trace.write_windows is not None else ""
    stack = _stack(look.trace.canvases[-1], "What it has drawn so far", window)
    return f'<figure class="draws">{stack}<figcaption><b>What it draws</b></figcaption></figure>'


def _stack(images: Tensor, label: str, mark: str = "") -> str:
    """Pictures [steps, channels, height, width] on top of each other, one of which shows, below a mark."""
    last = len(images) - 1
    pictures = "".join(
        f'<img data-t="{t}" class="{"now" if t == last else ""}" alt="{label}, glimpse {t + 1}" '
        f'src="{data_url(image)}">'
        for t, image in enumerate(images)
    )
    return (
        f'<div class="stack" style="aspect-ratio:{images.shape[3]}/{images.shape[2]}">{pictures}{mark}</div>'
    )


def _rows(look: Look) -> list[int]:
    """The capsules that get a row: all of them or, where they are many, those that ever were longest."""
    count = look.network.config.object_capsules
    if count <= MOST_ROWS + 1:
        return list(range(count))
    peaks = look.trace.capsule_lengths.amax((0, 1))
    return sorted(peaks.topk(MOST_ROWS).indices.tolist())


def capsules(look: Look) -> str:
    """Bars of capsule lengths, at this step and summed up; view.js fills them in."""
    rows, chosen, total = _rows(look), set(look.answer.labels), look.network.config.object_capsules
    lines = "".join(
        f'<tr class="{"chosen" if look.names[k] in chosen else ""}">'
        f'<th scope="row" title="{escape(look.names[k])}">{escape(_short(look, k))}</th>'
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


def film(look: Look) -> str:
    """Every step in small, to compare and to jump to."""
    assert look.trace.glimpses is not None and look.trace.winners is not None
    lengths = look.trace.capsule_lengths[-1]
    frames = "".join(
        f'<li><button type="button" data-t="{t}" class="{"forced" if t in look.forced else ""}" '
        f'aria-label="Glimpse {t + 1}: {escape(look.names[winner])}">'
        f'<img alt="" src="{data_url(look.trace.glimpses[-1, t])}"><span>{t + 1}</span>'
        f'<b class="{"weak" if lengths[t, winner] < WEAK else ""}">{escape(_short(look, winner))}</b>'
        "</button></li>"
        for t, winner in enumerate(look.trace.winners[-1].tolist())
    )
    return f'<ol class="film{" many" if look.glimpses > 6 else ""}">{frames}</ol>'


def _short(look: Look, capsule: int) -> str:
    """The name of a class; a short one for the background."""
    return look.names[capsule] if capsule < look.network.config.classes else "bg"
