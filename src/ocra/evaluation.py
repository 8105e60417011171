"""Scoring a model on a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data.task import Batch, Task
from .metrics import (
    AnswerRule,
    answer_rule,
    missed_objects,
    predicted_counts,
    wilson_interval,
    wrong_digits,
    wrong_images,
)
from .model import OCRA
from .trace import Trace

LONGEST_NUMBER = 5


class Tally:
    """Sums over images from which every figure of an evaluation follows; two tallies may be added."""

    def __init__(self, classes: int) -> None:
        self.images = torch.zeros((), dtype=torch.float64)
        self.wrong = torch.zeros((), dtype=torch.float64)
        self.squared_error = torch.zeros((), dtype=torch.float64)
        self.objects = torch.zeros(classes, dtype=torch.float64)
        self.missed = torch.zeros(classes, dtype=torch.float64)

    def over(self, combine: Callable[[Tensor], Tensor]) -> Tally:
        """The same tally after `combine`, which adds up a float64 vector over processes."""
        sums = list(vars(self).values())
        packed = combine(torch.cat([value.reshape(-1) for value in sums]))
        for value, part in zip(sums, packed.split([value.numel() for value in sums]), strict=True):
            value.copy_(part.view_as(value))
        return self

    @property
    def exact_error(self) -> float:
        """Share of images with anything wrong."""
        return float(self.wrong / self.images)

    @property
    def object_error(self) -> float:
        """Share of objects that were not named."""
        return float(self.missed.sum() / self.objects.sum())

    def figures(self) -> dict[str, Any]:
        """Errors as fractions, with the 95 % interval of the exact error."""
        return {
            "n": int(self.images),
            "exact_error": self.exact_error,
            "exact_error_interval": list(wilson_interval(float(self.wrong), float(self.images))),
            "object_error": self.object_error,
            "reconstruction_mse": float(self.squared_error / self.images),
        }

    def add(self, trace: Trace, batch: Batch, rule: AnswerRule, keep: Tensor) -> None:
        """Count a batch; keep: bool [batch], false for images that only fill it up."""
        predicted = predicted_counts(trace.scores, rule)
        wrong = wrong_answers(trace, batch, rule)
        self.images += keep.sum()
        self.wrong += (wrong & keep).sum()
        self.squared_error += (trace.canvas - batch.images).square().mean((1, 2, 3))[keep].sum().double()
        self.objects += batch.counts[keep].sum(0).double()
        self.missed += missed_objects(predicted, batch.counts)[keep].sum(0).double()


def wrong_answers(trace: Trace, batch: Batch, rule: AnswerRule) -> Tensor:
    """Images with anything wrong in the answer, bool [batch]: in the sequence read out, else in the classes."""
    if trace.readout is not None and batch.sequence is not None:
        return wrong_digits(trace.readout, batch.sequence).any(1)
    return wrong_images(predicted_counts(trace.scores, rule), batch.counts)


@torch.no_grad()
def tally(
    model: OCRA,
    task: Task,
    indices: NDArray[np.int64],
    batch: int,
    glimpses: int | None = None,
    device: torch.device | str = "cpu",
) -> Tally:
    """Score the images of these indices, `batch` at a time; all batches have that size, so one compilation serves."""
    rule = answer_rule(task)
    result = Tally(len(task.class_names))
    for chunk in _chunks(indices, batch):
        keep = torch.arange(batch) < len(chunk)
        pictures = task.batch(np.resize(chunk, batch))
        trace = model(pictures.images.to(device), glimpses=glimpses)
        result.add(_on_cpu(trace), pictures, rule, keep)
    return result


def on_device(batch: Batch, device: torch.device) -> Batch:
    """A batch without its parts, on a device."""
    sequence = None if batch.sequence is None else batch.sequence.to(device)
    return Batch(batch.images.to(device), batch.counts.to(device), sequence)


def _chunks(indices: NDArray[np.int64], size: int) -> Iterable[NDArray[np.int64]]:
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _on_cpu(trace: Trace) -> Trace:
    """The few fields of a trace that scoring needs."""
    readout = None if trace.readout is None else trace.readout.cpu()
    return Trace(trace.scores.cpu(), trace.canvas.cpu(), trace.capsule_lengths.cpu(), readout)
