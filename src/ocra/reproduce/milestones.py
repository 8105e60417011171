"""How soon a run first has a given error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ocra.reproduce.results import Result
from ocra.reproduce.settings import is_of_preset

# The authors' program after one pass over its 2.7 M training images: 87.75 % right on its test set.
AUTHORS_ERROR = 0.1225
AUTHORS_IMAGES = 2_700_000


class Milestone(NamedTuple):
    """Where a run was when it first had an error."""

    images: int
    cpu_seconds: float
    error: float
    estimated: bool
    """whether the CPU seconds are those of the whole run by the share of images, as the log has none"""


def milestones(results: Iterable[Result]) -> list[tuple[Result, Milestone]]:
    """The runs of multimnist-3 from random weights that got as far as the authors' program, and where they did."""
    fresh = [result for result in results if is_comparable(result)]
    return [(result, point) for result in fresh if (point := milestone(result)) is not None]


def is_comparable(result: Result) -> bool:
    """Whether a run may stand beside the authors' first pass: multimnist-3 on its own task, from random weights."""
    return result.preset == "multimnist-3" and is_of_preset(result.config) and not result.start_from


def milestone(result: Result, error: float = AUTHORS_ERROR) -> Milestone | None:
    """The first validation at or below an error; none in between are guessed."""
    for point in result.validation:
        if point[1] <= error:
            images = int(point[0])
            if len(point) > 2:
                return Milestone(images, point[2], point[1], False)
            return Milestone(images, result.cpu_seconds * images / max(1, result.images), point[1], True)
    return None
