"""Scanpaths as tables: where the model looked, in pixels of the user's own image."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import task_batches
from ocra.files import csv_cell, write_text_atomically
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.lab.formats import DURATION, READABLE, Fixations, decimals, write_fixations
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Windows
from ocra.prediction import Glimpse, Prediction, Source, decode, given, load, predict_each, run

COLUMNS = ("image", "step", "x", "y", "stride", "sigma", "width", "winner", "length")


@dataclass(frozen=True)
class Scanpath:
    """Where the model looked in one image."""

    image: str
    """File, or name of an image of a task."""
    glimpses: tuple[Glimpse, ...]
    capsules: tuple[str, ...]
    """Names of all object capsules."""
    pixels: NDArray[np.uint8] | None = None
    """The image itself where there is no file of it: [rows, columns], or [rows, columns, 3] in colour."""


def scanpath(
    model: Network | Source,
    images: Source | Sequence[Source] | Task,
    out: Source | None = None,
    *,
    index: int = 0,
    number: int = 100,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: Lesion | None = None,
    windows: Windows | None = None,
    duration: float = DURATION,
    invert: Invert = "auto",
    fit: Fit = "auto",
    device: str | None = None,
    on_error: Callable[[OcraError], None] | None = None,
) -> list[Scanpath]:
    """Where a model looks in image files or in images of a task; written to `out` as a table if that is given.

        ocra.scanpath("multimnist-3", "scans/*.png", "scanpaths.csv")
        ocra.scanpath(model, ocra.MultiMNIST(split="test"), "scanpaths.npz", number=1000)

    model: a network, or the name or folder of its weights. images: files, patterns and folders, or a task, of which
    `number` images from `index` on are taken. glimpses, until, routings, lesion, windows: interventions, as in
    `OCRA.forward`. invert, fit: see `ocra.predict`. out, duration: see `save_scanpaths`. device: cpu, cuda or mps.
    on_error: called for each file that cannot be read, in place of raising.
    """
    if number < 1:
        raise UsageError(f"The number of images must be at least 1, not {number}.")
    model = load(model, device)
    names = model.info.capsule_names(model.config)
    interventions = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion, windows=windows)
    paths = []
    if isinstance(images, Task):
        for indices, batch in task_batches(images, index, number):
            found = decode(run(model, batch.images, **interventions), model.config, model.info)
            for i, image, seen in zip(indices.tolist(), batch.images, found, strict=True):
                paths.append(
                    Scanpath(f"{images.name} {images.split} {i}", seen.glimpses, names, _pixels(image))
                )
    else:
        for file, answer in predict_each(model, images, invert=invert, fit=fit, **interventions):
            if isinstance(answer, Prediction):
                paths.append(Scanpath(file, answer.glimpses, names))
            elif on_error is None:
                raise answer
            else:
                on_error(answer)
    if out is not None:
        save_scanpaths(paths, out, duration)
    return paths


def _pixels(image: Tensor) -> NDArray[np.uint8]:
    """An image [channels, rows, columns] in [0, 1] as bytes, channels last if there are three."""
    values = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return values[:, :, 0] if values.shape[2] == 1 else values


def save_scanpaths(
    paths: Sequence[Scanpath], out: str | os.PathLike[str], duration: float = DURATION
) -> list[Path]:
    """Write a table by the ending of `out`; returns the files written.

    .csv: one row for each glimpse of each image, with window, winner and lengths. .tsv: for MultiMatch, which wants one
    file for each scanpath, so several images give several files. .json: as COCO-Search18 and ViSioNS have it. .hdf5:
    pysaliency's `Scanpaths`. .npz: arrays, see docs/images.md; images of a task, which are no files, are in it under
    `images`.
    """
    if endings(out, READABLE) == ".csv":
        try:
            write_text_atomically(Path(out), to_csv(paths))
        except OSError as error:
            raise OcraError(f"{out} could not be written: {error.strerror or error}.") from None
        return [Path(out)]
    pixels = [
        path.pixels for path in {path.image: path for path in paths}.values() if path.pixels is not None
    ]
    places = [
        Fixations(path.image, np.array([(g.x, g.y) for g in path.glimpses]).reshape(-1, 2)) for path in paths
    ]
    return write_fixations(places, out, duration, **({"images": np.stack(pixels)} if pixels else {}))


def to_csv(paths: Sequence[Scanpath]) -> str:
    """A tidy table: one row for each glimpse; `length_…` are the lengths of all object capsules."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    capsules = paths[0].capsules if paths else ()
    table.writerow([*COLUMNS, *(f"length_{name}" for name in capsules)])
    for path in paths:
        for step, g in enumerate(path.glimpses, start=1):
            numbers = [decimals(value) for value in (g.x, g.y, g.stride, g.sigma, g.width)]
            lengths = [decimals(value) for value in g.lengths]
            table.writerow(
                [csv_cell(path.image), step, *numbers, csv_cell(g.winner), decimals(g.length), *lengths]
            )
    return text.getvalue()
