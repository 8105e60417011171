"""MultiMNIST: two overlapping digits of different classes."""

import os

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.data.compose import blank, paste, to_images
from ocra.data.digits import DIGIT_SIZE, DigitPool, digit_pool
from ocra.data.random import integers, random_bits, uniforms
from ocra.data.task import Batch, Parts, Task, count_classes
from ocra.errors import UsageError

SIZE = 36
IMAGES_PER_DIGIT = 50


class MultiMNIST(Task):
    """Two digits of different classes on 36×36 pixels, each shifted by up to `max_shift` in x and y; ink adds up.

    Every digit of the split is the first digit of 50 pictures (2.7 M train, 300 k validation, 500 k test); the
    second is any digit of another class. With more than 4 pixels of shift a digit's 28-pixel box may leave the
    canvas, as in the test set of CapsNet's release (6 pixels).
    """

    name = "multimnist"
    class_names = tuple("0123456789")
    image_shape = (1, SIZE, SIZE)

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
        super().__init__(split, seed, parts)
        if not 0 <= max_shift <= 16:
            raise UsageError(f"max_shift is {max_shift}; it must be between 0 and 16 pixels.")
        self.max_shift = max_shift
        self._source = (digits, split, None if root is None else os.fspath(root), download)
        self._length = IMAGES_PER_DIGIT * len(self.pool)

    @property
    def pool(self) -> DigitPool:
        """The digits of this split; looked up, not kept, so that a copy sent to a worker process stays small."""
        return digit_pool(*self._source)

    def __len__(self) -> int:
        return self._length

    def make(self, indices: NDArray[np.int64], parts: bool, single: float) -> Batch:
        pool = self.pool
        # The draws are named by their column, so that adding one later changes no picture.
        bits = random_bits(self.seed, f"multimnist {self.split}", indices, 6)
        first = indices % len(pool)
        chosen = np.stack([first, _of_another_class(pool, pool.labels[first], bits[:, 0])], axis=1)
        shifts = integers(bits[:, 1:5], 2 * self.max_shift + 1).reshape(-1, 2, 2) - self.max_shift
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
            parts=_parts(cut, places - margin, classes) if parts else None,
        )


def _of_another_class(
    pool: DigitPool, labels: NDArray[np.int64], bits: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """For each label a digit of the pool, any but those of that class being equally likely; positions [batch]."""
    start = pool.class_starts[labels]
    in_class = pool.class_starts[labels + 1] - start
    rank = integers(bits, len(pool) - in_class)
    return pool.by_class[np.where(rank >= start, rank + in_class, rank)]


def _parts(layers: NDArray[np.uint16], places: NDArray[np.int64], classes: NDArray[np.int64]) -> Parts:
    """Layers [batch, 2, 36, 36], corners [batch, 2, (x, y)] and classes [batch, 2] as the parts of a batch."""
    boxes = np.concatenate([places, np.full_like(places, DIGIT_SIZE)], axis=2)
    boxes[classes < 0] = 0
    return Parts(to_images(layers[:, :, None]), torch.from_numpy(boxes), torch.from_numpy(classes))
