"""The paper's figure: windows on the image, glimpses, winning capsules, the growing canvas, the scores.

Sizes and places are in inches.
"""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ocra.images.fitting import Prepared
from ocra.viz.panels import (
    classes_shown,
    draw_gauge,
    draw_path,
    draw_scores,
    draw_window,
    frame,
    legend_of_scores,
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

MOST_COLUMNS = 6
PANEL, GAP, EDGE = 1.25, 0.14, 0.28
HEAD = 1.02
SIDE = 1.8
"""Longest side of the images of the whole pass, at the left."""
ROW_NAMES, STEP_NAMES, WINNER = 0.62, 0.24, 0.44
BETWEEN_BLOCKS = 0.26
BARS = 2.3


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
    names = name_room(record)
    bars_left = steps_left + columns * (PANEL + GAP) + GAP + names
    bars_height = max(1.2, 0.2 * len(classes_shown(record)))
    height = max(body, side_height, STEP_NAMES + bars_height + 0.6)
    with styled():
        figure = new_figure(bars_left + BARS + EDGE, HEAD + height + EDGE)
        _draw_heading(figure, record)
        _draw_side(figure, record, side)
        for step in range(record.steps):
            row, column = divmod(step, columns)
            _draw_step(figure, record, step, steps_left + column * (PANEL + GAP), HEAD + row * block, image)
        for row in range(blocks):
            _name_rows(figure, steps_left - 0.1, HEAD + row * block + STEP_NAMES, image[1])
        _draw_bars(figure, record, bars_left, bars_left - names + 0.2, bars_height)
    return figure


def name_room(record: Record) -> float:
    """Inches that the names of the classes take beside their bars."""
    return 0.45 + 0.085 * max(len(shortened(name)) for name in record.class_names)


def _draw_heading(figure: Figure, record: Record) -> None:
    """The answer in words, whether it is right, and what the image is."""
    room = figure.get_size_inches()[0] - 2 * EDGE
    write(figure, EDGE, 0.32, record.answer, min(15, 14 * room / (0.13 * len(record.answer))), weight="bold")
    if record.verdict:
        write(figure, EDGE, 0.58, record.verdict, 9.5, weight="bold", color=RIGHT if record.right else WRONG)
    write(figure, EDGE, 0.8 if record.verdict else 0.58, record.title, color=MUTED)
    if record.prepared is not None:
        steps = record.prepared.steps[1:-1]
        names = [step.name + (f" ({step.note})" if step.name == "inverted" else "") for step in steps]
        text = "prepared: " + (" → ".join(names) or "not changed but in size")
        longest = int(room / 0.066)
        write(
            figure, EDGE, 0.8, text if len(text) <= longest else text[: longest - 1] + "…", 7.5, color=MUTED
        )


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


def _draw_side(figure: Figure, record: Record, images: list[tuple[str, float, float]]) -> None:
    """The user's image, the path over the model's, the mask and the reconstruction."""
    top = HEAD
    for name, width, height in images:
        write(figure, EDGE, top + STEP_NAMES / 2, name, color=MUTED)
        axes = panel(figure, EDGE, top + STEP_NAMES, width, height)
        if name == "your image":
            _draw_own_image(axes, record)
        elif name == "the path":
            show_image(axes, record.image, margin_for(record))
            draw_path(axes, record.reads)
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
    axes.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=RIGHT, linewidth=1.2)
    )


