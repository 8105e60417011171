"""The paper's figure: windows on the image, glimpses, winning capsules, the growing canvas, the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    shortened,
    show_picture,
)
from ocra.viz.record import Record
from ocra.viz.style import CHOSEN, FAINT, INK, MUTED, READ, WRITE, WRONG, new_figure, panel, styled, write

MOST_COLUMNS = 6
PANEL = 1.25
GAP = 0.14
EDGE = 0.28
HEAD = 1.02
"""Inches for the heading."""
SIDE = 1.8
"""Inches for the pictures of the whole pass."""
ROW_NAMES = 0.62
STEP_NAMES = 0.24
WINNER = 0.44
BETWEEN_BLOCKS = 0.26
BARS = 2.3


@dataclass(frozen=True)
class _Layout:
    """Where things are, in inches."""

    columns: int
    blocks: int
    image: tuple[float, float]
    """Width and height of an image panel, its mat included."""
    names: float
    """Room for the names of the classes."""
    side: float = SIDE
    """Width of the column of pictures at the left."""

    @classmethod
    def of(cls, record: Record) -> _Layout:
        blocks = math.ceil(record.steps / MOST_COLUMNS)
        longest_name = max(len(shortened(name)) for name in record.class_names)
        names = 0.45 + 0.085 * longest_name
        return cls(math.ceil(record.steps / blocks), blocks, _fitted(record, PANEL), names)

    @property
    def block_height(self) -> float:
        return STEP_NAMES + self.image[1] + GAP + PANEL + WINNER + self.image[1]

    @property
    def body_height(self) -> float:
        return self.blocks * self.block_height + (self.blocks - 1) * BETWEEN_BLOCKS

    @property
    def steps_left(self) -> float:
        return EDGE + self.side + ROW_NAMES + GAP

    @property
    def bars_left(self) -> float:
        return self.steps_left + self.columns * (PANEL + GAP) + GAP + self.names

    @property
    def width(self) -> float:
        return self.bars_left + BARS + EDGE


def _fitted(record: Record, side: float) -> tuple[float, float]:
    """Size in inches of the image with its mat, no side longer than `side`."""
    _, height, width = record.config.image_shape
    around = margin_for(record)
    across, down = width + 2 * around[0], height + 2 * around[1]
    return side * across / max(across, down), side * down / max(across, down)


def draw_look(record: Record) -> Figure:
    """One figure for one image: what the model saw, thought and drew at each glimpse."""
    layout = _Layout.of(record)
    bars_height = max(1.2, 0.2 * len(classes_shown(record)))
    side = _side_pictures(record, layout.body_height)
    layout = replace(layout, side=max(1.2, *(width for _, width, _ in side)))
    side_height = sum(height + STEP_NAMES + GAP for _, _, height in side) - GAP
    height = max(layout.body_height, side_height, STEP_NAMES + bars_height + 0.6)
    with styled():
        figure = new_figure(layout.width, HEAD + height + EDGE)
        _draw_heading(figure, record)
        _draw_side(figure, record, side)
        for step in range(record.steps):
            _draw_step(figure, record, layout, step)
        for block in range(layout.blocks):
            _name_rows(figure, layout, HEAD + block * (layout.block_height + BETWEEN_BLOCKS))
        _draw_bars(figure, record, layout, bars_height)
    return figure


def _draw_heading(figure: Figure, record: Record) -> None:
    """The answer in words, whether it is right, and what the image is."""
    answer = answer_in_words(record)
    room = figure.get_size_inches()[0] - 2 * EDGE
    write(figure, EDGE, 0.32, answer, fontsize=min(15, 14 * room / (0.13 * len(answer))), weight="bold")
    if record.right is not None:
        verdict = "✓ right" if record.right else f"✗ wrong: it is {in_words(record.truth or (), record)}"
        write(
            figure, EDGE, 0.58, verdict, fontsize=9.5, weight="bold", color=CHOSEN if record.right else WRONG
        )
    write(figure, EDGE, 0.58 if record.right is None else 0.8, record.title, fontsize=8, color=MUTED)
    if record.prepared is not None:
        write(figure, EDGE, 0.8, _preparation(record.prepared, int(room / 0.066)), fontsize=7.5, color=MUTED)


def _preparation(prepared: Prepared, longest: int) -> str:
    """How the picture was made fit for the model, in a line."""
    names = [
        step.name + (f" ({step.note})" if step.name == "inverted" else "") for step in prepared.steps[1:-1]
    ]
    text = "prepared: " + (" → ".join(names) or "not changed but in size")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def in_words(labels: tuple[str, ...], record: Record) -> str:
    """Objects as a person would list them; house numbers as the number."""
    if record.config.readout_digits:
        return "".join(labels) or "no number"
    if not labels:
        return "nothing"
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def answer_in_words(record: Record) -> str:
    """What the model says."""
    return (
        f"It reads {in_words(record.prediction.labels, record)}"
        if record.config.readout_digits
        else (f"It sees {in_words(record.prediction.labels, record)}")
    )


def _side_pictures(record: Record, room: float) -> list[tuple[str, float, float]]:
    """Name, width and height of the pictures of the whole pass, to stand in `room` inches."""
    height, width = record.image.shape[:2]
    whole = SIDE * width / max(width, height), SIDE * height / max(width, height)
    pictures = [("the path", *_fitted(record, SIDE)), ("reconstruction", *whole)]
    if record.mask is not None:
        pictures.insert(1, ("reconstruction mask", *whole))
    if record.prepared is not None:
        width, height = record.prepared.picture.width, record.prepared.picture.height
        own = SIDE * width / max(width, height), SIDE * height / max(width, height)
        pictures.insert(0, ("your picture", *own))
    free = room - len(pictures) * STEP_NAMES - (len(pictures) - 1) * GAP
    share = min(1.0, max(0.62, free / sum(height for _, _, height in pictures)))
    return [(name, width * share, height * share) for name, width, height in pictures]


def _draw_side(figure: Figure, record: Record, pictures: list[tuple[str, float, float]]) -> None:
    """The user's picture, the path over the image, the mask and the reconstruction."""
    top = HEAD
    for name, width, height in pictures:
        write(figure, EDGE, top + STEP_NAMES / 2, name, fontsize=8, color=MUTED)
        axes = panel(figure, EDGE, top + STEP_NAMES, width, height)
        if name == "your picture":
            _draw_own_picture(axes, record)
        elif name == "the path":
            show_picture(axes, record.image, margin_for(record))
            draw_path(axes, record.reads)
        elif name == "reconstruction mask" and record.mask is not None:
            show_picture(axes, record.mask)
        else:
            show_picture(axes, record.canvas)
        top += STEP_NAMES + height + GAP


