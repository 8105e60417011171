"""ocra look: the paper's figure for one image, an animation of it, or a grid of many."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ocra.cli.main import parse
from ocra.cli.sources import Split, TaskName, check_index, load_network, task_for
from ocra.errors import UsageError
from ocra.images.fitting import Fit, Invert
from ocra.images.reading import endings
from ocra.viz import MOVING, STILL
from ocra.viz import look as draw
from ocra.viz.grid import error_lines


def look(
    image: Positional[str] = "",
    /,
    out: Path = Path("look.png"),
    weights: str | None = None,
    task: TaskName | None = None,
    index: int = 0,
    grid: int | None = None,
    errors_only: bool = False,
    split: Split = "test",
    digits: Literal["mnist", "glyphs"] | None = None,
    root: Path | None = None,
    seed: int = 0,
    glimpses: int | None = None,
    invert: Invert = "auto",
    fit: Fit = "auto",
) -> None:
    """Draw what the model does with an image: windows, glimpses, winning capsules, growing canvas, scores.

    Examples:

    ocra look photo.jpg --out figure.pdf

    ocra look --task multimnist --index 7 --out figure.gif

    ocra look --task multimnist --grid 50 --errors-only --out errors.png

    Args:
        image: A picture file of your own; leave it out to take an image of a task.
        out: Where to write: .png, .svg or .pdf for a figure, .gif or .webp for an animation.
        weights: Name of shipped weights, or a folder. Default: the shipped ones of the task.
        task: Take images of this task. Default without an image: the one the weights were trained on.
        index: Number of the image in the task, or of the first one of a grid.
        grid: Draw so many images at once, inputs above, reconstructions below, errors framed and listed.
        errors_only: Only images that the model gets wrong, from --index on.
        split: Part of the task that images are taken from.
        digits: Where the task's digits come from: mnist, or glyphs drawn from fonts (no download).
        root: Folder with the task's data, if not the usual one.
        seed: Seed of the task's images.
        glimpses: Number of glimpses, if not the one the model was trained with.
        invert: Turn light and dark of your picture around. auto: when its background is light.
        fit: How your picture is fitted, see 'ocra predict --help'.
    """
    if image and (task or grid or errors_only):
        raise UsageError("Give either an image of your own or --task, --grid and --errors-only, not both.")
    endings(out, STILL if grid is not None else STILL + MOVING)
    check_index(index)
    network = load_network(weights, task)
    source = image or task_for(network, task, split, digits, root, seed)
    found = draw(
        network.model, source, out, index=index, grid=grid, errors_only=errors_only, glimpses=glimpses,
        invert=invert, fit=fit,
    )  # fmt: skip
    if grid is None:
        record = found[0]
        print(f"{'. '.join(filter(None, [record.answer, record.verdict]))}. The figure is in {out}.")
        return
    errors = error_lines(found)
    print(f"{len(found)} images are in {out}; {len(errors)} of them wrong{':' if errors else '.'}")
    for line in errors:
        print(f"  {line}")


def main(args: list[str]) -> None:
    """Run `ocra look` with these arguments."""
    parse(look, args, "ocra look")
