"""Digit scenes with handles: every parameter of a scene is an argument and is recorded, trial by trial.

spec = Scenes(size=36, box_overlap=0.4, relation="different")
shown = spec.make(range(100), seed=1)      # trial k is the same whatever else is made
shown.images, shown.annotations.boxes, shown.rows[0]["ink_overlap"]
shown.save("stimuli")                      # PNG files and trials.csv, for PsychoPy or jsPsych
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ocra.data.corruptions import Draws, Floats, check_corruption, corrupt, transformed
from ocra.data.digits import DIGIT_SIZE, DigitPool, digit_pool
from ocra.data.task import Annotations, Batch, TaskConfig, make_task
from ocra.errors import OcraError, UsageError
from ocra.files import rows_to_csv, write_text_atomically

INK = 0.5
"""From this value on a pixel counts as ink, where overlap is measured."""
SIDES = {
    "right": (0,),
    "below": (90,),
    "left": (180,),
    "above": (270,),
    "horizontal": (0, 180),
    "around": None,
}
Box = tuple[int, int, int, int]
"""x, y, width, height of the ink, in pixels from 0"""


@dataclass(frozen=True)
class Scenes:
    """How scenes are made. What is None, or not given, is drawn anew in each trial and recorded."""

    size: int = 36
    """Height and width of the image."""
    objects: int = 2
    """Number of digits to be named."""
    source: Literal["mnist", "glyphs"] = "mnist"
    """Where digits come from."""
    split: str = "test"
    """Split of the digits."""
    classes: tuple[int, ...] | None = None
    """The class of each digit."""
    relation: Literal["different", "same", "any"] = "different"
    """Whether digits are of different classes, of one class, or either."""
    digits: tuple[int, ...] | None = None
    """The digits themselves, by their number in the split (of the test split: number in MNIST's test file)."""
    images: tuple[Any, ...] | None = field(default=None, compare=False)
    """Images of one's own in place of digits, arrays [height, width] in [0, 1], white ink; `classes` names them."""
    positions: tuple[tuple[float, float], ...] | None = None
    """The centre (x, y) of each digit's box of 28 pixels, in pixels."""
    reach: float | None = None
    """How far a centre may lie from the middle, along x and y. None: as far as the box stays inside the image."""
    box_overlap: float | None = None
    """Share of the smaller of two ink's bounding boxes that the other one covers."""
    ink_overlap: float | None = None
    """Share of the ink of the digit with less ink that lies on the other's."""
    distance: float | None = None
    """Distance between the centres of two digits, in pixels."""
    angle: float | None = None
    """Direction from the first to the second digit, in degrees: 0 to the right, 90 down."""
    scale: float | tuple[float, ...] = 1.0
    """Size of all digits, or of each, relative to MNIST's."""
    rotation: float | tuple[float, ...] = 0.0
    """Degrees, clockwise."""
    contrast: float | tuple[float, ...] = 1.0
    """Brightness of the ink, from 0 to 1."""
    polarity: Literal["light", "dark"] = "light"
    """Light ink on black, or dark ink on white."""
    clutter: int = 0
    """Number of clutter pieces."""
    clutter_size: int = 8
    """Height and width of a clutter piece, cut from a random digit."""
    flankers: int = 0
    """Digits beside the first one that are not to be named: one digit, repeated."""
    flanker_distance: float = 28.0
    """Distance of the first flanker's centre from the target's, and of each further one from that before it."""
    flanker_side: Literal["right", "below", "left", "above", "horizontal", "around"] = "horizontal"
    """Where flankers stand: on one side, on both in turn, or in a ring around the target."""
    flanker_class: Literal["other", "same"] = "other"
    """Whether flankers are of another class than the target."""
    corruption: str | None = None
    """A corruption of the whole image, see `ocra.data.corruptions`."""
    severity: float = 3.0
    """Of the corruption, from 0 to 5."""

    def __post_init__(self) -> None:
        if self.size < 8 or self.objects < 1 or min(self.clutter, self.flankers) < 0:
            raise UsageError(
                f"A scene of {self.size} pixels with {self.objects} objects cannot be made: it has at least 8 pixels "
                "and 1 object, and clutter and flankers from 0 on."
            )
        for name in ("classes", "digits", "images", "positions"):
            value = getattr(self, name)
            if value is not None and len(value) != self.objects:
                raise UsageError(f"{name} has {len(value)} entries for {self.objects} objects.")
        if self.images is not None and self.classes is None:
            raise UsageError("Say what your images show: classes=(3, 8), say.")
        fixed = [
            n for n in ("positions", "box_overlap", "ink_overlap", "distance") if getattr(self, n) is not None
        ]
        if len(fixed) > 1:
            raise UsageError(f"{fixed[0]} and {fixed[1]} both say where digits lie; give one of them.")
        if fixed and fixed != ["positions"] and self.objects != 2:
            raise UsageError(f"{fixed[0]} is between two digits; this scene has {self.objects}.")
        check_corruption(self.corruption, self.severity)
        if self.flanker_side not in SIDES:
            raise UsageError(f"Flankers stand {', '.join(SIDES)}, not '{self.flanker_side}'.")
        for name in ("scale", "rotation", "contrast"):
            self.of_each(name)

    def of_each(self, name: str) -> tuple[float, ...]:
        """A parameter that is one number for all digits, or one for each, as one for each."""
        value = getattr(self, name)
        values = tuple(value) if isinstance(value, Sequence) else (value,) * self.objects
        if len(values) != self.objects:
            raise UsageError(f"{name} has {len(values)} entries for {self.objects} objects.")
        return values

    @property
    def pool(self) -> DigitPool:
        """The digits that scenes are made of."""
        return digit_pool(self.source, self.split)

    def change(self, **changes: Any) -> Scenes:
        """The same scenes with other parameters."""
        names = {item.name for item in dataclasses.fields(self)}
        if unknown := sorted(set(changes) - names):
            raise UsageError(
                f"Scenes have no parameter '{unknown[0]}'; they have {', '.join(sorted(names))}."
            )
        return dataclasses.replace(self, **changes)

    def make(self, trials: Iterable[int], seed: int = 0) -> Shown:
        """The scenes of these trials: images, what is in them, and a row of parameters for each."""
        made = [_scene(self, Draws(seed, trial)) for trial in trials]
        if not made:
            raise UsageError("No trial was asked for.")
        classes = np.array([scene.classes for scene in made], dtype=np.int64)
        images = torch.from_numpy(np.stack([scene.image for scene in made])[:, None].astype(np.float32))
        layers = torch.from_numpy(np.stack([scene.layers for scene in made])[:, :, None].astype(np.float32))
        boxes = torch.tensor([scene.boxes for scene in made])
        counts = torch.from_numpy((classes[:, :, None] == np.arange(10)).sum(axis=1).astype(np.float32))
        known = Annotations(layers, boxes, torch.from_numpy(classes))
        return Shown(Batch(images, counts, annotations=known), tuple(scene.row for scene in made))


@dataclass(frozen=True)
class Shown:
    """Scenes that were made."""

    batch: Batch
    """Images, counts of classes, and annotations: each digit alone, and the box of its ink."""
    rows: tuple[dict[str, Any], ...]
    """The parameters of each scene, as arguments and as measured."""

    @property
    def images(self) -> Tensor:
        """float32 [trials, 1, size, size]"""
        return self.batch.images

    @property
    def annotations(self) -> Annotations:
        """Each digit alone, its box and its class."""
        assert self.batch.annotations is not None
        return self.batch.annotations

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a PNG file for each trial, and trials.csv, a row each with the file's name; returns the table."""
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
            names = [f"trial-{row['trial']:05d}.png" for row in self.rows]
            for name, image in zip(names, self.images, strict=True):
                Image.fromarray((image[0] * 255).round().to(torch.uint8).numpy()).save(target / name)
            rows = [{"file": name, **row} for name, row in zip(names, self.rows, strict=True)]
            write_text_atomically(target / "trials.csv", rows_to_csv(rows))
        except OSError as error:
            raise OcraError(f"{folder} could not be written: {error.strerror or error}.") from None
        return target / "trials.csv"


class Stimuli(Protocol):
    """Anything that makes stimuli by their numbers; trial k under a seed is always the same."""

    def make(self, trials: Iterable[int], seed: int = 0) -> Shown:
        """The stimuli of these trials."""


@dataclass(frozen=True)
class TaskScenes:
    """Images of a task as stimuli, with the settings that a condition gives it."""

    task: TaskConfig
    split: str = "test"

    def make(self, trials: Iterable[int], seed: int = 0) -> Shown:
        """The images of these numbers; a row says what is in each and how the task was set."""
        source, numbers = make_task(self.task, self.split, seed), list(trials)
        batch = source.batch(numbers, annotations=True)
        settings = {
            name: " ".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in self.task.to_dict().items()
            if name != "name"
        }
        rows = tuple(
            {"trial": number, "seed": seed, "truth": " ".join(names), **settings}
            for number, names in zip(numbers, batch.names(source.class_names), strict=True)
        )
        return Shown(batch, rows)


@dataclass(frozen=True)
class _Scene:
    image: Floats
    layers: Floats
    boxes: list[Box]
    classes: tuple[int, ...]
    row: dict[str, Any]


def _scene(spec: Scenes, draws: Draws) -> _Scene:
    """One scene, a pure function of its parameters, the seed and the trial."""
    classes, numbers, patches = _choose(spec, draws)
    layers, centres = _place(spec, patches, draws)
    boxes = [ink_box(layer) for layer in layers]
    image = layers.sum(axis=0)
    flankers = _flankers(spec, classes[0], centres[0], draws)
    for piece in (*flankers, *_clutter(spec, draws)):
        image = image + piece
    image = image.clip(0, 1)
    if spec.polarity == "dark":
        image = 1 - image
    if spec.corruption is not None:
        image = corrupt(image, spec.corruption, spec.severity, draws)
    row: dict[str, Any] = {"trial": draws.trial, "seed": draws.seed}
    row |= {"truth": " ".join(map(str, classes)), "digits": " ".join(map(str, numbers))}
    for k, (centre, box) in enumerate(zip(centres, boxes, strict=True), start=1):
        row |= {f"x_{k}": centre[0], f"y_{k}": centre[1]}
        row |= {
            f"ink_{k}_{part}": value for part, value in zip(("x", "y", "width", "height"), box, strict=True)
        }
    for name in ("scale", "rotation", "contrast"):
        row[name] = " ".join(f"{value:g}" for value in dict.fromkeys(spec.of_each(name)))
    if spec.objects == 2:
        row |= {
            "distance": round(math.dist(*centres), 3),
            "box_overlap": round(box_overlap(*boxes), 4),
            "ink_overlap": round(ink_overlap(*layers), 4),
        }
    row |= {name: getattr(spec, name) for name in ("size", "relation", "polarity", "clutter", "clutter_size")}
    if spec.flankers:
        row |= {item: getattr(spec, item) for item in _FLANKER_FIELDS}
    row |= {"corruption": spec.corruption or "none", "severity": spec.severity if spec.corruption else 0}
    return _Scene(image, layers, boxes, classes, row)


_FLANKER_FIELDS = ("flankers", "flanker_distance", "flanker_side", "flanker_class")


def _choose(spec: Scenes, draws: Draws) -> tuple[tuple[int, ...], tuple[int, ...], list[Floats]]:
    """The class, the number in its split and the pixels, scaled and turned, of each digit."""
    scales, turns, contrasts = (spec.of_each(name) for name in ("scale", "rotation", "contrast"))
    if spec.images is not None:
        assert spec.classes is not None
        classes, numbers = spec.classes, tuple(range(spec.objects))
        pixels = [np.asarray(image, dtype=np.float64) for image in spec.images]
    elif spec.digits is not None:
        if max(spec.digits) >= len(spec.pool):
            raise UsageError(f"There is no digit {max(spec.digits)}; the split has {len(spec.pool)}.")
        numbers = spec.digits
        classes = tuple(int(spec.pool.labels[number]) for number in numbers)
        pixels = [spec.pool.images[number] / 255 for number in numbers]
    else:
        classes = spec.classes or _classes(spec, draws)
        numbers = tuple(_digit_of(spec.pool, label, draws, f"digit {k}") for k, label in enumerate(classes))
        pixels = [spec.pool.images[number] / 255 for number in numbers]
    patches = [
        contrast * _resized(image, scale, turn)
        for image, scale, turn, contrast in zip(pixels, scales, turns, contrasts, strict=True)
    ]
    return classes, numbers, patches


def _classes(spec: Scenes, draws: Draws) -> tuple[int, ...]:
    first = draws.integer("class 0", 10)
    if spec.relation == "same":
        return (first,) * spec.objects
    if spec.relation == "any":
        return (first, *(draws.integer(f"class {k}", 10) for k in range(1, spec.objects)))
    if spec.objects > 10:
        raise UsageError(f"There are ten classes: {spec.objects} digits cannot all be of different ones.")
    others = np.argsort(draws.uniform("classes", 10), kind="stable")
    return (first, *(int(label) for label in others[others != first][: spec.objects - 1]))


def _digit_of(pool: DigitPool, label: int, draws: Draws, name: str) -> int:
    """The number in the pool of a random digit of a class."""
    start, end = pool.class_starts[label : label + 2]
    if not 0 <= label <= 9 or end == start:
        raise UsageError(f"There are no digits of class {label}.")
    return int(pool.by_class[start + draws.integer(name, int(end - start))])


def _resized(image: Floats, scale: float, degrees: float) -> Floats:
    if scale == 1 and degrees == 0:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape)
    return transformed(image, scale=scale, degrees=degrees, size=(height, width)).clip(0, 1)


