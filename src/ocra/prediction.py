"""Objects, scores and glimpses of pictures, in words and in pixels of the user's own picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ocra.config import ModelConfig
from ocra.data import get_task, likely_task
from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError
from ocra.images.fitting import Fit, Invert, Placement, Prepared, prepare
from ocra.images.reading import read_picture
from ocra.metrics import predicted_counts
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace
from ocra.model.weights import ModelInfo

Source = str | os.PathLike[str]
SLACK = 0.01
"""How far the values of an image may lie beyond 0 and 1, by rounding."""


@dataclass(frozen=True)
class FoundObject:
    """One object that the model names."""

    label: str
    score: float
    """Lengths of its capsule, summed over the glimpses (house numbers: output of the digit's readout);
    shared between objects of the same class."""
    confidence: float
    """Score s against the best one not chosen, r: s / (s + r); where the number of objects is not known, r is at
    least the half from which on a class is named. 0.5 is a toss-up, 1 leaves no doubt; it is not a probability."""


@dataclass(frozen=True)
class Glimpse:
    """Where the model looked at one step and what it took it for, in pixels of the user's picture."""

    x: float
    y: float
    """Centre of the window, counted from 0 at the centre of the top left pixel."""
    width: float
    """Distance between the outermost filters, stride · (N − 1)."""
    height: float
    """The same along y; differs from the width only where the picture was stretched."""
    stride: float
    sigma: float
    winner: str
    """The capsule sent to the decoder."""
    length: float
    """Its length."""
    lengths: tuple[float, ...]
    """The lengths of all object capsules."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """What the model says about one picture."""

    objects: tuple[FoundObject, ...]
    """The answer: most certain first; house numbers from left to right."""
    scores: dict[str, float]
    """Of every class."""
    glimpses: tuple[Glimpse, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the objects."""
        return tuple(found.label for found in self.objects)

    def __repr__(self) -> str:
        """The answer in short; the fields hold the rest."""
        objects = ", ".join(f"{found.label} ({found.confidence:.0%})" for found in self.objects)
        return f"Prediction({objects or 'nothing'}; {len(self.glimpses)} glimpses)"


def predict(
    model: OCRA | Source,
    images: Tensor | Source | Sequence[Source],
    *,
    info: ModelInfo | None = None,
    invert: Invert = "auto",
    fit: Fit = "auto",
    glimpses: int | None = None,
) -> list[Prediction]:
    """Recognise the objects in images [batch, channels, height, width], or in picture files of any kind.

    model: a network, or the name or folder of its weights (needed for class names of one's own).
    The answer follows the task's rule: two different classes with the highest scores (multimnist), two of a
    class that scores 1.8 or more, else the two highest (cluttered), the readouts (svhn), as many of the highest
    as every picture has labels (own folders), or else every class as often as its rounded score says, but once at
    most where no label ever repeats.
    """
    if not isinstance(model, OCRA):
        model = OCRA.from_pretrained(os.fspath(model))
    info = info or model.info
    placements = None
    if not isinstance(images, Tensor):
        sources = [images] if isinstance(images, str | os.PathLike) else _listed(images)
        prepared = [picture_for(model.config, info.task_name, source, invert, fit) for source in sources]
        if not prepared:
            return []
        images, placements = (
            torch.stack([item.image for item in prepared]),
            [item.placement for item in prepared],
        )
    return decode(run(model, images, glimpses), model.config, info, placements)


def picture_for(
    config: ModelConfig, task: str, source: Source, invert: Invert = "auto", fit: Fit = "auto"
) -> Prepared:
    """A picture file made fit for a model; one without anything to see in it is refused."""
    if not isinstance(source, str | os.PathLike):
        raise OcraError(
            f"Give picture files, or a float tensor of images, not {type(source).__name__}; torch.from_numpy makes a "
            "tensor of an array."
        )
    kind = get_task(task) if task else likely_task(config)
    prepared = prepare(read_picture(source), config, kind.preprocessing, invert=invert, fit=fit)
    if prepared.blank:
        raise OcraError(f"{prepared.picture.name} is one even tone: there is nothing in it to recognise.")
    return prepared


def _listed(sources: Any) -> list[Any]:
    """Several sources as a list; an array or a picture is one thing, which is refused later."""
    return [sources] if hasattr(sources, "shape") or not hasattr(sources, "__iter__") else list(sources)


@torch.inference_mode()
def run(model: OCRA, images: Tensor, glimpses: int | None = None) -> Trace:
    """One recorded pass over images [batch, channels, height, width], values in [0, 1]."""
    if (
        images.is_floating_point()
        and images.numel()
        and not (images.min() >= -SLACK and images.max() <= 1 + SLACK)
    ):
        raise OcraError("The images hold values that are not from 0 to 1; divide bytes by 255.")
    device = next(model.parameters()).device
    return model(images.to(device), glimpses=glimpses, record=True)


def decode(
    trace: Trace, config: ModelConfig, info: ModelInfo, placements: Sequence[Placement] | None = None
) -> list[Prediction]:
    """Put a recorded pass into words; `placements` says where the images lie in the users' pictures."""
    batch = len(trace.scores)
    placements = placements or [Placement()] * batch
    answers = _read_numbers(trace) if trace.readout is not None else _name_objects(trace, info)
    scores = trace.scores.tolist()
    return [
        Prediction(
            tuple(FoundObject(info.class_names[k], score, sure) for k, score, sure in answers[i]),
            dict(zip(info.class_names, scores[i], strict=True)),
            _glimpses(trace, i, config, info.capsule_names(config), placements[i]),
        )
        for i in range(batch)
    ]


def _name_objects(trace: Trace, info: ModelInfo) -> list[list[tuple[int, float, float]]]:
    """(class, score, confidence) of the objects of each image, highest score first."""
    counts = predicted_counts(trace.scores, info.answer)
    answers = []
    for score, count in zip(trace.scores.tolist(), counts.long().tolist(), strict=True):
        rejected = max((s for s, n in zip(score, count, strict=True) if n == 0), default=0.0)
        if info.answer.objects is None:  # a class is named from a half on, whatever the others score
            rejected = max(rejected, 0.5)
        found = [
            (k, score[k] / n, _confidence(score[k] / n, rejected))
            for k, n in enumerate(count)
            for _ in range(n)
        ]
        answers.append(sorted(found, key=lambda item: -item[1]))
    return answers


def _read_numbers(trace: Trace) -> list[list[tuple[int, float, float]]]:
    """(digit, output, confidence) of each house number from left to right, without those for 'no digit'."""
    assert trace.readout is not None
    highest, digits = trace.readout.topk(2, dim=2)
    return [
        [
            (pair[0], best[0], _confidence(*best))
            for pair, best in zip(*item, strict=True)
            if pair[0] != NO_DIGIT
        ]
        for item in zip(digits.tolist(), highest.tolist(), strict=True)
    ]


def _confidence(score: float, rejected: float) -> float:
    score, rejected = max(score, 0.0), max(rejected, 0.0)
    return score / (score + rejected) if score + rejected > 0 else 0.5


def _glimpses(
    trace: Trace, i: int, config: ModelConfig, names: tuple[str, ...], placement: Placement
) -> tuple[Glimpse, ...]:
    """The glimpses of image i; a model without attention looks at the whole image each time."""
    assert trace.winners is not None, "decode needs a trace made with record=True"
    windows, lengths = trace.read_windows, trace.capsule_lengths[i].tolist()
    made = []
    for step, winner in enumerate(trace.winners[i].tolist()):
        if windows is None:
            longest = max(config.width, config.height)
            x, y, stride, sigma = (config.width - 1) / 2, (config.height - 1) / 2, float("nan"), float("nan")
            extent = longest - 1.0
        else:
            x, y = windows.center[i, step].tolist()
            stride, sigma = windows.stride[i, step].item(), windows.sigma[i, step].item()
            extent = stride * (config.glimpse_size - 1)
        (scale_x, scale_y), place = placement.scale, placement.to_picture(x, y)
        made.append(
            Glimpse(
                *place,
                extent * scale_x,
                extent * scale_y,
                stride * scale_x,
                sigma * scale_x,
                names[winner],
                lengths[step][winner],
                tuple(lengths[step]),
            )
        )
    return tuple(made)
