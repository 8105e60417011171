"""The same as the figure, in motion: the window travels, the canvas grows, the scores add up."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from ocra.errors import OcraError
from ocra.files import atomic_path
from ocra.viz.figure import answer_in_words, in_words
from ocra.viz.panels import (
    classes_shown,
    draw_gauge,
    draw_scores,
    draw_window,
    frame,
    margin_for,
    shortened,
    show_picture,
)
from ocra.viz.record import Record
from ocra.viz.style import CHOSEN, FAINT, INK, MUTED, READ, WRITE, WRONG, new_figure, panel, styled, write

DPI = 100
TRAVEL_FRAMES = 7
TRAVEL_MS = 45
REST_MS = 900
LAST_MS = 2600
SMALL = 1.62
EDGE = 0.3
GAP = 0.26
HEAD = 0.62
CAPTION = 0.26
WINNER = 0.44
IMAGE = 2 * SMALL + WINNER + CAPTION
"""As high as the glimpse and the canvas beside it."""
BARS = 2.05


def save_animation(record: Record, path: str | os.PathLike[str]) -> None:
    """Write an endless GIF or WebP by the ending."""
    frames, durations = draw_frames(record)
    images = [Image.fromarray(pixels) for pixels in frames]
    webp = Path(path).suffix.lower() == ".webp"
    options = {"quality": 88, "method": 4} if webp else {"optimize": True, "disposal": 1}
    if not webp:  # one palette for all frames, so that nothing flickers
        palette = _palette(images[-1])
        images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    try:
        with atomic_path(path) as temporary:
            images[0].save(
                temporary, format="WEBP" if webp else "GIF", save_all=True, append_images=images[1:],
                duration=durations, loop=0, **options,
            )  # fmt: skip
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None


def _palette(image: Image.Image) -> Image.Image:
    """Colours for all frames; what is nearly white is made white, or the paper would be grey."""
    reduced = image.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    colours = np.array(reduced.getpalette()).reshape(-1, 3)
    colours[colours.min(1) > 248] = 255
    reduced.putpalette(colours.flatten().tolist())
    return reduced


def draw_frames(record: Record) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """All frames [rows, columns, 3] and how long each is shown in milliseconds.

    At each step the window travels from where it was, then rests while glimpse, canvas and scores are shown.
    """
    frames: list[NDArray[np.uint8]] = []
    durations: list[int] = []
    for step in range(record.steps):
        here, still = record.reads[step], _Still(record, step)
        frames.append(still.with_window(here))
        durations.append(REST_MS)
        if step + 1 < record.steps:
            shares = [_ease((part + 1) / (TRAVEL_FRAMES + 1)) for part in range(TRAVEL_FRAMES)]
            frames += [still.with_window(here + share * (record.reads[step + 1] - here)) for share in shares]
            durations += [TRAVEL_MS] * TRAVEL_FRAMES
    durations[-1] = LAST_MS
    return frames, durations


class _Still:
    """All that does not move while a step lasts, drawn once."""

    def __init__(self, record: Record, step: int) -> None:
        self._record, self._step = record, step
        with styled():
            figure, self._axes = _draw_step(record, step)
            figure.set_dpi(DPI)
            assert isinstance(figure.canvas, FigureCanvasAgg)
            self._canvas = figure.canvas
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(figure.bbox)

    def with_window(self, window: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The frame [rows, columns, 3] with the window at this place and a line from where it was."""
        self._canvas.restore_region(self._background)
        trail = np.stack([self._record.reads[self._step, :2], window[:2]])
        (line,) = self._axes.plot(trail[:, 0], trail[:, 1], color=READ, linewidth=1.3, alpha=0.8)
        rectangle = draw_window(self._axes, window, width=2.6)
        for artist in (line, rectangle):
            self._axes.draw_artist(artist)
            artist.remove()
        return np.asarray(self._canvas.buffer_rgba())[:, :, :3].copy()


def _ease(share: float) -> float:
    """Slow at both ends."""
    return share * share * (3 - 2 * share)


