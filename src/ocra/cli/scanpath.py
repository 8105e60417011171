"""ocra scanpath: where the model looks, as a table."""

from __future__ import annotations

import sys
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
    in_batches,
    load_network,
    pass_over,
    prepare_pictures,
    task_for,
)
from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Fit, Invert, Prepared
from ocra.images.reading import endings
from ocra.lab.scanpaths import DURATION, ENDINGS, Scanpath, save_scanpaths
from ocra.prediction import decode, run


def scanpath(
    images: Positional[tuple[str, ...]] = (),
    /,
    out: Path = Path("scanpaths.csv"),
    weights: str | None = None,
    task: TaskName | None = None,
    index: int = 0,
    number: int = 100,
    split: Split = "test",
    digits: Literal["mnist", "glyphs"] | None = None,
    root: Path | None = None,
    seed: int = 0,
    glimpses: int | None = None,
    duration: float = DURATION,
    invert: Invert = "auto",
    fit: Fit = "auto",
) -> None:
    """Write where the model looks, as a table. Places are pixels of your own picture, from 0 at its top left.

    .csv: a row for each glimpse: image, step, x, y, stride, sigma, width, winner, length, and the lengths of
    all capsules. .tsv: start_x, start_y, duration for MultiMatch; a file each. .npz: xs, ys, ts,
    ns, subjects for pysaliency's FixationTrains.from_fixation_trains, and the files, or the images of a task.
    The model has no clock: every glimpse is said to last --duration seconds.

    Examples:

    ocra scanpath scans/*.png --out scanpaths.csv

    ocra scanpath --task multimnist --number 1000 --out scanpaths.npz

    Args:
        images: Picture files, patterns, folders, or - for standard input; leave out to take images of a task.
        out: Table to write; its ending says which kind.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        task: Take images of this task. Default without pictures: the one the weights were trained on.
        index: First image of the task.
        number: How many images of the task.
        split: Part of the task that images are taken from.
        digits: Where the task's digits come from: mnist, or glyphs drawn from fonts (no download).
        root: Folder with the task's data, if not the usual one.
        seed: Seed of the task's images.
        glimpses: Number of glimpses, if not the one the model was trained with.
        duration: Seconds that each glimpse is said to last (.tsv and .npz).
        invert: Turn light and dark of your pictures around. auto: when their background is light.
        fit: How your pictures are fitted, see 'ocra predict --help'.
    """
    endings(out, ENDINGS)
    if images and task:
        raise UsageError("Give either pictures of your own or --task, not both.")
    if number < 1:
        raise UsageError(f"--number must be at least 1, not {number}.")
    check_index(index)
    if not 0 < duration < float("inf"):
        raise UsageError(f"--duration must be a number of seconds above 0, not {duration}.")
    network = load_network(weights, task)
    errors: list[OcraError] = []
    if images:
        paths = list(_of_pictures(network, images, glimpses, invert, fit, errors))
    else:
        source = task_for(network, task, split, digits, root, seed)
        paths = list(_of_task(network, source, index, number, glimpses))
    if paths:
        written = save_scanpaths(paths, out, duration)
        places = str(written[0]) if len(written) == 1 else f"{len(written)} files, {written[0]} …"
        count = "1 scanpath" if len(paths) == 1 else f"{len(paths)} scanpaths"
        print(f"Saved {count} of {len(paths[0].glimpses)} glimpses in {places}.")
    if errors:
        total = len(errors) + len(paths)
        raise OcraError(f"{len(errors)} of {total} picture{'s' * (total > 1)} could not be read.")


def _of_pictures(
    network: Network,
    images: tuple[str, ...],
    glimpses: int | None,
    invert: Invert,
    fit: Fit,
    errors: list[OcraError],
) -> Iterator[Scanpath]:
    """The scanpath of every picture that can be read; the errors of the others are shown and gathered."""
    config, info = network.model.config, network.info
    for batch in in_batches(prepare_pictures(images, network, invert, fit)):
        good = [(file, item) for file, item in batch if isinstance(item, Prepared)]
        for _, item in batch:
            if isinstance(item, OcraError):
                print(f"error: {item}", file=sys.stderr)
                errors.append(item)
        if not good:
            continue
        trace = pass_over(network, [item for _, item in good], glimpses)
        found = decode(trace, config, info, [item.placement for _, item in good])
        for (file, _), prediction in zip(good, found, strict=True):
            yield Scanpath.of(file, prediction, info.capsule_names(config))


def _of_task(
    network: Network, task: Task, first: int, number: int, glimpses: int | None
) -> Iterator[Scanpath]:
    """The scanpaths of images of a task; its pixels are the picture's."""
    config, info = network.model.config, network.info
    for start in range(first, first + number, TOGETHER):
        indices = np.arange(start, min(start + TOGETHER, first + number))
        images = task.batch(indices).images
        found = decode(run(network.model, images, glimpses), config, info)
        for i, image, prediction in zip(indices, images, found, strict=True):
            name = f"{task.name} {task.split} {i}"
            yield Scanpath.of(name, prediction, info.capsule_names(config), image)


def main(args: list[str]) -> None:
    """Run `ocra scanpath` with these arguments."""
    parse(scanpath, args, "ocra scanpath")
