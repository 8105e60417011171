"""What training minimises: margin loss on counts, reconstruction loss, SVHN readout loss (eq. 5 and 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from ocra.config import check_switches
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.guidance import guide_loss
from ocra.model.trace import Trace

# Far below any score or mask that means something; keeps 0 / 0 out of a black image.
SMALLEST_MAXIMUM = 1e-6
# Added to scores before their logarithm, so that a silent class costs a finite amount.
SILENT = 1e-4
# Outputs of the readout, which want to be 0 or 1, times this are the logits of a softmax.
READOUT_SHARPNESS = 10.0
# Halfway to the next object: beyond it a score says more of a class than there is.
EXCESS = 0.5


@dataclass(frozen=True)
class LossConfig:
    """How the parts of the loss are made and weighted."""

    reconstruction_weight: float = 3.0
    """Weight of the reconstruction loss, the paper's λ_recon."""
    reconstruction_mask: Literal["none", "authors", "paper"] = "none"
    """What the canvas is compared with: the image, 0.3·image + 0.7·mask·image (authors), or mask·image (paper)."""
    normalise_scores: bool = True
    """Divide the scores of an image by its largest one; for tasks where no class occurs twice."""
    margin: float = 0.1
    """How far a score may stay from its target at no cost, the paper's m."""
    absent_weight: float = 0.5
    """Weight of the classes that are not in the image, the paper's λ_absent."""
    readout_weight: float = 10.0
    """Weight of the loss on the sequence that is read out (SVHN)."""
    excess_weight: float = 0.0
    """Weight of a class that is there and scores half an object more than its count; for tasks that count.
    Paper: none."""
    share_weight: float = 0.0
    """Weight of the share loss: each class is to have that share of all scores that it has of the objects, and the
    right output that of a softmax over each digit read out. Paper: none."""

    def __post_init__(self) -> None:
        for name in (
            "reconstruction_weight", "margin", "absent_weight", "readout_weight", "excess_weight", "share_weight",
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise OcraError(f"loss.{name} must be a number of at least 0, not {value!r}.")
        check_switches(self, "loss")
        if self.excess_weight and self.normalise_scores:
            raise OcraError(
                "loss.excess_weight needs scores that count: set loss.normalise_scores to false, or it to 0."
            )
        if self.reconstruction_mask not in ("none", "authors", "paper"):
            raise OcraError(
                f"loss.reconstruction_mask must be 'none', 'authors' or 'paper', not {self.reconstruction_mask!r}."
            )

    @property
    def needs_attended(self) -> bool:
        """Whether the model has to be called with `attended=True`."""
        return self.reconstruction_mask != "none"


class Losses(NamedTuple):
    """The loss of a batch and its parts before weighting, each a scalar."""

    total: Tensor
    margin: Tensor
    reconstruction: Tensor
    readout: Tensor
    share: Tensor
    guide: Tensor


def compute_losses(
    trace: Trace, batch: Batch, config: LossConfig, guide: float = 0.0, planned: int = 0
) -> Losses:
    """The loss of one pass over a batch.

    guide: weight of the pull of the windows to the objects, for a recorded trace and a batch with annotations;
    planned: glimpses in which a sequence is to be read in the end, if this pass has fewer.
    """
    scores = normalised_scores(trace) if config.normalise_scores else trace.scores
    margin = margin_loss(scores, batch.counts, config.margin, config.absent_weight, config.excess_weight)
    target = reconstruction_target(batch.images, trace.attended, config.reconstruction_mask)
    reconstruction = F.mse_loss(trace.canvas, target)
    readout, share, pull = (margin.new_zeros(()) for _ in range(3))
    if config.share_weight:
        share = share_loss(trace.scores, batch.counts)
    if trace.readout is not None and batch.sequence is not None:
        readout = readout_loss(trace.readout, batch.sequence, config.margin, config.absent_weight)
        if config.share_weight:
            share = share + sequence_loss(trace.readout, batch.sequence)
    if guide > 0:
        if trace.read_windows is None or trace.glimpses is None or batch.annotations is None:
            raise OcraError(
                "Guidance needs a model with glimpses, record=True, and a batch with annotations."
            )
        height, width = batch.images.shape[2:]
        taken, size = trace.glimpses.shape[1], trace.glimpses.shape[-1]
        in_order_over = 0 if batch.sequence is None else planned or taken
        pull = guide_loss(trace.read_windows, batch.annotations, (height, width), size, in_order_over)
    total = margin + config.reconstruction_weight * reconstruction + config.readout_weight * readout
    total = total + config.share_weight * share + guide * pull
    return Losses(total, margin, reconstruction, readout, share, pull)


def margin_loss(
    scores: Tensor,
    counts: Tensor,
    margin: float = 0.1,
    absent_weight: float = 0.5,
    excess_weight: float = 0.0,
) -> Tensor:
    """Mean over images of the margin loss on scores and counts, both [batch, classes] (eq. 6).

    A class that is there n times wants a score above n − m, one that is not there a score below m. With an excess
    weight, which the paper does not have, a class that is there also wants a score below n + 0.5.
    """
    present = counts.clamp(0, 1) * F.relu(counts - margin - scores).square()
    absent = absent_weight * F.relu(1 - counts) * F.relu(scores - margin).square()
    if excess_weight:
        present = present + excess_weight * counts.clamp(0, 1) * F.relu(scores - counts - EXCESS).square()
    return (present + absent).sum(1).mean()


def share_loss(scores: Tensor, counts: Tensor) -> Tensor:
    """Mean over images of the cross-entropy of the shares of scores and counts, both [batch, classes].

    The slope of a length is zero at zero, so in the margin loss a capsule that is wrongly silent hardly learns; the
    slope of its logarithm is not. No objects, no cost.
    """
    wanted = counts / counts.sum(1, keepdim=True).clamp(min=1)
    scores = scores + SILENT
    given = scores.log() - scores.sum(1, keepdim=True).log()
    return -(wanted * given).sum() / len(scores)


def sequence_loss(readout: Tensor, sequence: Tensor) -> Tensor:
    """Mean over images of the cross-entropy of readout [batch, digits, classes] and sequence [batch, digits].

    Summed over the digits; outputs may be below zero, so their shares are those of a softmax.
    """
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


def readout_loss(
    readout: Tensor, sequence: Tensor, margin: float = 0.1, absent_weight: float = 0.5
) -> Tensor:
    """Margin loss on all outputs of readout [batch, digits, classes] for a sequence [batch, digits]."""
    targets = F.one_hot(sequence, readout.shape[2]).to(readout.dtype)
    return margin_loss(readout.flatten(1), targets.flatten(1), margin, absent_weight)