def _place(spec: Scenes, patches: list[Floats], draws: Draws) -> tuple[Floats, list[tuple[float, float]]]:
    """Each digit alone on the canvas [objects, size, size], and their centres."""
    if spec.positions is not None:
        corners = [
            (round(x - (patch.shape[1] - 1) / 2), round(y - (patch.shape[0] - 1) / 2))
            for (x, y), patch in zip(spec.positions, patches, strict=True)
        ]
    else:
        rooms = [_room(spec, patch) for patch in patches]
        if spec.objects == 2 and any(
            value is not None for value in (spec.box_overlap, spec.ink_overlap, spec.distance, spec.angle)
        ):
            corners = _two_corners(spec, patches, rooms, draws)
        else:
            corners = [
                (
                    left + draws.integer(f"x {k}", right - left + 1),
                    top + draws.integer(f"y {k}", bottom - top + 1),
                )
                for k, (left, right, top, bottom) in enumerate(rooms)
            ]
    layers = np.stack(
        [_pasted(spec.size, patch, *corner) for patch, corner in zip(patches, corners, strict=True)]
    )
    centres = [
        (x + (patch.shape[1] - 1) / 2, y + (patch.shape[0] - 1) / 2)
        for (x, y), patch in zip(corners, patches, strict=True)
    ]
    return layers, centres


