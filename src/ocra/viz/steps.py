"""How a picture was made fit for the model, step by step."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ocra.images.fitting import Prepared
from ocra.viz.panels import frame, show_picture
from ocra.viz.style import BLUE, FAINT, MUTED, READ, new_figure, panel, styled, write

PANEL = 1.7
GAP = 0.22
EDGE = 0.28
HEAD = 0.62
CAPTION = 0.46
MOST_COLUMNS = 4


def draw_steps(prepared: Prepared) -> Figure:
    """One picture for each step of the preparation, with its name and the reason for it."""
    steps = prepared.steps
    columns = min(len(steps), MOST_COLUMNS)
    rows = -(-len(steps) // columns)
    sizes = [_size(step.picture.shape) for step in steps]
    heights = [
        max(size[1] for size in sizes[row * columns :][:columns]) + CAPTION + GAP for row in range(rows)
    ]
    with styled():
        figure = new_figure(2 * EDGE + columns * (PANEL + GAP) - GAP, HEAD + sum(heights) + 0.05)
        room = int((columns * (PANEL + GAP)) / 0.098)
        name = (
            prepared.picture.name
            if len(prepared.picture.name) <= room
            else "…" + prepared.picture.name[1 - room :]
        )
        write(figure, EDGE, 0.32, name, fontsize=10, weight="bold")
        for number, step in enumerate(steps):
            row, column = divmod(number, columns)
            left, top = EDGE + column * (PANEL + GAP), HEAD + sum(heights[:row])
            write(figure, left, top + 0.1, f"{number + 1}. {step.name}", fontsize=8.5)
            write(figure, left, top + 0.28, step.note, fontsize=7.5, color=MUTED)
            axes = panel(figure, left, top + CAPTION, *sizes[number])
            show_picture(axes, step.picture)
            frame(axes, BLUE if number == len(steps) - 1 else FAINT, 1.8 if number == len(steps) - 1 else 0.8)
            if step.box is not None:
                x, y, right, bottom = step.box
                axes.add_patch(
                    Rectangle(
                        (x - 0.5, y - 0.5), right - x, bottom - y, fill=False, edgecolor=READ, linewidth=1.6
                    )
                )
    return figure


def _size(shape: tuple[int, ...]) -> tuple[float, float]:
    rows, columns = shape[:2]
    return PANEL * columns / max(rows, columns), PANEL * rows / max(rows, columns)