def _draw_own_picture(axes: Axes, record: Record) -> None:
    """The picture as the user gave it, with the part that the model sees."""
    assert record.prepared is not None
    picture, placement = record.prepared.picture, record.prepared.placement
    show_picture(axes, record.prepared.steps[0].picture)
    axes.images[0].set_extent((-0.5, picture.width - 0.5, picture.height - 0.5, -0.5))
    left, top = placement.to_picture(-0.5, -0.5)
    right, bottom = placement.to_picture(record.config.width - 0.5, record.config.height - 0.5)
    axes.set_xlim(
        min(-0.5, left), max(picture.width - 0.5, right)
    )  # what it sees may be more than the picture
    axes.set_ylim(max(picture.height - 0.5, bottom), min(-0.5, top))
    axes.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=CHOSEN, linewidth=1.2)
    )


def _draw_step(figure: Figure, record: Record, layout: _Layout, step: int) -> None:
    """One column: window, glimpse, winner, canvas."""
    block, column = divmod(step, layout.columns)
    left = layout.steps_left + column * (PANEL + GAP)
    top = HEAD + block * (layout.block_height + BETWEEN_BLOCKS)
    width, height = layout.image
    shift = (PANEL - width) / 2
    write(
        figure,
        left + PANEL / 2,
        top + STEP_NAMES / 2,
        _step_name(record, step),
        fontsize=8,
        color=MUTED,
        ha="center",
    )
    top += STEP_NAMES
    axes = panel(figure, left + shift, top, width, height)
    show_picture(axes, record.image, margin_for(record))
    if step:
        draw_window(axes, record.reads[step - 1], FAINT, width=0.8, alpha=0.6)
    draw_window(axes, record.reads[step])
    top += height + GAP
    glimpse = record.glimpses[step]
    share = min(PANEL / glimpse.shape[1], PANEL / glimpse.shape[0])
    size = glimpse.shape[1] * share, glimpse.shape[0] * share
    axes = panel(figure, left + (PANEL - size[0]) / 2, top, *size)
    show_picture(axes, glimpse)
    frame(axes, READ)
    top += PANEL
    _draw_winner(figure, record, step, left, top)
    axes = panel(figure, left + shift, top + WINNER, width, height)
    show_picture(axes, record.canvases[step], margin_for(record))
    if record.writes is not None:
        draw_window(axes, record.writes[step], WRITE, dashed=True, width=1.3)


