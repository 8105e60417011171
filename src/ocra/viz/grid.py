"""Many images at once: inputs above, reconstructions below, errors framed, as in the paper's supplement."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from ocra.viz.panels import frame, show_picture
from ocra.viz.record import Record
from ocra.viz.style import FAINT, INK, MUTED, WRONG, new_figure, panel, styled, write

PANEL = 0.86
GAP = 0.09
CAPTION = 0.2
EDGE = 0.3
HEAD = 0.92
SECTION = 0.34
LINE = 0.17


def draw_grid(records: list[Record], title: str = "", columns: int = 10) -> Figure:
    """Inputs with what is in them, then reconstructions with what the model says; errors are listed."""
    columns = min(columns, len(records))
    rows = math.ceil(len(records) / columns)
    _, height, width = records[0].config.image_shape
    size = PANEL * width / max(height, width), PANEL * height / max(height, width)
    across = max(EDGE * 2 + columns * (PANEL + GAP) - GAP, 5.0)
    listed = error_lines(records)
    list_columns = max(1, int((across - 2 * EDGE) / (0.07 * max(map(len, listed), default=1) + 0.2)))
    cell = size[1] + CAPTION + GAP
    section = SECTION + rows * cell
    list_height = 0.34 + LINE * math.ceil(len(listed) / list_columns) if listed else 0.0
    total = HEAD + 2 * section + list_height + EDGE
    with styled():
        figure = new_figure(across, total)
        wrong = [record for record in records if record.right is False]
        write(figure, EDGE, 0.34, _heading(records, len(wrong)), fontsize=13, weight="bold")
        write(figure, EDGE, 0.62, title, fontsize=8, color=MUTED)
        for part, name in enumerate(("inputs, with what is there", "reconstructions, with the answer")):
            top = HEAD + part * section
            write(figure, EDGE, top + 0.1, name, fontsize=8.5, color=MUTED)
            for number, record in enumerate(records):
                row, column = divmod(number, columns)
                place = EDGE + column * (PANEL + GAP), top + SECTION - 0.1 + row * cell
                _draw_cell(figure, record, place, size, reconstruction=bool(part))
        if listed:
            _draw_errors(figure, listed, HEAD + 2 * section + 0.16, list_columns)
    return figure


def _heading(records: list[Record], wrong: int) -> str:
    if records[0].truth is None:
        return f"{len(records)} images"
    if wrong == len(records):  # most often they were chosen for that
        return "1 image, answered wrongly" if wrong == 1 else f"{wrong} images, each answered wrongly"
    return f"{len(records) - wrong} of {len(records)} right" if wrong else f"All {len(records)} right"


def _draw_cell(
    figure: Figure,
    record: Record,
    place: tuple[float, float],
    size: tuple[float, float],
    reconstruction: bool,
) -> None:
    """One image or its reconstruction, with words below."""
    left, top = place
    width, height = size
    axes = panel(figure, left + (PANEL - width) / 2, top, width, height)
    show_picture(axes, record.canvas if reconstruction else record.image)
    wrong = record.right is False
    if wrong:
        frame(axes, WRONG, 2.4)
    labels = record.prediction.labels if reconstruction else (record.truth or ())
    text = _caption(labels, record)
    if wrong and reconstruction:
        text = f"✗ {text}"
    style = {"weight": "bold", "color": WRONG} if wrong else {"color": INK if labels else FAINT}
    fit = min(8.0, 8.0 * PANEL / (0.075 * max(len(text), 1)))
    write(figure, left + PANEL / 2, top + height + 0.11, text, fontsize=fit, ha="center", **style)


def _caption(labels: tuple[str, ...], record: Record) -> str:
    if record.config.readout_digits:
        return "".join(labels) or "–"
    return " ".join(sorted(labels)) or "–"


def error_lines(records: list[Record]) -> list[str]:
    """Each error in words: which image, what is there, what the model says."""
    wrong = [record for record in records if record.right is False]
    said = [_caption(record.prediction.labels, record) for record in wrong]
    there = [_caption(record.truth or (), record) for record in wrong]
    return [f"{record.title}: {a} taken for {b}" for record, a, b in zip(wrong, there, said, strict=True)]


def _draw_errors(figure: Figure, lines: list[str], top: float, columns: int) -> None:
    """The list of errors, in columns."""
    width = (figure.get_size_inches()[0] - 2 * EDGE) / columns
    write(figure, EDGE, top, "errors", fontsize=8.5, color=MUTED)
    rows = math.ceil(len(lines) / columns)
    for number, line in enumerate(lines):
        column, row = divmod(number, rows)
        write(figure, EDGE + column * width, top + 0.24 + LINE * row, line, fontsize=7.5, color=INK)
