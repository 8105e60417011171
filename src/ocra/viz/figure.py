"""The paper's figure: windows on the image, glimpses, winning capsules, the growing canvas, the scores.

Sizes and places are in inches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
"""Longest side of the images of the whole pass."""
ROW_NAMES, STEP_NAMES = 0.62, 0.24
BETWEEN_BLOCKS = 0.26
BARS = 2.3
TICKS = 0.26
"""Height of the numbers beneath the bars."""
NARROW = 5.5
"""Figures less wide have the images of the whole pass and the bars above the steps, not beside them."""
SLIM = 0.06
"""Edge and gaps of a figure whose width is given: the page around it has its own."""
SHORT_NAMES = {
    "your image": "image",
    "the path": "path",
    "reconstruction mask": "mask",
    "reconstruction": "result",
}

Side = tuple[str, float, float, float, float]
"""An image of the whole pass: its name, left, top, width and height."""


@dataclass(frozen=True)
class Plan:
    """Where everything in a figure lies."""

    width: float
    height: float
    edge: float
    side: list[Side]
    steps: tuple[float, float]
    """Left and top of the first step."""
    columns: int
    panel: float
    gap: float
    bars: tuple[float, float, float, float]
    """Left, top, width and height; the names of the classes are left of them."""
    legend: tuple[float, float]
    """Left and top."""
    legend_columns: int = 1
    fitted: bool = False
    """Whether the width was given, so that long names may have no room."""

    def block(self, record: Record) -> float:
        """Height of a row of steps, with what separates it from the next."""
        return _block(record, self.panel, self.gap)


def _block(record: Record, panel: float, gap: float) -> float:
    image = matted_size(record, panel)[1]
    return STEP_NAMES + image + gap + panel + WINNER + (image if record.draws else 0) + BETWEEN_BLOCKS


@styled()
def draw_look(record: Record, width: float | None = None, bare: bool = False) -> Figure:
    """One figure for one image: what the model saw, thought and drew at each glimpse.

    width: that of the figure in inches, for a column or a page of a paper; letters keep their size, images do not.
    bare: without the headline.
    """
    head = SLIM if bare else HEAD
    if width is None:
        plan = _beside(record, head)
    elif width >= NARROW:
        plan = _beside_within(record, head, width)
    else:
        plan = _above(record, head, width)
    sheet = Sheet(plan.width, plan.height)
    if not bare:
        _draw_heading(sheet, record, plan.edge)
    _draw_side(sheet, record, plan)
    _draw_steps(sheet, record, plan)
    _draw_bars(sheet, record, plan)
    return sheet


def _grid(record: Record) -> tuple[int, int]:
    """Rows and columns of the steps: more than six glimpses take two rows or more."""
    rows = math.ceil(record.steps / MOST_COLUMNS)
    return rows, math.ceil(record.steps / rows)


def _beside(
    record: Record,
    head: float,
    panel: float = PANEL,
    longest: float = SIDE,
    bars: float = BARS,
    edge: float = EDGE,
    gap: float = GAP,
) -> Plan:
    """The images of the whole pass at the left, the steps, the bars at the right; as wide as that takes."""
    rows, columns = _grid(record)
    body = rows * _block(record, panel, gap) - BETWEEN_BLOCKS
    side, top = [], head
    sizes = _side_sizes(record, longest)
    free = body - len(sizes) * STEP_NAMES - (len(sizes) - 1) * GAP
    share = min(1.0, max(0.62, free / sum(height for _, _, height in sizes)))
    for name, width, height in sizes:
        side.append((name, edge, top, width * share, height * share))
        top += STEP_NAMES + height * share + GAP
    left = edge + max(0.62 * longest, *(width for _, _, _, width, _ in side)) + ROW_NAMES + GAP
    names = panels.name_room(record)
    bars_left = left + columns * (panel + gap) + gap + names
    bars_height = max(1.2, 0.2 * len(panels.classes_shown(record)))
    wide = bars >= BARS
    legend = bars_left - names + 0.2, head + STEP_NAMES + bars_height + TICKS
    height = max(body, top - GAP - head, STEP_NAMES + bars_height + (0.6 if wide else TICKS + 0.55))
    return Plan(
        width=bars_left + bars + edge, height=head + height + edge, edge=edge, side=side, steps=(left, head),
        columns=columns, panel=panel, gap=gap, bars=(bars_left, head + STEP_NAMES, bars, bars_height),
        legend=legend, legend_columns=3 if wide else 1,
    )  # fmt: skip


def _beside_within(record: Record, head: float, width: float) -> Plan:
    """The same in a given width: bars and images of the whole pass are small, the steps take the rest."""
    options = {"longest": 0.16 * width, "bars": 0.15 * width, "edge": SLIM, "gap": SLIM}
    columns = _grid(record)[1]
    # What is not steps has one width, whatever theirs.
    fixed = _beside(record, head, panel=1.0, **options).width - columns
    panel = min(PANEL, (width - fixed) / columns)
    plan = _beside(record, head, panel=panel, **options)
    left, top, bars, height = plan.bars
    return replace(plan, width=width, bars=(left, top, bars + width - plan.width, height), fitted=True)


def _above(record: Record, head: float, width: float) -> Plan:
    """For a column of a paper: the images of the whole pass and the bars in a row, the steps beneath."""
    names, least = panels.name_room(record) - 0.12, 0.8
    sizes = _side_sizes(record, 1.0)
    room = width - 2 * SLIM - names - least - len(sizes) * SLIM
    share = min(1.0, room / sum(width for _, width, _ in sizes))
    side, left = [], SLIM
    for name, across, down in sizes:
        side.append((name, left, head, across * share, down * share))
        left += across * share + SLIM
    bars_left = left + names
    bars_height = max(0.9, 0.155 * len(panels.classes_shown(record)))
    images = STEP_NAMES + max(down for _, _, _, _, down in side)
    band = max(images + 0.5, STEP_NAMES + bars_height + TICKS) + GAP
    rows, columns = _grid(record)
    steps_left = SLIM + ROW_NAMES - 0.12
    panel = min(1.0, (width - SLIM - steps_left) / columns - SLIM)
    body = rows * _block(record, panel, SLIM) - BETWEEN_BLOCKS
    return Plan(
        width=width, height=head + band + body + SLIM, edge=SLIM, side=side, steps=(steps_left, head + band),
        columns=columns, panel=panel, gap=SLIM,
        bars=(bars_left, head + STEP_NAMES, width - SLIM - bars_left, bars_height), legend=(SLIM, head + images),
        fitted=True,
    )  # fmt: skip


def _draw_heading(sheet: Sheet, record: Record, edge: float) -> None:
    """The answer in words, whether it is right, and what the image is."""
    room = sheet.width - 2 * edge

    def fitted(text: str, letter: float) -> str:
        longest = int(room / letter)
        return text if len(text) <= longest else text[: longest - 1] + "…"

    sheet.write(edge, 0.32, record.answer, min(15, 14 * room / (0.13 * len(record.answer))), weight="bold")
    if record.verdict:
        colour = RIGHT if record.right else WRONG
        sheet.write(edge, 0.58, fitted(record.verdict, 0.09), 9.5, weight="bold", color=colour)
    sheet.write(edge, 0.8 if record.verdict else 0.58, fitted(record.title, 0.075), color=MUTED)
    if record.prepared is not None:
        steps = record.prepared.steps[1:-1]
        names = [step.name + (f" ({step.note})" if step.name == "inverted" else "") for step in steps]
        text = "prepared: " + (" → ".join(names) or "not changed but in size")
        sheet.write(edge, 0.8, fitted(text, 0.066), 7.5, color=MUTED)


def _side_sizes(record: Record, longest: float) -> list[tuple[str, float, float]]:
    """Name, width and height of the images that belong to the whole pass."""
    whole = fit_in(longest, record.config.width, record.config.height)
    images = [("the path", *matted_size(record, longest))]
    if record.draws:
        images.append(("reconstruction", *whole))
    if record.mask is not None:
        images.insert(1, ("reconstruction mask", *whole))
    if record.prepared is not None:
        own = record.prepared.source
        images.insert(0, ("your image", *fit_in(longest, own.width, own.height)))
    return images


def _draw_side(sheet: Sheet, record: Record, plan: Plan) -> None:
    """The user's image, the path over the model's, the mask and the reconstruction."""
    for name, left, top, width, height in plan.side:
        short = plan.fitted and width < 0.065 * len(name)
        sheet.write(left, top + STEP_NAMES / 2, SHORT_NAMES[name] if short else name, color=MUTED)
        axes = sheet.panel(left, top + STEP_NAMES, width, height)
        if name == "your image":
            _draw_own_image(axes, record)
        elif name == "the path":
            show_image(axes, record.image, margin_for(record))
            panels.draw_path(axes, record.reads)
        elif name == "reconstruction mask" and record.mask is not None:
            show_image(axes, record.mask)
        else:
            show_image(axes, record.canvas)


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


def _draw_steps(sheet: Sheet, record: Record, plan: Plan) -> None:
    """All steps, in rows, and what each row of images shows."""
    left, first = plan.steps
    height = matted_size(record, plan.panel)[1]
    for step in range(record.steps):
        row, column = divmod(step, plan.columns)
        place = left + column * (plan.panel + plan.gap), first + row * plan.block(record)
        _draw_step(sheet, record, step, plan, *place)
    for row in range(math.ceil(record.steps / plan.columns)):
        top = first + row * plan.block(record) + STEP_NAMES
        glimpse = top + height + plan.gap
        middles = {
            "window": top + height / 2,
            "glimpse": glimpse + plan.panel / 2,
            "winner": glimpse + plan.panel + 0.15,
        }
        if record.draws:
            middles["canvas"] = glimpse + plan.panel + WINNER + height / 2
        for name, middle in middles.items():
            sheet.write(left - min(0.1, plan.gap), middle, name, color=MUTED, ha="right")


def _draw_step(sheet: Sheet, record: Record, step: int, plan: Plan, left: float, top: float) -> None:
    """One column: window, glimpse, winner, canvas."""
    panel, config = plan.panel, record.config
    width, height = matted_size(record, panel)
    image_left = left + (panel - width) / 2
    name = f"step {step + 1}" if panel >= 0.6 else f"{step + 1}"
    if panel >= 1 and isinstance(config, ModelConfig) and config.readout_digits:
        digit = (step - config.readout_skip) // config.readout_span
        if step >= config.readout_skip and digit < config.readout_digits:
            name += f" → digit {digit + 1}"
    sheet.write(left + panel / 2, top + STEP_NAMES / 2, name, color=MUTED, ha="center")
    top += STEP_NAMES
    axes = sheet.panel(image_left, top, width, height)
    show_image(axes, record.image, margin_for(record))
    line = 1.7 if panel >= 0.8 else 1.1
    if step:
        draw_window(axes, record.reads[step - 1], width=line / 2, alpha=0.5)
    draw_window(axes, record.reads[step], width=line)
    top += height + plan.gap
    panels.draw_glimpse(sheet, record, step, left, top, panel)
    if record.draws:
        axes = sheet.panel(image_left, top + panel + WINNER, width, height)
        panels.draw_canvas(axes, record, step, line - 0.4)


def _draw_bars(sheet: Sheet, record: Record, plan: Plan) -> None:
    """Scores of all classes, and what the marks mean."""
    left, top, width, height = plan.bars
    start = plan.legend[0] if plan.legend[0] > plan.edge else left
    words = "score: lengths, a piece per step" if width >= BARS else "score"
    sheet.write(start, top - STEP_NAMES / 2, words, color=MUTED)
    panels.draw_scores(sheet.panel(left, top, width, height), record, record.steps)
    block: dict[str, Any] = {"linewidth": 5, "solid_capstyle": "butt"}
    marks = [
        ("answer", set(record.prediction.labels) - record.mistakes, Line2D([], [], color=RIGHT, **block)),
        ("wrong answer", record.mistakes, Line2D([], [], color=WRONG, **block)),
        ("truly there", record.truth, Line2D([], [], color=INK, marker="o", markersize=4, linestyle="none")),
    ]
    sheet.legend(
        [mark for _, occurs, mark in marks if occurs], [name for name, occurs, _ in marks if occurs],
        loc="upper left",
        bbox_to_anchor=(plan.legend[0] / sheet.width, 1 - plan.legend[1] / sheet.height),
        ncols=plan.legend_columns, frameon=False, fontsize=7.5, handlelength=1.2, handletextpad=0.5,
        columnspacing=1.2, labelspacing=0.25, borderpad=0, labelcolor=MUTED,
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
