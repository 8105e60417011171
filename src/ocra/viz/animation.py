"""The same as the figure, in motion: the window travels, the canvas grows, the scores add up.

Sizes and places are in inches.
"""

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
from ocra.viz.figure import name_room
from ocra.viz.panels import (
    classes_shown,
    draw_gauge,
    draw_scores,
    draw_window,
    frame,
    margin_for,
    matted_size,
    shortened,
    show_image,
)
from ocra.viz.record import Record
from ocra.viz.style import (
    FAINT,
    INK,
    MUTED,
    READ,
    RIGHT,
    WRITE,
    WRONG,
    fit_in,
    new_figure,
    panel,
    styled,
    write,
)

DPI = 100
TRAVEL_FRAMES, TRAVEL_MS, REST_MS, LAST_MS = 7, 45, 900, 2600
EDGE, GAP, HEAD, CAPTION, WINNER = 0.3, 0.26, 0.62, 0.26, 0.44
SMALL = 1.62
"""Side of the glimpse and of the canvas."""
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

    At each step the window rests while glimpse, canvas and scores are shown, then travels to its next place.
    """
    frames: list[NDArray[np.uint8]] = []
    durations: list[int] = []
    shares = np.arange(1, TRAVEL_FRAMES + 1) / (TRAVEL_FRAMES + 1)
    eased = shares**2 * (3 - 2 * shares)  # slow at both ends
    for step, here in enumerate(record.reads):
        still = _Still(record, step)
        frames.append(still.with_window(here))
        durations.append(REST_MS)
        if step + 1 < record.steps:
            frames += [still.with_window(here + share * (record.reads[step + 1] - here)) for share in eased]
            durations += [TRAVEL_MS] * TRAVEL_FRAMES
    durations[-1] = LAST_MS
    return frames, durations


class _Still:
    """All that does not move while a step lasts, drawn once."""

    def __init__(self, record: Record, step: int) -> None:
        self._before = record.reads[step, :2]
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
        across, down = np.stack([self._before, window[:2]]).T
        (line,) = self._axes.plot(across, down, color=READ, linewidth=1.3, alpha=0.8)
        for artist in (line, draw_window(self._axes, window, width=2.6)):
            self._axes.draw_artist(artist)
            artist.remove()
        return np.asarray(self._canvas.buffer_rgba())[:, :, :3].copy()


def _draw_step(record: Record, step: int) -> tuple[Figure, Axes]:
    """The state after `step` (counted from 0) without its window, and the axes the window belongs to."""
    image, canvas = matted_size(record, IMAGE), matted_size(record, SMALL)
    around, names = margin_for(record), name_room(record)
    left = EDGE + image[0] + GAP
    bars_left = left + SMALL + GAP + names
    bars = min(max(2.0, 0.27 * len(classes_shown(record))), IMAGE - 0.25)
    figure = new_figure(bars_left + BARS + EDGE, HEAD + CAPTION + IMAGE + EDGE)
    _draw_heading(figure, record, step)
    top = HEAD + CAPTION
    write(figure, EDGE, top - CAPTION / 2, "where it looks", color=MUTED)
    axes = panel(figure, EDGE, top, *image)
    show_image(axes, record.image, around)
    trail = record.reads[: step + 1]
    axes.plot(trail[:, 0], trail[:, 1], "o-", color=READ, linewidth=1.3, alpha=0.8, markersize=4, zorder=4)
    for square in record.reads[:step]:
        draw_window(axes, square, FAINT, width=0.8, alpha=0.45)
    _draw_glimpse(figure, record, step, left)
    below = top + SMALL + WINNER
    write(figure, left, below + CAPTION / 2, "canvas", color=MUTED)
    written = panel(figure, left, below + CAPTION, *canvas)
    show_image(written, record.canvases[step], around)
    if record.writes is not None:
        draw_window(written, record.writes[step], WRITE, dashed=True, width=1.4)
    write(figure, bars_left - names + 0.2, top - CAPTION / 2, "score", color=MUTED)
    draw_scores(panel(figure, bars_left, top, BARS, bars), record, step + 1)
    return figure, axes


def _draw_heading(figure: Figure, record: Record, step: int) -> None:
    """How far it is; at the end the answer and whether it is right."""
    last = step == record.steps - 1
    text = record.answer if last else f"glimpse {step + 1} of {record.steps}"
    write(figure, EDGE, 0.34, text, 14, weight="bold", color=INK if last else MUTED)
    if last and record.verdict:
        right = figure.get_size_inches()[0] - EDGE
        verdict, colour = record.verdict.replace("wrong: ", ""), RIGHT if record.right else WRONG
        write(figure, right, 0.34, verdict, 11, weight="bold", color=colour, ha="right")


def _draw_glimpse(figure: Figure, record: Record, step: int, left: float) -> None:
    """The glimpse, and below it the winning capsule with its length."""
    write(figure, left, HEAD + CAPTION / 2, "glimpse", color=MUTED)
    rows, columns = record.glimpses.shape[1:3]
    axes = panel(figure, left, HEAD + CAPTION, *fit_in(SMALL, columns, rows))
    show_image(axes, record.glimpses[step])
    frame(axes, READ, 2)
    glimpse, top = record.prediction.glimpses[step], HEAD + CAPTION + SMALL
    write(figure, left, top + 0.18, shortened(glimpse.winner), 11, weight="bold")
    write(figure, left + SMALL, top + 0.18, f"length {glimpse.length:.2f}", 7.5, color=MUTED, ha="right")
    colour = RIGHT if glimpse.winner in record.class_names else MUTED
    draw_gauge(panel(figure, left, top + 0.31, SMALL, 0.1), glimpse.length, colour)
