"""The models of the page, and one pass of a model over a subject, with what a visitor does to it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ocra.app.subjects import Subject, within
from ocra.config import NetworkConfig
from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError
from ocra.images.fitting import Placement, Prepared
from ocra.model.deciding import answer_margin
from ocra.model.interventions import lesion_of
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows
from ocra.model.weights import load, shipped
from ocra.prediction import DEFAULT_WEIGHTS, FoundObject, answers, given

MOST_GLIMPSES = 20
MOST_UNTIL, MOST_ROUTINGS = 3.0, 10
LEAST_SIZE, MOST_SIZE = 0.02, 2.0
"""Width of a forced window; 1 reaches from the first to the last pixel of the model's image."""


def load_models(weights: Sequence[str] = ()) -> dict[str, Network]:
    """Models by the name shown on the page, from shipped names or folders; none for all shipped, the usual one first.

    All are loaded at once: weights that are broken or have to be fetched must not keep a visitor waiting.
    """
    sources = sources_of(weights)
    return dict(zip(_short_names(sources), map(load, sources), strict=True))


def sources_of(weights: Sequence[str] = ()) -> list[str]:
    """Where the models of `load_models` come from, in the same order."""
    return list(weights) or sorted(shipped(), key=lambda name: name != DEFAULT_WEIGHTS)


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


def companion(models: Mapping[str, Network], name: str) -> str | None:
    """The next model of the same task and image size, which is the fairest to compare with, if any."""
    kinds = {other: (model.info.task_name, model.config.image_shape) for other, model in models.items()}
    names = list(models)
    own = names.index(name)
    return next((other for other in names[own + 1 :] + names[:own] if kinds[other] == kinds[name]), None)


def most_glimpses(model: Network) -> int:
    """How many glimpses a visitor may ask for."""
    if not model.config.recurrent or "glimpses" not in takes(model):
        return model.config.glimpses
    return max(MOST_GLIMPSES, model.config.glimpses)


def takes(model: Network) -> set[str]:
    """The interventions that a network takes, by name."""
    return {*inspect.signature(model.forward).parameters} - {"images", "record"}


def movable(model: Network) -> bool:
    """Whether the gaze of a model can be moved."""
    return model.config.attention and "windows" in takes(model)


@dataclass(frozen=True)
class Manner:
    """How a model is to look: the interventions that a visitor has asked for."""

    glimpses: int
    """At most, where it may stop before."""
    until: float = 0.0
    """Stop once the answer is so far ahead; 0 for never."""
    routings: int = 0
    """0 for the model's own."""
    silenced: tuple[str, ...] = ()
    """Parts of a lesion, as the command line names them: encoder-memory, 3 (an object capsule)."""

    def applied(self, model: Network) -> tuple[Manner, tuple[str, ...]]:
        """What of it a model can do, and a few words on each part that it cannot."""
        known = takes(model)
        stops = "until" in known and not model.config.readout_digits
        routes = "routings" in known
        parts = tuple(part for part in self.silenced if _can_be_silenced(part, model))
        words = {
            "always looks to the end": self.until and not stops,
            "has no routing": self.routings and not routes,
            "lacks what is silenced": len(parts) < len(self.silenced),
        }
        count = min(max(self.glimpses, 1), most_glimpses(model))
        able = Manner(count, self.until if stops else 0.0, self.routings if routes else 0, parts)
        return able, tuple(word for word, holds in words.items() if holds)

    def arguments(self, model: Network) -> dict[str, Any]:
        """Arguments of the network's `forward`."""
        return given(
            glimpses=self.glimpses if "glimpses" in takes(model) else None,
            until=self.until or None,
            routings=self.routings or None,
            lesion=lesion_of(self.silenced),
        )


