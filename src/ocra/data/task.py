"""What every task is: a numbered, endless, repeatable source of pictures with their classes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ocra.data.digits import SPLITS
from ocra.errors import UsageError

NO_DIGIT = 10
"""Stands in a sequence where a house number has no further digit."""


class Annotations(NamedTuple):
    """What a picture is made of. A named tuple, so that a torch DataLoader can stack it."""

    layers: Tensor
    """float32 [batch, objects, channels, height, width]: each object alone"""
    boxes: Tensor
    """int64 [batch, objects, 4]: x, y, width, height in pixels from 0; a box may leave the picture"""
    classes: Tensor
    """int64 [batch, objects]: the class, −1 where there is no object"""


@dataclass(frozen=True)
class Batch:
    """Pictures and what is in them."""

    images: Tensor
    """float32 [batch, channels, height, width] in [0, 1]"""
    counts: Tensor
    """float32 [batch, classes]: how many objects of each class (SVHN: the 14 class targets)"""
    sequence: Tensor | None = None
    """int64 [batch, 5], SVHN only: the digits from left to right, 10 where there is none"""
    parts: Annotations | None = None
    """each object alone, where it was asked for"""

    def __len__(self) -> int:
        return len(self.images)

    def names(self, class_names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The objects in each picture, each as often as it occurs; of a house number the digits from the left."""
        if self.sequence is not None:
            return [tuple(str(digit) for digit in row if digit != NO_DIGIT) for row in self.sequence.tolist()]
        return [
            tuple(name for name, times in zip(class_names, row, strict=True) for _ in range(int(times)))
            for row in self.counts.tolist()
        ]


class Task(Dataset[Any], ABC):
    """A split of a task under a seed. Picture i is the same whatever batch, order or process makes it."""

    name: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """channels, height, width"""
    counts_from_labels = False
    """Whether it is known from the labels alone how many objects an image has"""

    def __init__(self, split: str, seed: int, parts: bool) -> None:
        if split not in SPLITS:
            raise UsageError(f"There is no split '{split}'; choose one of {', '.join(SPLITS)}.")
        self.split = split
        self.seed = seed
        self.parts = parts

    @abstractmethod
    def __len__(self) -> int:
        """Nominal number of pictures in the split."""

    @abstractmethod
    def make(self, indices: NDArray[np.int64], parts: bool, single: float) -> Batch:
        """The pictures of these indices; what `batch` calls once it has checked them."""

    def make_within(self, indices: NDArray[np.int64], parts: bool, single: float, spread: float) -> Batch:
        """As `make`, with objects within a share of their room; a task that places no objects ignores that."""
        return self.make(indices, parts, single)

    def batch(
        self,
        indices: Sequence[int] | NDArray[np.integer],
        *,
        parts: bool = False,
        single: float = 0.0,
        spread: float = 1.0,
    ) -> Batch:
        """The pictures with these numbers, as one batch.

        Numbers beyond len(task) go on: generated tasks with fresh pictures, stored ones (SVHN, own folders)
        with the stored picture index % len(task) under a fresh augmentation. `single` is the share of
        pictures, chosen by each picture's own random stream, that show one object only (own folders ignore
        it). `spread` is the share of the room for their places, around the middle, that objects use (tasks
        that place digits; among clutter that part alone is shown, enlarged).
        """
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
            raise UsageError("A batch is asked for by a list of whole numbers, one per picture.")
        if numbers.size and numbers.min() < 0:
            raise UsageError(f"A picture's number starts at 0; {numbers.min()} is negative.")
        return self.make_within(numbers.astype(np.int64), parts, single, spread)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Annotations]:
        """(image [channels, height, width], counts [classes]), and its Annotations if made with parts."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"picture {index} of a {self.split} split of {len(self)}")
        batch = self.batch([index % len(self)], parts=self.parts)
        if batch.parts is None:
            return batch.images[0], batch.counts[0]
        return batch.images[0], batch.counts[0], Annotations(*(field[0] for field in batch.parts))


def count_classes(classes: NDArray[np.int64], number: int) -> Tensor:
    """How often each class occurs, float32 [batch, number], from classes [batch, objects], −1 none."""
    return torch.from_numpy((classes[:, :, None] == np.arange(number)).sum(axis=1).astype(np.float32))
