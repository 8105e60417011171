"""From scores to answers, and how many of them are wrong. Ties never count as correct."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.config import AnswerRule, Calibration
from ocra.data.task import NO_DIGIT, Batch
from ocra.model.deciding import is_sure, margins, predicted_counts, probability
from ocra.model.trace import Trace

# A glimpse whose longest capsule is shorter on average adds next to nothing to any score.
SILENT_LENGTH = 0.02
NONE = "none"
BINS = 10
"""Of a reliability diagram."""
MOST_OBJECTS = 10
"""Errors are told apart by the number of objects in an image up to this; the last number stands for more as well."""


def wrong_digits(readout: Tensor, sequence: Tensor) -> Tensor:
    """Outputs of a sequence readout [batch, digits, classes] that are wrong or tied: bool [batch, digits]."""
    right = F.one_hot(sequence, readout.shape[2]).bool()
    best_wrong = readout.masked_fill(right, -math.inf).amax(2)
    return ~(readout.masked_fill(~right, -math.inf).amax(2) > best_wrong)


def wrong_answers(trace: Trace, batch: Batch, rule: AnswerRule) -> Tensor:
    """Images with anything wrong in the answer: bool [batch]. House numbers are answered by their readout."""
    if trace.readout is not None and batch.sequence is not None:
        return wrong_digits(trace.readout, batch.sequence).any(1)
    return (predicted_counts(trace.scores, rule) != batch.counts).any(1)


def wilson_interval(errors: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share `errors / n` after Wilson (1927), which holds for small shares too."""
    if n <= 0:
        return 0.0, 1.0
    share = errors / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


