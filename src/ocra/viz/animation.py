"""The same as the figure, in motion: the window travels, the canvas grows, the scores add up.

Sizes and places are in inches.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray
from PIL import Image

from ocra.viz import panels
from ocra.viz.panels import WINNER, draw_window, margin_for, matted_size, show_image
from ocra.viz.record import Record
from ocra.viz.style import INK, MUTED, PALETTE, READ, RIGHT, WRONG, Sheet, styled, written

Frame = NDArray[np.uint8]
DPI = 100
TRAVEL_FRAMES, TRAVEL_MS, REST_MS, LAST_MS = 7, 45, 900, 2600
EDGE, GAP, HEAD, CAPTION = 0.3, 0.26, 0.62, 0.26
SMALL = 1.62
"""Side of the glimpse and of the canvas."""
IMAGE = 2 * SMALL + WINNER + CAPTION
"""As high as the glimpse and the canvas beside it."""
BARS = 2.05
CLEAR = 255
"""The index of a GIF's palette that stands for what was there before."""


def save_animation(record: Record, path: str | os.PathLike[str]) -> None:
    """Write an endless GIF or WebP by the ending."""
    frames, durations = draw_frames(record)
    images = [Image.fromarray(pixels) for pixels in frames]
    options: dict[str, Any] = {"format": "WEBP", "quality": 88, "method": 4}
    if Path(path).suffix.lower() == ".gif":
        images = _changes(images, _palette(frames))
        # Pillow's own optimisation would take up to as long again, and gain 4 % of the size.
        options = {"format": "GIF", "optimize": False, "disposal": 1, "transparency": CLEAR}
    with written(path) as temporary:
        images[0].save(
            temporary, save_all=True, append_images=images[1:], duration=durations, loop=0, **options
        )


def _changes(images: list[Image.Image], palette: Image.Image) -> list[Image.Image]:
    """Images in the colours of a palette, each but the first clear where it is as the one before: that packs well."""
    indexed = [np.asarray(image.quantize(palette=palette, dither=Image.Dither.NONE)) for image in images]
    changed = indexed[:1] + [np.where(now == last, CLEAR, now) for last, now in pairwise(indexed)]
    made = [Image.fromarray(pixels.astype(np.uint8)) for pixels in changed]
    for image in made:
        image.putpalette(palette.getpalette() or [])
    return made


def _palette(frames: list[Frame]) -> Image.Image:
    """One palette for all frames, so that nothing flickers, with the very colours of the figures and the page in it."""
    kept = [matplotlib.colors.to_rgb(light) for light, _ in PALETTE.values()] + [(0, 0, 0), (1, 1, 1)]
    own = np.unique((255 * np.array(kept)).round().astype(int), axis=0)
    every = Image.fromarray(np.concatenate(frames[:: TRAVEL_FRAMES + 1]))
    palette = every.quantize(255 - len(own), method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    colours = np.array(palette.getpalette()).reshape(-1, 3)[: 255 - len(own)]
    colours[colours.min(1) > 248] = 255  # what is nearly white is white
    unused = np.setdiff1d(np.arange(1, 256), np.concatenate([own, colours])[:, 0])[
        0
    ]  # as the red of no colour
    palette.putpalette(np.concatenate([own, colours, [(unused, 0, 0)]]).flatten().tolist())
    return palette


def draw_frames(record: Record) -> tuple[list[Frame], list[int]]:
    """All frames [rows, columns, 3] and how long each is shown in milliseconds.

    At each step the window rests while glimpse, canvas and scores are shown, then travels to its next place.
    """
    frames: list[Frame] = []
    durations: list[int] = []
    shares = np.arange(1, TRAVEL_FRAMES + 1) / (TRAVEL_FRAMES + 1)
    eased = shares**2 * (3 - 2 * shares)  # slow at both ends
    for step, here in enumerate(record.reads):
        places = [here]
        durations.append(REST_MS)
        if step + 1 < record.steps:
            places += [here + share * (record.reads[step + 1] - here) for share in eased]
            durations += [TRAVEL_MS] * TRAVEL_FRAMES
        frames += _draw_windows(*_draw_step(record, step), places)
    durations[-1] = LAST_MS
    return frames, durations


@styled()
def _draw_windows(sheet: Sheet, axes: Axes, places: list[NDArray[np.float32]]) -> list[Frame]:
    """A frame for each place of the window, with a line from the first; what does not move is drawn once."""
    canvas = sheet.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    still, frames = canvas.copy_from_bbox(sheet.bbox), []
    for window in places:
        canvas.restore_region(still)
        across, down = np.stack([places[0][:2], window[:2]]).T
        (line,) = axes.plot(across, down, color=READ, linewidth=1.3, alpha=0.8)
        for artist in (line, draw_window(axes, window, width=2.6)):
            axes.draw_artist(artist)
            artist.remove()
        frames.append(np.asarray(canvas.buffer_rgba())[:, :, :3].copy())
    return frames


@styled()
def _draw_step(record: Record, step: int) -> tuple[Sheet, Axes]:
    """The state after `step` (counted from 0) without its window, and the axes the window belongs to."""
    image, names = matted_size(record, IMAGE), panels.name_room(record)
    left = EDGE + image[0] + GAP
    bars_left = left + SMALL + GAP + names
    bars = min(max(2.0, 0.27 * len(panels.classes_shown(record))), IMAGE - 0.25)
    sheet = Sheet(bars_left + BARS + EDGE, HEAD + CAPTION + IMAGE + EDGE)
    sheet.set_dpi(DPI)
    top, last = HEAD + CAPTION, step == record.steps - 1
    heading = record.answer if last else f"glimpse {step + 1} of {record.steps}"
    sheet.write(EDGE, 0.34, heading, 14, weight="bold", color=INK if last else MUTED)
    if last and record.verdict:
        verdict, colour = record.verdict.replace("wrong: ", ""), RIGHT if record.right else WRONG
        sheet.write(sheet.width - EDGE, 0.34, verdict, 11, weight="bold", color=colour, ha="right")
    sheet.write(EDGE, top - CAPTION / 2, "where it looks", color=MUTED)
    axes = sheet.panel(EDGE, top, *image)
    show_image(axes, record.image, margin_for(record))
    trail = record.reads[: step + 1]
    axes.plot(trail[:, 0], trail[:, 1], "o-", color=READ, linewidth=1.3, alpha=0.8, markersize=4, zorder=4)
    if step:
        draw_window(axes, record.reads[step - 1], width=0.9, alpha=0.5)
    sheet.write(left, top - CAPTION / 2, "glimpse", color=MUTED)
    panels.draw_glimpse(sheet, record, step, left, top, SMALL)
    below = top + SMALL + WINNER + CAPTION
    if record.draws:
        sheet.write(left, below - CAPTION / 2, "canvas", color=MUTED)
        panels.draw_canvas(sheet.panel(left, below, *matted_size(record, SMALL)), record, step)
    sheet.write(bars_left - names + 0.2, top - CAPTION / 2, "score", color=MUTED)
    panels.draw_scores(sheet.panel(bars_left, top, BARS, bars), record, step + 1)
    return sheet, axes
