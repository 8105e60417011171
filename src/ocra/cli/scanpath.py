"""ocra scanpath: where the model looks as a table, how alike scanpaths are, from one format to another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tyro.conf import Positional

from ocra.cli.look import scanpath
from ocra.cli.main import columns, parse
from ocra.files import printable


def compare(
    first: Positional[Path],
    second: Positional[Path],
    /,
    human: Path | None = None,
    skip: int = 0,
    size: tuple[int, int] | None = None,
    sigma: float | None = None,
) -> None:
    """Say how alike scanpaths are: NSS, AUC, information gain, time warping, string edit and MultiMatch.

    The first set is compared with the second; with --human both are compared with people. Beside them stand the
    ceiling (people against each other on the same image) and the baseline (people on another image). Files are CSV,
    MultiMatch TSV, COCO-Search18 or ViSioNS JSON, or NPZ; images are matched by their names. Intervals are by bootstrap
    over images. MultiMatch needs the package multimatch-gaze.

    Examples:

    ocra scanpath compare scanpaths.csv people.json --skip 1

    ocra scanpath compare ours.csv theirs.csv --human people.json --size 1680 1050

    Args:
        first: Scanpaths, as 'ocra scanpath' writes them.
        second: Scanpaths of people, or of another model.
        human: Scanpaths of people, with whom both are compared.
        skip: Leave out so many fixations at the start; a model's first window is the same for every image.
        size: Width and height of the images in pixels. Default: as far as fixations reach.
        sigma: Standard deviation of a fixation in maps, in pixels. Default: a twentieth of the longer side.
    """
    from ocra.lab.comparing import compare as compare_paths
    from ocra.lab.formats import read_fixations

    sets = {first.stem: read_fixations(first)}
    if human is not None:
        sets[second.stem if second.stem not in sets else f"{second.stem} (2)"] = read_fixations(second)
    reference = read_fixations(second if human is None else human)
    rows = [
        (r["measure"], r["who"], str(r["images"]), f"{r['mean']:.3f}", f"{r['low']:.3f} to {r['high']:.3f}")
        for r in compare_paths(sets, reference, skip=skip, size=size, sigma=sigma)
    ]
    print(columns(rows, ("measure", "who", "images", "mean", "95 % interval")))


def convert(source: Positional[Path], out: Positional[Path], /, duration: float | None = None) -> None:
    """Turn scanpaths from one format into another; the endings of the files say which.

    .csv, .tsv (MultiMatch, one file for each path), .json (COCO-Search18, ViSioNS), .npz (pysaliency).

    Example: ocra scanpath convert people.json people.npz

    Args:
        source: File to read.
        out: File to write.
        duration: Seconds that a fixation is said to have lasted where the source does not say. Default: 0.25.
    """
    from ocra.lab.formats import DURATION, read_fixations, write_fixations

    paths = read_fixations(source)
    written = write_fixations(paths, out, DURATION if duration is None else duration)
    places = str(written[0]) if len(written) == 1 else f"{len(written)} files, {written[0]} …"
    print(printable(f"Saved {len(paths)} scanpath{'s' * (len(paths) > 1)} in {places}."))


COMMANDS: dict[str, Callable[..., object]] = {"compare": compare, "convert": convert}


def main(args: list[str]) -> None:
    """Run `ocra scanpath` with these arguments; a file called compare is given as ./compare."""
    command = COMMANDS.get(args[0]) if args else None
    if command is None:
        parse(scanpath, args, "ocra scanpath")
    else:
        parse(command, args[1:], f"ocra scanpath {args[0]}")