class ErrorCounter:
    """Counts of what was right and wrong, over as many batches as one likes."""

    def __init__(
        self,
        class_names: tuple[str, ...],
        glimpses: int,
        digits: int = 0,
        outputs: int = NO_DIGIT + 1,
        calibration: Calibration | None = None,
    ) -> None:
        """digits: length of the sequence read out, if one is. outputs: of a readout, the last of which is no class."""
        self.calibration = calibration
        self.class_names = class_names[: outputs - 1] if digits else class_names
        self.glimpses, self.digits = glimpses, digits
        classes, lengths = len(self.class_names), digits + 1
        self.sums = {
            name: torch.zeros(shape, dtype=torch.float64)
            for name, shape in {
                "images": (),
                "wrong": (),
                "squared_error": (),
                "false_alarms": (),  # objects named that are not there
                "taken": (),  # glimpses, by images that may stop early
                "longest": (glimpses,),  # capsule of an object at each glimpse
                "confusion": (classes, classes + 1),  # true class, answer; the last column is no answer
                "pairs": (classes, classes),
                "wrong_pairs": (classes, classes),
                "by_objects": (MOST_OBJECTS + 1,),  # images by the number of objects in them
                "wrong_by_objects": (MOST_OBJECTS + 1,),
                "present": (),  # classes in images: there, and said to be there though there or not
                "hits": (),
                "absent": (),
                "false_presence": (),
                "numbers": (lengths,),  # sequences by length
                "wrong_numbers": (lengths,),
                "digits": (lengths,),
                "wrong_digits": (lengths,),
                "wrong_outputs": (),
                "confidence": (
                    BINS,
                    3,
                ),  # images, confidence and right answers, by the confidence in whole tenths
                "sure": (2,),  # images with an answer that is not "unsure", and how many of those are wrong
            }.items()
        }

    def add(self, trace: Trace, batch: Batch, rule: AnswerRule) -> None:
        """Count a batch."""
        wrong = wrong_answers(trace, batch, rule)
        self.sums["images"] += len(wrong)
        self.sums["wrong"] += wrong.sum()
        self.sums["squared_error"] += (trace.canvas - batch.images).square().mean((1, 2, 3)).sum().double()
        objects = trace.capsule_lengths[:, :, : trace.scores.shape[1]]
        if trace.taken is not None:
            self.sums["taken"] += trace.taken.sum()
        self.sums["longest"] += objects.amax(2).sum(0).double()
        if self.calibration is not None:
            sure = probability(margins(trace.scores, trace.readout, rule)[1], self.calibration)
            columns = torch.stack([torch.ones_like(sure), sure, (~wrong).double()], 1)
            self.sums["confidence"].index_add_(0, (BINS * sure).long().clamp(max=BINS - 1), columns)
            answered = is_sure(trace, rule, self.calibration)
            self.sums["sure"] += torch.stack([answered.sum(), (answered & wrong).sum()])
        if trace.readout is not None and batch.sequence is not None:
            self._add_numbers(trace.readout, batch.sequence, wrong)
        else:
            self._add_counts(predicted_counts(trace.scores, rule), batch.counts, wrong)

    def _add_counts(self, predicted: Tensor, counts: Tensor, wrong: Tensor) -> None:
        """Who was taken for whom. A missed object was taken for what was named in its place, in equal parts."""
        found = torch.minimum(predicted, counts)
        missed = counts - found
        self.sums["false_alarms"] += (predicted - found).sum()
        claimed = F.pad(predicted - found, (0, 1))
        claimed[:, -1] = F.relu(missed.sum(1) - claimed.sum(1))
        claimed = claimed / claimed.sum(1, keepdim=True).clamp(min=1)
        confusion = self.sums["confusion"]
        confusion += (missed[:, :, None] * claimed[:, None]).sum(0).double()
        confusion.diagonal().add_(found.sum(0).double())
        there, named = counts > 0, predicted > 0
        self.sums["present"] += there.sum()
        self.sums["hits"] += (there & named).sum()
        self.sums["absent"] += (~there).sum()
        self.sums["false_presence"] += (~there & named).sum()
        objects = counts.sum(1).long().clamp(max=MOST_OBJECTS)
        self.sums["by_objects"].index_add_(0, objects, torch.ones(len(wrong), dtype=torch.float64))
        self.sums["wrong_by_objects"].index_add_(0, objects, wrong.double())
        two = counts.sum(1) == 2
        pairs, wrong = counts[two].long(), wrong[two].double()
        order = torch.arange(pairs.shape[1])
        first = torch.where(pairs > 0, order, pairs.shape[1]).amin(1)
        second = torch.where(pairs > 0, order, -1).amax(1)
        self.sums["pairs"].index_put_((first, second), torch.ones_like(wrong), accumulate=True)
        self.sums["wrong_pairs"].index_put_((first, second), wrong, accumulate=True)

    def _add_numbers(self, readout: Tensor, sequence: Tensor, wrong: Tensor) -> None:
        """House numbers: right and wrong digits, by the length of the number."""
        none = len(self.class_names)
        real, mistaken = sequence < none, wrong_digits(readout, sequence)
        answers = readout.argmax(2)
        answers = torch.where(mistaken & (answers == sequence), none, answers)  # a tie is no answer
        self.sums["false_alarms"] += (mistaken & (answers < none)).sum()
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
        """The counts over all processes, given a function that adds a float64 vector up over them."""
        packed = add_up(torch.cat([value.reshape(-1) for value in self.sums.values()]))
        parts = packed.split([value.numel() for value in self.sums.values()])
        result = copy(self)
        result.sums = {
            name: part.view_as(self.sums[name]) for name, part in zip(self.sums, parts, strict=True)
        }
        return result

    def __add__(self, other: ErrorCounter) -> ErrorCounter:
        result = copy(self)
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

    @property
    def d_prime(self) -> float:
        """How well the classes that are in an image are told from those that are not: z(hits) − z(false alarms).

        Half a case is added to each kind (Hautus, 1995), so that it is finite where there was no error.
        """
        hits, present, false_presence, absent = (
            float(self.sums[name]) for name in ("hits", "present", "false_presence", "absent")
        )
        z = NormalDist().inv_cdf
        return z((hits + 0.5) / (present + 1)) - z((false_presence + 0.5) / (absent + 1))

    def figures(self) -> dict[str, Any]:
        """The main figures: errors as fractions, with the 95 % interval of the exact error.

        Of objects (digits of a house number): how many there were, were not named (misses) and were named without
        being there (false alarms); precision is the share of right ones among those named, recall that of named ones
        among those there; d′ is about classes, there or not, named or not. `mean_glimpses` is there if images could
        stop early, `reconstruction_mse` if the model reconstructs.
        """
        images, wrong = float(self.sums["images"]), float(self.sums["wrong"])
        found, there = float(self.sums["confusion"].diagonal().sum()), float(self.sums["confusion"].sum())
        false_alarms = float(self.sums["false_alarms"])
        mse = float(self.sums["squared_error"]) / images
        return {
            "n": int(images),
            "exact_error": self.exact_error,
            "exact_error_interval": list(wilson_interval(wrong, images)),
            "object_error": self.object_error,
            "objects": round(there),
            "misses": round(there - found),
            "false_alarms": round(false_alarms),
            "precision": found / max(1.0, found + false_alarms),
            "recall": found / max(1.0, there),
            **({"d_prime": self.d_prime} if self.sums["present"] else {}),
            **({"reconstruction_mse": mse} if math.isfinite(mse) else {}),
            **({"mean_glimpses": float(self.sums["taken"]) / images} if self.sums["taken"] else {}),
        }

    @property
    def longest_capsules(self) -> list[float]:
        """Mean length of the longest object capsule, glimpse by glimpse."""
        return (self.sums["longest"] / self.sums["images"]).tolist()

    @property
    def silent_glimpses(self) -> int:
        """How many glimpses add next to nothing to any score: their windows have most likely lost the objects."""
        return sum(length < SILENT_LENGTH for length in self.longest_capsules)

    def _calibration(self, calibration: Calibration) -> dict[str, Any]:
        """What became of the confidence: a reliability diagram as rows, and what is left at the threshold."""
        images, (answered, mistaken) = float(self.sums["images"]), self.sums["sure"].tolist()
        rows = [row for row in self.sums["confidence"].tolist() if row[0]]
        return {
            "threshold": calibration.threshold,
            "coverage": answered / images,
            "error_if_sure": mistaken / max(1.0, answered),
            "expected_calibration_error": sum(abs(sure - right) for _, sure, right in rows) / images,
            "reliability": [[round(n), sure / n, right / n] for n, sure, right in rows],
        }

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
        if self.calibration is not None:
            details["calibration"] = self._calibration(self.calibration)
        by_objects = list(
            zip(*(self.sums[name].tolist() for name in ("by_objects", "wrong_by_objects")), strict=True)
        )
        if sum(n > 0 for n, _ in by_objects) > 1:
            details["objects_in_image"] = {
                str(objects): {"n": round(n), "exact_error": mistaken / n}
                for objects, (n, mistaken) in enumerate(by_objects)
                if n
            }
        if self.sums["pairs"].any():
            count, wrong = self.sums["pairs"], self.sums["wrong_pairs"]
            details["pairs"] = {
                f"{self.class_names[a]} {self.class_names[b]}": {
                    "n": int(count[a, b]),
                    "error": float(wrong[a, b] / count[a, b]),
                }
                for a, b in count.nonzero().tolist()
            }
        if self.sums["numbers"].any():
            names = ("numbers", "wrong_numbers", "digits", "wrong_digits")
            by_length = zip(*(self.sums[name].tolist() for name in names), strict=True)
            details["lengths"] = {
                str(length): {"n": int(n), "exact_error": wrong / n, "digit_error": mistaken / max(1, digits)}
                for length, (n, wrong, digits, mistaken) in enumerate(by_length)
                if n
            }
            outputs = self.digits * float(self.sums["images"])
            details["output_error"] = float(self.sums["wrong_outputs"]) / outputs
        return details
