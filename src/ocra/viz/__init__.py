"""Figures of what the model does: `look` draws images being looked at, `report` writes a page about a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.model.ocra import OCRA
from ocra.prediction import picture_for
from ocra.viz.record import Record, records

Path_ = str | os.PathLike[str]
STILL = (".png", ".svg", ".pdf")
MOVING = (".gif", ".webp")
PATIENCE = 20_000
"""Images looked through for errors before giving up."""
TOGETHER = 32
"""Images that go through the model at once."""


def look(
    model: OCRA | Path_,
    image: Tensor | Path_ | Task,
    out: Path_ | None = None,
    *,
    index: int = 0,
    grid: int | None = None,
    errors_only: bool = False,
    glimpses: int | None = None,
    invert: Invert = "auto",
    fit: Fit = "auto",
) -> list[Record]:
    """Draw what a model does with an image, and return what was drawn, as arrays, one record for each image.

    model: a network, or the name or folder of its weights.
    image: float [channels, height, width] in [0, 1]; an image file (prepared by `invert` and `fit` as in
    `ocra.predict`); or a task, of which image `index` is taken or, with `errors_only`, the first from there on
    that the model gets wrong.
    out: figure to write, .png, .svg or .pdf, or animation, .gif or .webp; None draws nothing.
    grid: of a task, draw so many images at once: inputs above, reconstructions below, errors framed and listed.
    """
    if out is not None:
        endings(out, STILL if grid is not None else STILL + MOVING)
    if grid is not None and not 1 <= grid <= 1000:
        raise UsageError(f"A grid has from 1 to 1000 images, not {grid}.")
    if not isinstance(image, Task) and (grid is not None or errors_only):
        raise UsageError("A grid, or errors only, can be drawn of the images of a task, not of one image.")
    model = model if isinstance(model, OCRA) else OCRA.from_pretrained(os.fspath(model))
    name = model.info.name
    if isinstance(image, Task):
        title = f"{image.name} {image.split} image {{}} · {name}" if grid is None else "image {}"
        found = _look_at_task(model, image, index, grid or 1, errors_only, glimpses, title)
    elif isinstance(image, Tensor):
        found = records(model, image[None], glimpses=glimpses, titles=[name])
    else:
        prepared = picture_for(model.config, model.info.task_name, image, invert, fit)
        if out is not None and os.path.exists(image) and os.path.exists(out) and os.path.samefile(image, out):
            raise UsageError(
                f"{out} is the image itself, which the figure would replace; choose another name."
            )
        title = " · ".join(filter(None, [prepared.picture.name, name]))
        found = records(model, prepared.image[None], glimpses=glimpses, titles=[title], prepared=[prepared])
    if out is not None and grid is not None and isinstance(image, Task):
        from ocra.viz.grid import draw_results
        from ocra.viz.style import save_figure

        save_figure(draw_results(found, f"{image.name}, {image.split} images · {name}"), out)
    elif out is not None:
        save_look(found[0], out)
    return found


def save_look(record: Record, out: Path_) -> None:
    """Write the figure or the animation of a record, by the ending."""
    if Path(out).suffix.lower() in MOVING:
        from ocra.viz.animation import save_animation

        save_animation(record, out)
    else:
        from ocra.viz.figure import draw_look
        from ocra.viz.style import save_figure

        save_figure(draw_look(record), out)


def _look_at_task(
    model: OCRA, task: Task, first: int, number: int, errors_only: bool, glimpses: int | None, title: str
) -> list[Record]:
    """So many images of a task from the first on, or the first that are wrong."""
    if not errors_only:
        return list(_records(model, task, first, first + number, glimpses, title))
    found: list[Record] = []
    end = min(first + PATIENCE, max(len(task), first + 1))
    for record in _records(model, task, first, end, glimpses, title):
        if record.right is False:
            found.append(record)
        if len(found) == number:
            return found
    if not found:
        raise OcraError(f"No error was found among the {task.name} {task.split} images from {first} on.")
    return found


def _records(
    model: OCRA, task: Task, first: int, end: int, glimpses: int | None, title: str
) -> Iterator[Record]:
    """Records of the images from first to end, computed some at a time; title: with {} for the number."""
    for start in range(first, end, TOGETHER):
        indices = np.arange(start, min(start + TOGETHER, end))
        batch = task.batch(indices)
        yield from records(
            model,
            batch.images,
            glimpses=glimpses,
            truths=batch.names(task.class_names),
            titles=[title.format(i) for i in indices],
        )
