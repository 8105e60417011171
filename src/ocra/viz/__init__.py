"""Figures of what the model does: `look` draws images being looked at, `report` writes a page about a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import task_batches
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Windows
from ocra.prediction import given, load, prepare_image
from ocra.viz.record import Record, records

Path_ = str | os.PathLike[str]
STILL = (".png", ".svg", ".pdf")
MOVING = (".gif", ".webp")
NARROWEST, WIDEST = 2.5, 20
"""Inches."""
PATIENCE = 20_000
"""Images looked through for errors before giving up."""


def look(
    model: Network | Path_,
    image: Tensor | Path_ | Task,
    out: Path_ | None = None,
    *,
    index: int = 0,
    grid: int | None = None,
    errors_only: bool = False,
    width: float | None = None,
    bare: bool = False,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: Lesion | None = None,
    windows: Windows | None = None,
    invert: Invert = "auto",
    fit: Fit = "auto",
    device: str | None = None,
) -> list[Record]:
    """Draw what a model does with an image, and return what was drawn, as arrays, one record for each image.

    model: a network, or the name or folder of its weights.
    image: float [channels, height, width] in [0, 1]; an image file (prepared by `invert` and `fit` as in
    `ocra.predict`); or a task, of which image `index` is taken or, with `errors_only`, the first from there on
    that the model gets wrong.
    out: figure to write, .png, .svg or .pdf, or animation, .gif or .webp; None draws nothing.
    grid: of a task, draw so many images at once, each beside its reconstruction, errors framed and listed.
    width: of the figure in inches, for a column (3.5) or a page (7) of a paper; letters keep their size.
    bare: without the headline, and in a grid without the list of errors.
    glimpses, until, routings, lesion, windows: interventions, as in `OCRA.forward`. device: cpu, cuda or mps.
    """
    if out is not None:
        endings(out, STILL if grid is not None else STILL + MOVING)
    if (width is not None or bare) and out is not None and Path(out).suffix.lower() in MOVING:
        raise UsageError("An animation has its own width and headline; width and bare are for figures.")
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise UsageError(f"A figure is from {NARROWEST} to {WIDEST} inches wide, not {width}.")
    if grid is not None and not 1 <= grid <= 1000:
        raise UsageError(f"A grid has from 1 to 1000 images, not {grid}.")
    if not isinstance(image, Task) and (grid is not None or errors_only):
        raise UsageError("A grid, or errors only, can be drawn of the images of a task, not of one image.")
    model = load(model, device)
    name = model.info.name
    interventions = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion, windows=windows)
    if isinstance(image, Task):
        about = " · ".join(filter(None, [f"{image.name} {image.split} image {{}}", name]))
        title = about if grid is None else "image {}"
        found = _look_at_task(model, image, index, grid or 1, errors_only, title, interventions)
    elif isinstance(image, Tensor):
        found = records(model, image[None], titles=[name], **interventions)
    else:
        prepared = prepare_image(model, image, invert, fit)
        if out is not None and os.path.exists(image) and os.path.exists(out) and os.path.samefile(image, out):
            raise UsageError(
                f"{out} is the image itself, which the figure would replace; choose another name."
            )
        title = " · ".join(filter(None, [prepared.source.name, name]))
        found = records(model, prepared.image[None], titles=[title], prepared=[prepared], **interventions)
    if out is not None and grid is not None and isinstance(image, Task):
        from ocra.viz.grid import draw_results
        from ocra.viz.style import DPI, PRINTED_DPI, save_figure

        title = f"{image.name}, {image.split} images · {name}"
        save_figure(draw_results(found, title, width=width, bare=bare), out, PRINTED_DPI if width else DPI)
    elif out is not None:
        save_look(found[0], out, width, bare)
    return found


def save_look(record: Record, out: Path_, width: float | None = None, bare: bool = False) -> None:
    """Write the figure or the animation of a record, by the ending; width and bare as in `look`."""
    if Path(out).suffix.lower() in MOVING:
        from ocra.viz.animation import save_animation

        save_animation(record, out)
    else:
        from ocra.viz.figure import draw_look
        from ocra.viz.style import DPI, PRINTED_DPI, save_figure

        save_figure(draw_look(record, width, bare), out, PRINTED_DPI if width else DPI)


def _look_at_task(
    model: Network,
    task: Task,
    first: int,
    number: int,
    errors_only: bool,
    title: str,
    interventions: dict[str, Any],
) -> list[Record]:
    """So many images of a task from the first on, or the first that are wrong."""
    end = min(first + PATIENCE, max(len(task), first + 1)) if errors_only else first + number
    found: list[Record] = []
    for indices, batch in task_batches(task, first, end - first):
        titles, truths = [title.format(i) for i in indices], batch.names(task.class_names)
        seen = records(model, batch.images, truths=truths, titles=titles, **interventions)
        found += [record for record in seen if not errors_only or record.right is False]
        if len(found) >= number:
            break
    if not found:
        raise OcraError(f"No error was found among the {task.name} {task.split} images from {first} on.")
    return found[:number]
