"""ocra look: the paper's figure for one image, an animation of it, or a grid of many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import Positional

from ocra.cli.main import parse
from ocra.cli.sources import (
    TOGETHER,
    Network,
    Split,
    TaskName,
    check_index,
    load_network,
    pass_over,
    task_for,
)
from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import STDIN, endings
from ocra.prediction import picture_for, run
from ocra.viz import MOVING, STILL, refuse_to_replace, save_look
from ocra.viz.record import Record, records

PATIENCE = 20_000
"""Images looked through for errors before giving up."""


def look(
    image: Positional[str] = "",
    /,
    out: Path = Path("look.png"),
    weights: str | None = None,
    task: TaskName | None = None,
    index: int = 0,
    grid: int | None = None,
    errors_only: bool = False,
    split: Split = "test",
    digits: Literal["mnist", "glyphs"] | None = None,
    root: Path | None = None,
    seed: int = 0,
    glimpses: int | None = None,
    invert: Invert = "auto",
    fit: Fit = "auto",
) -> None:
    """Draw what the model does with an image: windows, glimpses, winning capsules, growing canvas, scores.

    Examples:

    ocra look photo.jpg --out figure.pdf

    ocra look --task multimnist --index 7 --out figure.gif

    ocra look --task multimnist --grid 50 --errors-only --out errors.png

    Args:
        image: A picture file of your own; leave it out to take an image of a task.
        out: Where to write: .png, .svg or .pdf for a figure, .gif or .webp for an animation.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        task: Take images of this task. Default without an image: the one the weights were trained on.
        index: Number of the image in the task, or of the first one of a grid.
        grid: Draw so many images at once, inputs above, reconstructions below, errors framed and listed.
        errors_only: Only images that the model gets wrong, from --index on.
        split: Part of the task that images are taken from.
        digits: Where the task's digits come from: mnist, or glyphs drawn from fonts (no download).
        root: Folder with the task's data, if not the usual one.
        seed: Seed of the task's images.
        glimpses: Number of glimpses, if not the one the model was trained with.
        invert: Turn light and dark of your picture around. auto: when its background is light.
        fit: How your picture is fitted, see 'ocra predict --help'.
    """
    endings(out, STILL if grid is not None else STILL + MOVING)
    if image and (task or grid or errors_only):
        raise UsageError("Give either a picture of your own or --task, --grid and --errors-only, not both.")
    if grid is not None and not 1 <= grid <= 1000:
        raise UsageError(f"--grid must be from 1 to 1000 images, not {grid}.")
    network = load_network(weights, task)
    if image:
        if image != STDIN:
            refuse_to_replace(image, out)
        record = _of_picture(network, image, glimpses, invert, fit)
        save_look(record, out)
        _say(record, out)
        return
    source = task_for(network, task, split, digits, root, seed)
    found = _of_task(network, source, index, grid or 1, errors_only, glimpses)
    if grid is None:
        save_look(found[0], out)
        _say(found[0], out)
    else:
        _save_grid(found, network, source, out)


def _of_picture(network: Network, file: str, glimpses: int | None, invert: Invert, fit: Fit) -> Record:
    """One pass over a picture of the user's own."""
    config, info = network.model.config, network.info
    prepared = picture_for(config, info.task_name, file, invert, fit)
    trace = pass_over(network, [prepared], glimpses)
    title = f"{prepared.picture.name} · {network.name}"
    return records(trace, prepared.image[None], config, info, titles=[title], prepared=[prepared])[0]


def _of_task(
    network: Network, task: Task, first: int, number: int, errors_only: bool, glimpses: int | None
) -> list[Record]:
    """So many images of a task from the first on, or the first that are wrong."""
    check_index(first)
    if not errors_only:
        return list(_records(network, task, first, first + number, glimpses))
    found: list[Record] = []
    for record in _records(network, task, first, min(first + PATIENCE, max(len(task), first + 1)), glimpses):
        if record.right is False:
            found.append(record)
        if len(found) == number:
            return found
    if not found:
        raise OcraError(f"No error was found among the {task.name} {task.split} images from {first} on.")
    return found


def _records(network: Network, task: Task, first: int, end: int, glimpses: int | None) -> Iterator[Record]:
    """Records of the images from first to end, computed some at a time."""
    for start in range(first, end, TOGETHER):
        indices = np.arange(start, min(start + TOGETHER, end))
        batch = task.batch(indices)
        yield from records(
            run(network.model, batch.images, glimpses),
            batch.images,
            network.model.config,
            network.info,
            truths=batch.names(task.class_names),
            titles=[f"{task.name} {task.split} image {i} · {network.name}" for i in indices],
        )


def _save_grid(found: list[Record], network: Network, task: Task, out: Path) -> None:
    from dataclasses import replace

    from ocra.viz.grid import draw_grid, error_lines
    from ocra.viz.style import save_figure

    short = [replace(record, title=record.title.split(" · ")[0].split(" ", 2)[-1]) for record in found]
    save_figure(draw_grid(short, f"{task.name}, {task.split} images · {network.name}"), out)
    lines = error_lines(short)
    print(f"{len(found)} images are in {out}; {len(lines)} of them wrong{':' if lines else '.'}")
    for line in lines:
        print(f"  {line}")


def _say(record: Record, out: Path) -> None:
    from ocra.viz.figure import answer_in_words, in_words

    verdict = ""
    if record.right is not None:
        verdict = " Right." if record.right else f" Wrong: it is {in_words(record.truth or (), record)}."
    print(f"{answer_in_words(record)}.{verdict} The figure is in {out}.")


def main(args: list[str]) -> None:
    """Run `ocra look` with these arguments."""
    parse(look, args, "ocra look")