def _draw_step(
    figure: Figure, record: Record, step: int, left: float, top: float, image: tuple[float, float]
) -> None:
    """One column: window, glimpse, winner, canvas."""
    width, height = image
    image_left = left + (PANEL - width) / 2
    write(figure, left + PANEL / 2, top + STEP_NAMES / 2, _step_name(record, step), color=MUTED, ha="center")
    top += STEP_NAMES
    axes = panel(figure, image_left, top, width, height)
    show_image(axes, record.image, margin_for(record))
    if step:
        draw_window(axes, record.reads[step - 1], FAINT, width=0.8, alpha=0.6)
    draw_window(axes, record.reads[step])
    top += height + GAP
    rows, columns = record.glimpses.shape[1:3]
    size = fit_in(PANEL, columns, rows)
    axes = panel(figure, left + (PANEL - size[0]) / 2, top, *size)
    show_image(axes, record.glimpses[step])
    frame(axes, READ)
    top += PANEL
    winner, length = record.prediction.glimpses[step].winner, record.prediction.glimpses[step].length
    is_class, name = winner in record.class_names, shortened(winner)
    size_of_name = 12 if len(name) <= 3 else 8.5
    write(figure, left, top + 0.15, name, size_of_name, weight="bold", color=INK if is_class else MUTED)
    write(figure, left + PANEL, top + 0.15, f"{length:.2f}", color=MUTED, ha="right")
    draw_gauge(panel(figure, left, top + 0.27, PANEL, 0.1), length, RIGHT if is_class else MUTED)
    axes = panel(figure, image_left, top + WINNER, width, height)
    show_image(axes, record.canvases[step], margin_for(record))
    if record.writes is not None:
        draw_window(axes, record.writes[step], WRITE, dashed=True, width=1.3)


def _step_name(record: Record, step: int) -> str:
    """The number of a glimpse, and which digit of a number is read out there."""
    config = record.config
    digit = (step - config.readout_skip) // config.readout_span
    reads_out = config.readout_digits and step >= config.readout_skip and digit < config.readout_digits
    return f"step {step + 1}{f' → digit {digit + 1}' if reads_out else ''}"


def _name_rows(figure: Figure, right: float, top: float, height: float) -> None:
    """What the rows show, at their left."""
    glimpse = top + height + GAP
    rows = {
        "window": top + height / 2,
        "glimpse": glimpse + PANEL / 2,
        "winner": glimpse + PANEL + 0.15,
        "canvas": glimpse + PANEL + WINNER + height / 2,
    }
    for name, middle in rows.items():
        write(figure, right, middle, name, color=MUTED, ha="right")


def _draw_bars(figure: Figure, record: Record, left: float, start: float, height: float) -> None:
    """Scores of all classes, and what the marks mean."""
    top = HEAD + STEP_NAMES
    write(figure, start, HEAD + STEP_NAMES / 2, "score: lengths, a piece per step", color=MUTED)
    draw_scores(panel(figure, left, top, BARS, height), record)
    handles, texts = zip(*legend_of_scores(record), strict=True)
    across, down = figure.get_size_inches()
    figure.legend(
        handles, texts, loc="upper left", bbox_to_anchor=(start / across, 1 - (top + height + 0.3) / down),
        ncols=3, frameon=False, fontsize=7.5, handlelength=1.2, handletextpad=0.5, columnspacing=1.2,
        labelcolor=MUTED,
    )  # fmt: skip


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
    with styled():
        figure = new_figure(2 * EDGE + columns * (side + gap) - gap, head + sum(heights) + 0.05)
        write(
            figure, EDGE, 0.32, name if len(name) <= longest else "…" + name[1 - longest :], 10, weight="bold"
        )
        for number, (step, size) in enumerate(zip(steps, sizes, strict=True)):
            row, column = divmod(number, columns)
            left, top = EDGE + column * (side + gap), head + sum(heights[:row])
            write(figure, left, top + 0.1, f"{number + 1}. {step.name}", 8.5)
            write(figure, left, top + 0.28, step.note, 7.5, color=MUTED)
            axes = panel(figure, left, top + caption, *size)
            show_image(axes, step.pixels)
            last = number == len(steps) - 1
            frame(axes, RIGHT if last else FAINT, 1.8 if last else 0.8)
            if step.box is not None:
                x, y, right, bottom = step.box
                box = (x - 0.5, y - 0.5), right - x, bottom - y
                axes.add_patch(Rectangle(*box, fill=False, edgecolor=READ, linewidth=1.6))
    return figure
