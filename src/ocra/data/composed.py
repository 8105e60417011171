"""Images composed of digits on the fly: one, two that overlap, two among fragments, any number of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from ocra.config import AnswerRule, Preprocessing, check_numbers
from ocra.data.augment import Floats, Nuisance, change_pen, degrade, place_digits, random_nuisance
from ocra.data.digits import DIGIT_SIZE, DigitPool, digit_pool
from ocra.data.random import Bits, Ints, integers, random_bits, uniforms
from ocra.data.task import Annotations, Batch, DataSource, Task, TaskConfig, register_task
from ocra.errors import UsageError

Canvas = NDArray[np.uint16]
"""Ink as bytes, in 16 bits so that sums do not wrap."""
Ink = Canvas | NDArray[np.float32]
"""From 0 to 255, or more where digits lie over one another."""
SIZE = 36
"""Height and width of a MultiMNIST image."""
SOURCES = {
    "mnist": DataSource(
        "The digits are 54,000 of MNIST's 60,000 training digits; the other 6,000 serve validation, and the test "
        "images are made from MNIST's test digits.",
        "cc-by-sa-3.0",
        "Trained on MNIST (Y. LeCun, C. Cortes, C. J. C. Burges), which is licensed CC BY-SA 3.0; the program is "
        "under the MIT licence.",
        ("ylecun/mnist",),
    ),
    "glyphs": DataSource(
        "The digits are glyphs drawn from fonts.",
        "mit",
        "Trained on digits drawn from fonts; the program is under the MIT licence.",
    ),
}


@dataclass(frozen=True)
class ComposedConfig(TaskConfig):
    """Where the single digits come from."""

    digits: Literal["mnist", "glyphs"] = "mnist"
    """MNIST, or glyphs drawn from fonts (no download)."""
    root: str | None = None
    """Folder with MNIST. Default: $OCRA_DATA, then the cache folder."""
    download: bool = False
    """Download MNIST where it is missing."""
    nuisance: float = 0.0
    """Share of the images under nuisance: faint ink, a grey background, noise, blur, other sizes (±20 %) and pens."""
    scale: float = 1.0
    """Size of the digits, relative to MNIST's (or to what they would be otherwise), about the same middles."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, "nuisance")
        check_numbers(self, "task", ("scale",), lambda value: 0.2 <= value <= 5, "from 0.2 to 5")
        if self.digits not in SOURCES:
            raise UsageError(f"There is no digit source '{self.digits}'; choose one of {', '.join(SOURCES)}.")

    @property
    def source(self) -> DataSource:
        return SOURCES[self.digits]

    def offline(self) -> ComposedConfig:
        return replace(self, digits="glyphs", root=None, download=False)


def check_shares(config: TaskConfig, *names: str) -> None:
    """Refuse settings that are no shares."""
    check_numbers(config, "task", names, lambda value: 0 <= value <= 1, "from 0 to 1")