def _room(spec: Scenes, patch: Floats) -> tuple[int, int, int, int]:
    """The first and last place along x, then along y, of a digit's top left corner."""
    found: list[int] = []
    for side in (patch.shape[1], patch.shape[0]):
        middle = (spec.size - side) / 2
        reach = max(0.0, middle) if spec.reach is None else spec.reach
        found += [round(np.ceil(middle - reach)), round(np.floor(middle + reach))]
        if found[-1] < found[-2]:  # an odd difference of sides, and no reach
            found[-1] = found[-2]
    return found[0], found[1], found[2], found[3]


def _two_corners(
    spec: Scenes, patches: list[Floats], rooms: list[tuple[int, int, int, int]], draws: Draws
) -> list[tuple[int, int]]:
    """Top left corners at which two digits lie as asked for, or as nearly so as there is room."""
    (l1, r1, t1, b1), (l2, r2, t2, b2) = rooms
    # Every displacement from the first corner to the second for which there is room.
    down, across = np.meshgrid(
        np.arange(t2 - b1, b2 - t1 + 1), np.arange(l2 - r1, r2 - l1 + 1), indexing="ij"
    )
    off = [(patches[1].shape[axis] - patches[0].shape[axis]) / 2 for axis in (0, 1)]
    dy, dx = down + off[0], across + off[1]  # between centres
    miss = np.zeros(down.shape)
    if spec.ink_overlap is not None:
        miss = np.abs(_ink_overlaps(patches, down, across) - spec.ink_overlap)
    elif spec.box_overlap is not None:
        miss = np.abs(_box_overlaps(patches, down, across) - spec.box_overlap)
    elif spec.distance is not None:
        miss = np.abs(np.hypot(dx, dy) - spec.distance) / spec.size
    if spec.angle is not None:
        apart = (np.rad2deg(np.arctan2(dy, dx)) - spec.angle + 180) % 360 - 180
        miss = miss + np.where(np.hypot(dx, dy) == 0, 0, np.abs(apart) / 90)
    best = np.flatnonzero(miss <= miss.min() + 0.01)
    chosen = best[draws.integer("displacement", len(best))]
    step_y, step_x = int(down.flat[chosen]), int(across.flat[chosen])
    low_x, high_x = max(l1, l2 - step_x), min(r1, r2 - step_x)
    low_y, high_y = max(t1, t2 - step_y), min(b1, b2 - step_y)
    x = low_x + draws.integer("x 0", high_x - low_x + 1)
    y = low_y + draws.integer("y 0", high_y - low_y + 1)
    return [(x, y), (x + step_x, y + step_y)]