def _draw_step(record: Record, step: int) -> tuple[Figure, Axes]:
    """The state after `step` (counted from 0) without its window, and the axes the window belongs to."""
    _, rows, columns = record.config.image_shape
    around = margin_for(record)
    across, down = columns + 2 * around[0], rows + 2 * around[1]
    shape = across / max(across, down), down / max(across, down)
    names = 0.45 + 0.085 * max(len(shortened(name)) for name in record.class_names)
    left = EDGE + IMAGE * shape[0] + GAP
    bars_left = left + SMALL + GAP + names
    bars = min(max(2.0, 0.27 * len(classes_shown(record))), IMAGE - 0.25)
    figure = new_figure(bars_left + BARS + EDGE, HEAD + CAPTION + IMAGE + EDGE)
    _draw_heading(figure, record, step)
    axes = _draw_image(figure, record, step, (IMAGE * shape[0], IMAGE * shape[1]))
    _draw_glimpse(figure, record, step, left)
    top = HEAD + SMALL + WINNER + CAPTION
    write(figure, left, top + CAPTION / 2, "canvas", fontsize=8, color=MUTED)
    canvas = panel(figure, left, top + CAPTION, SMALL * shape[0], SMALL * shape[1])
    show_picture(canvas, record.canvases[step], around)
    if record.writes is not None:
        draw_window(canvas, record.writes[step], WRITE, dashed=True, width=1.4)
    write(figure, bars_left - names + 0.2, HEAD + CAPTION / 2, "score", fontsize=8, color=MUTED)
    draw_scores(panel(figure, bars_left, HEAD + CAPTION, BARS, bars), record, step + 1)
    return figure, axes


def _draw_heading(figure: Figure, record: Record, step: int) -> None:
    """How far it is; at the end the answer."""
    last = step == record.steps - 1
    text = answer_in_words(record) if last else f"glimpse {step + 1} of {record.steps}"
    write(figure, EDGE, 0.34, text, fontsize=14, weight="bold", color=INK if last else MUTED)
    if last and record.right is not None:
        verdict = "✓ right" if record.right else f"✗ it is {in_words(record.truth or (), record)}"
        colour = CHOSEN if record.right else WRONG
        across = figure.get_size_inches()[0]
        write(figure, across - EDGE, 0.34, verdict, fontsize=11, weight="bold", color=colour, ha="right")


def _draw_image(figure: Figure, record: Record, step: int, size: tuple[float, float]) -> Axes:
    """The image with where the window has been."""
    write(figure, EDGE, HEAD + CAPTION / 2, "where it looks", fontsize=8, color=MUTED)
    axes = panel(figure, EDGE, HEAD + CAPTION, *size)
    show_picture(axes, record.image, margin_for(record))
    trail = record.reads[: step + 1]
    axes.plot(trail[:, 0], trail[:, 1], "o-", color=READ, linewidth=1.3, alpha=0.8, markersize=4, zorder=4)
    for square in record.reads[:step]:
        draw_window(axes, square, FAINT, width=0.8, alpha=0.45)
    return axes


def _draw_glimpse(figure: Figure, record: Record, step: int, left: float) -> None:
    """The glimpse, and below it the winning capsule with its length."""
    write(figure, left, HEAD + CAPTION / 2, "glimpse", fontsize=8, color=MUTED)
    rows, columns = record.glimpses.shape[1:3]
    share = SMALL / max(rows, columns)
    axes = panel(figure, left, HEAD + CAPTION, columns * share, rows * share)
    show_picture(axes, record.glimpses[step])
    frame(axes, READ, 2)
    glimpse, top = record.prediction.glimpses[step], HEAD + CAPTION + SMALL
    colour = CHOSEN if glimpse.winner in record.class_names else MUTED
    length = f"length {glimpse.length:.2f}"
    write(figure, left, top + 0.18, shortened(glimpse.winner), fontsize=11, weight="bold")
    write(figure, left + SMALL, top + 0.18, length, fontsize=7.5, color=MUTED, ha="right")
    draw_gauge(panel(figure, left, top + 0.31, SMALL, 0.1), glimpse.length, colour)
