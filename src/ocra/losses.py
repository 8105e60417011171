"""What training minimises: margin loss on counts, reconstruction, SVHN's readout (eq. 5 and 6), and what we add."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.config import check_numbers, check_switches
from ocra.data.task import Annotations, Batch
from ocra.errors import OcraError
from ocra.model.trace import Trace, Windows

MARGIN = 0.1
"""How far a score may stay from its target at no cost, the paper's m."""
ABSENT_WEIGHT = 0.5
"""Weight of the classes that are not in the image, the paper's λ_absent."""
READOUT_WEIGHT = 10.0
"""Weight of the loss on a sequence that is read out, as in the authors' program."""
READOUT_SHARPNESS = 10.0
"""Outputs of the readout, which want to be 0 or 1, times this are the logits of a softmax."""
SMALLEST_SCORE = 1e-4
"""Added to scores before their logarithm, so that a silent class costs a finite amount."""
SMALLEST_MAXIMUM = 1e-6
"""Far below any score or mask that means something; keeps 0 / 0 out of a black image."""

FAINTEST = 0.1
"""An image of less contrast than this is not stretched further: it shows noise."""


@dataclass(frozen=True)
class LossConfig:
    """How the parts of the loss are made; their weights are those of a training stage."""

    reconstruction_mask: Literal["none", "authors", "paper"] = "none"
    """What the canvas is compared with: the image, 0.3·image + 0.7·mask·image (authors), or mask·image (paper)."""
    reconstruction_of: Literal["image", "contrast"] = "image"
    """The image itself, or its contrast with the tone of its border: photographs, whose background tells nothing."""
    normalise_scores: bool = True
    """Divide the scores of an image by its largest one; for tasks where no class occurs twice."""
    over_count_from: float = 0.5
    """How far above the count a score may be before the over-count penalty. Scores are rounded: less leaves room."""

    def __post_init__(self) -> None:
        check_switches(self, "loss")
        check_numbers(self, "loss", ("over_count_from",), lambda value: value >= 0, "at least 0")
        if self.reconstruction_mask not in ("none", "authors", "paper"):
            raise OcraError(
                f"loss.reconstruction_mask must be 'none', 'authors' or 'paper', not {self.reconstruction_mask!r}."
            )
        if self.reconstruction_of not in ("image", "contrast"):
            raise OcraError(
                f"loss.reconstruction_of must be 'image' or 'contrast', not {self.reconstruction_of!r}."
            )

    @property
    def needs_attended(self) -> bool:
        """Whether the model has to be called with `attended=True`."""
        return self.reconstruction_mask != "none"


class LossWeights(NamedTuple):
    """How much each part beside the margin loss counts, at one moment of a run."""

    reconstruction: float = 3.0
    cross_entropy: float = 0.0
    over_count: float = 0.0
    attention_supervision: float = 0.0
    early_answers: float = 0.0


class Losses(NamedTuple):
    """The loss of a batch and its parts before weighting, each a scalar."""

    total: Tensor
    margin: Tensor
    reconstruction: Tensor
    readout: Tensor
    cross_entropy: Tensor
    attention_supervision: Tensor
    early_answers: Tensor


def compute_losses(
    trace: Trace, batch: Batch, config: LossConfig, weights: LossWeights, planned_glimpses: int = 0
) -> Losses:
    """The loss of one pass over a batch.

    Attention supervision needs a recorded trace and a batch with annotations. planned_glimpses: glimpses in which a
    sequence is to be read in the end, if this pass has fewer.
    """
    margin = classification_losses(trace, batch, config, weights.over_count).mean()
    shown = batch.images if config.reconstruction_of == "image" else stretched_contrast(batch.images)
    target = reconstruction_target(shown, trace.attended, config.reconstruction_mask)
    reconstruction = F.mse_loss(trace.canvas, target)
    readout, cross_entropy, supervision, early = (margin.new_zeros(()) for _ in range(4))
    if trace.readout is not None and batch.sequence is not None:
        readout = readout_losses(trace.readout, batch.sequence).mean()
    if weights.cross_entropy:
        cross_entropy = count_cross_entropy(trace.scores, batch.counts)
        if trace.readout is not None and batch.sequence is not None:
            cross_entropy = cross_entropy + sequence_cross_entropy(trace.readout, batch.sequence)
    if weights.attention_supervision:
        if trace.read_windows is None or trace.glimpses is None or batch.annotations is None:
            raise OcraError(
                "Attention supervision needs a model with glimpses, record=True, and annotated batches."
            )
        height, width = batch.images.shape[2:]
        taken, size = trace.glimpses.shape[1], trace.glimpses.shape[-1]
        in_order_over = 0 if batch.sequence is None else planned_glimpses or taken
        supervision = attention_supervision_loss(
            trace.read_windows, batch.annotations, (height, width), size, in_order_over
        )
    if weights.early_answers:
        early = early_answer_losses(trace, batch, config, weights.over_count).mean()
    total = (
        margin
        + weights.reconstruction * reconstruction
        + READOUT_WEIGHT * readout
        + weights.cross_entropy * cross_entropy
        + weights.attention_supervision * supervision
        + weights.early_answers * early
    )
    return Losses(total, margin, reconstruction, readout, cross_entropy, supervision, early)


