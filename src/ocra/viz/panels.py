"""The panels that figures are made of: images with windows, paths, glimpses, bars of scores. Sizes are in inches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ocra.viz.record import Record
from ocra.viz.style import BLACK, FAINT, INK, MAT, MUTED, READ, RIGHT, WHITE, WRITE, WRONG, Sheet, fit_in

Square = Sequence[float] | NDArray[np.float32]
MOST_BARS = 20
LONGEST_NAME = 12
FURTHEST = 0.15
"""A window may reach this share of the image's side beyond it before its far end is left out of the view."""
WINNER = 0.44
"""Height of the winner's name and gauge below a glimpse."""


def show_image(axes: Axes, image: NDArray[Any], margin: tuple[float, float] = (0.0, 0.0)) -> None:
    """An image [rows, columns] or [rows, columns, channels], with a mat of `margin` pixels along x and y."""
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    rows, columns = image.shape[:2]
    highest = 255 if image.dtype == np.uint8 else 1
    axes.imshow(image, cmap="gray", vmin=0, vmax=highest, interpolation="nearest", zorder=0, aspect="auto")
    axes.set_xlim(-0.5 - margin[0], columns - 0.5 + margin[0])
    axes.set_ylim(rows - 0.5 + margin[1], -0.5 - margin[1])
    axes.set_facecolor(MAT)
    _bare(axes)


def inches_across(axes: Axes) -> float:
    """Width of axes."""
    figure = axes.get_figure()
    assert figure is not None, "axes that are drawn on belong to a figure"
    return float(axes.get_position().width * figure.get_figwidth())  # type: ignore[union-attr]


def _bare(axes: Axes) -> None:
    """No ticks and no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def frame(axes: Axes, colour: str, width: float = 1.6) -> None:
    """A frame around an image."""
    axes.spines[:].set(visible=True, color=colour, linewidth=width)


def draw_window(
    axes: Axes,
    square: Square,
    colour: str = READ,
    *,
    width: float = 1.7,
    alpha: float = 1.0,
    dashed: bool = False,
) -> Rectangle:
    """The square x, y, width that `center ± stride · (N − 1) / 2` covers, on an image in its own pixels."""
    x, y, side = (float(value) for value in square)
    rectangle = Rectangle(
        (x - side / 2, y - side / 2), side, side,
        fill=False, edgecolor=colour, linewidth=width, alpha=alpha, zorder=3,
        linestyle=(0, (2.5, 1.5)) if dashed else "solid",
    )  # fmt: skip
    # A dark hem keeps the line visible on light images.
    hem = effects.Stroke(linewidth=width + 1.0, foreground=BLACK, alpha=0.4)
    rectangle.set_path_effects([hem, effects.Normal()])
    axes.add_patch(rectangle)
    return rectangle


def margin_for(record: Record) -> tuple[float, float]:
    """Pixels to leave around the image, along x and y, so that the windows are seen whole.

    Windows are square: around an image that is not, there is room up to the square. What lies further out,
    where there is nothing to see, is left out of the view.
    """
    _, height, width = record.config.image_shape
    windows = record.reads if record.writes is None else np.concatenate([record.reads, record.writes])
    side, half = max(height, width), windows[:, 2] / 2
    margins = []
    for places, length in ((windows[:, 0], width), (windows[:, 1], height)):
        beyond = float(max((half - places).max(), (places + half - length + 1).max()))
        furthest = (side - length) / 2 + FURTHEST * side
        margins.append(min(max(beyond + 0.02 * side, 0.04 * side), furthest))
    return (max(margins), max(margins)) if height == width else (margins[0], margins[1])


def matted_size(record: Record, side: float) -> tuple[float, float]:
    """Width and height of the image with its margin, the longer one being `side`."""
    across, down = margin_for(record)
    return fit_in(side, record.config.width + 2 * across, record.config.height + 2 * down)


def draw_path(axes: Axes, squares: NDArray[np.float32]) -> None:
    """A thin line with a numbered dot for each fixation, and the last two windows."""
    for square, alpha in zip(squares[-2:], (1.0, 0.5)[: len(squares)][::-1], strict=True):
        draw_window(axes, square, width=0.9, alpha=alpha)
    axes.plot(*squares[:, :2].T, "o-", color=READ, linewidth=1.1, markersize=3, zorder=4)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    groups: list[list[int]] = []  # steps whose numbers would lie on top of each other
    for step, (x, y, _) in enumerate(squares):
        near = [g for g in groups if np.hypot(*(squares[g[0], :2] - (x, y))) < 0.12 * (right - left)]
        near[0].append(step) if near else groups.append([step])
    hem = [effects.withStroke(linewidth=1.6, foreground=BLACK)]
    for steps in groups:
        text = _numbers(steps)
        # A number stays inside the image, also where a look goes out of it.
        edge = min(0.9, (0.03 + 0.07 * len(text)) / inches_across(axes)) * (right - left)
        x = min(max(squares[steps[0], 0] + 0.025 * (right - left), left), right - edge)
        y = min(max(squares[steps[0], 1], top + 0.06 * (bottom - top)), bottom - 0.06 * (bottom - top))
        axes.text(
            x, y, text, va="center", fontsize=6.5, weight="bold", color=READ, zorder=7, path_effects=hem
        )


def _numbers(steps: Sequence[int]) -> str:
    """Numbers from 1, runs as in 2–4."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return ",".join(str(a + 1) if a == b else f"{a + 1}{',' if b == a + 1 else '–'}{b + 1}" for a, b in runs)


