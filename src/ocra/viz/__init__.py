"""Pictures of what the model does."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from ocra.errors import UsageError
from ocra.images.reading import endings
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo
from ocra.prediction import picture_for, run
from ocra.viz.record import Record, records

STILL = (".png", ".svg", ".pdf")
MOVING = (".gif", ".webp")


def look(
    model: OCRA | str | os.PathLike[str],
    image: Tensor | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    info: ModelInfo | None = None,
    glimpses: int | None = None,
) -> Record:
    """Draw what the model does with one image: PNG, SVG, PDF, GIF or WebP (moving), by the ending of `out`.

    image: float [channels, height, width] in [0, 1], or a picture file. Returns what was drawn, as arrays.
    """
    endings(out, STILL + MOVING)
    if not isinstance(model, OCRA):
        model = OCRA.from_pretrained(os.fspath(model))
    info = info or model.info
    prepared = None
    if not isinstance(image, Tensor):
        prepared = picture_for(model.config, info.task_name, image)
        refuse_to_replace(image, out)
        image = prepared.image
    trace = run(model, image[None], glimpses)
    (record,) = records(
        trace,
        image[None],
        model.config,
        info,
        titles=[prepared.picture.name if prepared else ""],
        prepared=[prepared] if prepared else None,
    )
    save_look(record, out)
    return record


def refuse_to_replace(image: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Refuse to write a figure over the picture that it is of."""
    if os.path.exists(image) and os.path.exists(out) and os.path.samefile(image, out):
        raise UsageError(f"{out} is the picture itself, which the figure would replace; choose another name.")


def save_look(record: Record, out: str | os.PathLike[str]) -> None:
    """Write the figure or the animation of a record, by the ending."""
    if Path(out).suffix.lower() in MOVING:
        from ocra.viz.animation import save_animation

        save_animation(record, out)
    else:
        from ocra.viz.figure import draw_look
        from ocra.viz.style import save_figure

        save_figure(draw_look(record), out)


__all__ = ["MOVING", "STILL", "Record", "look", "records", "save_look"]