class ComposedTask(Task):
    """A task made of the digits of a split, each the first digit of `images_per_digit` images."""

    Config = ComposedConfig
    config: ComposedConfig
    class_names = tuple("0123456789")
    images_per_digit: int

    def open(self) -> None:
        self._length = self.images_per_digit * len(self.pool)

    @property
    def pool(self) -> DigitPool:
        """The digits of this split; looked up, not kept, so that a copy sent to a worker process is small."""
        return digit_pool(self.config.digits, self.split, self.config.root, self.config.download)

    def __len__(self) -> int:
        return self._length

    def nuisance(self, indices: Ints, objects: int) -> Nuisance | None:
        """The nuisance that the images of these indices, of so many digits each, are under; None where it is none."""
        if self.config.nuisance == 0:
            return None
        return random_nuisance(self.seed, f"{self.name} {self.split}", indices, objects, self.config.nuisance)

    def draw(
        self, chosen: Ints, classes: Ints, places: Ints, side: int, apart: bool, nuisance: Nuisance | None
    ) -> Canvas:
        """The chosen digits [batch, objects], but those of class −1, with their corners at places [.., (x, y)].

        All on one canvas [batch, 1, side, side], or apart [batch, objects, side, side]. Nuisance changes their pens
        and, around the middle of their boxes, their sizes.
        """
        zoom = self.zoom(chosen.shape, nuisance)
        beyond = max(0, math.ceil(DIGIT_SIZE / 2 * (zoom.max(initial=1) - 1)))  # of its box, on each side
        canvas = np.zeros(
            (len(chosen), chosen.shape[1] if apart else 1, side + 2 * beyond, side + 2 * beyond), np.uint16
        )
        for position in range(chosen.shape[1]):
            patches = self.pool.images[chosen[:, position]]
            if nuisance is not None or self.config.scale != 1:
                pen = np.zeros(len(patches), np.float32) if nuisance is None else nuisance.pen[:, position]
                patches = _vary(patches, pen, zoom[:, position], beyond)
            patches[classes[:, position] < 0] = 0
            _paste(canvas[:, position if apart else 0], patches, *places[:, position].T)
        return canvas[:, :, beyond : beyond + side, beyond : beyond + side]

    def zoom(self, shape: tuple[int, ...], nuisance: Nuisance | None) -> Floats:
        """Size of each digit [batch, objects], relative to MNIST's."""
        zoom = np.full(shape, self.config.scale, np.float32)
        return zoom if nuisance is None else zoom * nuisance.zoom

    def add_fragments(self, canvas: Ink, bits: Bits, extent: int, numbers: Ints | None = None) -> None:
        """Add fragments of digits, extent × extent pixels, to canvases [batch, size, size], in place.

        Five draws for each: bits [batch, 5 · fragments]. numbers [batch]: how many of them; all by default.
        """
        fragments = sliding_window_view(self.pool.images, (extent, extent), axis=(1, 2))
        for k, draws in enumerate(bits.reshape(len(bits), -1, 5).swapaxes(0, 1)):
            which = np.arange(len(canvas)) if numbers is None else np.flatnonzero(numbers > k)
            draws = draws[which]
            digit = integers(draws[:, 0], len(self.pool))
            from_y, from_x = integers(draws[:, 1:3], DIGIT_SIZE - extent + 1).T
            to_x, to_y = integers(draws[:, 3:5], canvas.shape[-1] - extent + 1).T
            _paste(canvas, fragments[digit, from_y, from_x], to_x, to_y, which)

    def as_batch(
        self,
        canvas: Ink,
        classes: Ints,
        layers: Ink | None,
        corners: Ints,
        nuisance: Nuisance | None,
        sizes: Ints | None = None,
    ) -> Batch:
        """Canvases [batch, 1, height, width] and classes [batch, objects], −1 for none; layers if annotated.

        Boxes have their corners [batch, objects, 2] and sizes [batch, objects]; without sizes they are MNIST's boxes,
        zoomed as `draw` does.
        """
        counts = (classes[:, :, None] == np.arange(len(self.class_names))).sum(axis=1).astype(np.float32)
        images = _to_images(canvas)
        batch = Batch(images if nuisance is None else degrade(images, nuisance), torch.from_numpy(counts))
        if layers is None:
            return batch
        if sizes is None:
            sizes = 2 * np.rint(DIGIT_SIZE / 2 * self.zoom(classes.shape, nuisance)).astype(np.int64)
            corners = corners + (DIGIT_SIZE - sizes[:, :, None]) // 2
        boxes = np.concatenate([corners, np.stack([sizes, sizes], axis=2)], axis=2)
        boxes[classes < 0] = 0
        tensors = torch.from_numpy(boxes), torch.from_numpy(classes)
        return replace(batch, annotations=Annotations(_to_images(layers[:, :, None]), *tensors))


