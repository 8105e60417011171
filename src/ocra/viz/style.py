"""The look of all pictures: colours that colour-blind people can tell apart, type, saving."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ocra.errors import OcraError, UsageError
from ocra.files import atomic_path

# Okabe and Ito's colours (2008).
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"

READ, WRITE = ORANGE, SKY
CHOSEN, WRONG = BLUE, VERMILLION
INK, MUTED, FAINT, PAPER, MAT = "#1F2933", "#6B7280", "#C3C8CF", "#FFFFFF", "#EEF0F3"

DPI = 200

MAKER = "ocra"
"""What our PNG files say they were made with, by which they are told from a user's pictures."""

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # names of files and classes may have dollars in them
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "svg.hashsalt": "ocra",
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    """Within it figures are drawn in our style; outside nothing changes."""
    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        yield


def new_figure(width: float, height: float, paper: str = PAPER) -> Figure:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height), facecolor=paper)
    FigureCanvasAgg(figure)
    return figure


def panel(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the top left corner of the figure."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def write(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Text at a place given in inches from the top left corner of the figure."""
    across, down = figure.get_size_inches()
    figure.text(left / across, 1 - top / down, text, **{"va": "center", **style})


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = DPI) -> None:
    """Write PNG, SVG or PDF by the ending; the same figure gives the same file."""
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in ("png", "svg", "pdf"):
        raise UsageError(f"{path} should end with .png, .svg or .pdf.")
    about = {"png": {"Software": MAKER}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[ending]
    try:
        with styled(), atomic_path(path) as temporary:
            figure.savefig(
                temporary, format=ending, dpi=dpi, facecolor=figure.get_facecolor(), metadata=about
            )
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None
