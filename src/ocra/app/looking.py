"""One pass of a network over a subject, with the glimpses a visitor forces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import OcraError
from ..inference import Prediction, describe
from ..preparation import Step
from ..trace import Trace, Windows
from .networks import Network
from .subjects import Subject

MOST_SIZE = 2.0


@dataclass(frozen=True)
class Force:
    """A glimpse put somewhere by the visitor, in shares of the image: it fits models of every size."""

    step: int
    """Which glimpse, from 0."""
    x: float
    """Centre of the window, 0 at the left edge of the image, 1 at the right."""
    y: float
    """The same from top to bottom."""
    size: float
    """Width of the window; 1 reaches from the first to the last pixel."""

    @classmethod
    def parse(cls, values: object) -> tuple[Force, ...]:
        """What the page sent, checked; the last word counts for each step."""
        if not isinstance(values, list) or len(values) > 1000:
            raise OcraError("The page sent windows that cannot be read; reload it.")
        forced = {}
        for item in values:
            try:
                step = int(item["step"])
                x, y, size = (float(item[key]) for key in ("x", "y", "size"))
            except (TypeError, KeyError, ValueError):
                raise OcraError("The page sent a window that cannot be read; reload it.") from None
            if not (step >= 0 and math.isfinite(x + y + size)):
                raise OcraError("A window needs a glimpse, a place and a size; reload the page.")
            x, y, size = _within(x, -1, 2), _within(y, -1, 2), _within(size, 0.02, MOST_SIZE)
            forced[step] = cls(step, x, y, size)
        return tuple(forced[step] for step in sorted(forced))


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


@dataclass(frozen=True)
class Look:
    """What a network made of a subject."""

    network: Network
    image: Tensor
    """[channels, height, width]: what it was shown"""
    steps: tuple[Step, ...]
    """How that came out of the visitor's picture."""
    blank: bool
    trace: Trace
    """Of one image, or of two: the free pass, then the forced one."""
    answer: Prediction
    """With the forced glimpses, if there are any."""
    free: Prediction
    """Left to itself."""
    forced: Mapping[int, Force]
    """By step; only those within the number of glimpses."""

    @property
    def glimpses(self) -> int:
        """Number of glimpses."""
        return self.trace.capsule_lengths.shape[1]

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every object capsule."""
        return self.network.knowledge.capsule_names(self.network.config)


@torch.inference_mode()
def look(network: Network, subject: Subject, glimpses: int, forced: Sequence[Force] = ()) -> Look:
    """Show a subject to a network; with forced windows also as it would look by itself, to compare."""
    config = network.config
    count = min(max(int(glimpses), 1), network.most_glimpses)
    image, steps, blank = subject.seen_by(network)
    windows = {force.step: force for force in forced if force.step < count} if config.attention else {}
    images = image[None].expand(2 if windows else 1, *image.shape)
    trace = network.model(
        images,
        glimpses=count,
        record=True,
        windows=_windows(windows, config, count) if windows else None,
    )
    predictions = describe(trace, config, network.knowledge)
    return Look(network, image, steps, blank, trace, predictions[-1], predictions[0], windows)


def _windows(forced: Mapping[int, Force], config: ModelConfig, glimpses: int) -> Windows:
    """Windows for two images, NaN (left free) everywhere but at the forced steps of the second.

    The blur σ stays the network's own: place and size are all that the visitor chooses.
    """
    center = torch.full((2, glimpses, 2), math.nan)
    stride = torch.full((2, glimpses), math.nan)
    for step, force in forced.items():
        center[1, step] = torch.tensor([force.x * config.width - 0.5, force.y * config.height - 0.5])
        extent = force.size * (max(config.height, config.width) - 1)
        stride[1, step] = extent / (config.glimpse_size - 1)
    return Windows(center, stride, torch.full((2, glimpses), math.nan))