def _box_overlaps(patches: list[Floats], down: NDArray[Any], across: NDArray[Any]) -> Floats:
    """`box_overlap` of two patches for every displacement of the second one's corner."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = (ink_box(patch) for patch in patches)
    wide = np.minimum(x1 + w1, x2 + w2 + across) - np.maximum(x1, x2 + across)
    high = np.minimum(y1 + h1, y2 + h2 + down) - np.maximum(y1, y2 + down)
    return wide.clip(0) * high.clip(0) / max(1, min(w1 * h1, w2 * h2))


def _ink_overlaps(patches: list[Floats], down: NDArray[Any], across: NDArray[Any]) -> Floats:
    """`ink_overlap` of two patches for every displacement of the second one's corner, by correlation."""
    first, second = (_ink(patch).astype(float) for patch in patches)
    shape = [a + b - 1 for a, b in zip(first.shape, second.shape, strict=True)]
    shared = np.fft.irfft2(np.fft.rfft2(first, shape) * np.fft.rfft2(second, shape).conj(), shape)
    apart = (down >= first.shape[0]) | (down <= -second.shape[0])
    apart |= (across >= first.shape[1]) | (across <= -second.shape[1])
    found = shared[down % shape[0], across % shape[1]]
    return np.where(apart, 0, np.rint(found)) / max(1.0, min(first.sum(), second.sum()))


