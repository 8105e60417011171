"""Your own images: a folder of them, with their labels, becomes a task."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.config import AnswerRule, Preprocessing, check_numbers
from ocra.data.augment import (
    LIGHT_DRAWS,
    VIEW_DRAWS,
    View,
    look,
    move_boxes,
    plain_view,
    random_view,
    relight,
)
from ocra.data.labels import LabelledImage, read_labels
from ocra.data.random import Bits, integers, random_bits, uniforms
from ocra.data.task import Batch, Task, TaskConfig, annotations_in_boxes, register_task
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import border_tone, contrast_with_border, fit_pixels
from ocra.images.reading import DEEP_WHITE, UserImage, read_image

DARK = 0.1
"""A folder of 16-bit images none of which uses more of its range is worth a warning."""
FLIP_DRAWS, SINGLE_DRAWS = 1, 2
DRAWS = VIEW_DRAWS + LIGHT_DRAWS + FLIP_DRAWS + SINGLE_DRAWS
CANDIDATES = 4
"""Places that are tried for an object that is added to an image."""
SPECKS = 0.03
"""Share of what stands out that may lie beyond each side of an object's box."""
LARGEST_PART, FEWEST_PARTS = 0.4, 10
"""Of objects that fill less than this share of their image, at least so many, others are put together."""
MOST_COVERED = 0.3
"""Share of an object's box up to which another may cover it; where more would be, it is not added."""
MOST_FAULTS = 5
"""Unreadable images that are named at once."""
VARIED: dict[str, Any] = {"zoom_around": (1.15, 0.25), "shift": 0.08, "roam": 1.0}
"""Few images have to stand for many: their objects may be anywhere, and of somewhat other sizes."""


