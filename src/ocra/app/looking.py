"""The models of the page, and one pass of a model over a subject with the glimpses a visitor forces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ocra.app.subjects import Subject
from ocra.config import ModelConfig
from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError
from ocra.images.fitting import Placement, Prepared
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace, Windows
from ocra.model.weights import shipped
from ocra.prediction import DEFAULT_WEIGHTS, FoundObject, answers

MOST_GLIMPSES = 20
LEAST_SIZE, MOST_SIZE = 0.02, 2.0
"""Width of a forced window; 1 reaches from the first to the last pixel of the model's image."""


def load_models(weights: Sequence[str] = ()) -> dict[str, OCRA]:
    """Models by the name shown on the page, from shipped names or folders; none for all shipped, the usual one first.

    All are loaded at once: weights that are broken or have to be fetched must not keep a visitor waiting.
    """
    sources = list(weights) or sorted(shipped(), key=lambda name: name != DEFAULT_WEIGHTS)
    loaded = map(OCRA.from_pretrained, sources)
    return dict(zip(_short_names(sources), loaded, strict=True))


def _short_names(sources: Sequence[str]) -> list[str]:
    """As much of the end of each path as tells the sources apart: runs/a/weights/best → a/weights/best."""
    parts = [Path(source).expanduser().parts or (source,) for source in sources]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = min(3, len(own)) if own[-1] in ("best", "last") else 1  # these say nothing by themselves
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        names.append("/".join(own[-length:]))
    return [f"{name} ({k + 1})" if names.count(name) > 1 else name for k, name in enumerate(names)]


def companion(models: Mapping[str, OCRA], name: str) -> str | None:
    """The next model of the same task and image size, which is the fairest to compare with, if any."""
    kinds = {other: (model.info.task_name, model.config.image_shape) for other, model in models.items()}
    names = list(models)
    own = names.index(name)
    return next((other for other in names[own + 1 :] + names[:own] if kinds[other] == kinds[name]), None)


def most_glimpses(model: OCRA) -> int:
    """How many glimpses a visitor may ask for."""
    return max(MOST_GLIMPSES, model.config.glimpses) if model.config.recurrent else 1


@dataclass(frozen=True)
class Force:
    """A glimpse put somewhere by the visitor, in pixels of the image: the same part of it for every model.

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
            min(max(x, -config.width), 2 * config.width),
            min(max(y, -config.height), 2 * config.height),
            min(max(width, LEAST_SIZE * longest), MOST_SIZE * longest),
        )


@dataclass(frozen=True)
class Look:
    """What a model made of a subject."""

    name: str
    """Of the model, on the page."""
    model: OCRA
    prepared: Prepared
    """What it was shown, and where that lies in the visitor's image."""
    trace: Trace
    """Of one image, or of two: the free pass, then the forced one."""
    answers: tuple[tuple[FoundObject, ...], ...]
    """The answer after each glimpse, with the forced ones if there are any."""
    free: tuple[FoundObject, ...]
    """The answer when left to itself."""
    forced: Mapping[int, Force]
    """By step; only those within the number of glimpses."""

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.model.config

    @property
    def glimpses(self) -> int:
        """Number of glimpses."""
        return len(self.answers)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every object capsule."""
        return self.model.info.capsule_names(self.config)

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number, read from left to right."""
        return self.trace.readout is not None


@torch.inference_mode()
def look(name: str, model: OCRA, subject: Subject, glimpses: int, forced: Sequence[Force] = ()) -> Look:
    """Show a subject to a model; with forced windows also as it would look by itself, to compare."""
    config = model.config
    count = min(max(glimpses, 1), most_glimpses(model))
    prepared = subject.seen_by(model)
    moved = {force.step: force for force in forced if force.step < count} if config.attention else {}
    images = prepared.image[None].expand(2 if moved else 1, *prepared.image.shape)
    windows = _windows(moved, prepared.placement, config, count) if moved else None
    trace = model(images, glimpses=count, record=True, windows=windows)
    meaning = model.info.class_names, model.info.answer
    said = tuple(answers(so_far(trace, config, t + 1), *meaning)[-1] for t in range(count))
    return Look(name, model, prepared, trace, said, answers(trace, *meaning)[0], moved)


def so_far(trace: Trace, config: ModelConfig, glimpses: int) -> Trace:
    """The first glimpses of a pass: their sums as scores, and only those digits whose glimpses were all made."""
    total = trace.capsule_lengths.shape[1]
    if glimpses == total:
        return trace
    readout = trace.readout
    if readout is not None:
        complete = max(0, glimpses - config.readout_skip) // config.readout_span
        readout = readout.clone()
        readout[:, complete:] = 0
        readout[:, complete:, NO_DIGIT] = 1
    scores = trace.capsule_lengths[:, :glimpses, : config.classes].sum(1)
    return replace(trace, scores=scores, readout=readout)


def _windows(
    forced: Mapping[int, Force], placement: Placement, config: ModelConfig, glimpses: int
) -> Windows:
    """Windows for two images, NaN (left free) everywhere but at the forced steps of the second.

    The blur σ stays the model's own: place and size are all that the visitor chooses.
    """
    free = torch.full((2, glimpses, 4), math.nan)
    for step, force in forced.items():
        x, y, width = force.in_image(placement, config)
        free[1, step, :3] = torch.tensor([x, y, width / (config.glimpse_size - 1)])
    return Windows(free[..., :2], free[..., 2], free[..., 3])
