"""What changes during a run, each a pure function of the images seen, so that resuming needs no state."""

from __future__ import annotations

import math

from ocra.training.config import TrainingConfig


def learning_rate(training: TrainingConfig, seen: int) -> float:
    """The learning rate of the step that starts after `seen` images: a linear rise, then the schedule."""
    warmup = min(training.warmup_images, training.images // 10)
    # The first step counts as seen, or its learning rate would be zero.
    rise = min(1.0, (seen + training.batch) / warmup) if warmup else 1.0
    if training.schedule == "constant":
        return training.learning_rate * rise
    progress = min(1.0, seen / training.images)
    return training.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * progress))


def phase_end(training: TrainingConfig, until: int) -> int:
    """When a phase of the curriculum ends, at most six tenths through a run: the rest of it is the task itself."""
    return min(until, training.images * 6 // 10)


def single_share(training: TrainingConfig, seen: int) -> float:
    """The share of images that show one object only: from 1 to 0 over `single_until_images`."""
    end = phase_end(training, training.single_until_images)
    return 1 - seen / end if seen < end else 0.0


def spread_share(training: TrainingConfig, seen: int) -> float:
    """The share of the room for their places that digits use: from `spread` to 1 over `spread_until_images`."""
    end = phase_end(training, training.spread_until_images)
    return training.spread + (1 - training.spread) * seen / end if seen < end else 1.0


def reconstruction_share(training: TrainingConfig, seen: int) -> float:
    """The share of the weight of reconstruction: from 1 to `reconstruction_end` over the run."""
    return 1 - (1 - training.reconstruction_end) * min(1.0, seen / training.images)


def guide_weight(training: TrainingConfig, seen: int) -> float:
    """The weight of the loss that shows where to look: from `guide` to 0 over the images of `guide_end`."""
    end = guide_end(training.images, training.guide_until_images)
    return training.guide * (1 - seen / end) if seen < end else 0.0


def guide_end(images: int, guide_until_images: int) -> int:
    """When guidance ends, at most four fifths through a run: what is kept has to find its way alone."""
    return min(guide_until_images, images * 4 // 5)


def glimpse_count(training: TrainingConfig, glimpses: int, seen: int) -> int:
    """How often the model looks at an image: from `few_glimpses` to `glimpses` over `few_until_images`."""
    end = phase_end(training, training.few_until_images)
    if seen >= end or training.few_glimpses >= glimpses:
        return glimpses
    return training.few_glimpses + (glimpses - training.few_glimpses) * seen // end


def average_decay(training: TrainingConfig, step: int) -> float:
    """The share of the averages kept at a step; shorter at first, so that the random start is forgotten."""
    return min(training.average, (1 + step) / (10 + step))


def crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (before, after]."""
    return after // every > before // every
