"""Same or different: two closed contours in an image (SVRT problem 1, Fleuret and others 2011), by shape families.

The two contours are equal but for their place, or two of the same family; both are scaled to the same size, so
that size tells nothing. Train on some families and test on others: has it learnt shapes, or to compare?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.config import AnswerRule
from ocra.data.random import Ints, integers, random_bits, uniforms
from ocra.data.task import Annotations, Batch, DataSource, Task, TaskConfig, register_task
from ocra.errors import UsageError

Floats = NDArray[np.float64]
POINTS = 240
"""Points along a contour."""
DRAWS = 40
"""Random numbers that one contour may take."""
INK = 1.6
"""Brightness of a contour, in values for each pixel of its length; above 1 so that slanting lines are white too."""


def _blobs(draws: Floats) -> Floats:
    """Smooth outlines: a circle with a few slow waves."""
    return _waves(draws, slowest=2, fastest=5, strength=0.42)


def _coastlines(draws: Floats) -> Floats:
    """Rugged outlines, nearest to those of the SVRT: waves of all lengths."""
    return _waves(draws, slowest=2, fastest=14, strength=0.24)


def _flowers(draws: Floats) -> Floats:
    """Three to six petals, each of its own length."""
    petals, turn = 3 + (4 * draws[:, 0]).astype(int), draws[:, 1]
    at = (_around() + turn[:, None]) % 1 * petals[:, None]
    length = np.take_along_axis(0.55 + 0.45 * draws[:, 2:8], at.astype(int), 1)
    radius = 0.22 + (length - 0.22) * np.sin(np.pi * (at % 1)) ** 1.5
    return _polar(radius)


def _polygons(draws: Floats) -> Floats:
    """Straight-edged, with five to eight corners."""
    corners = 5 + (4 * draws[:, 0]).astype(int)
    angle = (np.arange(8) + 0.8 * draws[:, 1:9]) / corners[:, None] + draws[:, 9:10]
    return _joined(_polar(0.3 + 0.7 * draws[:, 10:18], angle), corners)


def _stars(draws: Floats) -> Floats:
    """Four to seven spikes, each of its own length."""
    spikes = 4 + (4 * draws[:, 0]).astype(int)
    angle = np.arange(14) / (2 * spikes[:, None]) + draws[:, 1:2]
    radius = np.where(np.arange(14) % 2 == 0, 0.5 + 0.5 * draws[:, 2:16], 0.15 + 0.2 * draws[:, 16:17])
    return _joined(_polar(radius, angle), 2 * spikes)


def _blocks(draws: Floats) -> Floats:
    """Right angles only: five columns side by side, each with its own upper and lower end, upright or lying."""
    edges = np.repeat(np.arange(6), 2)[1:-1]  # 0 1 1 2 2 3 3 4 4 5
    upper, lower = 0.4 + 2.1 * draws[:, :5], -0.4 - 2.1 * draws[:, 5:10]
    across = np.broadcast_to(np.concatenate([edges, edges[::-1]]), (len(draws), 20))
    up = np.concatenate([np.repeat(upper, 2, axis=1), np.repeat(lower[:, ::-1], 2, axis=1)], axis=1)
    outline = np.stack([across - 2.5, up], axis=2)
    lying = draws[:, 10] < 0.5
    outline[lying] = outline[lying][:, :, ::-1]
    return _joined(outline, np.full(len(draws), 20))


FAMILIES: dict[str, Callable[[Floats], Floats]] = {
    "blobs": _blobs, "coastlines": _coastlines, "polygons": _polygons, "flowers": _flowers, "stars": _stars,
    "blocks": _blocks,
}  # fmt: skip
"""Contours [n, POINTS, (x, y)] of any size, made from uniform numbers [n, DRAWS]."""
HELD_OUT = ("flowers", "stars", "blocks")
"""Families that training does not see unless asked to."""


@dataclass(frozen=True)
class SameDifferentConfig(TaskConfig):
    """The settings of same or different."""

    families: tuple[str, ...] = tuple(name for name in FAMILIES if name not in HELD_OUT)
    """Shape families that contours are drawn from."""
    size: int = 64
    """Height and width of the image."""
    shape_size: int = 24
    """Longer side of each contour, in pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.families if name not in FAMILIES]
        if not self.families or unknown:
            named = f"'{unknown[0]}' is not one" if unknown else "None is given"
            raise UsageError(f"task.families are of {', '.join(FAMILIES)}. {named}.")
        if not 8 <= self.shape_size <= self.size // 2 - 2:
            raise UsageError(
                f"shape_size is {self.shape_size}; two contours side by side on {self.size} pixels have room for 8 to "
                f"{self.size // 2 - 2}."
            )

    @property
    def source(self) -> DataSource:
        return DataSource(
            "All images are generated; validation and test images have seeds of their own.",
            "mit",
            "Trained on generated images; the program is under the MIT licence.",
        )

    def offline(self) -> SameDifferentConfig:
        return self


