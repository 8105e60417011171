"""Plots of records: error against images seen, and against glimpses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from ocra.presets import ALL_PRESETS
from ocra.reproduce.records import AUTHORS_ERROR, AUTHORS_IMAGES, Record, chain
from ocra.reproduce.tables import TABLES, current, milestones
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
    Sheet,
    save_figure,
    styled,
)

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, BLACK)


def plots(records: list[Record]) -> dict[str, tuple[str, Callable[[], Figure]]]:
    """Every plot there are records for: file name, title and what draws it."""
    found: dict[str, tuple[str, Callable[[], Figure]]] = {}
    for name, table in TABLES.items():
        task = ALL_PRESETS[table.presets[0]].task.name
        own = [run for run in records if run.settings["task"]["name"] == task and run.curve]
        if own and name == task:
            title = f"{table.title}: validation error against images seen"
            found[f"error-against-images-{name}.svg"] = (
                title,
                partial(against_images, own, table.title, records),
            )
    if any(run.errors_by_glimpses()[1] for run in records):
        title = "Test error against the number of glimpses a model is given"
        found["error-against-glimpses.svg"] = (title, partial(against_glimpses, records))
    if milestones(records):
        title = f"Validation error of the run that first had the authors' {100 * AUTHORS_ERROR:.2f} %"
        found["time-to-error.svg"] = (title, partial(time_to_error, records))
    return found


def draw_all(records: list[Record], folder: Path) -> None:
    """Draw every plot there are records for into a folder."""
    for name, (_, draw) in plots(records).items():
        save_figure(draw(), folder / name)


def against_images(own: list[Record], title: str, records: list[Record]) -> Figure:
    """Validation error of each run over the images it saw; the paper's test errors as lines across.

    A fine-tuned run begins where the images of the runs before it end, and is dashed if those are not known. Runs that
    were tested stand out; the one that stands for its preset ends with a dot.
    """
    with styled():
        presets = list(dict.fromkeys(run.preset for run in own))
        # Room beneath for a legend of presets and four kinds of lines in two columns.
        figure, axes = labelled_axes("", "validation error, %", title, 0.1 * (len(presets) + 5))
        chosen = [run for preset in presets for run in current(preset, records)[:1]]
        for run in sorted(own, key=lambda run: run.test is not None):
            colour = COLOURS[presets.index(run.preset) % len(COLOURS)]
            line = chain(run, records)
            before = line.images - run.cost.images
            images = [(before + seen) / 1e6 for seen, _, _ in run.curve]
            errors = [100 * error for _, _, error in run.curve]
            width, alpha = (1.4, 1.0) if run.test else (0.7, 0.35)
            style = "-" if line.unknown is None else "--"
            axes.plot(images, errors, color=colour, linewidth=width, alpha=alpha, linestyle=style)
            if run in chosen:
                axes.plot(images[-1], errors[-1], marker="o", markersize=4, color=colour)
        for number, preset in enumerate(presets):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot([], [], color=colour, label=preset)
            paper = ALL_PRESETS[preset].paper_error if preset in ALL_PRESETS else ""
            if "±" in paper:  # a figure, not a bound
                axes.axhline(float(paper.split(" ±")[0]), color=colour, linewidth=0.8, linestyle=":")
        for label, look in (
            ("not tested", {"linewidth": 0.7, "alpha": 0.35}),
            ("fine-tuned from weights of no recorded run", {"linewidth": 0.7, "linestyle": "--"}),
            ("shipped, else best by validation", {"marker": "o", "markersize": 4, "linestyle": ""}),
            ("the paper's test error (quoted)", {"linewidth": 0.8, "linestyle": ":"}),
        ):
            axes.plot([], [], color=MUTED, label=label, **look)
        axes.set_xlabel("images seen, those of the runs it was fine-tuned from included, millions")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        figure.legend(frameon=False, loc="lower left", ncols=2, bbox_to_anchor=(0.1, 0))
    return figure


def against_glimpses(records: list[Record]) -> Figure:
    """Test error of the run of each preset, given fewer or more glimpses than it was trained with."""
    with styled():
        title = "Each model, with fewer or more glimpses than it was trained with (ring)"
        presets = sorted({run.preset for run in records if run.errors_by_glimpses()[1]})
        figure, axes = labelled_axes("glimpses", "test error, %", title, 0.1 * len(presets))
        for number, preset in enumerate(presets):
            run = current(preset, [run for run in records if run.errors_by_glimpses()[1]])[0]
            errors = {count: 100 * error for count, error in run.errors_by_glimpses()[1].items()}
            colour = COLOURS[number % len(COLOURS)]
            style = "-" if number < len(COLOURS) else "--"  # colours begin again
            axes.plot(
                [*errors], [*errors.values()], style, color=colour, marker="o", markersize=3, label=preset
            )
            own = run.settings["model"]["glimpses"]
            if own in errors:
                axes.plot([own], errors[own], marker="o", markersize=9, fillstyle="none", color=colour)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(frameon=False, loc="lower left", ncols=3, bbox_to_anchor=(0.1, 0))
    return figure


def time_to_error(records: list[Record]) -> Figure:
    """The curve of the run that had the authors' error soonest, and the authors' point."""
    run, point = milestones(records)[0]
    with styled():
        figure, axes = labelled_axes("images seen, millions", "validation error, %", run.name)
        images, errors = [seen / 1e6 for seen, _, _ in run.curve], [100 * error for _, _, error in run.curve]
        axes.plot(images, errors, color=BLUE, label="ours, validation")
        axes.axhline(100 * AUTHORS_ERROR, color=MUTED, linewidth=0.8, linestyle=":")
        place = (point.images / 1e6, 100 * point.error)
        axes.plot(*place, marker="o", color=BLUE)
        axes.annotate(f"{point.images:,} images", place, (6, 8), textcoords="offset points", color=BLUE)
        label = f"the authors' program, test: {AUTHORS_IMAGES:,} images (quoted)"
        axes.plot(
            AUTHORS_IMAGES / 1e6, 100 * AUTHORS_ERROR, marker="D", linestyle="", color=ORANGE, label=label
        )
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))  # the range is narrow
        axes.legend(frameon=False)
    return figure


def labelled_axes(across: str, up: str, title: str, beneath: float = 0) -> tuple[Figure, Axes]:
    """Axes on a figure of their own, with some inches left free beneath them; percentages upwards, logarithmic."""
    figure = Sheet(6.4, 3.8 + beneath)
    axes = figure.panel(0.7, 0.38, 5.5, 2.89)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, loc="left")
    axes.grid(color=FAINT, linewidth=0.4, which="both")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(
        FixedLocator([0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100])
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    return figure, axes