@dataclass(frozen=True)
class Choice:
    """The models a visitor has chosen and what is done to them, as the controls say."""

    model: str
    glimpses: float
    compare: bool
    other: str
    other_glimpses: float
    until: float = 0.0
    routings: float = 0
    silenced: Sequence[str] = ()
    second_only: bool = False
    """Of two columns, only the second is changed by the three before this one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "silenced", tuple(map(str, self.silenced or ())))

    def columns(self) -> list[tuple[str, Manner]]:
        """The model of each column and how it is to look."""
        until = within(self.until or 0, 0, MOST_UNTIL, "margin at which to stop")
        routings = int(within(self.routings or 0, 0, MOST_ROUTINGS, "number of routings"))
        changed = Manner(whole(self.glimpses), until, routings, tuple(self.silenced))
        if not self.compare:
            return [(self.model, changed)]
        second = replace(changed, glimpses=whole(self.other_glimpses))
        first = Manner(changed.glimpses) if self.second_only else changed
        return [(self.model, first), (self.other, second)]


def whole(glimpses: float | None) -> int:
    """A number of glimpses as a control sent it, checked."""
    try:
        return int(glimpses or 1)
    except (TypeError, ValueError, OverflowError):
        raise OcraError("The page sent a number of glimpses that cannot be read; reload it.") from None


def silenceable(model: Network) -> list[str]:
    """The parts of a model that can be silenced, but for its capsules."""
    if "lesion" not in takes(model):
        return []
    memories = ["encoder-memory", "decoder-memory"] if model.config.recurrent else []
    return [*memories, *(["feedback"] if getattr(model.config, "feedback", False) else [])]


def _can_be_silenced(part: str, model: Network) -> bool:
    capsules = model.config.object_capsules if getattr(model.config, "capsules", False) else 0
    if part.isdecimal():
        return "lesion" in takes(model) and int(part) < capsules
    return part in silenceable(model)


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

    def in_image(self, placement: Placement, config: NetworkConfig) -> tuple[float, float, float]:
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
    model: Network
    manner: Manner
    """How it looked."""
    unable: tuple[str, ...]
    """In a few words each, what it was asked to do and cannot."""
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
    windows: Windows | None
    """What was forced, as the model was told; None if nothing was."""

    @property
    def config(self) -> NetworkConfig:
        """The config of the model."""
        return self.model.config

    @property
    def glimpses(self) -> int:
        """Number of glimpses that were made."""
        return len(self.answers)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every object capsule."""
        return self.model.info.capsule_names(self.config)

    @property
    def is_number(self) -> bool:
        """Whether the answer is a number, read from left to right."""
        return self.trace.readout is not None

    @property
    def margin(self) -> float:
        """How far the answer is ahead of the next class, in capsule lengths."""
        return float(answer_margin(self.trace.scores[-1:], self.model.info.answer))

    @property
    def draws(self) -> bool:
        """Whether the model makes a reconstruction."""
        return not bool(self.trace.canvas.isnan().any())


@torch.inference_mode()
def look(
    name: str, model: Network, subject: Subject, manner: Manner | int, forced: Sequence[Force] = ()
) -> Look:
    """Show a subject to a model; with forced windows also as it would look by itself, to compare.

    manner: how it is to look, or just the number of glimpses.
    """
    wanted = Manner(manner) if isinstance(manner, int) else manner
    how, unable = wanted.applied(model)
    prepared = subject.seen_by(model)
    moved = {force.step: force for force in forced if force.step < how.glimpses} if movable(model) else {}
    images = prepared.image[None].expand(2 if moved else 1, *prepared.image.shape)
    options = how.arguments(model)
    windows = _windows(moved, prepared.placement, model.config, how.glimpses) if moved else None
    trace = model(images, record=True, **options, **given(windows=windows))
    count = trace.glimpses_of(len(images) - 1)
    meaning = model.info.class_names, model.info.answer
    said = tuple(answers(so_far(trace, model.config, t + 1), *meaning)[-1] for t in range(count))
    free = answers(trace, *meaning)[0]
    made = {step: force for step, force in moved.items() if step < count}
    return Look(name, model, how, unable, prepared, trace, said, free, made, windows)


def so_far(trace: Trace, config: NetworkConfig, glimpses: int) -> Trace:
    """The first glimpses of a pass: their sums as scores, and only those digits whose glimpses were all made."""
    if glimpses >= trace.glimpses_of(len(trace.scores) - 1):
        return trace
    readout = trace.readout
    if readout is not None:
        skip, span = (getattr(config, name) for name in ("readout_skip", "readout_span"))
        complete = max(0, glimpses - skip) // span
        readout = readout.clone()
        readout[:, complete:] = 0
        readout[:, complete:, NO_DIGIT] = 1
    scores = trace.capsule_lengths[:, :glimpses, : config.classes].sum(1)
    return replace(trace, scores=scores, readout=readout)


def _windows(
    forced: Mapping[int, Force], placement: Placement, config: NetworkConfig, glimpses: int
) -> Windows:
    """Windows for two images, NaN (left free) everywhere but at the forced steps of the second.

    The blur σ stays the model's own: place and size are all that the visitor chooses.
    """
    free = torch.full((2, glimpses, 4), math.nan)
    for step, force in forced.items():
        x, y, width = force.in_image(placement, config)
        free[1, step, :3] = torch.tensor([x, y, width / (config.glimpse_size - 1)])
    return Windows(free[..., :2], free[..., 2], free[..., 3])
