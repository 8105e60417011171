"""ocra scanpath: where the model looks, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ocra.cli.main import Device, Split, lesion_of, parse, show_error
from ocra.errors import OcraError, UsageError
from ocra.evaluation import task_for
from ocra.files import printable
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.lab.scanpaths import DURATION, ENDINGS, save_scanpaths
from ocra.lab.scanpaths import scanpath as find_scanpaths
from ocra.prediction import given, load


def scanpath(
    images: Positional[tuple[str, ...]] = (),
    /,
    *,
    out: Path = Path("scanpaths.csv"),
    weights: str | None = None,
    task: str | None = None,
    index: int = 0,
    number: int = 100,
    split: Split = "test",
    seed: int = 0,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: tuple[str, ...] = (),
    duration: float = DURATION,
    invert: Invert = "auto",
    fit: Fit = "auto",
    device: Device | None = None,
    settings: Any,
) -> None:
    """Write where the model looks, as a table. Places are pixels of your own image, from 0 at its top left.

    .csv: a row for each glimpse: image, step, x, y, stride, sigma, width, winner, length, and the lengths of
    all capsules. .tsv: start_x, start_y, duration for MultiMatch; a file each. .npz: xs, ys, ts,
    ns, subjects for pysaliency's FixationTrains.from_fixation_trains, and the files, or the images of a task.
    The model has no clock: every glimpse is said to last --duration seconds.

    Examples:

    ocra scanpath scans/*.png --out scanpaths.csv

    ocra scanpath --task multimnist --number 1000 --out scanpaths.npz

    Args:
        images: Image files, patterns, folders, or - for standard input; leave out to take images of a task.
        out: Table to write; its ending says which kind.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        task: Take images of this task. Default without images: the one the weights were trained on.
        index: First image of the task.
        number: How many images of the task.
        split: Part of the task that images are taken from.
        seed: Seed of the task's images.
        glimpses: Number of glimpses, if not the one the model was trained with.
        until: Stop at an image once its answer is so far ahead of the next class, in capsule lengths (0.5, say).
        routings: Number of routings, if not the model's own.
        lesion: Parts to silence: encoder-memory, decoder-memory, feedback, or numbers of object capsules.
        duration: Seconds that each glimpse is said to last (.tsv and .npz).
        invert: Turn light and dark of your images around. auto: when their background is light.
        fit: How your images are fitted, see 'ocra predict --help'.
        device: Where to compute: cpu, cuda or mps.
    """
    endings(out, ENDINGS)
    chosen = given(**vars(settings))
    if images and (task or chosen):
        raise UsageError("Give either images of your own or --task and its settings, not both.")
    if not 0 < duration < float("inf"):
        raise UsageError(f"--duration must be a number of seconds above 0, not {duration}.")
    model = load(weights, device, task)
    errors: list[OcraError] = []

    def on_error(error: OcraError) -> None:
        show_error(error)
        errors.append(error)

    paths = find_scanpaths(
        model, images or task_for(model, task, split, seed, **chosen), index=index, number=number,
        glimpses=glimpses, until=until, routings=routings, lesion=lesion_of(lesion), invert=invert, fit=fit,
        on_error=on_error,
    )  # fmt: skip
    if paths:
        written = save_scanpaths(paths, out, duration)
        places = str(written[0]) if len(written) == 1 else f"{len(written)} files, {written[0]} …"
        count = "1 scanpath" if len(paths) == 1 else f"{len(paths)} scanpaths"
        taken = sorted({len(path.glimpses) for path in paths})
        glimpses_said = "–".join(map(str, dict.fromkeys([taken[0], taken[-1]])))
        print(printable(f"Saved {count} of {glimpses_said} glimpses in {places}."))
    if errors:
        total = len(errors) + len(paths)
        raise OcraError(f"{len(errors)} of {total} image{'s' * (total > 1)} could not be read.")


def main(args: list[str]) -> None:
    """Run `ocra scanpath` with these arguments."""
    parse(scanpath, args, "ocra scanpath")
