"""Sheets of many images: results as in the paper's supplement, samples of a task, where the model looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from ocra.data.task import Batch
from ocra.viz.panels import draw_window, frame, show_image
from ocra.viz.record import Record
from ocra.viz.style import FAINT, INK, MUTED, READ, WRONG, Sheet, fit_in, styled

PANEL, GAP, EDGE, HEAD = 0.86, 0.2, 0.3, 0.92
"""Inches, as all sizes in figures."""
PRINTED_PANEL, PRINTED_EDGE = 0.5, 0.04
"""In a figure whose width is given: about as large as an image is, and its edge."""
CAPTION, SECTION, LINE, BETWEEN = 0.2, 0.34, 0.17, 0.03


@styled()
def draw_results(
    records: Sequence[Record],
    title: str = "",
    columns: int = 5,
    width: float | None = None,
    bare: bool = False,
) -> Figure:
    """Each input, with what is in it, beside its reconstruction, with what the model says; errors framed and listed.

    columns: of such pairs. width: of the figure in inches, which then says how many columns there are. bare: without
    headline and list.
    """
    panel, edge, across = PANEL, EDGE, 0.0
    columns = min(columns, len(records))
    if width is not None:
        edge, across = PRINTED_EDGE, width
        columns = max(1, int((width - 2 * edge + GAP) / (2 * PRINTED_PANEL + BETWEEN + GAP)))
        panel = min(PANEL, ((width - 2 * edge + GAP) / columns - GAP - BETWEEN) / 2)
    pair = 2 * panel + BETWEEN
    across = across or max(2 * edge + columns * (pair + GAP) - GAP, 5.0)
    size = fit_in(panel, records[0].config.width, records[0].config.height)
    cell = size[1] + CAPTION + 0.09
    head = edge if bare else HEAD + SECTION
    body = math.ceil(len(records) / columns) * cell
    errors = [] if bare else error_lines(records)
    error_columns = max(1, int((across - 2 * edge) / (0.07 * max(map(len, errors), default=1) + 0.2)))
    error_rows = math.ceil(len(errors) / error_columns)
    sheet = Sheet(across, head + body + (0.34 + LINE * error_rows if errors else 0) + edge)
    if not bare:
        sheet.write(edge, 0.34, _heading(records, len(errors)), 13, weight="bold")
        sheet.write(edge, 0.62, title, color=MUTED)
        right = "reconstruction" if records[0].draws else "image again"
        told = f"left: image and what is in it · right: {right} and answer"
        sheet.write(
            edge, HEAD + 0.1, told, min(8.5, 8.5 * (across - 2 * edge) / (0.066 * len(told))), color=MUTED
        )
    for number, record in enumerate(records):
        row, column = divmod(number, columns)
        _draw_pair(sheet, record, edge + column * (pair + GAP), head + row * cell, panel, size)
    if errors:
        top = head + body + 0.16
        sheet.write(edge, top, "errors", 8.5, color=MUTED)
        for number, line in enumerate(errors):
            column, row = divmod(number, error_rows)
            left = edge + column * (across - 2 * edge) / error_columns
            sheet.write(left, top + 0.24 + LINE * row, line, 7.5, color=INK)
    return sheet


def _draw_pair(
    sheet: Sheet, record: Record, left: float, top: float, panel: float, size: tuple[float, float]
) -> None:
    """An image and its reconstruction beside it."""
    wrong = record.right is False
    for part, labels in enumerate((record.truth or (), record.prediction.labels)):
        place = left + part * (panel + BETWEEN)
        axes = sheet.panel(place + (panel - size[0]) / 2, top, *size)
        show_image(axes, record.canvas if part and record.draws else record.image)
        if wrong:
            frame(axes, WRONG, 2.4 if panel >= 0.7 else 1.4)
        text = ("✗ " if wrong and part else "") + _caption(labels, record)
        style = {"weight": "bold", "color": WRONG} if wrong else {"color": INK if labels else FAINT}
        letters = min(8.0, 8.0 * panel / (0.075 * len(text)))
        sheet.write(place + panel / 2, top + size[1] + 0.11, text, letters, ha="center", **style)


def _heading(records: Sequence[Record], wrong: int) -> str:
    if records[0].truth is None:
        return f"{len(records)} images"
    if wrong == len(records):  # most often they were chosen for that
        return "1 image, answered wrongly" if wrong == 1 else f"{wrong} images, each answered wrongly"
    return f"{len(records) - wrong} of {len(records)} right" if wrong else f"All {len(records)} right"


def _caption(labels: Sequence[str], record: Record) -> str:
    return ("".join(labels) if record.is_number else " ".join(sorted(labels))) or "–"


def error_lines(records: Sequence[Record]) -> list[str]:
    """Each error in words: which image, what is there, what the model says."""
    return [
        f"{record.title}: {_caption(record.truth or (), record)} taken for "
        f"{_caption(record.prediction.labels, record)}"
        for record in records
        if record.right is False
    ]


@styled()
def draw_gaze(records: Sequence[Record]) -> Figure:
    """For each step the mean image, the centre of every window as a dot, and the mean window."""
    side, gap, edge, caption = 1.35, 0.14, 0.1, 0.26
    steps = records[0].steps
    columns = min(steps, 6)
    mean = np.mean([record.image for record in records], axis=0)
    mean = 0.55 * mean / max(float(mean.max()), 1e-6)  # dim, so that the dots stand out
    reads = np.stack([record.reads for record in records])  # [images, steps, 3]
    size = fit_in(side, records[0].config.width, records[0].config.height)
    cell = size[1] + caption + gap
    height = 2 * edge + math.ceil(steps / columns) * cell - gap
    sheet = Sheet(2 * edge + columns * (side + gap) - gap, height)
    for step in range(steps):
        row, column = divmod(step, columns)
        left, top = edge + column * (side + gap), edge + row * cell
        x, y, width = reads[:, step].T
        sheet.write(left, top + 0.1, f"step {step + 1}")
        sheet.write(left + side, top + 0.1, f"window {width.mean():.0f} px", 7, color=MUTED, ha="right")
        axes = sheet.panel(left + (side - size[0]) / 2, top + caption, *size)
        show_image(axes, mean)
        axes.plot(x, y, "o", color=READ, markersize=1.8, alpha=0.5, markeredgewidth=0)
        draw_window(axes, reads[:, step].mean(0), width=1.3)
    return sheet


def sample_captions(batch: Batch, class_names: tuple[str, ...]) -> list[str]:
    """What is in each image: its class names, each as often as it occurs; of a house number, the number."""
    between = "" if batch.sequence is not None else "  "
    return [between.join(names) for names in batch.names(class_names)]


def draw_samples(batch: Batch, class_names: tuple[str, ...], columns: int = 8) -> Image.Image:
    """The images of a batch in rows of `columns`, enlarged, pixel by pixel, each with its classes beneath."""
    side, gap, line = 144, 8, 21
    columns = min(columns, len(batch))
    rows = math.ceil(len(batch) / columns)
    width, height = (max(1, round(pixels)) for pixels in fit_in(side, *batch.images.shape[:1:-1]))
    across, down = width + gap, height + line + gap
    sheet = Image.new("RGB", (columns * across + gap, rows * down + gap), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 15)
    pixels = (batch.images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    pixels = np.repeat(pixels, 3 // pixels.shape[3], axis=3)
    for number, caption in enumerate(sample_captions(batch, class_names)):
        x, y = gap + number % columns * across, gap + number // columns * down
        enlarged = Image.fromarray(pixels[number]).resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (x, y))
        while caption and font.getlength(caption) > width:  # cut with an ellipsis where it is too wide
            caption = caption.rstrip("…")[:-1] + "…" if len(caption) > 2 else ""
        pen.text((x + width // 2, y + height + line // 2), caption, fill="black", font=font, anchor="mm")
    return sheet
