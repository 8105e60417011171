"""ocra look: the paper's figure for one image, an animation of it, or a grid of many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tyro.conf import Positional

from ocra.cli.main import Device, Split, lesion_of, parse
from ocra.errors import UsageError
from ocra.evaluation import task_for
from ocra.files import printable
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.prediction import given, load
from ocra.viz import MOVING, STILL
from ocra.viz import look as draw
from ocra.viz.grid import error_lines


def look(
    image: Positional[str] = "",
    /,
    *,
    out: Path = Path("look.png"),
    weights: str | None = None,
    task: str | None = None,
    index: int = 0,
    grid: int | None = None,
    errors_only: bool = False,
    split: Split = "test",
    seed: int = 0,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: tuple[str, ...] = (),
    invert: Invert = "auto",
    fit: Fit = "auto",
    device: Device | None = None,
    settings: Any,
) -> None:
    """Draw what the model does with an image: windows, glimpses, winning capsules, growing canvas, scores.

    Examples:

    ocra look photo.jpg --out figure.pdf

    ocra look --task multimnist --index 7 --out figure.gif

    ocra look --task multimnist --grid 50 --errors-only --out errors.png

    Args:
        image: An image file of your own; leave it out to take an image of a task.
        out: Where to write: .png, .svg or .pdf for a figure, .gif or .webp for an animation.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        task: Take images of this task. Default without an image: the one the weights were trained on.
        index: Number of the image in the task, or of the first one of a grid.
        grid: Draw so many images at once, inputs above, reconstructions below, errors framed and listed.
        errors_only: Only images that the model gets wrong, from --index on.
        split: Part of the task that images are taken from.
        seed: Seed of the task's images.
        glimpses: Number of glimpses, if not the one the model was trained with.
        until: Stop at an image once its answer is so far ahead of the next class, in capsule lengths (0.5, say).
        routings: Number of routings, if not the model's own.
        lesion: Parts to silence: encoder-memory, decoder-memory, feedback, or numbers of object capsules.
        invert: Turn light and dark of your image around. auto: when its background is light.
        fit: How your image is fitted, see 'ocra predict --help'.
        device: Where to compute: cpu, cuda or mps.
    """
    chosen = given(**vars(settings))
    if image and (task or chosen or grid or errors_only):
        raise UsageError("Give either an image of your own or --task, --grid and --errors-only, not both.")
    endings(out, STILL if grid is not None else STILL + MOVING)
    model = load(weights, device, task)
    found = draw(
        model, image or task_for(model, task, split, seed, **chosen), out, index=index, grid=grid,
        errors_only=errors_only, glimpses=glimpses, until=until, routings=routings, lesion=lesion_of(lesion),
        invert=invert, fit=fit,
    )  # fmt: skip
    if grid is None:
        said = ". ".join(filter(None, [found[0].answer, found[0].verdict]))
        print(printable(f"{said}. The figure is in {out}."))
        return
    errors = error_lines(found)
    print(printable(f"{len(found)} images are in {out}; {len(errors)} of them wrong{':' if errors else '.'}"))
    for line in errors:
        print(printable(f"  {line}"))


def main(args: list[str]) -> None:
    """Run `ocra look` with these arguments."""
    parse(look, args, "ocra look")
