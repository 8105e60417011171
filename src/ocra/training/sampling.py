"""Which images a step is made of: a pure function of the seed and the position in the run."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ocra.data.random import permutation


def image_indices(seed: int, length: int, start: int, stop: int) -> NDArray[np.int64]:
    """Indices of the images at positions start … stop − 1 of a run over a task of `length` images.

    Each epoch is a shuffle of its own, and its indices go on where those of the last one ended, so that a task
    that makes its images gives fresh ones for ever.
    """
    positions = np.arange(start, stop)
    epochs = positions // length
    indices = np.empty_like(positions)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        indices[here] = epoch * length + _shuffle(seed, length, int(epoch))[positions[here] % length]
    return indices


@lru_cache(maxsize=2)
def _shuffle(seed: int, length: int, epoch: int) -> NDArray[np.int64]:
    """The order of one epoch; two are kept, as a batch may lie across the border."""
    return permutation(seed, f"epoch {epoch}", length)


def share(rank: int, processes: int, size: int) -> slice:
    """The contiguous slice of a batch of `size` that one of several processes takes."""
    return slice(rank * size // processes, (rank + 1) * size // processes)
