"""From images to answers: objects, scores and glimpses, in words and in pixels of the user's own image."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from ocra.config import AnswerRule, Calibration, NetworkConfig
from ocra.data import task_of_model
from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import LEAST_CONTRAST, Fit, Invert, Placement, Prepared, prepare
from ocra.images.reading import find_images, read_image
from ocra.metrics import predicted_counts
from ocra.model import weights
from ocra.model.deciding import is_plausible, margins, probability
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows
from ocra.model.weights import ModelInfo, read_config, shipped

Source = str | os.PathLike[str]
AnyModel = TypeVar("AnyModel")
DEFAULT_WEIGHTS = "multimnist-3"
PHOTOGRAPH_WEIGHTS = "digits-any"
"""For images of a user's own, which are never as clean as a task's and may show any number of digits."""
BATCH = 32
"""Images that go through the model at once."""
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
    """The probability that it is there, where the model was calibrated. Else its score s against the best one not
    chosen, r: s / (s + r), r being at least the half from which on a class is named where the number of objects is not
    known; 0.5 is a toss-up, 1 leaves no doubt; that is not a probability."""


@dataclass(frozen=True)
class Glimpse:
    """Where the model looked at one step and what it took it for, in pixels of the user's image."""

    x: float
    y: float
    """Centre of the window, counted from 0 at the centre of the top left pixel."""
    width: float
    """Distance between the outermost filters, stride · (N − 1)."""
    height: float
    """The same along y; differs from the width only where the image was stretched."""
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
    """What the model says about one image."""

    objects: tuple[FoundObject, ...]
    """The answer: most certain first; house numbers from left to right."""
    scores: dict[str, float]
    """Of every class."""
    glimpses: tuple[Glimpse, ...]
    sequence: bool = False
    """Whether the order of the objects is part of the answer, as in a house number."""
    confidence: float | None = None
    """The probability that the whole answer is right, of an image of the kind that the model was trained on; None if it
    was not calibrated."""
    verdict: Literal["answer", "unsure", "nothing"] = "answer"
    """Whether the objects are the answer; "unsure" where it is too likely to be wrong or the
    image does not look as if it held so many, "nothing" where none is seen."""
    note: str = ""
    """What has to be known about an answer that is unsure, in a sentence."""
    prepared: Prepared | None = field(default=None, compare=False)
    """How the user's image became the model's, where it was read from a file."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the objects."""
        return tuple(found.label for found in self.objects)

    @property
    def text(self) -> str:
        """The objects as one writes them: '3 8', or '1984' for a house number; empty if nothing was found."""
        return ("" if self.sequence else " ").join(self.labels)

    @property
    def answer(self) -> str:
        """The text where the model is sure of it, else "unsure" or "nothing"."""
        return self.text if self.verdict == "answer" else self.verdict

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, rounded."""
        return {
            "answer": self.answer,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "calibrated": self.confidence is not None,
            "note": self.note,
            "objects": [
                {"label": o.label, "score": round(o.score, 4), "confidence": round(o.confidence, 4)}
                for o in self.objects
            ],
            "scores": {name: round(score, 4) for name, score in self.scores.items()},
            "glimpses": [
                {"x": round(g.x, 2), "y": round(g.y, 2), "width": round(g.width, 2), "winner": g.winner}
                for g in self.glimpses
            ],
        }

    def __repr__(self) -> str:
        """The answer in short; the fields hold the rest."""
        objects = ", ".join(f"{found.label} ({found.confidence:.0%})" for found in self.objects)
        doubt = "unsure: " if self.verdict == "unsure" else ""
        return f"Prediction({doubt}{objects or 'nothing'}; {len(self.glimpses)} glimpses)"


def predict(
    model: Network | Source,
    images: Tensor | Source | Sequence[Source],
    *,
    invert: Invert = "auto",
    fit: Fit = "auto",
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: Lesion | None = None,
    windows: Windows | None = None,
    device: str | None = None,
) -> list[Prediction]:
    """Recognise the objects in images [batch, channels, height, width], or in image files of any kind.

    model: a network, or the name or folder of its weights. images: a tensor with values in [0, 1], or files,
    patterns and folders. invert, fit: how a file becomes an image of the model, see `ocra.images.fitting.prepare`.
    glimpses, until, routings, lesion, windows: interventions, as in `OCRA.forward`. device: cpu, cuda or mps.

    The answer follows the rule saved with the model: so many objects with the highest scores, a class twice from
    a score of 1.8 on where classes may repeat; the readouts of a house number; or, where the number of objects is
    not known, every class as often as its rounded score says.
    """
    model = load(model, device)
    interventions = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion, windows=windows)
    if isinstance(images, Tensor):
        found = decode(run(model, images, **interventions), model.config, model.info)
        even = (images.flatten(1).amax(1) - images.flatten(1).amin(1) < LEAST_CONTRAST).tolist()
        return [_as_nothing(said) if blank else said for said, blank in zip(found, even, strict=True)]
    answers = []
    for _, answer in predict_each(model, images, invert=invert, fit=fit, **interventions):
        if isinstance(answer, OcraError):
            raise answer
        answers.append(answer)
    return answers


def predict_each(
    model: Network,
    sources: Source | Iterable[Source],
    *,
    invert: Invert = "auto",
    fit: Fit = "auto",
    **interventions: Any,
) -> Iterator[tuple[str, Prediction | OcraError]]:
    """Each image file with its prediction, some at a time, or with the error that says why there is none."""
    files = find_images(map(_file_name, _listed(sources)))
    while batch := list(islice(files, BATCH)):
        prepared: list[Prepared | OcraError] = []
        for file in batch:
            try:
                prepared.append(_prepare(model, file, invert, fit))
            except OcraError as error:
                prepared.append(error)
        found: Iterator[Prediction] = iter(())
        if good := [item for item in prepared if isinstance(item, Prepared)]:
            trace = run(model, torch.stack([item.image for item in good]), **interventions)
            found = iter(decode(trace, model.config, model.info, [item.placement for item in good]))
        for file, item in zip(batch, prepared, strict=True):
            if isinstance(item, OcraError):
                yield file, item
            else:
                said = replace(next(found), prepared=item)
                yield file, _as_nothing(said) if item.blank else said


def _as_nothing(said: Prediction) -> Prediction:
    """What is said of one even tone, whatever a network makes of it."""
    certain = None if said.confidence is None else 1.0
    return replace(said, objects=(), verdict="nothing", note="", confidence=certain)


def load(model: Network | Source | None, device: str | None = None, task: str | None = None) -> Network:
    """The model itself, on the device if one is named; without a model the shipped one for the task.

    Of several shipped for a task, the one with the fewest glimpses.
    """
    if model is None:
        fitting = {name: read_config(name) for name in shipped()}
        choice = [name for name, (_, info) in fitting.items() if info.task_name == task or task is None]
        if not choice:
            raise UsageError(f"Say which weights to use: none are shipped for {task}.")
        model = min(choice, key=lambda name: (name != DEFAULT_WEIGHTS, fitting[name][0].glimpses))
    loaded = model if isinstance(model, Network) else weights.load(os.fspath(model))
    return move(loaded, device)


def move(model: AnyModel, device: str | None) -> AnyModel:
    """The module on this device; where it is if none is named."""
    if device is None or not isinstance(model, nn.Module):
        return model
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError):
        raise UsageError(
            f"PyTorch finds no device '{device}' on this machine; leave it out or say cpu."
        ) from None


def given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def prepare_image(model: Network, source: Source, invert: Invert = "auto", fit: Fit = "auto") -> Prepared:
    """An image file made fit for a model; one without anything to see in it is refused."""
    prepared = _prepare(model, source, invert, fit)
    if prepared.blank:
        raise OcraError(f"{prepared.source.name} is one even tone: there is nothing in it to recognise.")
    return prepared


def _prepare(model: Network, source: Source, invert: Invert, fit: Fit) -> Prepared:
    how = model.info.preprocessing or task_of_model(model.info.task, model.config).task.preprocessing
    return prepare(read_image(_file_name(source)), model.config, how, invert=invert, fit=fit)


def _listed(sources: Any) -> list[Any]:
    """Several sources as a list; a name, an array or an image is one thing."""
    single = isinstance(sources, str | os.PathLike) or hasattr(sources, "shape")
    return [sources] if single or not hasattr(sources, "__iter__") else list(sources)


def _file_name(source: Any) -> str:
    if not isinstance(source, str | os.PathLike):
        raise OcraError(
            f"Give image files, or a float tensor of images, not {type(source).__name__}; torch.from_numpy makes a "
            "tensor of an array."
        )
    return os.fspath(source)


@torch.inference_mode()
def run(model: Network, images: Tensor, **interventions: Any) -> Trace:
    """One recorded pass over images [batch, channels, height, width], values in [0, 1].

    interventions: glimpses, until, routings, lesion, windows …, as in `OCRA.forward`.
    """
    if images.is_floating_point() and not ((images >= -SLACK) & (images <= 1 + SLACK)).all():
        raise OcraError("The images hold values that are not from 0 to 1; divide bytes by 255.")
    return model(images.to(next(model.parameters()).device), record=True, **interventions)


def decode(
    trace: Trace, config: NetworkConfig, info: ModelInfo, placements: Sequence[Placement] | None = None
) -> list[Prediction]:
    """What a recorded pass says; `placements` says where the images lie in the users' own."""
    scores = trace.scores.tolist()
    placements = placements or [Placement()] * len(scores)
    sure = answer_confidence(trace, info.answer, info.calibration)
    plausible = [True] * len(scores)
    if info.calibration is not None:
        plausible = is_plausible(trace.scores, trace.canvas, info.answer, info.calibration).tolist()
    predictions = []
    for i, objects in enumerate(answers(trace, info.class_names, info.answer, info.calibration)):
        confidence = None if sure is None else sure[i]
        verdict, note = _judged(objects, confidence, plausible[i], max(scores[i]), info)
        predictions.append(
            Prediction(
                () if verdict == "nothing" else objects,
                dict(zip(info.class_names, scores[i], strict=True)),
                _glimpses(trace, i, config, info, placements[i]),
                sequence=trace.readout is not None,
                confidence=confidence,
                verdict=verdict,
                note=note,
            )
        )
    return predictions


