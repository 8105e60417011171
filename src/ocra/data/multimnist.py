"""MultiMNIST: two overlapping digits of different classes."""

import os

import numpy as np
from numpy.typing import NDArray

from ocra.data.compose import ComposedTask, blank, digit_parts, paste, places_within, to_images
from ocra.data.digits import DIGIT_SIZE, DigitPool
from ocra.data.random import integers, random_bits, uniforms
from ocra.data.task import Batch, count_classes
from ocra.errors import UsageError

SIZE = 36


class MultiMNIST(ComposedTask):
    """Two digits of different classes on 36×36 pixels, each shifted by up to `max_shift` in x and y.

    Ink adds up and is clipped at 1. Every digit of the split is the first digit of 50 pictures (2.7 M train,
    300 k validation, 500 k test); the second is any digit of another class. With more than 4 pixels of shift
    a digit's 28-pixel box may leave the canvas, as in the test set of CapsNet's release (6 pixels).
    """

    name = "multimnist"
    image_shape = (1, SIZE, SIZE)
    images_per_digit = 50

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        split: str = "train",
        digits: str = "mnist",
        max_shift: int = 4,
        seed: int = 0,
        download: bool = False,
        parts: bool = False,
    ) -> None:
        if not 0 <= max_shift <= 16:
            raise UsageError(f"max_shift is {max_shift}; it must be between 0 and 16 pixels.")
        super().__init__(root, split, digits, seed, download, parts)
        self.max_shift = max_shift

    def make_within(self, indices: NDArray[np.int64], parts: bool, single: float, spread: float) -> Batch:
        pool = self.pool
        bits = random_bits(self.seed, f"multimnist {self.split}", indices, 6)
        first = indices % len(pool)
        chosen = np.stack([first, _of_another_class(pool, pool.labels[first], bits[:, 0])], axis=1)
        shifts = places_within(bits[:, 1:5], 2 * self.max_shift, spread).reshape(-1, 2, 2) - self.max_shift
        classes = pool.labels[chosen]
        classes[uniforms(bits[:, 5]) < single, 1] = -1

        # A margin takes what leaves the 36×36 canvas, and is cut off at the end.
        corner = (SIZE - DIGIT_SIZE) // 2
        margin = max(0, self.max_shift - corner)
        places = shifts + corner + margin
        layers = [blank(len(indices), SIZE + 2 * margin, SIZE + 2 * margin) for _ in range(2 if parts else 1)]
        for position in range(2):
            patches = pool.images[chosen[:, position]]
            patches[classes[:, position] < 0] = 0
            paste(layers[position if parts else 0], patches, places[:, position, 0], places[:, position, 1])
        inside = slice(margin, margin + SIZE)
        cut = np.stack(layers, axis=1)[:, :, inside, inside]
        return Batch(
            images=to_images(cut.sum(axis=1, keepdims=True, dtype=np.uint16) if parts else cut),
            counts=count_classes(classes, len(self.class_names)),
            parts=digit_parts(cut, places - margin, classes) if parts else None,
        )


def _of_another_class(
    pool: DigitPool, labels: NDArray[np.int64], bits: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """For each label [batch] the position of a digit of another class, all of those being equally likely."""
    start = pool.class_starts[labels]
    in_class = pool.class_starts[labels + 1] - start
    rank = integers(bits, len(pool) - in_class)
    return pool.by_class[np.where(rank >= start, rank + in_class, rank)]
