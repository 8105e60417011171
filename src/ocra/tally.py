"""Sums over images, from which every figure of an evaluation follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.data.task import Batch
from ocra.metrics import AnswerRule, predicted_counts, wilson_interval, wrong_digits, wrong_images
from ocra.model.trace import Trace

DIGITS, LONGEST_NUMBER = 10, 5
NONE = "none"
SILENT = 0.02


class ErrorCounter:
    """Counts of what was right and wrong, over as many batches as one likes."""

    def __init__(self, class_names: tuple[str, ...], glimpses: int) -> None:
        self.class_names = class_names
        self.glimpses = glimpses
        classes = len(class_names)
        self.sums = {
            name: torch.zeros(shape, dtype=torch.float64)
            for name, shape in {
                "images": (),
                "wrong": (),
                "squared_error": (),
                "longest": (glimpses,),  # capsule of an object at each glimpse
                "confusion": (classes, classes + 1),  # true class, answer; the last column is no answer
                "pairs": (classes, classes),
                "wrong_pairs": (classes, classes),
                "numbers": (LONGEST_NUMBER + 1,),  # by length
                "wrong_numbers": (LONGEST_NUMBER + 1,),
                "digits": (LONGEST_NUMBER + 1,),
                "wrong_digits": (LONGEST_NUMBER + 1,),
                "wrong_outputs": (),
            }.items()
        }

    def add(self, trace: Trace, batch: Batch, rule: AnswerRule) -> None:
        """Count a batch."""
        wrong = wrong_answers(trace, batch, rule)
        self.sums["images"] += len(wrong)
        self.sums["wrong"] += wrong.sum()
        self.sums["squared_error"] += (trace.canvas - batch.images).square().mean((1, 2, 3)).sum().double()
        objects = trace.capsule_lengths[:, :, : trace.scores.shape[1]]
        self.sums["longest"] += objects.amax(2).sum(0).double()
        if trace.readout is not None and batch.sequence is not None:
            self._add_numbers(trace.readout, batch.sequence, wrong)
        else:
            self._add_counts(predicted_counts(trace.scores, rule), batch.counts, wrong)

    def _add_counts(self, predicted: Tensor, counts: Tensor, wrong: Tensor) -> None:
        """Who was taken for whom. A missed object was taken for what was named in its place, in equal parts."""
        found = torch.minimum(predicted, counts)
        missed = counts - found
        claimed = F.pad(predicted - found, (0, 1))
        claimed[:, -1] = F.relu(missed.sum(1) - claimed.sum(1))
        claimed = claimed / claimed.sum(1, keepdim=True).clamp(min=1)
        confusion = self.sums["confusion"]
        confusion += (missed[:, :, None] * claimed[:, None]).sum(0).double()
        confusion.diagonal().add_(found.sum(0).double())
        two = counts.sum(1) == 2
        pairs, wrong = counts[two].long(), wrong[two].double()
        order = torch.arange(pairs.shape[1])
        first = torch.where(pairs > 0, order, pairs.shape[1]).amin(1)
        second = torch.where(pairs > 0, order, -1).amax(1)
        self.sums["pairs"].index_put_((first, second), torch.ones_like(wrong), accumulate=True)
        self.sums["wrong_pairs"].index_put_((first, second), wrong, accumulate=True)

    def _add_numbers(self, readout: Tensor, sequence: Tensor, wrong: Tensor) -> None:
        """House numbers: right and wrong digits, by the length of the number."""
        real, mistaken = sequence < DIGITS, wrong_digits(readout, sequence)
        answers = readout.argmax(2)
        answers = torch.where(mistaken & (answers == sequence), DIGITS, answers)  # a tie is no answer
        ones = torch.ones(int(real.sum()), dtype=torch.float64)
        self.sums["confusion"].index_put_((sequence[real], answers[real]), ones, accumulate=True)
        self.sums["wrong_outputs"] += mistaken.sum()
        length = real.sum(1)
        for name, values in {
            "numbers": torch.ones_like(length),
            "wrong_numbers": wrong,
            "digits": length,
            "wrong_digits": (mistaken & real).sum(1),
        }.items():
            self.sums[name].index_add_(0, length, values.double())

    def combined(self, add_up: Callable[[Tensor], Tensor]) -> ErrorCounter:
        """The tally over all processes, given a function that adds a float64 vector up over them."""
        packed = add_up(torch.cat([value.reshape(-1) for value in self.sums.values()]))
        parts = packed.split([value.numel() for value in self.sums.values()])
        result = ErrorCounter(self.class_names, self.glimpses)
        for name, part in zip(self.sums, parts, strict=True):
            result.sums[name] = part.view_as(self.sums[name])
        return result

    def __add__(self, other: ErrorCounter) -> ErrorCounter:
        result = ErrorCounter(self.class_names, self.glimpses)
        result.sums = {name: value + other.sums[name] for name, value in self.sums.items()}
        return result

    @property
    def exact_error(self) -> float:
        """Share of images with anything wrong."""
        return float(self.sums["wrong"] / self.sums["images"])

    @property
    def object_error(self) -> float:
        """Share of objects that were not named (house numbers: of digits that were read wrongly)."""
        confusion = self.sums["confusion"]
        return float(1 - confusion.diagonal().sum() / confusion.sum().clamp(min=1))

    def figures(self) -> dict[str, Any]:
        """The main figures: errors as fractions, with the 95 % interval of the exact error."""
        images, wrong = float(self.sums["images"]), float(self.sums["wrong"])
        return {
            "n": int(images),
            "exact_error": self.exact_error,
            "exact_error_interval": list(wilson_interval(wrong, images)),
            "object_error": self.object_error,
            "reconstruction_mse": float(self.sums["squared_error"]) / images,
        }

    @property
    def longest_capsules(self) -> list[float]:
        """Mean length of the longest object capsule, glimpse by glimpse."""
        return (self.sums["longest"] / self.sums["images"]).tolist()

    @property
    def silent_glimpses(self) -> int:
        """How many glimpses add next to nothing to any score: their windows have most likely lost the objects."""
        return sum(length < SILENT for length in self.longest_capsules)

    def details(self) -> dict[str, Any]:
        """Capsule lengths by glimpse; errors by class, by pair and by length of a house number, where there are any."""
        confusion = self.sums["confusion"]
        found, there = confusion.diagonal().tolist(), confusion.sum(1).tolist()
        details: dict[str, Any] = {
            "longest_capsules": self.longest_capsules,
            "classes": {
                name: {"n": round(there[k]), "error": 1 - found[k] / there[k]}
                for k, name in enumerate(self.class_names)
                if there[k]
            },
            "confusion": {
                "true": list(self.class_names),
                "answered": [*self.class_names, NONE],
                "counts": confusion.tolist(),
            },
        }
        if self.sums["pairs"].any():
            details["pairs"] = self._pairs()
        if self.sums["numbers"].any():
            details["lengths"] = self._lengths()
            outputs = LONGEST_NUMBER * float(self.sums["images"])
            details["output_error"] = float(self.sums["wrong_outputs"]) / outputs
        return details

    def _pairs(self) -> dict[str, dict[str, float]]:
        count, wrong = self.sums["pairs"], self.sums["wrong_pairs"]
        return {
            f"{self.class_names[a]} {self.class_names[b]}": {
                "n": int(count[a, b]),
                "error": float(wrong[a, b] / count[a, b]),
            }
            for a, b in count.nonzero().tolist()
        }

    def _lengths(self) -> dict[str, dict[str, float]]:
        sums = {
            name: self.sums[name].tolist() for name in ("numbers", "wrong_numbers", "digits", "wrong_digits")
        }
        return {
            str(length): {
                "n": int(sums["numbers"][length]),
                "exact_error": sums["wrong_numbers"][length] / sums["numbers"][length],
                "digit_error": sums["wrong_digits"][length] / max(1, sums["digits"][length]),
            }
            for length in range(LONGEST_NUMBER + 1)
            if sums["numbers"][length]
        }


def wrong_answers(trace: Trace, batch: Batch, rule: AnswerRule) -> Tensor:
    """Images with anything wrong in the answer: bool [batch]. House numbers are answered by their readout."""
    if trace.readout is not None and batch.sequence is not None:
        return wrong_digits(trace.readout, batch.sequence).any(1)
    return wrong_images(predicted_counts(trace.scores, rule), batch.counts)
