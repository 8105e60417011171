"""Pools of single digits, 28×28, from which the tasks compose their pictures."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ocra.data.mnist import load_mnist
from ocra.data.random import permutation
from ocra.errors import UsageError

DIGIT_SIZE = 28
VALIDATION_DIGITS = 6_000
SOURCES = ("mnist", "glyphs")
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class DigitPool:
    """The digits of one split."""

    images: NDArray[np.uint8]
    """[digits, 28, 28], ink 255 on black 0"""
    labels: NDArray[np.int64]
    """[digits], 0 … 9"""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def by_class(self) -> NDArray[np.int64]:
        """Positions in the pool, all zeros first, then all ones, …"""
        return np.argsort(self.labels, kind="stable").astype(np.int64)

    @cached_property
    def class_starts(self) -> NDArray[np.int64]:
        """[11] where each class starts in `by_class`, and the end."""
        return np.searchsorted(self.labels[self.by_class], np.arange(11)).astype(np.int64)


@lru_cache(maxsize=6)
def digit_pool(source: str, split: str, root: str | None = None, download: bool = False) -> DigitPool:
    """The digits of a split: train, validation and test never share one. Held once per process.

    MNIST: validation is 6,000 of the 60,000 training digits, by a fixed shuffle; train is the other 54,000.
    """
    if source == "glyphs":
        from ocra.data.glyphs import glyph_digits

        return DigitPool(*glyph_digits(split))
    if source != "mnist":
        raise UsageError(f"There is no digit source '{source}'; choose one of {', '.join(SOURCES)}.")
    images, labels = load_mnist(train=split != "test", root=root, download=download)
    if split == "test":
        return DigitPool(images, labels)
    shuffled = permutation(0, "mnist validation", len(labels))
    chosen = shuffled[:-VALIDATION_DIGITS] if split == "train" else shuffled[-VALIDATION_DIGITS:]
    return DigitPool(images[chosen], labels[chosen])
