"""All systems at equal CPU time, `ocra reproduce baselines`: their runs, and a table and a plot for each task."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from ocra.benchmark import multiply_adds
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.files import write_text_atomically
from ocra.presets import preset
from ocra.reproduce.plots import COLOURS, labelled_axes
from ocra.reproduce.records import Record, run_name
from ocra.reproduce.runner import FEWEST_IMAGES, OVERHEAD
from ocra.reproduce.tables import (
    NOTHING,
    error_of,
    filled,
    hours,
    markdown_table,
    millions,
    parameters,
    scored,
)
from ocra.viz.style import save_figure, styled

PAGE = "baselines.md"
SYSTEMS = {
    "MultiMNIST": ("multimnist-3", "capsnet-multimnist", "cnn-multimnist", "cnn-small-multimnist"),
    "Cluttered MNIST": (
        "cluttered-5", "dram-cluttered", "dram-no-context-cluttered", "ram-cluttered", "cnn-small-cluttered",
    ),
}  # fmt: skip
"""The rows for each task, OCRA first."""


def planned_baselines(
    budget: float, seeds: Sequence[int], seconds_per_image: Callable[[str], float]
) -> dict[str, Experiment]:
    """All runs by name, one seed after the other, so long that each takes an equal share of `budget` seconds."""
    names = [name for row in SYSTEMS.values() for name in row]
    if not seeds:
        raise UsageError("Give at least one seed, for example --seeds 1 2 3.")
    runs = {}
    for seed in seeds:
        for name in names:
            time = (1 - OVERHEAD) * budget / len(names) / len(seeds)
            images = int(time / seconds_per_image(name))
            size = 10 ** max(0, len(str(images)) - 2)  # two digits: the names of the runs stay short
            if (images := images // size * size) < FEWEST_IMAGES / 5:
                raise UsageError(
                    f"The budget buys only {images:,} images for {name}; give more time or fewer --seeds."
                )
            experiment = replace(preset(name), seed=seed).scaled(images)
            every = max(1, min(experiment.run.validate_every_images, images // 20))
            experiment = replace(experiment, run=replace(experiment.run, validate_every_images=every))
            runs[run_name(experiment)] = experiment
    return runs


def baselines_table(records: list[Record]) -> str:
    """A table for each task; figures of others' papers are marked as quoted."""
    parts = []
    for task, names in SYSTEMS.items():
        rows = []
        for name in names:
            group = [run for run in records if run.preset == name and run.is_of_preset]
            done = scored(group) or group
            rows.append(
                [
                    f"`{name}`", parameters(name), f"{multiply_adds(preset(name).model) / 1e6:,.0f} M", error_of(group),
                    str(len(group)) if group else NOTHING,
                    millions(statistics.fmean(run.cost.images for run in done)) if done else NOTHING,
                    hours(statistics.fmean(run.cost.cpu_seconds for run in done)) if done else NOTHING,
                    preset(name).paper_error or NOTHING,
                ]
            )  # fmt: skip
        titles = "system | parameters | multiply-adds | error, % | seeds | images seen | CPU hours | quoted error, %"
        parts.append(f"### {task}\n\n{markdown_table(titles, rows)}")
        if any(run.curve for run in records if run.preset in names):
            parts.append(f"![{task}: validation error against CPU time](plots/{_plot(task)})")
    return "\n\n".join(parts) + "\n"


def against_cpu_time(records: list[Record], task: str) -> Figure:
    """Validation error of each run over its CPU seconds."""
    with styled():
        figure, axes = labelled_axes("CPU seconds", "validation error, %", f"{task}, all systems")
        for number, name in enumerate(SYSTEMS[task]):
            label: str | None = name
            for run in (run for run in records if run.preset == name):
                known = [(cpu, 100 * error) for _, cpu, error in run.curve if cpu is not None]
                axes.plot(*zip(*known, strict=True), color=COLOURS[number], label=label) if known else None
                label = None
        axes.set_xscale("log")
        axes.legend(frameon=False)
    return figure


def write_baselines(records: list[Record], folder: Path) -> None:
    """Write the block of the page, and the plots."""
    path = folder / PAGE
    try:
        text = path.read_text("utf-8")
        for task, names in SYSTEMS.items():
            own = [run for run in records if run.preset in names and run.curve]
            if own:
                save_figure(against_cpu_time(own, task), folder / "plots" / _plot(task))
        write_text_atomically(path, filled(text, {"baselines": baselines_table(records)}))
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror}.") from None


def _plot(task: str) -> str:
    return f"baselines-{task.split()[0].lower()}.svg"
