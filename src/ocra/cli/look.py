"""ocra predict, look, scanpath, report: what the model sees in images, where it looked, and how it was trained.

What draws is imported where it is used: `ocra predict` starts sooner without it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from tyro.conf import OmitArgPrefixes, arg

from ocra.cli.main import Device, Interventions, Split, show_error
from ocra.data import Task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import task_for
from ocra.files import printable
from ocra.images.fitting import Fit, Invert, Prepared
from ocra.images.reading import endings, find_images
from ocra.lab import scanpaths
from ocra.lab.formats import READABLE
from ocra.model.network import Network
from ocra.prediction import PHOTOGRAPH_WEIGHTS, Prediction, given, load, predict_each

FIGURES = ("-look.png", "-steps.png")


@dataclass(frozen=True)
class Preparation:
    """How images of your own are prepared."""

    invert: Invert = "auto"
    """Turn light and dark around. auto: when the background is light."""
    fit: Fit = "auto"
    """content: scale the ink to the size that digits have in training. whole: show all of the image. stretch: fill the
    model's image. auto: what suits the model's task."""


@dataclass(frozen=True)
class TaskImages:
    """Images of a task, in place of your own."""

    task: str | None = None
    """Take images of this task. Default without an image: the one the weights were trained on."""
    index: int = 0
    """Number of the image in the task, or of the first one."""
    split: Split = "test"
    """Part of the task that images are taken from."""
    seed: int = 0
    """Seed of the task's images."""

    def of(self, model: Network, settings: Any) -> Task:
        """The task itself, for a model, with the settings that were given."""
        return task_for(model, self.task, self.split, self.seed, **given(**vars(settings)))


def predict(
    images: tuple[str, ...],
    /,
    weights: str = PHOTOGRAPH_WEIGHTS,
    as_json: Annotated[bool, arg(name="json")] = False,
    save: Path | None = None,
    explain: bool = False,
    device: Device | None = None,
    *,
    preparation: OmitArgPrefixes[Preparation],
    interventions: OmitArgPrefixes[Interventions],
) -> None:
    """Say what is in images, with shipped weights or your own.

    Photographs and scans work: an image is made grey, turned to light on dark where its background is light,
    evened out, and fitted to the model's size; --explain and --save show each step. The default weights know
    none to four digits of any size, apart or overlapping, under noise and other nuisance; for exactly two that lie
    over one another use --weights multimnist-3-robust, for house numbers svhn-12.

    Example: ocra predict photo.jpg scans/*.png --save out

    Args:
        images: Image files, patterns, folders, or - for standard input.
        weights: Name of shipped weights, or a folder.
        as_json: Print one line of JSON for each image: file, objects, scores, glimpses; or file and error.
            Glimpses are in pixels of your image, from 0 at the centre of its top left pixel.
        save: Folder for two figures for each image: what the model did (NAME-look.png), and how the image was
            prepared (NAME-steps.png).
        explain: Say how each image was prepared.
        device: Where to compute: cpu, cuda or mps.
    """
    if not images:
        raise UsageError("Name at least one image, for example: ocra predict photo.jpg")
    model, changes = load(weights, device), interventions.given()
    files = [file for file in find_images(images) if file in images or not _is_own_figure(file, save)]
    taken = {Path(file).resolve() for file in files} if save else set()  # no figure may replace an image
    failed = 0
    for file, answer in predict_each(model, files, **vars(preparation), **changes):
        if as_json:
            said = {"error": str(answer)} if isinstance(answer, OcraError) else answer.to_dict()
            print(json.dumps({"file": file, **said}), flush=True)
        elif isinstance(answer, OcraError):
            show_error(answer)
        else:
            print(_format_prediction(file, answer, explain), flush=True)
        if isinstance(answer, OcraError):
            failed += 1
        elif save is not None and answer.prepared is not None:
            _save_figures(model, answer.prepared, save, taken, changes)
    if save is not None and failed < len(files):
        print(printable(f"Figures are in {save}."), file=sys.stderr)
    if failed:
        raise OcraError(f"{failed} of {len(files)} image{'s' * (len(files) > 1)} could not be recognised.")


