"""One pass of a network over a subject, with the glimpses a visitor forces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocra.app.networks import Network
from ocra.app.subjects import Subject
from ocra.config import ModelConfig
from ocra.errors import OcraError
from ocra.images.fitting import Placement, Step
from ocra.model.trace import Trace, Windows
from ocra.prediction import Prediction, decode

# Width of a forced window; 1 reaches from the first to the last pixel of the model's image.
LEAST_SIZE, MOST_SIZE = 0.02, 2.0


@dataclass(frozen=True)
class Force:
    """A glimpse put somewhere by the visitor, in pixels of the picture: the same part of it for every model.

    Pixel centres have whole coordinates, counted from 0.
    """

    step: int
    """Which glimpse, from 0."""
    x: float
    """Centre of the window, from left to right."""
    y: float
    """The same from top to bottom."""
    width: float
    """Width of the window."""

    @classmethod
    def parse(cls, values: object) -> tuple[Force, ...]:
        """What the page sent, checked; the last word counts for each step."""
        if not isinstance(values, list) or len(values) > 1000:
            raise OcraError("The page sent windows that cannot be read; reload it.")
        forced = {}
        for item in values:
            try:
                step = int(item["step"])
                x, y, width = (float(item[key]) for key in ("x", "y", "width"))
            except (TypeError, KeyError, ValueError, OverflowError):
                raise OcraError("The page sent a window that cannot be read; reload it.") from None
            if not (step >= 0 and math.isfinite(x + y + width)):
                raise OcraError("A window needs a glimpse, a place and a width; reload the page.")
            forced[step] = cls(step, x, y, width)
        return tuple(forced[step] for step in sorted(forced))

    def in_image(self, placement: Placement, config: ModelConfig) -> tuple[float, float, float]:
        """Centre x, y and width of the window in pixels of a model's image, kept in reach of it."""
        x, y = placement.to_model(self.x, self.y)
        width = self.width / math.sqrt(placement.scale[0] * placement.scale[1])
        longest = max(config.height, config.width) - 1
        return (
            _within(x, -config.width, 2 * config.width),
            _within(y, -config.height, 2 * config.height),
            _within(width, LEAST_SIZE * longest, MOST_SIZE * longest),
        )


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


@dataclass(frozen=True)
class Look:
    """What a network made of a subject."""

    network: Network
    image: Tensor
    """[channels, height, width]: what it was shown"""
    placement: Placement
    """Where its pixels lie in the visitor's picture."""
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
        return self.network.info.capsule_names(self.network.config)


@torch.inference_mode()
def look(network: Network, subject: Subject, glimpses: int, forced: Sequence[Force] = ()) -> Look:
    """Show a subject to a network; with forced windows also as it would look by itself, to compare."""
    config = network.config
    count = min(max(int(glimpses), 1), network.most_glimpses)
    prepared = subject.seen_by(network)
    image, placement = prepared.image, prepared.placement
    windows = {force.step: force for force in forced if force.step < count} if config.attention else {}
    images = image[None].expand(2 if windows else 1, *image.shape)
    trace = network.model(
        images,
        glimpses=count,
        record=True,
        windows=_windows(windows, placement, config, count) if windows else None,
    )
    predictions = decode(trace, config, network.info)
    steps = prepared.steps if subject.explain else ()
    free, answer = predictions[0], predictions[-1]
    return Look(network, image, placement, steps, prepared.blank, trace, answer, free, windows)


def _windows(
    forced: Mapping[int, Force], placement: Placement, config: ModelConfig, glimpses: int
) -> Windows:
    """Windows for two images, NaN (left free) everywhere but at the forced steps of the second.

    The blur σ stays the network's own: place and size are all that the visitor chooses.
    """
    center = torch.full((2, glimpses, 2), math.nan)
    stride = torch.full((2, glimpses), math.nan)
    for step, force in forced.items():
        x, y, width = force.in_image(placement, config)
        center[1, step] = torch.tensor([x, y])
        stride[1, step] = width / (config.glimpse_size - 1)
    return Windows(center, stride, torch.full((2, glimpses), math.nan))
