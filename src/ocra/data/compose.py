"""Composing pictures from digits: what the tasks that make their pictures on the fly have in common."""

import os
from abc import abstractmethod

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from ocra.data.digits import DIGIT_SIZE, DigitPool, digit_pool
from ocra.data.random import Bits, integers
from ocra.data.task import Annotations, Batch, Task


class ComposedTask(Task):
    """A task made of the digits of a split, each the first digit of `images_per_digit` pictures."""

    class_names = tuple("0123456789")
    images_per_digit: int

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        split: str,
        digits: str,
        seed: int,
        download: bool,
        parts: bool,
    ) -> None:
        super().__init__(split, seed, parts)
        self._source = (digits, split, None if root is None else os.fspath(root), download)
        self._length = self.images_per_digit * len(self.pool)

    @property
    def pool(self) -> DigitPool:
        """The digits of this split; looked up, not kept, so that a copy sent to a worker process is small."""
        return digit_pool(*self._source)

    def __len__(self) -> int:
        return self._length

    def make(self, indices: NDArray[np.int64], parts: bool, single: float) -> Batch:
        return self.make_within(indices, parts, single, spread=1.0)

    @abstractmethod
    def make_within(self, indices: NDArray[np.int64], parts: bool, single: float, spread: float) -> Batch:
        """The pictures of these indices, with digits within a share of the room for their places."""


def blank(batch: int, height: int, width: int) -> NDArray[np.uint16]:
    """Empty canvases [batch, height, width]; 16 bits, so that sums of bytes do not wrap."""
    return np.zeros((batch, height, width), dtype=np.uint16)


def paste(
    canvas: NDArray[np.uint16], patches: NDArray[np.uint8], x: NDArray[np.int64], y: NDArray[np.int64]
) -> None:
    """Add patch i [batch, h, w] to canvas i [batch, height, width], top-left corner at (x, y), in place.

    Writing through a view of all windows moves whole rows; an index for every pixel would cost several times
    more.
    """
    windows = sliding_window_view(canvas, patches.shape[1:], axis=(1, 2), writeable=True)
    windows[np.arange(len(canvas)), y, x] += patches


def places_within(bits: Bits, room: int, spread: float) -> NDArray[np.int64]:
    """Places from 0 to `room`, equally likely; below a spread of 1 only from that share of them in the middle."""
    first, last = reach_within(room, spread)
    return first + integers(bits, last - first + 1)


def reach_within(room: int, spread: float) -> tuple[int, int]:
    """The first and the last of the places from 0 to `room` that a spread allows."""
    reach = round(spread * room)
    first = (room - reach) // 2
    return first, first + reach


def to_images(canvas: NDArray[np.uint16]) -> Tensor:
    """Canvases [..., height, width] as float32 in [0, 1], sums of ink clipped at 1."""
    return torch.from_numpy(np.multiply(np.minimum(canvas, 255), np.float32(1 / 255), dtype=np.float32))


def digit_parts(
    layers: NDArray[np.uint16], corners: NDArray[np.int64], classes: NDArray[np.int64]
) -> Annotations:
    """Layers [batch, objects, height, width], corners [.., (x, y)] and classes as the parts of a batch."""
    boxes = np.concatenate([corners, np.full_like(corners, DIGIT_SIZE)], axis=2)
    boxes[classes < 0] = 0
    return Annotations(to_images(layers[:, :, None]), torch.from_numpy(boxes), torch.from_numpy(classes))
