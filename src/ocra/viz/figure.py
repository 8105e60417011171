"""The paper's figure: windows on the image, glimpses, winning capsules, the growing canvas, the scores.

Sizes and places are in inches.
"""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ocra.config import ModelConfig
from ocra.images.fitting import Prepared
from ocra.viz import panels
from ocra.viz.panels import WINNER, draw_window, frame, margin_for, matted_size, show_image
from ocra.viz.record import Record
from ocra.viz.style import FAINT, INK, MUTED, READ, RIGHT, WRONG, Sheet, fit_in, styled

MOST_COLUMNS = 6
PANEL, GAP, EDGE, HEAD = 1.25, 0.14, 0.28, 1.02
SIDE = 1.8
"""Longest side of the images of the whole pass, at the left."""
ROW_NAMES, STEP_NAMES = 0.62, 0.24
BETWEEN_BLOCKS = 0.26
BARS = 2.3


@styled()
def draw_look(record: Record) -> Figure:
    """One figure for one image: what the model saw, thought and drew at each glimpse."""
    blocks = math.ceil(record.steps / MOST_COLUMNS)
    columns = math.ceil(record.steps / blocks)
    image = matted_size(record, PANEL)
    block = STEP_NAMES + image[1] + GAP + PANEL + WINNER + image[1] + BETWEEN_BLOCKS
    body = blocks * block - BETWEEN_BLOCKS
    side = _side_images(record, body)
    side_height = sum(height + STEP_NAMES + GAP for _, _, height in side) - GAP
    steps_left = EDGE + max(1.2, *(width for _, width, _ in side)) + ROW_NAMES + GAP
    names = panels.name_room(record)
    bars_left = steps_left + columns * (PANEL + GAP) + GAP + names
    bars_height = max(1.2, 0.2 * len(panels.classes_shown(record)))
    height = max(body, side_height, STEP_NAMES + bars_height + 0.6)
    sheet = Sheet(bars_left + BARS + EDGE, HEAD + height + EDGE)
    _draw_heading(sheet, record)
    _draw_side(sheet, record, side)
    for step in range(record.steps):
        row, column = divmod(step, columns)
        _draw_step(sheet, record, step, steps_left + column * (PANEL + GAP), HEAD + row * block, image)
    for row in range(blocks):
        top = HEAD + row * block + STEP_NAMES
        glimpse = top + image[1] + GAP
        middles = {
            "window": top + image[1] / 2,
            "glimpse": glimpse + PANEL / 2,
            "winner": glimpse + PANEL + 0.15,
            "canvas": glimpse + PANEL + WINNER + image[1] / 2,
        }
        for name, middle in middles.items():
            sheet.write(steps_left - 0.1, middle, name, color=MUTED, ha="right")
    _draw_bars(sheet, record, bars_left, bars_left - names + 0.2, bars_height)
    return sheet


def _draw_heading(sheet: Sheet, record: Record) -> None:
    """The answer in words, whether it is right, and what the image is."""
    room = sheet.width - 2 * EDGE
    sheet.write(EDGE, 0.32, record.answer, min(15, 14 * room / (0.13 * len(record.answer))), weight="bold")
    if record.verdict:
        sheet.write(EDGE, 0.58, record.verdict, 9.5, weight="bold", color=RIGHT if record.right else WRONG)
    sheet.write(EDGE, 0.8 if record.verdict else 0.58, record.title, color=MUTED)
    if record.prepared is not None:
        steps = record.prepared.steps[1:-1]
        names = [step.name + (f" ({step.note})" if step.name == "inverted" else "") for step in steps]
        text = "prepared: " + (" → ".join(names) or "not changed but in size")
        longest = int(room / 0.066)
        sheet.write(EDGE, 0.8, text if len(text) <= longest else text[: longest - 1] + "…", 7.5, color=MUTED)


def _side_images(record: Record, room: float) -> list[tuple[str, float, float]]:
    """Name, width and height of the images of the whole pass, to stand in `room` inches."""
    whole = fit_in(SIDE, record.config.width, record.config.height)
    images = [("the path", *matted_size(record, SIDE)), ("reconstruction", *whole)]
    if record.mask is not None:
        images.insert(1, ("reconstruction mask", *whole))
    if record.prepared is not None:
        own = record.prepared.source
        images.insert(0, ("your image", *fit_in(SIDE, own.width, own.height)))
    free = room - len(images) * STEP_NAMES - (len(images) - 1) * GAP
    share = min(1.0, max(0.62, free / sum(height for _, _, height in images)))
    return [(name, width * share, height * share) for name, width, height in images]


def _draw_side(sheet: Sheet, record: Record, images: list[tuple[str, float, float]]) -> None:
    """The user's image, the path over the model's, the mask and the reconstruction."""
    top = HEAD
    for name, width, height in images:
        sheet.write(EDGE, top + STEP_NAMES / 2, name, color=MUTED)
        axes = sheet.panel(EDGE, top + STEP_NAMES, width, height)
        if name == "your image":
            _draw_own_image(axes, record)
        elif name == "the path":
            show_image(axes, record.image, margin_for(record))
            panels.draw_path(axes, record.reads)
        elif name == "reconstruction mask" and record.mask is not None:
            show_image(axes, record.mask)
        else:
            show_image(axes, record.canvas)
        top += STEP_NAMES + height + GAP