def _judged(
    objects: tuple[FoundObject, ...],
    confidence: float | None,
    plausible: bool,
    highest: float,
    info: ModelInfo,
) -> tuple[Literal["answer", "unsure", "nothing"], str]:
    """Whether the objects are the answer, and what has to be known if they are not."""
    known, always = info.calibration, info.answer.objects
    if known is None or confidence is None:
        return ("answer" if objects else "nothing"), ""
    if always and highest <= known.silence and highest < math.inf:
        return "nothing", ""
    if confidence >= known.threshold and plausible:
        return ("answer" if objects else "nothing"), ""
    sure = [found.label for found in objects if found.confidence >= known.threshold]
    if always and not plausible:
        return "unsure", f"this network always names {always}, and this does not look like {always}"
    if not always or len(sure) == len(objects):
        return "unsure", ""
    alone = f"it is sure of {' '.join(sure)} alone" if sure else "it is sure of none of them"
    return "unsure", f"this network always names {always}: {alone}"


def answer_confidence(trace: Trace, rule: AnswerRule, calibration: Calibration | None) -> list[float] | None:
    """The probability that the answer to each image is right as a whole; None without a calibration."""
    if calibration is None:
        return None
    return probability(margins(trace.scores, trace.readout, rule)[1], calibration).tolist()


