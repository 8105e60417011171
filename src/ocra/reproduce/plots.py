"""Plots of recorded results: error against images seen, and against glimpses."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)

from ocra.presets import PRESETS
from ocra.reproduce.groups import test_of
from ocra.reproduce.lineage import lineage, shipped_result
from ocra.reproduce.milestones import AUTHORS_ERROR, AUTHORS_IMAGES, is_comparable, milestone
from ocra.reproduce.results import Result
from ocra.reproduce.scores import glimpse_series
from ocra.viz.style import (
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    new_figure,
    panel,
    save_figure,
    styled,
)

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK)
TASKS = {"multimnist": "MultiMNIST", "cluttered": "Cluttered MNIST", "svhn": "House numbers"}


def draw_all(results: list[Result], folder: Path) -> dict[str, Path]:
    """Draw every plot there are results for; returns their titles and files."""
    drawn = {}
    for task, title in TASKS.items():
        own = [result for result in results if result.config["task"]["name"] == task]
        if any(result.validation for result in own):
            path = folder / f"error-against-images-{task}.svg"
            save_figure(against_images(own, title, results), path)
            drawn[f"{title}: validation error against images seen"] = path
    if any(glimpse_series(result.evaluations, result.config) for result in results):
        path = folder / "error-against-glimpses.svg"
        save_figure(against_glimpses(results), path)
        drawn["Test error against the number of glimpses a model is given"] = path
    return drawn


def against_images(results: list[Result], title: str, others: list[Result] | None = None) -> Figure:
    """Validation error of each run over the images it saw; the paper's test errors as lines across.

    A run that went on from others, which may be among `others`, begins where their images end; it is dashed if they
    are not known. Runs that were tested stand out; the best one of each preset ends with a dot.
    """
    with styled():
        presets = list(dict.fromkeys(result.preset for result in results))
        beneath = 0.1 * (len(presets) + 5)  # for a legend of presets and four kinds of lines in two columns
        figure, axes = _axes("images seen", "validation error, %", title, beneath)
        best = _best_of_each(results)
        for result in sorted(results, key=lambda result: test_of(result) is not None):
            colour = COLOURS[presets.index(result.preset) % len(COLOURS)]
            line = lineage(result, others or results)
            images = [(line.before + point[0]) / 1e6 for point in result.validation]
            errors = [100 * point[1] for point in result.validation]
            width, alpha = (1.4, 1.0) if test_of(result) else (0.7, 0.35)
            dashes = "-" if line.unknown is None else "--"
            axes.plot(images, errors, color=colour, linewidth=width, alpha=alpha, linestyle=dashes)
            if images and result is best.get(result.preset):
                axes.plot(images[-1], errors[-1], marker="o", markersize=4, color=colour)
        for number, preset in enumerate(presets):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot([], [], color=colour, label=preset)
            if paper := _paper_error(preset):
                axes.axhline(paper, color=colour, linewidth=0.8, linestyle=":")
        axes.plot([], [], color=MUTED, linewidth=0.7, alpha=0.35, label="trials, not tested")
        axes.plot(
            [], [], color=MUTED, linewidth=0.7, linestyle="--", label="begun with weights of no recorded run"
        )
        axes.plot(
            [],
            [],
            color=MUTED,
            marker="o",
            markersize=4,
            linestyle="",
            label="shipped, else best by validation",
        )
        axes.plot([], [], color=MUTED, linewidth=0.8, linestyle=":", label="the paper's test error")
        axes.set_xlabel("images seen, those of the runs it went on from included, millions")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_yscale("log")
        _plain_percent(axes)
        figure.legend(frameon=False, loc="lower left", ncols=2, bbox_to_anchor=(0.1, 0))
    return figure


def _best_of_each(results: list[Result]) -> dict[str, Result]:
    """Of each preset the tested run that is shipped, else that of the least validation error: none by its test."""

    def validation_error(result: Result) -> float:
        return min((point[1] for point in result.validation), default=math.inf)

    tested = [result for result in results if test_of(result) is not None]
    tested.sort(key=validation_error, reverse=True)
    best = {result.preset: result for result in tested}  # of each preset the last one stays
    return {preset: shipped_result(preset, tested) or result for preset, result in best.items()}


def against_glimpses(results: list[Result]) -> Figure:
    """Test error of each preset's shipped or best run, given fewer or more glimpses than it was trained with."""
    with styled():
        title = "Each model, with fewer or more glimpses than it was trained with (ring)"
        figure, axes = _axes("glimpses", "test error, %", title)
        for number, (preset, (own, errors)) in enumerate(sorted(_best_by_glimpses(results).items())):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                [*errors],
                [*errors.values()],
                color=colour,
                marker="o",
                markersize=3,
                linewidth=1.2,
                label=preset,
            )
            if own in errors:
                axes.plot([own], errors[own], marker="o", markersize=9, fillstyle="none", color=colour)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yscale("log")
        _plain_percent(axes)
        axes.legend(frameon=False)
    return figure


def _best_by_glimpses(results: list[Result]) -> dict[str, tuple[int, dict[int, float]]]:
    """Of each preset's best run with several tests: its own number of glimpses, and errors in % by glimpses."""

    def errors(result: Result) -> dict[int, float]:
        series = glimpse_series(result.evaluations, result.config)
        return {count: 100 * error for count, error, _ in series}

    best = _best_of_each([result for result in results if errors(result)])
    return {preset: (result.config["model"]["glimpses"], errors(result)) for preset, result in best.items()}


def until_error(result: Result, error: float = AUTHORS_ERROR) -> Figure:
    """One run's validation error over images seen, its first point at or below `error`, and the authors'."""
    with styled():
        figure, axes = _axes("images seen, millions", "validation error, %", result.name)
        images = [point[0] / 1e6 for point in result.validation]
        axes.plot(
            images, [100 * point[1] for point in result.validation], color=BLUE, label="ours, validation"
        )
        axes.axhline(100 * error, color=MUTED, linewidth=0.8, linestyle=":")
        point = milestone(result, error)
        if point is not None:
            place = (point.images / 1e6, 100 * point.error)
            axes.plot(*place, marker="o", color=BLUE)
            axes.annotate(f"{point.images:,} images", place, (6, 8), textcoords="offset points", color=BLUE)
        if error == AUTHORS_ERROR and is_comparable(result):
            label = f"the authors' program, test: {AUTHORS_IMAGES:,} images (quoted)"
            axes.plot(AUTHORS_IMAGES / 1e6, 100 * error, marker="D", linestyle="", color=ORANGE, label=label)
        axes.set_yscale("log")
        _plain_percent(axes)
        axes.legend(frameon=False)
    return figure


def _axes(across: str, up: str, title: str, beneath: float = 0) -> tuple[Figure, Axes]:
    """Axes on a figure of their own, with some inches left free beneath them."""
    figure = new_figure(6.4, 3.8 + beneath)
    axes = panel(figure, 0.7, 0.38, 5.5, 2.89)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, loc="left")
    axes.grid(color=FAINT, linewidth=0.4, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _plain_percent(axes: Axes) -> None:
    """Percentages on a logarithmic axis as 5, 10, 20, 50 instead of powers of ten."""
    axes.yaxis.set_major_locator(FixedLocator([1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100]))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _paper_error(preset: str) -> float | None:
    """The paper's error in percent, if it is a figure and not a bound."""
    text = PRESETS[preset].paper_error if preset in PRESETS else ""
    return float(text.split(" ±")[0]) if "±" in text else None