@dataclass(frozen=True)
class MNISTConfig(ComposedConfig):
    """The settings of MNIST."""

    size: int = 28
    """Height and width of the image."""
    max_shift: int = 0
    """How far the digit moves from the centre, in pixels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < DIGIT_SIZE or not 0 <= self.max_shift <= 16:
            raise UsageError(
                f"size is {self.size}, max_shift {self.max_shift}; an image must hold a digit of {DIGIT_SIZE} pixels, "
                "which moves by up to 16."
            )


@register_task("mnist")
class MNIST(ComposedTask):
    """One digit, 28×28 pixels in the middle of `size` × `size`, shifted by up to `max_shift` in x and y.

    Every digit of the split is one image (54 k train, 6 k validation, 10 k test). What leaves the image is cut off.
    """

    Config = MNISTConfig
    config: MNISTConfig
    title = "Single digits"
    about = "MNIST: one digit on {size}×{size} pixels, shifted by up to {max_shift} pixels."
    limits = "It always names one digit; digits of another size are outside what it learnt."
    drawing_hint = "Draw a digit"
    pen_width = 0.09
    preprocessing = Preprocessing("content", "handwriting", digit_height=20)
    answer_rule = AnswerRule(1, repeats=False)
    images_per_digit = 1

    def open(self) -> None:
        super().open()
        self.image_shape = (1, self.config.size, self.config.size)

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        size, shift = self.config.size, self.config.max_shift
        bits = random_bits(self.seed, f"mnist {self.split}", indices, 2)
        chosen = (indices % len(self.pool))[:, None]
        classes = self.pool.labels[chosen]
        corner = (size - DIGIT_SIZE) // 2
        margin = max(0, shift - corner)  # takes what leaves the image, and is cut off at the end
        places = (_places_within(bits, 2 * shift, spread) - shift + corner + margin)[:, None]
        inside = slice(margin, margin + size)
        nuisance = self.nuisance(indices, 1)
        canvas = self.draw(chosen, classes, places, size + 2 * margin, annotations, nuisance)
        canvas = canvas[:, :, inside, inside]
        return self.as_batch(canvas, classes, canvas if annotations else None, places - margin, nuisance)


@dataclass(frozen=True)
class MultiMNISTConfig(ComposedConfig):
    """The settings of MultiMNIST."""

    max_shift: int = 4
    """How far each digit moves from the centre, in pixels (6: the second test set, as CapsNet's)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_shift <= 16:
            raise UsageError(f"max_shift is {self.max_shift}; it must be between 0 and 16 pixels.")


@register_task("multimnist")
class MultiMNIST(ComposedTask):
    """Two digits of different classes on 36×36 pixels, each shifted by up to `max_shift` in x and y.

    Ink adds up and is clipped at 1. Every digit of the split is the first digit of 50 images (2.7 M train,
    300 k validation, 500 k test); the second is any digit of another class. With more than 4 pixels of shift
    a digit's 28-pixel box may leave the canvas, as in the test set of CapsNet's release (6 pixels).
    """

    Config = MultiMNISTConfig
    config: MultiMNISTConfig
    title = "Overlapping digits"
    about = (
        "MultiMNIST, made on the fly: two overlapping digits of different classes on 36×36 pixels, each shifted by "
        "up to {max_shift} pixels."
    )
    limits = (
        "It always names two different digits: images with one digit, with three, or with the same digit twice are "
        "outside what it learnt, as are digits of another size."
    )
    scene = "overlapping pairs of"
    drawing_hint = "Draw two digits,\none over the other"
    pen_width = 0.075
    preprocessing = Preprocessing("content", "handwriting", digit_height=20)
    image_shape = (1, SIZE, SIZE)
    answer_rule = AnswerRule(2, repeats=False)
    images_per_digit = 50

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        pool, max_shift = self.pool, self.config.max_shift
        bits = random_bits(self.seed, f"multimnist {self.split}", indices, 6)
        first = indices % len(pool)
        chosen = np.stack([first, _of_another_class(pool, pool.labels[first], bits[:, 0])], axis=1)
        shifts = _places_within(bits[:, 1:5], 2 * max_shift, spread).reshape(-1, 2, 2) - max_shift
        classes = pool.labels[chosen]
        classes[uniforms(bits[:, 5]) < single_objects, 1] = -1

        # A margin takes what leaves the 36×36 canvas, and is cut off at the end.
        corner = (SIZE - DIGIT_SIZE) // 2
        margin = max(0, max_shift - corner)
        places = shifts + corner + margin
        inside = slice(margin, margin + SIZE)
        nuisance = self.nuisance(indices, 2)
        drawn = self.draw(chosen, classes, places, SIZE + 2 * margin, annotations, nuisance)
        drawn = drawn[:, :, inside, inside]
        canvas = drawn.sum(axis=1, keepdims=True, dtype=np.uint16) if annotations else drawn
        return self.as_batch(canvas, classes, drawn if annotations else None, places - margin, nuisance)


def _of_another_class(pool: DigitPool, labels: Ints, bits: Bits) -> Ints:
    """For each label [batch] the position of a digit of another class, all of those being equally likely."""
    start = pool.class_starts[labels]
    in_class = pool.class_starts[labels + 1] - start
    rank = integers(bits, len(pool) - in_class)
    return pool.by_class[np.where(rank >= start, rank + in_class, rank)]


@dataclass(frozen=True)
class ClutteredConfig(ComposedConfig):
    """The settings of cluttered MNIST."""

    size: int = 100
    """Height and width of the image."""
    objects: int = 2
    """Number of digits."""
    distractors: int = 6
    """Number of fragments of other digits."""
    distractor_size: int = 8
    """Height and width of a fragment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < DIGIT_SIZE:
            raise UsageError(f"size is {self.size}; an image must hold a digit of {DIGIT_SIZE} pixels.")
        if self.objects < 1 or self.distractors < 0 or self.objects + self.distractors > 250:
            raise UsageError(
                f"{self.objects} objects and {self.distractors} distractors: 1 to 250 objects in all, please."
            )
        if not 1 <= self.distractor_size <= DIGIT_SIZE:
            raise UsageError(
                f"distractor_size is {self.distractor_size}; it must be from 1 to {DIGIT_SIZE} pixels."
            )


@register_task("cluttered")
class ClutteredMNIST(ComposedTask):
    """Two digits, wholly inside 100×100 pixels, classes may repeat, and six 8×8 fragments of random digits.

    Every digit of the split is the first digit of 3 images (162 k train, 18 k validation, 30 k test). Ink adds up
    and is clipped at 1. Annotated are the digits, not the fragments. Below a spread of 1 the digits lie near the
    middle, and that part alone is shown, enlarged to the whole image.
    """

    Config = ClutteredConfig
    config: ClutteredConfig
    title = "Digits in clutter"
    about = (
        "Cluttered MNIST, made on the fly: {objects} digits, which may be of one class, and {distractors} fragments "
        "of others, {distractor_size}×{distractor_size} pixels each, anywhere on {size}×{size} pixels."
    )
    limits = (
        "It always names two digits, of MNIST's size: other numbers of digits and other sizes are outside what it "
        "learnt."
    )
    scene = "pairs, among clutter, of"
    drawing_hint = "Draw two small digits\nanywhere"
    pen_width = 0.026
    preprocessing = Preprocessing("content", "handwriting", digit_height=20, digits_apart=True)
    image_shape = (1, 100, 100)
    answer_rule = AnswerRule(2)
    images_per_digit = 3

    def open(self) -> None:
        super().open()
        self.image_shape = (1, self.config.size, self.config.size)
        self.answer_rule = AnswerRule(self.config.objects)

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        pool, config = self.pool, self.config
        stream = f"cluttered {self.split}"
        bits = random_bits(self.seed, stream, indices, 1 + 3 * config.objects)
        chosen = integers(bits[:, 1::3], len(pool))
        chosen[:, 0] = indices % len(pool)
        places = _places_within(
            np.stack([bits[:, 2::3], bits[:, 3::3]], axis=2), config.size - DIGIT_SIZE, spread
        )
        classes = pool.labels[chosen]
        classes[uniforms(bits[:, 0]) < single_objects, 1:] = -1

        nuisance = self.nuisance(indices, config.objects)
        drawn = self.draw(chosen, classes, places, config.size, annotations, nuisance)
        canvas = drawn.sum(axis=1, keepdims=True, dtype=np.uint16) if annotations else drawn
        clutter = random_bits(self.seed, stream + " clutter", indices, 5 * config.distractors)
        self.add_fragments(canvas[:, 0], clutter, config.distractor_size)
        batch = self.as_batch(canvas, classes, drawn if annotations else None, places, nuisance)
        return batch if spread == 1 else self._enlarged(batch, spread)

    def enlarged_by(self, spread: float) -> float:
        start, last = _reach_within(self.config.size - DIGIT_SIZE, spread)
        return self.config.size / (last + DIGIT_SIZE - start)

    def _enlarged(self, batch: Batch, spread: float) -> Batch:
        """Show the middle, where the digits of this spread lie, as large as the whole image."""
        size = self.config.size
        start, last = _reach_within(size - DIGIT_SIZE, spread)
        inside = slice(start, last + DIGIT_SIZE)

        def enlarge(images: Tensor) -> Tensor:
            return F.interpolate(images[..., inside, inside], size=(size, size), mode="bilinear")

        known = batch.annotations
        if known is not None:
            shift = torch.tensor([start, start, 0, 0])
            boxes = ((known.boxes - shift) * self.enlarged_by(spread)).round().long()
            boxes[known.classes < 0] = 0
            known = Annotations(enlarge(known.layers[:, :, 0])[:, :, None], boxes, known.classes)
        return replace(batch, images=enlarge(batch.images), annotations=known)


@dataclass(frozen=True)
class AnyDigitsConfig(ComposedConfig):
    """The settings of any digits."""

    size: int = 64
    """Height and width of the image."""
    objects: int = 4
    """Most digits in an image; every number from 0 on is equally likely."""
    smallest: int = 14
    """Side of the smallest digit's box in pixels; MNIST's is 28, of which the ink takes up to 20."""
    largest: int = 40
    """Side of the largest digit's box."""
    overlapping: float = 0.3
    """Share of the images in which a digit may cover 0.4 of another; in the others they lie apart. Where there is no
    room, a digit becomes smaller."""
    clutter: float = 0.3
    """Share of the images with fragments of other digits."""
    distractors: int = 4
    """Most fragments; every number from 1 on is equally likely."""
    distractor_size: int = 6
    """Height and width of a fragment."""
    nuisance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 8 <= self.smallest <= self.largest <= self.size:
            raise UsageError(
                f"Digits of {self.smallest} to {self.largest} pixels on an image of {self.size}: at least 8, at most "
                "the image's side, and the smallest first, please."
            )
        if not 1 <= self.objects <= 20 or not 1 <= self.distractors <= 100:
            raise UsageError(
                f"{self.objects} objects, {self.distractors} distractors: 1 to 20 and 1 to 100, please."
            )
        if not 1 <= self.distractor_size <= DIGIT_SIZE:
            raise UsageError(
                f"distractor_size is {self.distractor_size}; it must be from 1 to {DIGIT_SIZE} pixels."
            )
        check_shares(self, "overlapping", "clutter")


@register_task("digits-any")
class AnyDigits(ComposedTask):
    """Zero to four digits on 64×64 pixels, classes may repeat, boxes of 14 to 40 pixels, wholly inside.

    Some lie over one another, some among fragments, half of the images are under nuisance. Ink adds up and is
    clipped at 1. 162 k images to train on, 18 k for validation, 30 k for test. Annotated are the digits alone, without
    nuisance but for their pen.
    """

    Config = AnyDigitsConfig
    config: AnyDigitsConfig
    title = "Any digits"
    about = (
        "Made on the fly: 0 to {objects} digits, which may be of one class, of {smallest} to {largest} pixels each, "
        "apart or overlapping, on {size}×{size} pixels; fragments of others, noise, blur, faint ink, a grey "
        "background and thin or thick pens at times."
    )
    limits = "It names up to four digits; more, and other signs, are outside what it learnt."
    scene = "up to four, of any size, of"
    drawing_hint = "Draw up to four digits\nanywhere"
    pen_width = 0.045
    preprocessing = Preprocessing("content", "handwriting", digit_height=20, digits_apart=True)
    image_shape = (1, 64, 64)
    answer_rule = AnswerRule(None)
    images_per_digit = 3

    def open(self) -> None:
        super().open()
        self.image_shape = (1, self.config.size, self.config.size)

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        config, stream = self.config, f"digits-any {self.split}"
        bits = random_bits(self.seed, stream, indices, 4 + config.objects * (2 + 2 * TRIES))
        number = integers(bits[:, 0], config.objects + 1)
        number[(uniforms(bits[:, 1]) < single_objects) & (number > 1)] = 1
        there = np.arange(config.objects) < number[:, None]
        draws = bits[:, 4:].reshape(len(bits), config.objects, -1)
        chosen = integers(draws[:, :, 0], len(self.pool))
        sizes = config.smallest + integers(draws[:, :, 1], config.largest - config.smallest + 1)
        sizes = np.rint(config.scale * sizes).astype(np.int64).clip(1, config.size)
        smallest = max(1, round(config.scale * config.smallest))
        limit = np.where(uniforms(bits[:, 2]) < config.overlapping, MOST_COVERED, 0.0)
        places = draws[:, :, 2:].reshape(*there.shape, TRIES, 2)
        corners, sizes = _placed(places, sizes, smallest, there, limit, config.size)

        nuisance = self.nuisance(indices, config.objects)
        digits = torch.from_numpy(self.pool.images[chosen[there]]).float()
        if nuisance is not None:
            digits = change_pen(digits, nuisance.pen[there])
        layers = np.zeros((*there.shape, config.size, config.size), np.float32)
        layers[there] = place_digits(digits, corners[there], sizes[there], config.size)
        canvas = layers.sum(axis=1, keepdims=True)
        fragments = 1 + integers(bits[:, 3], config.distractors)
        fragments[uniforms(bits[:, 3] << np.uint64(32)) >= config.clutter] = 0
        clutter = random_bits(self.seed, stream + " clutter", indices, 5 * config.distractors)
        self.add_fragments(canvas[:, 0], clutter, config.distractor_size, fragments)

        classes = np.where(there, self.pool.labels[chosen], -1)
        return self.as_batch(canvas, classes, layers if annotations else None, corners, nuisance, sizes)


TRIES, TRIES_OF_A_SIZE = 16, 4
"""Places that are tried for each digit: so many as large as it is, then as many for each smaller size."""
SMALLER = 0.8
"""A digit that has no room becomes so much smaller, and again, down to the smallest that a digit may be."""
MOST_COVERED = 0.4
"""How much of the smaller of two digits the other may cover where they are to overlap."""


def _placed(
    bits: Bits, sizes: Ints, smallest: int, there: NDArray[np.bool_], limit: NDArray[np.float64], side: int
) -> tuple[Ints, Ints]:
    """Corners (x, y) [batch, objects, 2] of boxes inside the image, and their sizes, which may have become smaller.

    Of the places tried for a digit (bits [batch, objects, tries, 2]) it takes the first where it shares no more than a
    limit [batch] with those before it that are there, as a share of the smaller one's area, or else the one where it
    shares least. Sizes and there: [batch, objects].
    """
    shrunk = np.rint(sizes[:, :, None] * SMALLER ** (np.arange(TRIES) // TRIES_OF_A_SIZE)).astype(np.int64)
    tried = np.maximum(shrunk, np.minimum(smallest, sizes)[:, :, None])  # [batch, objects, tries]
    places = integers(bits, (side - tried + 1)[..., None])
    # Of a digit's box the ink fills about the middle five sevenths.
    margin = (tried // 7)[..., None]
    near, far = places + margin, places + tried[..., None] - margin
    areas = (tried - 2 * margin[..., 0]) ** 2
    corners, taken_sizes = np.zeros((*there.shape, 2), np.int64), np.zeros_like(sizes)
    taken, area = np.zeros((*there.shape, 2, 2), np.int64), np.zeros_like(sizes)
    rows = np.arange(len(bits))
    for k in range(there.shape[1]):
        low = np.maximum(near[:, k, :, None], taken[:, None, :k, 0])  # [batch, tries, before, 2]
        high = np.minimum(far[:, k, :, None], taken[:, None, :k, 1])
        smaller = np.minimum(areas[:, k, :, None], area[:, None, :k])
        shares = (high - low).clip(min=0).prod(axis=3) / smaller
        shared = (shares * there[:, None, :k]).max(axis=2, initial=0)
        best = (shared - limit[:, None]).clip(min=0).argmin(axis=1)
        corners[:, k], taken_sizes[:, k] = places[rows, k, best], tried[rows, k, best]
        taken[:, k] = np.stack([near[rows, k, best], far[rows, k, best]], axis=1)
        area[:, k] = areas[rows, k, best]
    return corners, taken_sizes


def _vary(patches: NDArray[np.uint8], pen: Floats, zoom: Floats, beyond: int) -> NDArray[np.uint8]:
    """Digits [batch, 28, 28] drawn by other pens [batch] and zoomed [batch] around the middle, so much more around."""
    digits = change_pen(torch.from_numpy(patches).float(), pen)
    corners = np.repeat(beyond + DIGIT_SIZE / 2 * (1 - zoom[:, None]), 2, axis=1)
    placed = place_digits(digits, corners, DIGIT_SIZE * zoom, DIGIT_SIZE + 2 * beyond)
    return placed.round().byte().numpy()


def _paste(canvas: Ink, patches: NDArray[np.uint8], x: Ints, y: Ints, which: Ints | None = None) -> None:
    """Add patch i [n, h, w] to canvas i [batch, height, width], or to which[i], corner at (x, y), in place.

    Writing through a view of all windows moves whole rows; an index for every pixel would cost several times more.
    """
    windows: NDArray[Any] = sliding_window_view(canvas, patches.shape[1:], axis=(1, 2), writeable=True)
    windows[np.arange(len(canvas)) if which is None else which, y, x] += patches


def _places_within(bits: Bits, room: int, spread: float) -> Ints:
    """Places from 0 to `room`, equally likely; below a spread of 1 only from that share of them in the middle."""
    first, last = _reach_within(room, spread)
    return first + integers(bits, last - first + 1)


def _reach_within(room: int, spread: float) -> tuple[int, int]:
    """The first and the last of the places from 0 to `room` that a spread allows."""
    reach = round(spread * room)
    first = (room - reach) // 2
    return first, first + reach


def _to_images(canvas: Ink) -> Tensor:
    """Canvases [..., height, width] as float32 in [0, 1], sums of ink clipped at 1."""
    return torch.from_numpy(np.multiply(np.minimum(canvas, 255), np.float32(1 / 255), dtype=np.float32))