def _format_prediction(file: str, prediction: Prediction, explain: bool) -> str:
    """One line for a person: the objects, and how sure the model is of each; and one on how the image was prepared."""
    each = ", ".join(f"{found.label} {found.confidence:.0%}" for found in prediction.objects)
    whole = ", not calibrated" if prediction.confidence is None else f" {prediction.confidence:.0%}"
    behind = (
        f"confidence{whole}"
        + (f": {each}" if each else "")
        + (f"; {prediction.note}" if prediction.note else "")
    )
    said = {
        "answer": f"{prediction.text}  ({behind})",
        "unsure": f"unsure, perhaps {prediction.text or 'nothing'}  ({behind})",
        "nothing": "nothing",
    }
    text = printable(f"{file}: {said[prediction.verdict]}")
    if explain and prediction.prepared is not None:
        steps = prediction.prepared.steps
        text += "\n    " + " → ".join(
            f"{step.name} ({step.note})" if step.note else step.name for step in steps
        )
    return text


def _is_own_figure(file: str, folder: Path | None) -> bool:
    """Whether a file that was found, not named, is a figure that an earlier run left in --save."""
    if folder is None or not file.endswith(FIGURES) or Path(file).resolve().parent != folder.resolve():
        return False
    from ocra.viz.style import MAKER

    try:
        with Image.open(file, formats=["PNG"]) as image:
            return image.info.get("Software") == MAKER
    except (OSError, SyntaxError):
        return False


def _save_figures(
    model: Network, prepared: Prepared, folder: Path, taken: set[Path], interventions: dict[str, Any]
) -> None:
    """Two figures of an image; where a name is taken, by an image or another's figure, they get a number."""
    from ocra.viz.figure import draw_look, draw_preparation
    from ocra.viz.record import records
    from ocra.viz.style import save_figure

    stem = name = Path(prepared.source.name).stem or "image"
    number = 1
    while taken & {*(targets := [(folder / f"{name}{ending}").resolve() for ending in FIGURES])}:
        number += 1
        name = f"{stem}-{number}"
    taken |= {*targets}
    title = f"{prepared.source.name} · {model.info.name}"
    (record,) = records(model, prepared.image[None], titles=[title], prepared=[prepared], **interventions)
    save_figure(draw_look(record), targets[0])
    save_figure(draw_preparation(prepared), targets[1])


def look(
    image: str = "",
    /,
    *,
    out: Path = Path("look.png"),
    weights: str | None = None,
    grid: int | None = None,
    errors_only: bool = False,
    width: float | None = None,
    bare: bool = False,
    device: Device | None = None,
    images: OmitArgPrefixes[TaskImages],
    preparation: OmitArgPrefixes[Preparation],
    interventions: OmitArgPrefixes[Interventions],
    settings: Any,
) -> None:
    """Draw what the model does with an image: windows, glimpses, winning capsules, growing canvas, scores.

    Examples:

    ocra look photo.jpg --out figure.pdf

    ocra look --task multimnist --index 7 --out figure.gif

    ocra look --task multimnist --grid 50 --errors-only --out errors.png

    ocra look --task multimnist --index 7 --width 3.5 --bare --out column.pdf

    Args:
        image: An image file of your own; leave it out to take an image of a task.
        out: Where to write: .png, .svg or .pdf for a figure, .gif or .webp for an animation.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        grid: Draw so many images at once, each beside its reconstruction, errors framed and listed.
        errors_only: Only images that the model gets wrong, from --index on.
        width: Width of the figure in inches: 3.5 for a column of a paper, 7 for its page. Letters keep their size.
        bare: Without the headline, and in a grid without the list of errors: a paper has its caption.
        device: Where to compute: cpu, cuda or mps.
    """
    from ocra import viz
    from ocra.viz.grid import error_lines

    if image and (images.task or given(**vars(settings)) or grid or errors_only):
        raise UsageError("Give either an image of your own or --task, --grid and --errors-only, not both.")
    endings(out, viz.STILL if grid is not None else viz.STILL + viz.MOVING)
    model = load(weights, device, images.task)
    found = viz.look(
        model, image or images.of(model, settings), out, index=images.index, grid=grid, errors_only=errors_only,
        width=width, bare=bare, **vars(preparation), **interventions.given(),
    )  # fmt: skip
    if grid is None:
        said = ". ".join(filter(None, [found[0].answer, found[0].verdict]))
        print(printable(f"{said}. The figure is in {out}."))
    else:
        errors = error_lines(found)
        print(
            printable(
                f"{len(found)} images are in {out}; {len(errors)} of them wrong{':' if errors else '.'}"
            )
        )
        for line in errors:
            print(printable(f"  {line}"))


