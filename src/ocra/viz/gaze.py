"""Where the model looks over many images: one picture for each step."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from ocra.viz.panels import draw_window, show_picture
from ocra.viz.record import Record
from ocra.viz.style import MUTED, READ, new_figure, panel, styled, write

PANEL = 1.35
GAP = 0.14
EDGE = 0.1
CAPTION = 0.26
MOST_COLUMNS = 6


def draw_gaze(records: list[Record]) -> Figure:
    """For each step the mean image, the centre of every window as a dot, and the mean window."""
    steps = records[0].steps
    columns = min(steps, MOST_COLUMNS)
    rows = math.ceil(steps / columns)
    mean = np.mean([record.image for record in records], axis=0)
    mean = 0.55 * mean / max(float(mean.max()), 1e-6)  # dim, so that the dots stand out
    reads = np.stack([record.reads for record in records])  # [images, steps, 3]
    _, height, width = records[0].config.image_shape
    size = PANEL * width / max(height, width), PANEL * height / max(height, width)
    with styled():
        figure = new_figure(
            2 * EDGE + columns * (PANEL + GAP) - GAP, 2 * EDGE + rows * (size[1] + CAPTION + GAP) - GAP
        )
        for step in range(steps):
            row, column = divmod(step, columns)
            left, top = EDGE + column * (PANEL + GAP), EDGE + row * (size[1] + CAPTION + GAP)
            typical = reads[:, step].mean(0)
            write(figure, left, top + 0.1, f"step {step + 1}", fontsize=8)
            note = f"window {typical[2]:.0f} px"
            write(figure, left + PANEL, top + 0.1, note, fontsize=7, color=MUTED, ha="right")
            axes = panel(figure, left + (PANEL - size[0]) / 2, top + CAPTION, *size)
            show_picture(axes, mean)
            axes.plot(
                reads[:, step, 0],
                reads[:, step, 1],
                "o",
                color=READ,
                markersize=1.8,
                alpha=0.5,
                markeredgewidth=0,
            )
            draw_window(axes, typical, width=1.3)
    return figure