@dataclass(frozen=True)
class FolderConfig(TaskConfig):
    """The settings of a folder task."""

    root: str | None = None
    """The folder of images with their labels: a labels.csv, a folder for each class, or a COCO file."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    height: int = 36
    """Height that images are resized and padded to."""
    width: int = 36
    """Width that images are resized and padded to."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, in order. Default: every label that occurs, sorted."""
    augment: bool = True
    """Vary the training images (shift, scale, rotation, contrast, brightness, noise)."""
    flip: bool = False
    """Mirror half of the training images, left to right."""
    contrast: bool = False
    """Show each place's difference from the tone of the image's border, so that any background is dark."""
    compose: float = 0.0
    """Share of the training images that are put together of images of one object; for images with a background."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "task", ("compose",), lambda share: 0 <= share <= 1, "from 0 to 1")
        if self.channels not in (1, 3) or min(self.height, self.width) < 1:
            shape = self.channels, self.height, self.width
            raise UsageError(f"The image shape is {shape}; it must be (1 or 3, height, width).")
        if self.class_names is not None:
            names = tuple(unicodedata.normalize("NFC", name) for name in self.class_names)
            object.__setattr__(self, "class_names", names)
            if len(set(names)) < len(names):
                raise UsageError(f"The classes {', '.join(names)} name one twice.")

    def fitted_to(self, image_shape: tuple[int, int, int]) -> FolderConfig:
        channels, height, width = image_shape
        return replace(self, channels=channels, height=height, width=width)


@register_task("folder")
class FolderTask(Task):
    """The images of a folder with their labels, in any of the formats of `ocra.data.labels`.

    Without a given split a hash of the file's name puts 80 % into train, 10 % into validation and 10 % into test, so
    a file stays in its split when others are added. Images are resized, padded with black and held in memory as
    bytes. Those for training are varied (`augment`). Where the labels have boxes, there are annotations.
    """

    Config = FolderConfig
    config: FolderConfig
    title = "The model's own folder"
    about = "A folder of labelled images."
    limits = "Images unlike those of its folder are outside what it learnt."
    stored = True
    private = True

    def __init__(
        self, config: FolderConfig | None = None, split: str = "train", seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(config, split, seed, **settings)
        config = self.config
        if config.root is None:
            raise UsageError(
                "A folder task needs its folder (root): the one that holds the images and labels."
            )
        self.root = Path(config.root).expanduser()
        self.image_shape = (config.channels, config.height, config.width)
        if config.contrast:
            self.preprocessing = Preprocessing(ink="contrast")
        self.augment = config.augment and split == "train"
        self.flip = config.flip and split == "train"
        labelled = read_labels(config.root, config.class_names)
        self.class_names = config.class_names or names_of(labelled)
        self.answer_rule = rule_of(labelled)
        chosen = [image for image in labelled if image.split == split]
        if not chosen:
            raise OcraError(
                f"No image of {self.root} is in the {split} split. Add more images (there are {len(labelled)}), or say "
                "in a column 'split' of labels.csv which are for train, validation and test."
            )
        self.files = tuple(image.file for image in chosen)
        self._images, sizes = _load_images(
            self.root, tuple(chosen), self.image_shape, _stamps(self.root, chosen), config.contrast
        )
        self._counts = count_labels(chosen, self.class_names)
        self._singles = np.flatnonzero(self._counts.sum(1) == 1)
        self._levels = np.array([(p.mean() / 255, p.std() / 255) for p in self._images], dtype=np.float32)
        if config.contrast:  # black is no difference from the background, and stays black
            self._levels[:, 0] = 0
        most = max(len(image.labels) for image in labelled)
        boxed = most > 0 and all(image.boxes is not None for image in labelled)
        self._objects = (
            _place_objects(chosen, sizes, most, self.class_names, self.image_shape) if boxed else None
        )
        self.compose = config.compose if split == "train" and most > 1 and len(self._singles) else 0.0
        if self.compose:
            self._prepare_to_compose(most)
        if split == "train":
            unseen = [
                name for name, count in zip(self.class_names, self._counts.sum(0), strict=True) if not count
            ]
            if unseen:
                warnings.warn(f"{self.root}: no training image shows {', '.join(unseen)}.", stacklevel=2)

    def __len__(self) -> int:
        return len(self.files)

    def answer_rule_for(self, trained: AnswerRule | None) -> AnswerRule:
        """As trained: how many objects an image has stands in its labels only, and they are what is asked for."""
        return trained or self.answer_rule

    def make(
        self, indices: NDArray[np.int64], *, annotations: bool, single_objects: float, spread: float
    ) -> Batch:
        bits = random_bits(self.seed, f"folder {self.split}", indices, DRAWS)
        rows = indices % len(self)
        chance = uniforms(bits[:, -1])
        if single_objects and len(self._singles):
            cut = chance < single_objects
            rows = np.where(cut, self._singles[integers(bits[:, -2], len(self._singles))], rows)
        composed = np.flatnonzero(chance >= 1 - (1 - single_objects) * self.compose)
        if len(composed):
            rows[composed] = self._parts[integers(bits[composed, -2], len(self._parts))]
        view = self._view(bits)
        images = self._shown(rows, view)
        counts = self._counts[rows]
        size = np.array([self.config.width, self.config.height], dtype=np.float32)
        boxes = classes = None
        if self._objects is not None:
            boxes, classes = move_boxes(self._objects[0][rows], view, size), self._objects[1][rows]
        if len(composed):
            assert boxes is not None and classes is not None
            images[composed], counts[composed], boxes[composed], classes[composed] = self._add_objects(
                indices[composed], rows[composed], images[composed], boxes[composed], classes[composed]
            )
        if self.augment:
            light = bits[:, VIEW_DRAWS : VIEW_DRAWS + LIGHT_DRAWS]
            images = relight(images, self._levels[rows], light, 0.0 if self.config.contrast else 0.3)
        known = None
        if annotations and boxes is not None and classes is not None:
            known = annotations_in_boxes(images, boxes, classes)
        return Batch(images=images, counts=torch.from_numpy(counts), annotations=known)

    def _view(self, bits: Bits) -> View:
        """How each image is shown."""
        view = random_view(bits[:, :VIEW_DRAWS], **VARIED) if self.augment else plain_view(len(bits))
        if self.flip:
            view.matrix[uniforms(bits[:, VIEW_DRAWS + LIGHT_DRAWS]) < 0.5, :, 0] *= -1
        return view

    def _shown(self, rows: NDArray[np.int64], view: View) -> torch.Tensor:
        """Views of the images of these rows."""
        images = torch.from_numpy(self._images[rows].astype(np.float32) / 255)
        return look(images, view, self.image_shape[1:], span=1.0) if self.augment or self.flip else images

    def _add_objects(
        self,
        indices: NDArray[np.int64],
        rows: NDArray[np.int64],
        images: torch.Tensor,
        boxes: NDArray[np.float32],
        classes: NDArray[np.int64],
    ) -> tuple[torch.Tensor, NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        """Images of one object each with further objects, as many as images of the folder have.

        Of `CANDIDATES` single objects, each somewhere, the one is taken that covers least of what is there. Where they
        meet, what differs more from its background is seen.
        """
        counts, every = self._counts[rows].copy(), np.arange(len(rows))
        wanted = self._numbers[
            integers(random_bits(self.seed, "folder numbers", indices, 1)[:, 0], len(self._numbers))
        ]
        size = np.array([self.config.width, self.config.height], dtype=np.float32)
        own = torch.from_numpy(self._tones[rows])[..., None, None]
        for number in range(1, int(wanted.max(initial=1))):
            bits = random_bits(self.seed, f"folder object {number}", indices, CANDIDATES * DRAWS)
            bits = bits.reshape(-1, DRAWS)  # [images · candidates, draws]
            added, view = self._parts[integers(bits[:, -2], len(self._parts))], self._view(bits)
            assert self._objects is not None
            place = move_boxes(self._objects[0][added, :1], view, size).reshape(-1, CANDIDATES, 4)
            cost = _overlap(place, boxes)
            if not self.answer_rule.repeats:
                named = self._counts[added].reshape(len(rows), CANDIDATES, -1)
                cost = cost + 1e6 * (named * counts[:, None]).sum(2)
            best = cost.argmin(1)
            fits = (number < wanted) & (cost[every, best] < MOST_COVERED)
            chosen = CANDIDATES * every + best
            added, view = added[chosen], View(view.matrix[chosen], view.offset[chosen])
            tone = torch.from_numpy(self._tones[added])[..., None, None]
            more, here = self._shown(added, view) - tone, images - own
            stands_out = more.abs().amax(1, keepdim=True) > here.abs().amax(1, keepdim=True)
            stands_out &= torch.from_numpy(fits)[:, None, None, None]
            images = torch.where(stands_out, own + more, images).clamp(0, 1)
            counts[fits] += self._counts[added[fits]]
            boxes[fits, number], classes[fits, number] = (
                place[every, best][fits],
                self._objects[1][added[fits], 0],
            )
        return images, counts, boxes, classes

    def _prepare_to_compose(self, most: int) -> None:
        """Find the objects that images can be put together of."""
        self._tones = np.stack([border_tone(p.transpose(1, 2, 0)) for p in self._images]) / np.float32(255)
        objects = self._find_singles(most) if self._objects is None else self._objects
        area = objects[0][self._singles, 0, 2:].prod(1)
        self._parts = self._singles[
            (area > 0) & (area < LARGEST_PART * self.config.height * self.config.width)
        ]
        self._numbers = np.array([n for n in self._counts.sum(1) if n > 1] or [2], dtype=np.int64)
        if len(self._parts) < FEWEST_PARTS:
            self.compose = 0.0
        else:
            self._objects = objects

    def _find_singles(self, most: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Boxes and classes as of `_place_objects`, known of the images of one object: what differs from the border."""
        boxes = np.zeros((len(self), most, 4), dtype=np.float32)
        classes = np.full((len(self), most), -1, dtype=np.int64)
        for row in self._singles:
            difference = np.abs(self._images[row] / np.float32(255) - self._tones[row][:, None, None]).max(0)
            # Specks apart from the object hold little of what stands out.
            stands_out = np.maximum(difference - difference.max() / 2, 0)
            left, right = _extent(stands_out.sum(0))
            top, bottom = _extent(stands_out.sum(1))
            boxes[row, 0] = left, top, right - left, bottom - top
            classes[row, 0] = self._counts[row].argmax()
        return boxes, classes