@register_task("same-different")
class SameDifferent(Task):
    """Two contours of one family, which do not touch: equal but for their place in half of the images.

    Four classes, of which three are in each image: the first and the second shape, and either same or different
    (the reading of "4 capsules, 3 targets" that gives the network of Adeli and others 2023 its parameters).
    """

    Config = SameDifferentConfig
    config: SameDifferentConfig
    title = "Same or different"
    about = "Two closed contours ({families}) on {size}×{size} pixels: the same but for their place, or not."
    limits = (
        "It compares two outlines of about the size of training; turned or scaled copies are different to it."
    )
    drawing_hint = "Draw two closed outlines"
    class_names = ("first", "second", "same", "different")
    answer_rule = AnswerRule(objects=3, repeats=False)

    def open(self) -> None:
        self.image_shape = (1, self.config.size, self.config.size)

    def __len__(self) -> int:
        return {"train": 54_000, "validation": 6_000, "test": 10_000}[self.split]

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        n, side = len(indices), self.config.shape_size
        bits = random_bits(self.seed, f"{self.name} {self.split}", indices, 2 * DRAWS + 8)
        same = integers(bits[:, 0], 2) == 0
        family = integers(bits[:, 1], len(self.config.families))
        first, second = uniforms(bits[:, 8:]).reshape(n, 2, DRAWS).transpose(1, 0, 2)
        draws = np.concatenate([first, np.where(same[:, None], first, second)])
        patches = np.zeros((2 * n, side, side), np.float32)
        for number, name in enumerate(self.config.families):
            chosen = np.flatnonzero(np.tile(family == number, 2))
            patches[chosen] = draw_contours(FAMILIES[name](draws[chosen]), side)
        places = self._places(bits[:, 2:8])
        canvas = np.zeros((n, 2, self.config.size, self.config.size), np.float32)
        for k in range(n):
            for position, patch in enumerate((patches[k], patches[n + k])):
                x, y = places[k, position]
                canvas[k, position, y : y + side, x : x + side] = patch
        images = torch.from_numpy(canvas.sum(1, keepdims=True))  # the contours do not touch
        counts = torch.ones(n, 4)
        counts[:, 2] = torch.from_numpy(same).float()
        counts[:, 3] = 1 - counts[:, 2]
        if not annotations:
            return Batch(images, counts)
        boxes = np.concatenate([places, np.full_like(places, side)], axis=2)
        classes = torch.arange(2).expand(n, 2).clone()
        known = Annotations(torch.from_numpy(canvas[:, :, None]), torch.from_numpy(boxes), classes)
        return Batch(images, counts, annotations=known)

    def _places(self, bits: NDArray[np.uint64]) -> Ints:
        """Corners [batch, 2, (x, y)] of two boxes, a pixel or more apart along x or along y, anywhere else."""
        room = self.config.size - self.config.shape_size
        spare = (
            room - self.config.shape_size - 1
        )  # how far both can move together along the axis that parts them
        low = integers(bits[:, 0], spare + 1)
        high = room - integers(bits[:, 1], spare - low + 1)
        apart = np.stack([low, high], axis=1)
        swapped = integers(bits[:, 2], 2) == 1
        apart[swapped] = apart[swapped][:, ::-1]
        free = integers(bits[:, 3:5], room + 1)
        places = np.stack([apart, free], axis=2)
        upright = integers(bits[:, 5], 2) == 1
        places[upright] = places[upright][:, :, ::-1]
        return places


def draw_contours(points: Floats, side: int) -> NDArray[np.float32]:
    """Contours [n, POINTS, 2], scaled to fill a square in their longer direction, as images [n, side, side]."""
    low, high = points.min(1), points.max(1)
    scale = (side - 2.0) / (high - low).max(1)
    placed = (points - ((low + high) / 2)[:, None]) * scale[:, None, None] + (side - 1) / 2
    length = np.hypot(
        *(np.roll(placed, -1, axis=1) - placed).transpose(2, 0, 1)
    )  # of the piece after each point
    near = np.floor(placed).astype(int)
    part = placed - near
    image = np.zeros(len(points) * side * side)
    shape = np.arange(len(points))[:, None]
    for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):  # each point is shared out over four pixels
        weight = length * np.abs(1 - right - part[..., 0]) * np.abs(1 - down - part[..., 1])
        pixel = (shape * side + near[..., 1] + down) * side + near[..., 0] + right
        image += np.bincount(pixel.ravel(), weight.ravel(), len(image))
    return np.minimum(INK * image, 1).astype(np.float32).reshape(len(points), side, side)


def _around() -> Floats:
    return np.arange(POINTS) / POINTS


def _polar(radius: Floats, turns: Floats | None = None) -> Floats:
    """Points [n, m, 2] at these radii [n, m] and turns, by default evenly around."""
    angle = 2 * math.pi * (_around() if turns is None else turns)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)


def _waves(draws: Floats, slowest: int, fastest: int, strength: float) -> Floats:
    """A circle whose radius has a wave of each number around it, of random height and phase."""
    numbers = np.arange(slowest, fastest + 1)
    height = draws[:, : len(numbers)] / np.sqrt(numbers)
    phase = 2 * math.pi * draws[:, 20 : 20 + len(numbers)]
    waves = np.cos(2 * math.pi * numbers[:, None] * _around() + phase[:, :, None])
    log_radius = strength * 2 * (height[:, :, None] * waves).sum(1)
    return _polar(np.exp(log_radius))


def _joined(corners: Floats, number: Ints) -> Floats:
    """Points at even distances on straight lines between the first `number` [n] of these corners [n, most, 2]."""
    following = np.take_along_axis(
        corners, ((np.arange(corners.shape[1]) + 1) % number[:, None])[:, :, None], axis=1
    )
    length = np.hypot(*(following - corners).transpose(2, 0, 1))
    length[np.arange(corners.shape[1]) >= number[:, None]] = 0
    reached = np.cumsum(length, axis=1)  # at the end of each line
    at = _around() * reached[:, -1:]
    line = (at[:, :, None] >= reached[:, None]).sum(2)  # which line a point lies on
    start, end, whole, left = (
        np.take_along_axis(each, line.reshape(*line.shape, *(1,) * (each.ndim - 2)), axis=1)
        for each in (corners, following, length, reached)
    )
    share = ((left - at) / whole)[:, :, None]
    return start * share + end * (1 - share)
