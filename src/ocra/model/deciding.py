"""From scores to an answer, how clear it is, and passes that end once it is clear enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ocra.config import AnswerRule, Calibration
from ocra.errors import OcraError, UsageError
from ocra.model.attention import Window
from ocra.model.interventions import Interventions
from ocra.model.trace import Trace

if TYPE_CHECKING:
    from ocra.model.ocra import OCRA, State, Step

# A class counts n times if its score is above n − 0.2 ("1.8, conservatively selected", the paper).
REPEAT_MARGIN = 0.2
NAMED_FROM = 0.5
"""Where the number of objects is not known, a class is named from this score on."""


def predicted_counts(scores: Tensor, rule: AnswerRule) -> Tensor:
    """How often each class is said to occur: float [batch, classes] from scores [batch, classes].

    With two objects: if the highest score is at least 1.8, two of that class, else the two highest (the paper's
    rule). A class that is chosen by the toss of a coin, because another one with the same score is not chosen or
    is said to occur another number of times, is not counted at all: no luck.
    """
    if rule.objects is None:
        # The margin loss never holds a class that is there down to its count, so one that occurs at most once
        # may well score three.
        return (scores + NAMED_FROM).floor().clamp(min=0, max=None if rule.repeats else 1)
    left = scores.new_full((scores.shape[0], 1), rule.objects)
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


def answer_margin(scores: Tensor, rule: AnswerRule) -> Tensor:
    """How far the answer is ahead of the next class: [batch] from scores [batch, classes].

    The lowest score of an object that is answered, less the highest of a class that is not; a class that is named
    twice has half its score for each. Where the number of objects is not known the next class has at least the half
    from which on a class is named. An answer that names fewer objects than there are (ties) is not ahead: 0.
    """
    counts = predicted_counts(scores, rule)
    named = counts > 0
    lowest = torch.where(named, scores / counts.clamp(min=1), math.inf).amin(1)
    next_best = torch.where(named, -math.inf, scores).amax(1).clamp(min=0 if rule.objects else NAMED_FROM)
    whole = counts.sum(1) == rule.objects if rule.objects else named.any(1)
    return torch.where(whole, lowest - next_best, 0)


RATIO_FLOOR = 0.2
"""Added to both scores of a ratio: two that are next to nothing say nothing, whatever their ratio."""
INK_FLOOR = 0.01
"""The same for the mean tone of a reconstruction."""


def margins(scores: Tensor, readout: Tensor | None, rule: AnswerRule) -> tuple[Tensor, Tensor]:
    """How clear each object and the whole answer are: [batch, classes], or of a sequence [batch, digits]; [batch].

    Where the number of objects is known: the logarithm of the ratio of a named class's score, for each time it is
    named, to the highest of those not named. Where it is not, how far each score is from being rounded otherwise. Of a
    sequence, how far the highest output is above the next. The whole is as clear as what is least clear in it.
    """
    if readout is not None:
        highest = readout.topk(2, dim=2).values
        clear = highest[..., 0] - highest[..., 1]
        return clear, clear.amin(1)
    counts = predicted_counts(scores, rule)
    if rule.objects is None:
        clear = NAMED_FROM - (scores - counts).abs()
        if not rule.repeats:  # far above one is one
            clear = torch.where(counts > 0, (scores - NAMED_FROM).clamp(max=NAMED_FROM), clear)
        return clear, clear.amin(1)
    named = counts > 0
    next_best = torch.where(named, -math.inf, scores).amax(1, keepdim=True).clamp(min=0)
    each = scores / counts.clamp(min=1)
    clear = ((each.clamp(min=0) + RATIO_FLOOR) / (next_best + RATIO_FLOOR)).log()
    whole = torch.where(named, clear, math.inf).amin(1)
    return clear, torch.where(counts.sum(1) == rule.objects, whole, 0)


def probability(margin: Tensor, calibration: Calibration, of_object: bool = False) -> Tensor:
    """The calibrated probability that an answer of this margin is right, or that an object is there."""
    if of_object:
        temperature, offset = calibration.object_temperature, calibration.object_offset
    else:
        temperature, offset = calibration.temperature, calibration.offset
    return torch.sigmoid((margin.double() - offset) / temperature)


def evidence(scores: Tensor, canvas: Tensor, rule: AnswerRule) -> Tensor:
    """What tells whether as many objects are there as are named: [batch, 14], for networks that name a fixed number.

    Four logarithms, and their products with themselves and each other: the highest and the lowest score of an object
    that is named, the highest of a class that is not, and how much ink the reconstruction has: a digit alone has about
    half of two, noise has far more.
    """
    counts = predicted_counts(scores, rule)
    named, each = counts > 0, scores / counts.clamp(min=1)
    highest = torch.where(named, each, -math.inf).amax(1)
    lowest = torch.where(named, each, math.inf).amin(1)
    rejected = torch.where(named, -math.inf, scores).amax(1)
    found = torch.stack([highest, lowest, rejected], 1).nan_to_num(posinf=0, neginf=0).clamp(min=0)
    ink = canvas.clamp(0, 1).flatten(1).mean(1, keepdim=True)
    logs = torch.cat([found + RATIO_FLOOR, ink + INK_FLOOR], 1).log().double()
    one, other = torch.triu_indices(4, 4)
    return torch.cat([logs, logs[:, one] * logs[:, other]], 1)


def is_plausible(scores: Tensor, canvas: Tensor, rule: AnswerRule, calibration: Calibration) -> Tensor:
    """Whether images look as if they held as many objects as are named: [batch]; true where that is not known."""
    if not calibration.plausible or rule.objects is None:
        return torch.ones(len(scores), dtype=torch.bool)
    *weights, constant = calibration.plausible
    clear = evidence(scores, canvas, rule) @ torch.tensor(weights, dtype=torch.float64, device=scores.device)
    return (clear + constant >= 0).cpu()


def is_sure(trace: Trace, rule: AnswerRule, calibration: Calibration) -> Tensor:
    """Whether the answer to each image is given, not "unsure": [batch]."""
    sure = probability(margins(trace.scores, trace.readout, rule)[1], calibration).cpu()
    return (sure >= calibration.threshold) & is_plausible(trace.scores, trace.canvas, rule, calibration)


def look_until(
    model: OCRA,
    images: Tensor,
    until: float,
    glimpses: int,
    routings: int,
    record: bool,
    attended: bool,
    control: Interventions | None,
) -> Trace:
    """A pass in which each image stops once its answer is `until` ahead; at most so many glimpses.

    Images that have stopped take no further part: the batch shrinks. In the trace what a stopped image did not do is
    zero (capsule lengths, writes, glimpses), NaN (windows) or −1 (winners).
    """
    batch, classes = len(images), model.config.classes
    going = torch.arange(batch, device=images.device)  # positions of the images that are still looked at
    taken = torch.zeros(batch, dtype=torch.long, device=images.device)
    scores = images.new_zeros(batch, classes)
    state: State | None = None
    steps: list[Step] = []
    for t in range(glimpses):
        if len(going) == 0:
            steps.append(_each(lambda value, fill: torch.full_like(value, fill), steps[-1]))
            continue
        at_t = None if control is None else control.at(t).of_images(going)
        now = model.step(images[going], state, routings, record, attended, at_t)
        taken[going] += 1
        scores = scores + now.lengths[:, :classes]
        steps.append(_each(_Scatter(going, batch), now))
        undecided = answer_margin(scores.detach(), model.info.answer) < until
        going, scores = going[undecided], scores[undecided]
        assert now.state is not None  # all was asked of the glimpse
        state = type(now.state)(*(part[undecided] for part in now.state))
    return replace(model.sum_up(steps, record), taken=taken)


class _Scatter:
    """Puts the values of some images where these stand in the whole batch, and a fill elsewhere."""

    def __init__(self, positions: Tensor, batch: int) -> None:
        self.positions, self.batch = positions, batch

    def __call__(self, value: Tensor, fill: float) -> Tensor:
        blank = value.new_full((self.batch, *value.shape[1:]), fill)
        return blank.index_copy(0, self.positions, value)


def _each(change: Callable[[Tensor, float], Tensor], value: Any, fill: float = 0.0) -> Any:
    """A step with each of its tensors changed; the second argument is what stands for nothing there."""
    if isinstance(value, Tensor):
        return change(value, fill if value.is_floating_point() else -1)
    if isinstance(value, tuple):
        fill = math.nan if isinstance(value, Window) else fill
        return type(value)(*(_each(change, part, fill) for part in value))
    return value


def check_until(until: float, readouts: bool) -> float:
    """The margin, if it is one; a number that is read digit by digit has none."""
    if isinstance(until, bool) or not isinstance(until, int | float) or not 0 < until < math.inf:
        raise UsageError(f"until must be a number above 0, such as 0.5, not {until!r}.")
    if readouts:
        raise OcraError(
            "A house number is read digit by digit, each from glimpses of its own: it is not decided before the "
            "last. Leave `until` out."
        )
    return float(until)