def classification_losses(trace: Trace, batch: Batch, config: LossConfig, over_count: float = 0.0) -> Tensor:
    """The margin loss of each image on the scores of a pass: [batch]."""
    scores = normalised_scores(trace) if config.normalise_scores else trace.scores
    return margin_losses(scores, batch.counts, over_count, config.over_count_from)


def early_answer_losses(trace: Trace, batch: Batch, config: LossConfig, over_count: float = 0.0) -> Tensor:
    """The margin loss of each image [batch] on the scores so far, its mean over the glimpses.

    In the paper only the scores after the last glimpse count, so a network may say nothing before.
    """
    lengths = trace.capsule_lengths.cumsum(1)  # [batch, glimpses, object capsules]
    scores = lengths[:, :, : batch.counts.shape[1]]
    if config.normalise_scores:
        scores = scores / lengths.amax(2, keepdim=True).clamp(min=SMALLEST_MAXIMUM)
    counts = batch.counts[:, None].expand_as(scores)
    losses = margin_losses(scores.flatten(0, 1), counts.flatten(0, 1), over_count, config.over_count_from)
    return losses.unflatten(0, scores.shape[:2]).mean(1)


def image_losses(trace: Trace, batch: Batch, config: LossConfig, over_count: float = 0.0) -> Tensor:
    """What is wrong with the answer to each image, [batch]: by this hard examples are selected."""
    losses = classification_losses(trace, batch, config, over_count)
    if trace.readout is not None and batch.sequence is not None:
        losses = losses + READOUT_WEIGHT * readout_losses(trace.readout, batch.sequence)
    return losses


def margin_losses(
    scores: Tensor, counts: Tensor, over_count: float = 0.0, over_count_from: float = 0.5
) -> Tensor:
    """The margin loss of each image [batch] on scores and counts, both [batch, classes] (eq. 6).

    A class that is there n times wants a score above n − m, one that is not there a score below m. With the over-count
    penalty, which the paper does not have, a class that is there also wants a score below n + `over_count_from`.
    """
    present = counts.clamp(0, 1) * F.relu(counts - MARGIN - scores).square()
    absent = ABSENT_WEIGHT * F.relu(1 - counts) * F.relu(scores - MARGIN).square()
    if over_count:
        present = (
            present + over_count * counts.clamp(0, 1) * F.relu(scores - counts - over_count_from).square()
        )
    return (present + absent).sum(1)


def readout_losses(readout: Tensor, sequence: Tensor) -> Tensor:
    """Margin loss of each image [batch] on all outputs [batch, digits, classes] for a sequence [batch, digits]."""
    targets = F.one_hot(sequence, readout.shape[2]).to(readout.dtype)
    return margin_losses(readout.flatten(1), targets.flatten(1))


def count_cross_entropy(scores: Tensor, counts: Tensor) -> Tensor:
    """Mean over images of the soft-target cross-entropy of scores and counts, both [batch, classes].

    Each class is to have that share of all scores that it has of the objects. The slope of a length is zero at zero,
    so in the margin loss a capsule that is wrongly silent hardly learns; the slope of its logarithm is not. An image
    without objects costs nothing.
    """
    wanted = counts / counts.sum(1, keepdim=True).clamp(min=1)
    scores = scores + SMALLEST_SCORE
    given = scores.log() - scores.sum(1, keepdim=True).log()
    return -(wanted * given).sum() / len(scores)


def sequence_cross_entropy(readout: Tensor, sequence: Tensor) -> Tensor:
    """Mean over images of the cross-entropy of readout [batch, digits, classes] and sequence [batch, digits]."""
    logits = READOUT_SHARPNESS * readout.flatten(0, 1)
    return F.cross_entropy(logits, sequence.flatten(), reduction="sum") / len(readout)


def normalised_scores(trace: Trace) -> Tensor:
    """Scores [batch, classes] divided by the longest summed capsule of the image, background included."""
    longest = trace.capsule_lengths.sum(1).amax(1, keepdim=True)
    return trace.scores / longest.clamp(min=SMALLEST_MAXIMUM)