def draw_glimpse(sheet: Sheet, record: Record, step: int, left: float, top: float, side: float) -> None:
    """A glimpse, and below it the winning capsule with its length."""
    rows, columns = record.glimpses.shape[1:3]
    width, height = fit_in(side, columns, rows)
    axes = sheet.panel(left + (side - width) / 2, top, width, height)
    show_image(axes, record.glimpses[step])
    frame(axes, READ)
    glimpse, top = record.prediction.glimpses[step], top + side
    number = 8.0 if side >= 0.8 else 6.5
    is_class = glimpse.winner in record.class_names
    name = shortened(glimpse.winner, int((side - 0.045 * number) / 0.085))
    size = 12 if len(name) <= 3 and side >= 0.6 else 8.5
    sheet.write(left, top + 0.15, name, size, weight="bold", color=INK if is_class else MUTED)
    sheet.write(left + side, top + 0.15, f"{glimpse.length:.2f}", number, color=MUTED, ha="right")
    gauge = sheet.panel(left, top + 0.27, side, 0.1)
    _bare(gauge)
    gauge.set(xlim=(0, 1), ylim=(-1, 1))
    gauge.patch.set_alpha(0)
    for end, colour in ((1.0, MAT), (min(glimpse.length, 1.0), RIGHT if is_class else MUTED)):
        if end > 0.005:
            gauge.plot([0.02, 0.02 + 0.96 * end], [0, 0], color=colour, linewidth=3.2, solid_capstyle="round")


def draw_canvas(axes: Axes, record: Record, step: int, width: float = 1.3) -> None:
    """The canvas after a step, and where it was written to."""
    show_image(axes, record.canvases[step], margin_for(record))
    if record.writes is not None:
        draw_window(axes, record.writes[step], WRITE, dashed=True, width=width)


def draw_scores(axes: Axes, record: Record, steps: int) -> None:
    """A bar for each class, as long as its score after so many steps, made of one piece for each.

    The scale is that of all glimpses, and the answer is marked after the last.
    """
    shown = classes_shown(record)
    names = [record.class_names[k] for k in shown]
    chosen = set(record.prediction.labels) if steps == record.steps else set()
    truth = Counter(record.truth)
    longest = max(float(record.scores.max()), 1e-3)
    across = inches_across(axes)
    seam = (
        0.6 if across > 1.5 else 0.25
    )  # between the pieces; a wide one would hide the short pieces of narrow bars
    for row, (k, name) in enumerate(zip(shown, names, strict=True)):
        said = name in chosen
        colour = WRONG if said and name in record.mistakes else RIGHT if said else FAINT
        start = 0.0
        for length in record.lengths[:steps, k]:
            axes.barh(row, length, left=start, height=0.68, color=colour, edgecolor=WHITE, linewidth=seam)
            start += float(length)
        if start >= 0.005:
            weight, tone = ("bold", INK) if said else ("normal", MUTED)
            place = start + 0.02 * longest
            axes.text(place, row, f"{start:.2f}", va="center", fontsize=7, color=tone, weight=weight)
    room = max(1.24, across / max(across - 0.32, 0.1))  # for the number behind the longest bar
    axes.set(xlim=(0, room * longest), ylim=(len(shown) - 0.4, -0.6))
    # A dot for each object that is truly there.
    labels = ["●" * min(truth[name], 3) + " " * (name in truth) + shortened(name) for name in names]
    axes.set_yticks(range(len(shown)), labels)
    axes.tick_params(axis="y", length=0, pad=4, labelsize=8.5)
    axes.tick_params(axis="x", labelsize=7, length=2.5, color=FAINT)
    axes.locator_params(axis="x", nbins=4 if across > 1.2 else 2)
    for tick, name in zip(axes.get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name in chosen or name in truth else "normal")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.patch.set_alpha(0)


def classes_shown(record: Record) -> list[int]:
    """The classes that bars are drawn for: all, or the answer, the truth and the highest scores of many."""
    wanted = {*record.prediction.labels, *(record.truth or ())}
    order = sorted(
        range(len(record.class_names)), key=lambda k: (record.class_names[k] not in wanted, -record.scores[k])
    )
    return sorted(order[:MOST_BARS])


def name_room(record: Record) -> float:
    """Width that the names of the classes take beside their bars."""
    return 0.45 + 0.085 * max(len(shortened(name)) for name in record.class_names)


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A class name that fits beside a bar, or into so many letters."""
    longest = min(longest, LONGEST_NAME)
    return name if len(name) <= longest else name[: max(1, longest - 1)] + "…"
