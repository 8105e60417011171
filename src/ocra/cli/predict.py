"""ocra predict: say what is in pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from tyro.conf import Positional, arg

from ocra.cli.main import parse
from ocra.cli.sources import Network, in_batches, load_network, pass_over, prepare_pictures
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Fit, Invert, Prepared
from ocra.images.reading import find_pictures
from ocra.prediction import Prediction, decode

FIGURES = ("-look.png", "-steps.png")


def predict(
    images: Positional[tuple[str, ...]],
    /,
    weights: str = "multimnist-3",
    as_json: Annotated[bool, arg(name="json")] = False,
    save: Path | None = None,
    explain: bool = False,
    invert: Invert = "auto",
    fit: Fit = "auto",
    glimpses: int | None = None,
) -> None:
    """Say what is in pictures, with shipped weights or your own.

    Photographs and scans work: a picture is made grey, turned to light on dark where its background is light,
    evened out, and fitted to the model's size; --explain and --save show each step. The default weights know
    two overlapping digits; for digits that lie apart use --weights cluttered-5, for house numbers svhn-12.

    Example: ocra predict photo.jpg scans/*.png --save out

    Args:
        images: Picture files, patterns, folders, or - for standard input.
        weights: Name of shipped weights, or a folder.
        as_json: Print one line of JSON for each picture: file, objects, scores, glimpses; or file and error.
            Glimpses are in pixels of your picture, from 0 at the centre of its top left pixel.
        save: Folder for two figures for each picture: what the model did (NAME-look.png), and how the picture was
            prepared (NAME-steps.png).
        explain: Say how each picture was prepared.
        invert: Turn light and dark around. auto: when the background is light.
        fit: content: scale the ink to the size that digits have in training. whole: show all of the picture.
            stretch: fill the model's image. auto: what suits the model's task.
        glimpses: Number of glimpses, if not the one the model was trained with.
    """
    if not images:
        raise UsageError("Name at least one picture, for example: ocra predict photo.jpg")
    network = load_network(weights)
    failed = seen = 0
    named = set(images)
    files = [file for file in find_pictures(images) if file in named or not _is_own_figure(file, save)]
    # No figure may replace a picture.
    taken = {Path(file).resolve() for file in files} if save is not None else set()
    for batch in in_batches(prepare_pictures(files, network, invert, fit)):
        answers = _recognise(network, [item for _, item in batch], glimpses, save, taken)
        for (file, item), answer in zip(batch, answers, strict=True):
            seen += 1
            if isinstance(answer, OcraError):
                failed += 1
                _report_error(file, answer, as_json)
            elif as_json:
                print(json.dumps(as_record(file, answer), ensure_ascii=False), flush=True)
            else:
                print(format_prediction(file, answer, network), flush=True)
                if explain and isinstance(item, Prepared):
                    print(_explanation(item), flush=True)
    if save is not None and failed < seen:
        print(f"Figures are in {save}.", file=sys.stderr)
    if failed:
        raise OcraError(
            f"{failed} of {seen} {'picture' if seen == 1 else 'pictures'} could not be recognised."
        )


def _recognise(
    network: Network,
    items: list[Prepared | OcraError],
    glimpses: int | None,
    save: Path | None,
    taken: set[Path],
) -> list[Prediction | OcraError]:
    """The answer for every picture that can be answered for, in order; errors stay where they are."""
    good = [item for item in items if isinstance(item, Prepared)]
    found: Iterator[Prediction] = iter(())
    if good:
        trace = pass_over(network, good, glimpses)
        placements = [item.placement for item in good]
        found = iter(decode(trace, network.model.config, network.info, placements))
        if save is not None:
            _save_figures(network, trace, good, save, taken)
    return [next(found) if isinstance(item, Prepared) else item for item in items]


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


def _save_figures(network: Network, trace: Any, good: list[Prepared], folder: Path, taken: set[Path]) -> None:
    """Two figures for each picture; where a name is taken, by a picture or another's figure, they get a number."""
    import torch

    from ocra.viz.figure import draw_look, draw_preparation
    from ocra.viz.record import records
    from ocra.viz.style import save_figure

    images = torch.stack([item.image for item in good])
    titles = [f"{item.picture.name} · {network.name}" for item in good]
    made = records(network.model, images, trace=trace, titles=titles, prepared=good)
    for record, item in zip(made, good, strict=True):
        stem = name = Path(item.picture.name).stem or "picture"
        number = 1
        while taken & {*(targets := _targets(folder, name))}:
            number += 1
            name = f"{stem}-{number}"
        taken |= {*targets}
        save_figure(draw_look(record), targets[0])
        save_figure(draw_preparation(item), targets[1])


def _targets(folder: Path, name: str) -> tuple[Path, Path]:
    """The two files for a picture: what the model did, and how the picture was prepared."""
    look, steps = ((folder / f"{name}{ending}").resolve() for ending in FIGURES)
    return look, steps


def as_record(file: str, prediction: Prediction) -> dict[str, Any]:
    """What --json prints for a picture."""
    return {
        "file": file,
        "objects": [{"label": found.label, "score": round(found.score, 4)} for found in prediction.objects],
        "scores": {name: round(score, 4) for name, score in prediction.scores.items()},
        "glimpses": [
            {"x": round(g.x, 2), "y": round(g.y, 2), "width": round(g.width, 2), "winner": g.winner}
            for g in prediction.glimpses
        ],
    }


def format_prediction(file: str, prediction: Prediction, network: Network) -> str:
    """One line for a person: the objects, and how sure the model is of each."""
    if not prediction.objects:
        return f"{file}: nothing found"
    sure = ", ".join(f"{found.confidence:.0%}" for found in prediction.objects)
    between = "" if network.model.config.readout_digits else " "
    return f"{file}: {between.join(prediction.labels)}  (confidence {sure})"


def _explanation(prepared: Prepared) -> str:
    steps = [f"{step.name} ({step.note})" if step.note else step.name for step in prepared.steps]
    return "    " + " → ".join(steps)


def _report_error(file: str, error: OcraError, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": file, "error": str(error)}, ensure_ascii=False), flush=True)
    else:
        print(f"error: {error}", file=sys.stderr, flush=True)


def main(args: list[str]) -> None:
    """Run `ocra predict` with these arguments."""
    parse(predict, args, "ocra predict")
