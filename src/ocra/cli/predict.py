"""ocra predict: say what is in images."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from tyro.conf import Positional, arg

from ocra.cli.main import Device, lesion_of, parse, show_error
from ocra.errors import OcraError, UsageError
from ocra.files import printable
from ocra.images.fitting import Fit, Invert, Prepared
from ocra.images.reading import find_images
from ocra.model.ocra import OCRA
from ocra.prediction import DEFAULT_WEIGHTS, Prediction, given, load, predict_each

FIGURES = ("-look.png", "-steps.png")


def predict(
    images: Positional[tuple[str, ...]],
    /,
    weights: str = DEFAULT_WEIGHTS,
    as_json: Annotated[bool, arg(name="json")] = False,
    save: Path | None = None,
    explain: bool = False,
    invert: Invert = "auto",
    fit: Fit = "auto",
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: tuple[str, ...] = (),
    device: Device | None = None,
) -> None:
    """Say what is in images, with shipped weights or your own.

    Photographs and scans work: an image is made grey, turned to light on dark where its background is light,
    evened out, and fitted to the model's size; --explain and --save show each step. The default weights know
    two overlapping digits; for digits that lie apart use --weights cluttered-5, for house numbers svhn-12.

    Example: ocra predict photo.jpg scans/*.png --save out

    Args:
        images: Image files, patterns, folders, or - for standard input.
        weights: Name of shipped weights, or a folder.
        as_json: Print one line of JSON for each image: file, objects, scores, glimpses; or file and error.
            Glimpses are in pixels of your image, from 0 at the centre of its top left pixel.
        save: Folder for two figures for each image: what the model did (NAME-look.png), and how the image was
            prepared (NAME-steps.png).
        explain: Say how each image was prepared.
        invert: Turn light and dark around. auto: when the background is light.
        fit: content: scale the ink to the size that digits have in training. whole: show all of the image.
            stretch: fill the model's image. auto: what suits the model's task.
        glimpses: Number of glimpses, if not the one the model was trained with.
        until: Stop at an image once its answer is so far ahead of the next class, in capsule lengths (0.5, say).
        routings: Number of routings, if not the model's own.
        lesion: Parts to silence: encoder-memory, decoder-memory, feedback, or numbers of object capsules.
        device: Where to compute: cpu, cuda or mps.
    """
    if not images:
        raise UsageError("Name at least one image, for example: ocra predict photo.jpg")
    model = load(weights, device)
    interventions = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion_of(lesion))
    named = set(images)
    files = [file for file in find_images(images) if file in named or not _is_own_figure(file, save)]
    # No figure may replace an image.
    taken = {Path(file).resolve() for file in files} if save is not None else set()
    failed = 0
    for file, answer in predict_each(model, files, invert=invert, fit=fit, **interventions):
        if as_json:
            said = {"error": str(answer)} if isinstance(answer, OcraError) else answer.to_dict()
            print(json.dumps({"file": file, **said}), flush=True)
        elif isinstance(answer, OcraError):
            show_error(answer)
        else:
            print(format_prediction(file, answer, explain), flush=True)
        if isinstance(answer, OcraError):
            failed += 1
        elif save is not None and answer.prepared is not None:
            _save_figures(model, answer.prepared, save, taken, interventions)
    if save is not None and failed < len(files):
        print(printable(f"Figures are in {save}."), file=sys.stderr)
    if failed:
        raise OcraError(f"{failed} of {len(files)} image{'s' * (len(files) > 1)} could not be recognised.")


def format_prediction(file: str, prediction: Prediction, explain: bool = False) -> str:
    """One line for a person: the objects, and how sure the model is of each; and one on how the image was prepared."""
    said = "nothing found"
    if prediction.objects:
        sure = ", ".join(f"{found.confidence:.0%}" for found in prediction.objects)
        said = f"{prediction.text}  (confidence {sure})"
    lines = [printable(f"{file}: {said}")]
    if explain and prediction.prepared is not None:
        steps = prediction.prepared.steps
        lines.append(
            "    " + " → ".join(f"{step.name} ({step.note})" if step.note else step.name for step in steps)
        )
    return "\n".join(lines)


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
    model: OCRA, prepared: Prepared, folder: Path, taken: set[Path], interventions: dict[str, Any]
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
    image = prepared.image[None]
    title = f"{prepared.source.name} · {model.info.name}"
    (record,) = records(model, image, titles=[title], prepared=[prepared], **interventions)
    save_figure(draw_look(record), targets[0])
    save_figure(draw_preparation(prepared), targets[1])


def main(args: list[str]) -> None:
    """Run `ocra predict` with these arguments."""
    parse(predict, args, "ocra predict")
