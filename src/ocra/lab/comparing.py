"""How alike scanpaths are: fixation maps with NSS, AUC and information gain; time warping, string edit, MultiMatch.

A path is an array [fixations, 2] of (x, y) in pixels. MultiMatch needs the package multimatch-gaze.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocra.data.corruptions import smoothed
from ocra.data.random import integers, random_bits
from ocra.errors import OcraError, UsageError
from ocra.lab.formats import Fixations

Path2D = NDArray[np.float64]
UNIFORM = 0.01
"""Share of a map that is spread evenly, so that no place is impossible where its logarithm is taken."""
PAIRS = 12
"""Pairs of paths that are aligned with each other on an image, at most; maps take all of them."""
CEILING, BASELINE = "ceiling", "baseline"


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


def information_gain(density: NDArray[np.float64], baseline: NDArray[np.float64], points: Path2D) -> float:
    """Bits by which a map says more of a fixation than a baseline (Kümmerer and others 2015): mean log2 ratio."""
    ratio = values_at(density, points) / values_at(baseline, points)
    return float(np.log2(ratio).mean())


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
        raise OcraError(
            "MultiMatch needs the package multimatch-gaze: pip install ocra-vision[scanpaths]."
        ) from None
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
    paths: Mapping[str, Sequence[Fixations]],
    reference: Sequence[Fixations],
    *,
    skip: int = 0,
    size: tuple[int, int] | None = None,
    sigma: float | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """How alike named sets of scanpaths are to those of a reference, people say, on the images that both have.

        compare({"model": scanpaths}, people)

    Returns rows of measure, who, images, mean and its 95 % interval (low, high) by bootstrap over the images. NSS, AUC
    and information gain are of a path's places under the map of all reference paths on the image; the gain is over
    the map of the reference on all other images (centre bias). Time warping, string edit and, if its package is there,
    MultiMatch align a path with each reference path, both cut to the shorter of the two. Beside the sets stand the
    ceiling, each reference path against the others on its image, where there are any, and the baseline, reference
    paths on another image; both are cut to as many places as the sets have on the image.

    skip: leave out so many fixations at the start (a model's first window is the same for every image). size: width
    and height of the images; by default as far as the fixations reach. sigma: standard deviation of a fixation in
    maps, in pixels; by default a twentieth of the longer side.
    """
    theirs = _by_image(reference, skip)
    sets = {name: _by_image(found, skip) for name, found in paths.items()}
    images = [image for image in theirs if all(image in own for own in sets.values())]
    if not images:
        raise UsageError("The files have no image in common; images are told apart by their names.")
    every = np.concatenate([p for own in (theirs, *sets.values()) for image in images for p in own[image]])
    width, height = size or (max(2, math.ceil(side) + 1) for side in every.max(0))
    measured = _Measures(height, width, sigma or max(width, height) / 20)
    total = measured.counts(chain.from_iterable(theirs[image] for image in images))
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for k, image in enumerate(images):
        among, elsewhere = theirs[image], theirs[images[(k + 1) % len(images)]]
        # Where there is one image only, nothing can be said of habits: then every place is as likely.
        habit = measured.density(total - measured.counts(among))
        own: dict[str, list[Path2D]] = {name: found[image] for name, found in sets.items()}
        # Long paths end at less likely places: ceiling and baseline have no more places than what they stand beside.
        steps = max(len(path) for found in own.values() for path in found)
        if len(images) > 1:
            own[BASELINE] = [path[:steps] for path in elsewhere]
        scores = {who: measured.of(found, among, habit) for who, found in own.items()}
        if len(among) > 1:
            scores[CEILING] = measured.among(among, steps, habit)
        for who, found in scores.items():
            for name, value in found.items():
                values[name, who].append(value)
    rows = []
    for (name, who), each in values.items():
        mean, low, high = bootstrap(each, seed)
        rows.append(
            {"measure": name, "who": who, "images": len(each), "mean": mean, "low": low, "high": high}
        )
    order = list(dict.fromkeys(row["measure"] for row in rows))
    return sorted(rows, key=lambda row: order.index(row["measure"]))


def _by_image(paths: Sequence[Fixations], skip: int) -> dict[str, list[Path2D]]:
    """The places of each path from the one after `skip` on, by image."""
    found: dict[str, list[Path2D]] = defaultdict(list)
    for path in paths:
        if len(path.places) > skip:
            found[path.image].append(path.places[skip:])
    return found


class _Measures:
    """All measures on images of one size."""

    def __init__(self, height: int, width: int, sigma: float) -> None:
        self.height, self.width, self.sigma = height, width, sigma
        self.multimatch = find_spec("multimatch_gaze") is not None

    def counts(self, paths: Iterator[Path2D] | Sequence[Path2D]) -> NDArray[np.float64]:
        """How often each pixel was looked at, blurred: [height, width]."""
        total = np.zeros((self.height, self.width))
        for path in paths:
            total += len(path) * fixation_map(path, self.height, self.width, self.sigma)
        return total

    def density(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """A map that sums to 1 and is nowhere 0."""
        total = counts.sum()
        even = 1 / counts.size
        return (
            (1 - UNIFORM) * counts / total + UNIFORM * even if total > 1e-9 else np.full(counts.shape, even)
        )

    def of(
        self, paths: Sequence[Path2D], others: Sequence[Path2D], habit: NDArray[np.float64]
    ) -> dict[str, float]:
        """The mean of each measure over paths, against other paths on the same image."""
        density = self.density(self.counts(others))
        maps = [self._on_map(path, density, habit) for path in paths]
        pairs = islice(((one, two) for one in paths for two in others), PAIRS)
        return {**_means(maps), **_means([self._aligned(one, two) for one, two in pairs])}

    def among(self, paths: Sequence[Path2D], steps: int, habit: NDArray[np.float64]) -> dict[str, float]:
        """The mean of each measure over the first places of paths, each against all the others."""
        counts = [self.counts([path]) for path in paths]
        total = np.sum(counts, axis=0)
        cut = [path[:steps] for path in paths]
        maps = [
            self._on_map(path, self.density(total - own), habit)
            for path, own in zip(cut, counts, strict=True)
        ]
        pairs = islice(((one, two) for k, one in enumerate(cut) for two in cut[:k]), PAIRS)
        return {**_means(maps), **_means([self._aligned(one, two) for one, two in pairs])}

    def _on_map(
        self, path: Path2D, density: NDArray[np.float64], habit: NDArray[np.float64]
    ) -> dict[str, float]:
        gain = information_gain(density, habit, path)
        return {"NSS": nss(density, path), "AUC": auc(density, path), "information gain": gain}

    def _aligned(self, one: Path2D, two: Path2D) -> dict[str, float]:
        steps = min(len(one), len(two))
        one, two = one[:steps], two[:steps]
        found = {"DTW distance": dtw(one, two), "string edit": string_edit(one, two, self.height, self.width)}
        if self.multimatch and steps >= 3:
            matched = multimatch(one, two, self.height, self.width)
            found |= {f"MultiMatch {name}": value for name, value in matched.items()}
        return found


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each entry over the rows that have it and where it is a number."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if not math.isnan(value):
                found[name].append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}