def scanpath(
    files: tuple[str, ...] = (),
    /,
    *,
    out: Path = Path("scanpaths.csv"),
    weights: str | None = None,
    number: int = 100,
    duration: float = scanpaths.DURATION,
    device: Device | None = None,
    images: OmitArgPrefixes[TaskImages],
    preparation: OmitArgPrefixes[Preparation],
    interventions: OmitArgPrefixes[Interventions],
    settings: Any,
) -> None:
    """Write where the model looks, as a table. Places are pixels of your own image, from 0 at its top left.

    .csv: a row for each glimpse: image, step, x, y, stride, sigma, width, winner, length, and the lengths of
    all capsules. .tsv: start_x, start_y, duration for MultiMatch; a file each. .json: name, subject, X, Y, T as in
    COCO-Search18 and ViSioNS. .hdf5: pysaliency's Scanpaths. .npz: xs, ys, ts, ns, subjects for its older versions,
    and the files, or the images of a task.
    The model has no clock: every glimpse is said to last --duration seconds.

    'ocra scanpath compare A B' says how alike scanpaths are, 'ocra scanpath convert A B' changes their format.

    Examples:

    ocra scanpath scans/*.png --out scanpaths.csv

    ocra scanpath --task multimnist --number 1000 --out scanpaths.npz

    Args:
        files: Image files, patterns, folders, or - for standard input; leave out to take images of a task.
        out: Table to write; its ending says which kind.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        number: How many images of the task.
        duration: Seconds that each glimpse is said to last (.tsv, .json, .hdf5 and .npz).
        device: Where to compute: cpu, cuda or mps.
    """
    endings(out, READABLE)
    if files and (images.task or given(**vars(settings))):
        raise UsageError("Give either images of your own or --task and its settings, not both.")
    if not 0 < duration < float("inf"):
        raise UsageError(f"--duration must be a number of seconds above 0, not {duration}.")
    model = load(weights, device, images.task)
    errors: list[OcraError] = []

    def on_error(error: OcraError) -> None:
        show_error(error)
        errors.append(error)

    paths = scanpaths.scanpath(
        model, files or images.of(model, settings), index=images.index, number=number, on_error=on_error,
        **vars(preparation), **interventions.given(),
    )  # fmt: skip
    if paths:
        written = scanpaths.save_scanpaths(paths, out, duration)
        places = str(written[0]) if len(written) == 1 else f"{len(written)} files, {written[0]} …"
        count = f"{len(paths)} scanpath" + "s" * (len(paths) > 1)
        taken = sorted({len(path.glimpses) for path in paths})
        glimpses = "–".join(map(str, dict.fromkeys([taken[0], taken[-1]])))
        print(printable(f"Saved {count} of {glimpses} glimpses in {places}."))
    if errors:
        total = len(errors) + len(paths)
        raise OcraError(f"{len(errors)} of {total} image{'s' * (total > 1)} could not be read.")


def report(
    run: Path, /, out: Path = Path("report.html"), images: int = 2_000, device: Device | None = None
) -> None:
    """Write one page about a training run: curves, tables, confusion, samples, scanpaths, config.

    The page is a single file that opens without network. A run may be reported on while it goes on.

    Example: ocra report runs/multimnist-3 --out report.html

    Args:
        run: Folder of the run, as 'ocra train' makes it.
        out: Page to write.
        images: Test images that the best weights are scored on; 0 leaves out what needs them.
        device: Where to compute: cpu, cuda or mps.
    """
    from ocra.viz.report import report as write_report

    written = write_report(run, out, images=images, device=device)
    print(printable(f"The report is in {written}; open it in a browser."))