def _flankers(spec: Scenes, target: int, centre: tuple[float, float], draws: Draws) -> list[Floats]:
    """Layers with a flanker each: one digit, repeated."""
    if not spec.flankers:
        return []
    others = [label for label in range(10) if label != target]
    label = target if spec.flanker_class == "same" else others[draws.integer("flanker class", 9)]
    pixels = spec.pool.images[_digit_of(spec.pool, label, draws, "flanker")] / 255
    patch = spec.of_each("contrast")[0] * _resized(
        pixels, spec.of_each("scale")[0], spec.of_each("rotation")[0]
    )
    sides = SIDES[spec.flanker_side]
    layers = []
    for k in range(spec.flankers):
        if sides is None:
            angle, steps = 360 * k / spec.flankers, 1
        else:
            angle, steps = sides[k % len(sides)], k // len(sides) + 1
        length, turn = spec.flanker_distance * steps, np.deg2rad(angle)
        x = centre[0] + length * np.cos(turn) - (patch.shape[1] - 1) / 2
        y = centre[1] + length * np.sin(turn) - (patch.shape[0] - 1) / 2
        layers.append(_pasted(spec.size, patch, round(x), round(y)))
    return layers


def _clutter(spec: Scenes, draws: Draws) -> list[Floats]:
    """Layers with a fragment of a random digit each, anywhere in the image."""
    extent, layers = spec.clutter_size, []
    if spec.clutter and not 1 <= extent <= DIGIT_SIZE:
        raise UsageError(f"clutter_size is {extent}; it must be from 1 to {DIGIT_SIZE} pixels.")
    for k in range(spec.clutter):
        digit = spec.pool.images[draws.integer(f"clutter {k} digit", len(spec.pool))] / 255
        room, inside = spec.size - extent, DIGIT_SIZE - extent
        top, left, y, x = (
            draws.uniform(f"clutter {k}", 4) * [inside + 1, inside + 1, room + 1, room + 1]
        ).astype(int)
        layers.append(_pasted(spec.size, digit[top : top + extent, left : left + extent], x, y))
    return layers


def _pasted(size: int, patch: Floats, x: int, y: int) -> Floats:
    """A patch on an empty canvas, its top left corner at (x, y); what lies outside is cut off."""
    canvas = np.zeros((size, size))
    height, width = patch.shape
    rows = slice(max(0, y), max(0, min(size, y + height)))
    columns = slice(max(0, x), max(0, min(size, x + width)))
    canvas[rows, columns] = patch[rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
    return canvas


def _ink(layer: Floats) -> NDArray[np.bool_]:
    """Where there is ink: at least half as bright as the brightest pixel, so that contrast does not matter."""
    return layer >= max(INK * float(layer.max()), 1e-6)


def ink_box(layer: Floats) -> Box:
    """The bounding box of the ink; without any, all zeros."""
    ink = _ink(layer)
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1


def box_overlap(first: Box, second: Box) -> float:
    """Share of the smaller box that the other one covers."""
    wide = min(first[0] + first[2], second[0] + second[2]) - max(first[0], second[0])
    high = min(first[1] + first[3], second[1] + second[3]) - max(first[1], second[1])
    return max(0, wide) * max(0, high) / max(1, min(first[2] * first[3], second[2] * second[3]))


def ink_overlap(first: Floats, second: Floats) -> float:
    """Share of the ink of the digit with less of it that lies on the other's ink."""
    one, two = _ink(first), _ink(second)
    return float((one & two).sum() / max(1, min(one.sum(), two.sum())))