def _step_name(record: Record, step: int) -> str:
    """The number of a glimpse, and which digit of a house number is read out there."""
    config = record.config
    name = f"step {step + 1}"
    if config.readout_digits and step >= config.readout_skip:
        digit = (step - config.readout_skip) // config.readout_span
        if digit < config.readout_digits:
            name += f" → digit {digit + 1}"
    return name


def _draw_winner(figure: Figure, record: Record, step: int, left: float, top: float) -> None:
    """Name and length of the winning capsule, with the length as a gauge."""
    glimpse = record.prediction.glimpses[step]
    is_class = glimpse.winner in record.class_names
    name = shortened(glimpse.winner)
    size = 12 if len(name) <= 3 else 8.5
    colour = INK if is_class else MUTED
    write(figure, left, top + 0.15, name, fontsize=size, weight="bold", color=colour)
    write(figure, left + PANEL, top + 0.15, f"{glimpse.length:.2f}", fontsize=8, color=MUTED, ha="right")
    gauge = panel(figure, left, top + 0.27, PANEL, 0.1)
    draw_gauge(gauge, glimpse.length, CHOSEN if is_class else MUTED)


def _name_rows(figure: Figure, layout: _Layout, top: float) -> None:
    """What the rows show, at their left."""
    _, height = layout.image
    top += STEP_NAMES
    rows = [
        ("window", top + height / 2),
        ("glimpse", top + height + GAP + PANEL / 2),
        ("winner", top + height + GAP + PANEL + 0.15),
        ("canvas", top + height + GAP + PANEL + WINNER + height / 2),
    ]
    for name, middle in rows:
        write(figure, layout.steps_left - 0.1, middle, name, fontsize=8, color=MUTED, ha="right")


def _draw_bars(figure: Figure, record: Record, layout: _Layout, height: float) -> None:
    """Scores of all classes, and what the marks mean."""
    left, top = layout.bars_left, HEAD + STEP_NAMES
    start = left - layout.names + 0.2
    write(figure, start, HEAD + STEP_NAMES / 2, "score: lengths, a piece per step", fontsize=8, color=MUTED)
    draw_scores(panel(figure, left, top, BARS, height), record)
    entries = legend_of_scores(record)
    across, down = figure.get_size_inches()
    figure.legend(
        [handle for handle, _ in entries], [text for _, text in entries],
        loc="upper left", bbox_to_anchor=(start / across, 1 - (top + height + 0.3) / down),
        ncols=3, frameon=False, fontsize=7.5, handlelength=1.2, handletextpad=0.5, columnspacing=1.2,
        labelcolor=MUTED,
    )  # fmt: skip
