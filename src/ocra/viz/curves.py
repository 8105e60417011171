"""Curves of a training run as SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ocra.viz.style import BLUE, FAINT, GREEN, MUTED, ORANGE, PALETTE, PURPLE, VERMILLION, Sheet, styled

WIDTH, HEIGHT, LEFT = 4.4, 2.6, 0.62
TEXT = 10
"""Size of all letters, for a page that shows the figure as large as it is, or smaller."""
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE)
"""Blue and vermillion first: no kind of colour blindness confuses them."""


@dataclass(frozen=True)
class Curve:
    """One line."""

    name: str
    points: Sequence[tuple[float, float]]
    """Images seen, and the value then."""
    marked: bool = False
    """Show each point: for values that are measured now and then."""
    intervals: Sequence[tuple[float, float]] = ()
    """Lowest and highest value of each point, where they are known."""


@styled()
def draw_curves(
    curves: Sequence[Curve],
    *,
    percent: bool = False,
    logarithmic: bool = False,
    quoted: tuple[str, float] | None = None,
) -> Figure:
    """Lines over the images seen, each named at its end; on a logarithmic axis only what is above zero.

    quoted: the name and the value of a figure to compare with, drawn across.
    """
    room = 0.2 + (0.086 * max(len(curve.name) for curve in curves) if len(curves) > 1 else 0)
    sheet = Sheet(WIDTH, HEIGHT, paper="none")
    axes = sheet.panel(LEFT, 0.12, WIDTH - LEFT - room, HEIGHT - 0.12 - 0.52)
    if logarithmic:
        curves = [
            replace(curve, points=[point for point in curve.points if point[1] > 0]) for curve in curves
        ]
    for number, curve in enumerate(curves):
        marker, colour = "o" if curve.marked else "", COLOURS[number % len(COLOURS)]
        axes.plot(
            *zip(*curve.points, strict=True), color=colour, linewidth=1.8, solid_joinstyle="round", marker=marker,
            markersize=3.5,
        )  # fmt: skip
        if curve.intervals:
            seen, (low, high) = [x for x, _ in curve.points], zip(*curve.intervals, strict=True)
            axes.fill_between(seen, low, high, color=colour, alpha=0.2, linewidth=0)
    if quoted is not None:
        name, value = quoted
        axes.axhline(value, color=MUTED, linewidth=1.2, linestyle=(0, (2, 2)))
        axes.annotate(
            name, (0.02, value), (0, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            fontsize=TEXT, color=MUTED,
        )  # fmt: skip
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.xaxis.set_major_formatter(FuncFormatter(_short_number))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("images seen", fontsize=TEXT, color=MUTED)
    axes.tick_params(labelsize=TEXT, color=FAINT)
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.patch.set_alpha(0)
    if len(curves) > 1:
        _name_lines(axes, curves)
    return sheet


def _name_lines(axes: Axes, curves: Sequence[Curve]) -> None:
    """Names at the ends of the lines, moved apart where they would touch."""
    ends = sorted((float(axes.transData.transform(curve.points[-1])[1]), k) for k, curve in enumerate(curves))
    placed: list[float] = []
    for height, _ in ends:
        placed.append(max(height, placed[-1] + 14) if placed else height)
    bottom, top = axes.bbox.y0, axes.bbox.y1
    surplus = max(0.0, placed[-1] - top)
    for (_, k), height in zip(ends, placed, strict=True):
        axes.text(
            1.02, (height - surplus - bottom) / (top - bottom), curves[k].name, transform=axes.transAxes,
            color=COLOURS[k % len(COLOURS)], fontsize=TEXT, va="center", weight="bold",
        )  # fmt: skip


def _short_number(value: float, _: int = 0) -> str:
    """1 500 000 as 1.5 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


@styled()
def to_svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an SVG element to put into a page; `name` keeps its ids apart from those of others."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for name_of_colour, (light, _) in PALETTE.items():  # so that dark pages get light lines
        svg = re.sub(light, f"var(--ocra-{name_of_colour})", svg, flags=re.IGNORECASE)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)
