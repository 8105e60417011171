"""What each step of a run does, as a pure function of the images seen, so that resuming needs no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ocra.data.random import permutation
from ocra.experiment import Ramp, Stage
from ocra.losses import LossWeights


@dataclass(frozen=True)
class Moment:
    """One step of a run: its stage and the values of the stage at that step."""

    index: int
    """Number of the stage, from 0."""
    stage: Stage
    first: bool
    """Whether the stage begins with this step."""
    lr: float
    shampoo_lr: float
    glimpses: int
    weights: LossWeights
    single_objects: float
    spread: float
    drawn: int
    """Images drawn from the task before this step, those that were not selected included."""


def moment(stages: Sequence[Stage], seen: int, model_glimpses: int) -> Moment:
    """The step that starts after `seen` images."""
    index, begun, drawn = 0, 0, 0
    while index < len(stages) - 1 and seen >= begun + _length(stages[index]):
        begun += _length(stages[index])
        drawn += _length(stages[index]) * stages[index].select
        index += 1
    stage, within = stages[index], seen - begun
    share = min(1.0, within / stage.images)
    # The first step counts as seen, or its learning rate would be zero.
    rise = min(1.0, (within + stage.batch_size) / stage.warmup_images) if stage.warmup_images else 1.0
    eased = share if stage.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * share))
    glimpses = model_glimpses if stage.glimpses is None else stage.glimpses
    if isinstance(glimpses, tuple):
        first, last = glimpses
        numbers = last - first + (1 if last >= first else -1)  # of which each has an equal share of the stage
        glimpses = last if share == 1 else first + int(numbers * share)
    return Moment(
        index,
        stage,
        within == 0,
        rise * _between(stage.lr, eased),
        rise * _between(stage.shampoo_lr, eased),
        glimpses,
        LossWeights(
            _between(stage.reconstruction, share),
            _between(stage.cross_entropy, share),
            _between(stage.over_count, share),
            _between(stage.attention_supervision, share),
            _between(stage.early_answers, share),
        ),
        _between(stage.single_objects, share),
        _between(stage.spread, share),
        drawn + within * stage.select,
    )


def _length(stage: Stage) -> int:
    """Images of a stage, whole batches."""
    return stage.steps * stage.batch_size


def _between(ramp: Ramp, share: float) -> float:
    """The value at a share of the way from start to end."""
    start, end = ramp if isinstance(ramp, tuple) else (ramp, ramp)
    return start + (end - start) * share


def ema_decay(stage: Stage, step: int) -> float:
    """The decay of the averaged weights at a step; shorter at first, so that the random start is forgotten."""
    return min(stage.ema_decay, (1 + step) / (10 + step))


def crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every


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


def share_of(rank: int, processes: int, size: int) -> slice:
    """The contiguous slice of `size` things that one of several processes takes."""
    return slice(rank * size // processes, (rank + 1) * size // processes)


def uses_shampoo(stage: Stage) -> bool:
    """Whether the large matrices of a stage are moved by Shampoo."""
    return stage.shampoo_lr not in (0, (0, 0))
