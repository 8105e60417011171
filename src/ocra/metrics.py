"""From scores to answers, and how many of them are wrong. Ties never count as correct."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.config import AnswerRule

# A class counts n times if its score is above n − 0.2 ("1.8, conservatively selected", the paper).
REPEAT_MARGIN = 0.2


def answer_rule(task: Any) -> AnswerRule:
    """The rule of a task: two different digits for MultiMNIST, else as many objects as the task says."""
    if task.name == "multimnist":
        return AnswerRule(2, repeats=False)
    return AnswerRule(getattr(task, "objects", None), getattr(task, "repeats", True))


def predicted_counts(scores: Tensor, rule: AnswerRule) -> Tensor:
    """How often each class is said to occur: float [batch, classes] from scores [batch, classes].

    With two objects: if the highest score is at least 1.8, two of that class, else the two highest (the paper's
    rule). A class that is chosen by the toss of a coin, because another one with the same score is not chosen or
    is said to occur another number of times, is not counted at all: no luck.
    """
    if rule.objects is None:
        # The margin loss never holds a class that is there down to its count, so one that occurs at most once
        # may well score three.
        return (scores + 0.5).floor().clamp(min=0, max=None if rule.repeats else 1)
    left = scores.new_full((len(scores), 1), rule.objects)
    remaining = scores.clone()
    said = []
    for _ in range(min(rule.objects, scores.shape[1])):
        highest, chosen = remaining.max(1, keepdim=True)
        times = (highest + REPEAT_MARGIN).floor().clamp(min=1) if rule.repeats else torch.ones_like(highest)
        times = torch.minimum(times, left)
        said.append((highest, chosen, times))
        left = left - times
        # A class is spent once chosen, and once all objects are named the others keep their place in `remaining`.
        remaining = torch.where(times > 0, remaining.scatter(1, chosen, -math.inf), remaining)
    highest, chosen, times = (torch.cat(column, 1) for column in zip(*said, strict=True))
    counts = torch.zeros_like(scores).scatter(1, chosen, times)
    best_left_out = torch.where(counts > 0, -math.inf, scores).amax(1, keepdim=True)
    same_score = highest[:, :, None] == highest[:, None, :]
    tossed = (same_score & (times[:, :, None] != times[:, None, :])).any(2)
    counts = counts.scatter(1, chosen, torch.where(tossed, 0, times))
    return torch.where(scores > best_left_out, counts, 0)


def wrong_images(predicted: Tensor, counts: Tensor) -> Tensor:
    """Image-level error: bool [batch], true where any class count is wrong."""
    return (predicted != counts).any(1)


def missed_objects(predicted: Tensor, counts: Tensor) -> Tensor:
    """Objects that were not named: [batch, classes]."""
    return F.relu(counts - predicted)


def wrong_digits(readout: Tensor, sequence: Tensor) -> Tensor:
    """Outputs of a sequence readout [batch, digits, classes] that are wrong or tied: bool [batch, digits]."""
    right = F.one_hot(sequence, readout.shape[2]).bool()
    best_wrong = readout.masked_fill(right, -math.inf).amax(2)
    return ~(readout.masked_fill(~right, -math.inf).amax(2) > best_wrong)


def wilson_interval(errors: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share `errors / n` after Wilson (1927), which holds for small shares too."""
    if n <= 0:
        return 0.0, 1.0
    share = errors / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)