def _draw_own_image(axes: Axes, record: Record) -> None:
    """The image as the user gave it, with the part that the model sees."""
    assert record.prepared is not None
    own, placement = record.prepared.source, record.prepared.placement
    show_image(axes, record.prepared.steps[0].pixels)
    axes.images[0].set_extent((-0.5, own.width - 0.5, own.height - 0.5, -0.5))
    left, top = placement.to_source(-0.5, -0.5)
    right, bottom = placement.to_source(record.config.width - 0.5, record.config.height - 0.5)
    # What the model sees may reach beyond the image.
    axes.set_xlim(min(-0.5, left), max(own.width - 0.5, right))
    axes.set_ylim(max(own.height - 0.5, bottom), min(-0.5, top))
    part = (left, top), right - left, bottom - top
    axes.add_patch(Rectangle(*part, fill=False, edgecolor=RIGHT, linewidth=1.2))


def _draw_step(
    sheet: Sheet, record: Record, step: int, left: float, top: float, image: tuple[float, float]
) -> None:
    """One column: window, glimpse, winner, canvas."""
    width, height = image
    image_left = left + (PANEL - width) / 2
    name, config = f"step {step + 1}", record.config
    if isinstance(config, ModelConfig) and config.readout_digits:
        digit = (step - config.readout_skip) // config.readout_span
        if step >= config.readout_skip and digit < config.readout_digits:
            name += f" → digit {digit + 1}"
    sheet.write(left + PANEL / 2, top + STEP_NAMES / 2, name, color=MUTED, ha="center")
    top += STEP_NAMES
    axes = sheet.panel(image_left, top, width, height)
    show_image(axes, record.image, margin_for(record))
    if step:
        draw_window(axes, record.reads[step - 1], width=0.9, alpha=0.5)
    draw_window(axes, record.reads[step])
    top += height + GAP
    panels.draw_glimpse(sheet, record, step, left, top, PANEL)
    panels.draw_canvas(sheet.panel(image_left, top + PANEL + WINNER, width, height), record, step)


def _draw_bars(sheet: Sheet, record: Record, left: float, start: float, height: float) -> None:
    """Scores of all classes, and what the marks mean."""
    top = HEAD + STEP_NAMES
    sheet.write(start, HEAD + STEP_NAMES / 2, "score: lengths, a piece per step", color=MUTED)
    panels.draw_scores(sheet.panel(left, top, BARS, height), record, record.steps)
    block: dict[str, Any] = {"linewidth": 5, "solid_capstyle": "butt"}
    marks = [
        ("answer", set(record.prediction.labels) - record.mistakes, Line2D([], [], color=RIGHT, **block)),
        ("wrong answer", record.mistakes, Line2D([], [], color=WRONG, **block)),
        ("truly there", record.truth, Line2D([], [], color=INK, marker="o", markersize=4, linestyle="none")),
    ]
    sheet.legend(
        [mark for _, occurs, mark in marks if occurs], [name for name, occurs, _ in marks if occurs],
        loc="upper left",
        bbox_to_anchor=(start / sheet.width, 1 - (top + height + 0.3) / sheet.height),
        ncols=3, frameon=False, fontsize=7.5, handlelength=1.2, handletextpad=0.5, columnspacing=1.2,
        labelcolor=MUTED,
    )  # fmt: skip


@styled()
def draw_preparation(prepared: Prepared) -> Figure:
    """How a user's image was made fit for the model: each step with its name and the reason for it."""
    side, gap, head, caption = 1.7, 0.22, 0.62, 0.46
    steps, name = prepared.steps, prepared.source.name
    columns = min(len(steps), 4)
    sizes = [fit_in(side, step.pixels.shape[1], step.pixels.shape[0]) for step in steps]
    heights = [
        max(height for _, height in sizes[first : first + columns]) + caption + gap
        for first in range(0, len(steps), columns)
    ]
    longest = int(columns * (side + gap) / 0.098)
    sheet = Sheet(2 * EDGE + columns * (side + gap) - gap, head + sum(heights) + 0.05)
    sheet.write(EDGE, 0.32, name if len(name) <= longest else "…" + name[1 - longest :], 10, weight="bold")
    for number, (step, size) in enumerate(zip(steps, sizes, strict=True)):
        row, column = divmod(number, columns)
        left, top = EDGE + column * (side + gap), head + sum(heights[:row])
        sheet.write(left, top + 0.1, f"{number + 1}. {step.name}", 8.5)
        sheet.write(left, top + 0.28, step.note, 7.5, color=MUTED)
        axes = sheet.panel(left, top + caption, *size)
        show_image(axes, step.pixels)
        last = number == len(steps) - 1
        frame(axes, RIGHT if last else FAINT, 1.8 if last else 0.8)
        if step.box is not None:
            x, y, right, bottom = step.box
            box = (x - 0.5, y - 0.5), right - x, bottom - y
            axes.add_patch(Rectangle(*box, fill=False, edgecolor=READ, linewidth=1.6))
    return sheet
