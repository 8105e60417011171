"""The look of every figure and page: one palette, type, placement in inches, saving."""

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

from ocra.errors import OcraError
from ocra.files import atomic_path
from ocra.images.reading import endings

# Okabe and Ito's colours (2008), which colour-blind people can tell apart.
ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"

PALETTE = {
    "read": (ORANGE, "#F0B429"),
    "write": (GREEN, "#2FC79A"),
    "right": (BLUE, SKY),
    "wrong": (VERMILLION, "#FF8C42"),
    "forced": (PURPLE, "#E0A0C4"),
    "ink": ("#1F2933", "#E8EBEF"),
    "muted": ("#5F6875", "#9AA4B0"),
    "bar": ("#C3C8CF", "#5A6470"),
    "line": ("#D5D9DF", "#39424D"),
    "field": ("#EEF0F3", "#262D35"),
    "card": ("#FFFFFF", "#1D232A"),
    "paper": ("#F8F9FA", "#14181D"),
}
"""What each colour means, on light and on dark ground: where the model reads and writes, its answer and right
answers, wrong answers, what a visitor forced; then the greys."""

READ, WRITE, RIGHT, WRONG = (PALETTE[name][0] for name in ("read", "write", "right", "wrong"))
INK, MUTED, FAINT, MAT = (PALETTE[name][0] for name in ("ink", "muted", "bar", "field"))
WHITE = "#FFFFFF"

DPI, PRINTED_DPI = 200, 400
"""Of figures for a screen, and of those whose width on paper is given."""

MAKER = "ocra"
"""What our PNG files say they were made with, by which they are told from a user's images."""

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same figure on every machine
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


def css_variables(dark: str) -> str:
    """The palette as CSS variables --ocra-read, --ocra-write, …; `dark`: a rule in which dark colours hold."""
    light_values, dark_values = (
        "".join(f"--ocra-{name}:{shades[k]};" for name, shades in PALETTE.items()) for k in (0, 1)
    )
    return f":root {{ {light_values} }}\n{dark.format(dark_values)}\n"


@contextmanager
def styled() -> Iterator[None]:
    """Within it figures are drawn in our style; outside nothing changes."""
    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        yield


def fit_in(side: float, width: float, height: float) -> tuple[float, float]:
    """Width and height of something of these proportions, the longer one being `side`."""
    return side * width / max(width, height), side * height / max(width, height)


class Sheet(Figure):
    """A figure whose parts are placed in inches from its top left corner."""

    def __init__(self, width: float, height: float, paper: str = WHITE) -> None:
        super().__init__(figsize=(width, height), facecolor=paper)
        FigureCanvasAgg(self)
        self.width, self.height = width, height

    def panel(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place."""
        bottom = 1 - (top + height) / self.height
        return self.add_axes((left / self.width, bottom, width / self.width, height / self.height))

    def write(self, left: float, top: float, text: str, size: float = 8, **style: Any) -> None:
        """Text at a place, which is in the middle of its height."""
        place = left / self.width, 1 - top / self.height
        self.text(*place, text, fontsize=size, **{"va": "center", **style})


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = DPI) -> None:
    """Write PNG, SVG or PDF by the ending; the same figure gives the same file."""
    about = {".png": {"Software": MAKER}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    kind, paper = endings(path, about), figure.get_facecolor()
    with styled(), written(path) as temporary:
        figure.savefig(temporary, format=kind[1:], dpi=dpi, facecolor=paper, metadata=about[kind])


@contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to, as `atomic_path` gives; what prevents it is said in a sentence."""
    try:
        with atomic_path(path) as temporary:
            yield temporary
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None