def answers(
    trace: Trace, class_names: tuple[str, ...], rule: AnswerRule, calibration: Calibration | None = None
) -> list[tuple[FoundObject, ...]]:
    """The objects named in each image: those of the readouts where there are any, else by the rule."""
    clear = None
    if calibration is not None:
        clear = probability(margins(trace.scores, trace.readout, rule)[0], calibration, True).tolist()

    def found(label: int, score: float, rejected: float, sure: float | None) -> FoundObject:
        ours, both = max(score, 0.0), max(score, 0.0) + max(rejected, 0.0)
        ratio = ours / both if both > 0 else 0.5
        return FoundObject(class_names[label], score, ratio if sure is None else sure)

    named = []
    if trace.readout is not None:
        highest, digits = trace.readout.topk(2, dim=2)
        for i, (best, first) in enumerate(zip(highest.tolist(), digits[..., 0].tolist(), strict=True)):
            sure = clear[i] if clear else [None] * len(first)
            read = zip(first, best, sure, strict=True)
            named.append(tuple(found(d, s, r, p) for d, (s, r), p in read if d != NO_DIGIT))
        return named
    counts = predicted_counts(trace.scores, rule)
    for i, (score, count) in enumerate(zip(trace.scores.tolist(), counts.long().tolist(), strict=True)):
        rejected = max((s for s, n in zip(score, count, strict=True) if n == 0), default=0.0)
        if rule.objects is None:  # a class is named from a half on, whatever the others score
            rejected = max(rejected, 0.5)
        objects = [
            found(k, score[k] / n, rejected, clear[i][k] if clear else None)
            for k, n in enumerate(count)
            for _ in range(n)
        ]
        named.append(tuple(sorted(objects, key=lambda item: -item.score)))
    return named


def _glimpses(
    trace: Trace, i: int, config: NetworkConfig, info: ModelInfo, placement: Placement
) -> tuple[Glimpse, ...]:
    """The glimpses that image i took; a model without attention looks at the whole image each time."""
    assert trace.winners is not None, "decode needs a trace made with record=True"
    windows, names = trace.read_windows, info.capsule_names(config)
    lengths = trace.capsule_lengths[i].tolist()
    made = []
    for step, winner in enumerate(trace.winners[i, : trace.glimpses_of(i)].tolist()):
        if windows is None:
            x, y, stride, sigma = (config.width - 1) / 2, (config.height - 1) / 2, float("nan"), float("nan")
            extent = max(config.width, config.height) - 1.0
        else:
            x, y = windows.center[i, step].tolist()
            stride, sigma = windows.stride[i, step].item(), windows.sigma[i, step].item()
            extent = stride * (config.glimpse_size - 1)
        scale_x, scale_y = placement.scale
        made.append(
            Glimpse(
                *placement.to_source(x, y),
                width=extent * scale_x,
                height=extent * scale_y,
                stride=stride * scale_x,
                sigma=sigma * scale_x,
                winner=names[winner],
                length=lengths[step][winner],
                lengths=tuple(lengths[step]),
            )
        )
    return tuple(made)