def reconstruction_target(images: Tensor, attended: Tensor | None, mask: str) -> Tensor:
    """What the canvas [batch, channels, height, width] should look like.

    attended: the read glimpses put back into the image frame; divided by their largest value they are the mask.
    """
    if mask == "none":
        return images
    if attended is None:
        raise OcraError("The masked reconstruction loss needs a trace made with attended=True.")
    looked_at = attended / attended.amax((1, 2, 3), keepdim=True).clamp(min=SMALLEST_MAXIMUM)
    if mask == "authors":
        return 0.3 * images + 0.7 * looked_at * images
    return looked_at * images


def stretched_contrast(images: Tensor) -> Tensor:
    """How far each place is from the median tone of the border, at most 1: images [batch, channels, height, width]."""
    rows, columns = images[..., (0, -1), :].flatten(2), images[..., (0, -1)].flatten(2)
    tone = torch.cat([rows, columns], 2).median(2).values[..., None, None]
    contrast = (images - tone).abs()
    return contrast / contrast.amax((1, 2, 3), keepdim=True).clamp(min=FAINTEST)


# Attention supervision: not in the paper, whose networks find out where to look by themselves.

WHOLE_IMAGE = 0.92
"""Wanted width of the first window, as a share of the image."""
CLOSE_LOOK = 1.15
"""Wanted width of a close look, as a share of the side of a square as large as the object's box."""
NEAR = 0.3
"""Distance, in sides of that square, up to which the pull grows; further off it is the same everywhere."""
WIDTH_WEIGHT = 0.3
MOST_OBJECTS = 5
"""Every order of the objects is compared with the windows, and 5! are enough."""


def attention_supervision_loss(
    windows: Windows, annotations: Annotations, image: tuple[int, int], size: int, in_order_over: int = 0
) -> Tensor:
    """How far the read windows are from seeing the whole image first and then each object close by, a scalar.

    The glimpses after the first are shared out among the objects, in the order that costs least, so that the network
    finds its own. With `in_order_over` it is their own order, shared out over that many glimpses, of which there may
    be fewer yet. Glimpses of an object that is missing are free. image: height and width in pixels; size: filters
    along a side of a glimpse.
    """
    height, width = image
    middle = windows.center.new_tensor([width - 1, height - 1]) / 2
    away = ((windows.center[:, 0] - middle) / max(image)).square().sum(1)
    whole = away + (windows.width(size)[:, 0] / (WHOLE_IMAGE * max(image))).log().square()  # [batch]
    if windows.stride.shape[1] == 1:
        return whole.mean()
    costs = _close_looks(windows, annotations, size)
    _, later, objects = costs.shape
    planned = max(in_order_over - 1, later)
    turns = torch.arange(later) * objects // planned  # whose turn it is at each glimpse
    choices = [tuple(range(objects))] if in_order_over else list(permutations(range(objects)))
    orders = torch.tensor(choices)[:, turns]  # [orders, later]
    by_order = costs[:, torch.arange(later), orders].mean(2)  # [batch, orders]
    return (whole + by_order.amin(1)).mean()


def _close_looks(windows: Windows, annotations: Annotations, size: int) -> Tensor:
    """How far each further window is from a close look at each object: [batch, glimpses - 1, objects]."""
    boxes = annotations.boxes.to(windows.center.dtype)
    there = annotations.classes >= 0
    middle = boxes[:, :, :2] + (boxes[:, :, 2:] - 1) / 2
    side = boxes[:, :, 2:].prod(2).sqrt().clamp(min=1)[:, None]  # [batch, 1, objects]
    way = (windows.center[:, 1:, None] - middle[:, None]) / side[..., None]
    away = F.smooth_l1_loss(way, torch.zeros_like(way), reduction="none", beta=NEAR).sum(3)
    zoom = (windows.width(size)[:, 1:, None] / (CLOSE_LOOK * side)).log()
    return (away + WIDTH_WEIGHT * zoom.square()) * there[:, None]


def check_attention_supervision(annotations: Annotations | None, task: str) -> None:
    """Refuse a task that does not know where its objects are, or has too many of them."""
    if annotations is None:
        raise OcraError(
            f"Attention supervision needs the objects' boxes, which the task {task} does not know; "
            "set attention_supervision to 0."
        )
    if (objects := annotations.classes.shape[1]) > MOST_OBJECTS:
        raise OcraError(
            f"Attention supervision takes up to {MOST_OBJECTS} objects in an image, not {objects}; "
            "set attention_supervision to 0."
        )
