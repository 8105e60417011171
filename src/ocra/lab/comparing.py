"""How alike scanpaths are: fixation maps with NSS and AUC, dynamic time warping, string edit; with intervals.

A path is an array [fixations, 2] of (x, y) in pixels. For MultiMatch see `multimatch`, which needs multimatch-gaze.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocra.data.random import integers, random_bits
from ocra.errors import OcraError, UsageError
from ocra.lab.corruptions import smoothed
from ocra.lab.formats import Fixations

Path2D = NDArray[np.float64]


def fixation_map(points: Path2D, height: int, width: int, sigma: float) -> NDArray[np.float64]:
    """Where people or models look: a density [height, width] that sums to 1, points blurred by a Gaussian."""
    counts = np.zeros((height, width))
    columns = np.rint(points[:, 0]).astype(int).clip(0, width - 1)
    rows = np.rint(points[:, 1]).astype(int).clip(0, height - 1)
    np.add.at(counts, (rows, columns), 1)
    blurred = smoothed(counts, sigma)
    return blurred / max(blurred.sum(), 1e-12)


def values_at(density: NDArray[np.float64], points: Path2D) -> NDArray[np.float64]:
    """The map at the pixels nearest to the points; points outside count as at the edge."""
    columns = np.rint(points[:, 0]).astype(int).clip(0, density.shape[1] - 1)
    rows = np.rint(points[:, 1]).astype(int).clip(0, density.shape[0] - 1)
    return density[rows, columns]


def nss(density: NDArray[np.float64], points: Path2D) -> float:
    """Normalised scanpath saliency (Peters and others 2005): mean of the standardised map at the points."""
    spread = float(density.std())
    return float((values_at(density, points).mean() - density.mean()) / spread) if spread > 0 else 0.0


def auc(density: NDArray[np.float64], points: Path2D) -> float:
    """Chance that the map is higher at a fixation than at a pixel drawn at random, ties counting half."""
    at, everywhere = values_at(density, points), np.sort(density.ravel())
    below = np.searchsorted(everywhere, at, "left")
    upto = np.searchsorted(everywhere, at, "right")
    return float(((below + upto) / 2).mean() / everywhere.size)


def dtw(one: Path2D, two: Path2D) -> float:
    """Dynamic time warping: mean distance in pixels along the best alignment in order, 0 for the same path."""
    costs = np.hypot(*(one[:, None] - two[None]).transpose(2, 0, 1))
    total = np.full((len(one) + 1, len(two) + 1), math.inf)
    steps = np.zeros(total.shape, dtype=int)
    total[0, 0] = 0
    for i in range(1, len(one) + 1):
        for j in range(1, len(two) + 1):
            before = min(((i - 1, j - 1), (i - 1, j), (i, j - 1)), key=lambda place: total[place])
            total[i, j] = costs[i - 1, j - 1] + total[before]
            steps[i, j] = steps[before] + 1
    return float(total[-1, -1] / steps[-1, -1])


def string_edit(one: Path2D, two: Path2D, height: float, width: float, cells: int = 5) -> float:
    """Similarity from 0 to 1: one less the edit distance of the cells visited, by the longer path.

    The image is cut into cells × cells; each fixation is the letter of its cell (as ScanMatch does without its
    substitution costs).
    """
    words = []
    for path in (one, two):
        across = (path[:, 0] / width * cells).astype(int).clip(0, cells - 1)
        down = (path[:, 1] / height * cells).astype(int).clip(0, cells - 1)
        words.append((down * cells + across).tolist())
    first, second = words
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return 1 - row[-1] / max(len(first), len(second), 1)


def multimatch(one: Path2D, two: Path2D, height: int, width: int) -> dict[str, float]:
    """MultiMatch (Dewhurst and others 2012) by the package multimatch-gaze: shape, direction, length, position.

    It needs three fixations or more; its fifth part, duration, means nothing for a model without a clock.
    """
    try:
        from multimatch_gaze import docomparison
    except ImportError:
        raise OcraError("MultiMatch needs the package multimatch-gaze: pip install multimatch-gaze") from None
    if min(len(one), len(two)) < 3:
        raise UsageError("MultiMatch needs scanpaths of three fixations or more.")
    kind = [("start_x", "<f8"), ("start_y", "<f8"), ("duration", "<f8")]
    records = [np.array([(x, y, 0.25) for x, y in path], dtype=kind) for path in (one, two)]
    found = docomparison(*records, screensize=[width, height])
    return dict(zip(("shape", "direction", "length", "position"), map(float, found[:4]), strict=True))


def bootstrap(values: Sequence[float], seed: int = 0, samples: int = 2000) -> tuple[float, float, float]:
    """Mean and 95 % interval of values, one for each image, drawn again with replacement."""
    numbers = np.array([value for value in values if not math.isnan(value)])
    if not len(numbers):
        return math.nan, math.nan, math.nan
    drawn = integers(random_bits(seed, "bootstrap", np.arange(samples), len(numbers)), len(numbers))
    low, high = np.quantile(numbers[drawn].mean(1), [0.025, 0.975])
    return float(numbers.mean()), float(low), float(high)


def compare(
    ours: Sequence[Fixations],
    theirs: Sequence[Fixations],
    *,
    skip: int = 0,
    sigma: float | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """How alike two sets of scanpaths are on the images that both have: rows of measure, images, mean and interval.

    Every path of the one is compared with every path of the other on the same image; the interval is by bootstrap over
    the images. skip: leave out so many fixations at the start (a model's first window is the same for every image).
    sigma: standard deviation of a fixation in maps, in pixels; by default a twentieth of the image's longer side, which
    is taken to reach as far as the fixations do.
    """
    by_image: dict[str, tuple[list[Path2D], list[Path2D]]] = defaultdict(lambda: ([], []))
    for k, paths in enumerate((ours, theirs)):
        for path in paths:
            if len(path.places) > skip:
                by_image[path.image][k].append(path.places[skip:])
    shared = [pair for pair in by_image.values() if pair[0] and pair[1]]
    if not shared:
        raise UsageError("The two files have no image in common; images are told apart by their names.")
    every = np.concatenate([place for pair in shared for paths in pair for place in paths])
    width, height = (max(2, math.ceil(side) + 1) for side in every.max(0))
    blur = sigma or max(width, height) / 20
    rows = []
    for name, measure in measures(height, width, blur).items():
        values = [float(np.mean([measure(one, two) for one in a for two in b])) for a, b in shared]
        mean, low, high = bootstrap(values, seed)
        rows.append({"measure": name, "images": len(values), "mean": mean, "low": low, "high": high})
    return rows


Measure = Callable[[Path2D, Path2D], float]


def measures(height: int, width: int, sigma: float) -> dict[str, Measure]:
    """What `ocra scanpath compare` says of two paths on the same image: NSS and AUC of the first under the second."""
    return {
        "NSS": lambda one, two: nss(fixation_map(two, height, width, sigma), one),
        "AUC": lambda one, two: auc(fixation_map(two, height, width, sigma), one),
        "DTW distance": dtw,
        "string edit": lambda one, two: string_edit(one, two, height, width),
    }