def _extent(profile: NDArray[np.float32]) -> tuple[int, int]:
    """First and last + 1 position between which all but `SPECKS` of a profile lies, on either side."""
    share = np.cumsum(profile) / max(float(profile.sum()), 1e-6)
    return int(np.searchsorted(share, SPECKS)), int(np.searchsorted(share, 1 - SPECKS)) + 1


def _overlap(places: NDArray[np.float32], boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest share of a place [batch, candidates, 4] and a box [batch, objects, 4] that they have in common.

    As a share of the smaller of the two: [batch, candidates].
    """
    one, other = places[:, :, None], boxes[:, None]
    near = np.maximum(one[..., :2], other[..., :2])
    far = np.minimum(one[..., :2] + one[..., 2:], other[..., :2] + other[..., 2:])
    smaller = np.minimum(one[..., 2:].prod(-1), other[..., 2:].prod(-1))
    return (np.maximum(far - near, 0).prod(-1) / np.maximum(smaller, 1)).max(2)


def names_of(labelled: list[LabelledImage]) -> tuple[str, ...]:
    """Every label that occurs, sorted."""
    return tuple(sorted({label for image in labelled for label in image.labels}))


def rule_of(labelled: list[LabelledImage]) -> AnswerRule:
    """How many objects an image has, if it is always the same number, and whether a class may occur twice."""
    numbers = {len(image.labels) for image in labelled}
    repeats = any(len(set(image.labels)) < len(image.labels) for image in labelled)
    return AnswerRule(numbers.pop() if len(numbers) == 1 else None, repeats)


def count_labels(labelled: list[LabelledImage], class_names: tuple[str, ...]) -> NDArray[np.float32]:
    """How often each class is named, [images, classes]."""
    counts = [Counter(image.labels) for image in labelled]
    return np.array([[count[name] for name in class_names] for count in counts], dtype=np.float32)


def open_images(root: Path, labelled: Sequence[LabelledImage]) -> Iterator[UserImage]:
    """One image after the other; after the last, a sentence about each that cannot be read and where it is named."""
    faults = []
    for image in labelled:
        try:
            yield read_image(image.content or root / image.file, image.file)
        except OcraError as error:
            faults.append(f"{image.where}: {error}")
    if faults:
        more = [f"And {len(faults) - MOST_FAULTS} more."] if len(faults) > MOST_FAULTS else []
        raise OcraError(" ".join(faults[:MOST_FAULTS] + more))


def _stamps(root: Path, labelled: list[LabelledImage]) -> tuple[tuple[int, int], ...]:
    """Length and time of the last change of each file."""
    files = [os.stat(root / image.file) for image in labelled if image.content is None]
    return tuple((file.st_size, file.st_mtime_ns) for file in files)


@lru_cache(maxsize=3)  # a run makes the tasks of its splits again and again
def _load_images(
    root: Path,
    labelled: tuple[LabelledImage, ...],
    image_shape: tuple[int, int, int],
    stamps: tuple[tuple[int, int], ...],
    contrast: bool,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """The images, uint8 [images, channels, height, width], and the width and height each file has [images, 2].

    stamps: by which files that have changed are known.
    """
    images = np.empty((len(labelled), *image_shape), dtype=np.uint8)
    sizes = np.empty((len(labelled), 2), dtype=np.float32)
    lightest = 0.0
    for position, image in enumerate(open_images(root, labelled)):
        lightest = max(lightest, image.white)
        pixels = image.pixels * np.float32(image.white)
        if contrast:
            pixels = contrast_with_border(pixels, image_shape[0])
        images[position] = fit_pixels(pixels, image_shape)
        sizes[position] = image.width, image.height
    if lightest < DARK:
        warnings.warn(
            f"The 16-bit images of {root} hold no value above {round(lightest * DEEP_WHITE)} of {DEEP_WHITE}, so "
            "they are nearly black; scale them all by one factor to the full range.",
            stacklevel=2,
        )
    return images, sizes


def _place_objects(
    labelled: list[LabelledImage],
    sizes: NDArray[np.float32],
    most: int,
    class_names: tuple[str, ...],
    image_shape: tuple[int, int, int],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Boxes [images, most, 4] as `fit_pixels` shows them, and classes [images, most], −1 where there is no object."""
    boxes = np.zeros((len(labelled), most, 4), dtype=np.float32)
    classes = np.full((len(labelled), most), -1, dtype=np.int64)
    _, height, width = image_shape
    for position, image in enumerate(labelled):
        scale = min(width / sizes[position, 0], height / sizes[position, 1])
        offset = (np.array([width, height]) - scale * sizes[position]) // 2
        for number, (label, box) in enumerate(zip(image.labels, image.boxes or (), strict=True)):
            boxes[position, number] = scale * np.array(box)
            boxes[position, number, :2] += offset
            classes[position, number] = class_names.index(label)
    return boxes, classes
