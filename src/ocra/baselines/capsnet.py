"""CapsNet, "Dynamic Routing Between Capsules" (Sabour, Frosst and Hinton 2017), as it was used for MultiMNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.config import NetworkConfig, check_whole_numbers
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.losses import LossWeights, margin_losses
from ocra.model.capsules import CapsuleLayer, squash
from ocra.model.network import Network
from ocra.model.ocra import how_often
from ocra.model.trace import Trace, one_look


class CapsNetLosses(NamedTuple):
    """The loss of a batch and its parts before weighting, averaged over images."""

    total: Tensor
    margin: Tensor
    reconstruction: Tensor
    """Squared differences, summed over the pixels of both digits."""


@dataclass(frozen=True)
class CapsNetTrace(Trace):
    """A trace with the digit capsules, which the decoder needs."""

    capsules: Tensor | None = None
    """[batch, classes, capsule size]"""


@dataclass(frozen=True)
class CapsNetConfig(NetworkConfig):
    """Section 4 of the paper: 11.36 million parameters for images of 36 × 36, the decoder's among them."""

    filters: int = 256
    """Kernels of the first convolution, 9 × 9."""
    primary_channels: int = 32
    """Channels of primary capsules, by a convolution of 9 × 9 with stride 2."""
    primary_size: int = 8
    """Elements of one primary capsule."""
    capsule_size: int = 16
    """Elements of one digit capsule."""
    routings: int = 3
    """Iterations of routing."""
    decoder: tuple[int, int] = (512, 1024)
    """Units of the decoder's two hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_numbers(
            self, "model", filters=1, primary_channels=1, primary_size=1, capsule_size=1, routings=1
        )
        if min(self.height, self.width) < 17:
            raise OcraError("CapsNet's two convolutions of 9 × 9 need images of at least 17 pixels a side.")


class CapsNet(Network, kind="capsnet"):
    """Convolution, primary capsules, digit capsules; a decoder draws one digit at a time from its capsule."""

    Config = CapsNetConfig
    config: CapsNetConfig
    needs_annotations = True
    supports_bf16 = True

    def __init__(self, config: CapsNetConfig | None = None) -> None:
        config = config or CapsNetConfig()
        super().__init__(config)
        self.convolution = nn.Conv2d(config.channels, config.filters, 9)
        self.primary = nn.Conv2d(config.filters, config.primary_channels * config.primary_size, 9, stride=2)
        rows, columns = ((side - 8 - 9) // 2 + 1 for side in (config.height, config.width))
        self.digits = CapsuleLayer(
            rows * columns * config.primary_channels, config.primary_size, config.classes, config.capsule_size,
            scale=0.1,
        )  # fmt: skip
        first, second = config.decoder
        self.decoder = nn.Sequential(
            nn.Linear(config.classes * config.capsule_size, first), nn.ReLU(),
            nn.Linear(first, second), nn.ReLU(),
            nn.Linear(second, config.channels * config.height * config.width), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, images: Tensor, *, record: bool = False, routings: int | None = None) -> CapsNetTrace:
        """Look at images [batch, channels, height, width]; the canvas shows the two longest capsules' digits.

        In training nothing is drawn, for `losses` draws the digits that are there.
        """
        passes = self.config.routings if routings is None else how_often("routings", routings)
        with self.mixed_precision():
            maps = self.primary(F.relu(self.convolution(images))).to(
                images.dtype
            )  # [batch, channels · size, rows, columns]
        maps = maps.unflatten(1, (self.config.primary_channels, self.config.primary_size))
        primary, _ = squash(maps.movedim(2, -1).flatten(1, 3))  # [batch, capsules, size]
        capsules, lengths = softmax_routing(self.digits.predictions(primary), passes)
        drawn = None
        if record or not self.training:
            pair = lengths.topk(min(2, self.config.classes), dim=1).indices
            drawn = self.reconstruct(capsules, pair).sum(1).clamp(0, 1)
        return CapsNetTrace(**one_look(images, lengths, drawn), capsules=capsules)

    def reconstruct(self, capsules: Tensor, classes: Tensor) -> Tensor:
        """The digits of these classes [batch, objects], each drawn from its own capsule with all others masked.

        capsules [batch, classes, size] → [batch, objects, channels, height, width]
        """
        places = torch.arange(self.config.classes, device=classes.device)
        mask = (classes[:, :, None] == places).to(capsules.dtype)  # [batch, objects, classes]
        masked = capsules[:, None] * mask[..., None]
        return self.decoder(masked.flatten(2)).unflatten(2, self.config.image_shape)

    def losses(self, trace: CapsNetTrace, batch: Batch, weights: LossWeights) -> CapsNetLosses:
        """Margin loss of the lengths, and how far each digit that is there is drawn from its own image."""
        assert trace.capsules is not None
        if batch.annotations is None:
            raise OcraError("CapsNet's losses need annotated batches: each object's own image.")
        margin = margin_losses(trace.scores, batch.counts).mean()
        reconstruction = margin.new_zeros(())
        if weights.reconstruction:
            layers, classes = batch.annotations.layers, batch.annotations.classes
            wrong = (self.reconstruct(trace.capsules, classes) - layers).square().sum((2, 3, 4))
            reconstruction = (wrong * (classes >= 0)).sum(1).mean()
        return CapsNetLosses(margin + weights.reconstruction * reconstruction, margin, reconstruction)


def softmax_routing(predictions: Tensor, routings: int) -> tuple[Tensor, Tensor]:
    """Procedure 1 of the paper on predictions û [batch, primary, digits, size].

    Returns the digit capsules v [batch, digits, size] and their lengths [batch, digits]. Gradients flow through all
    iterations.
    """
    votes = predictions.transpose(
        1, 2
    ).contiguous()  # [batch, digits, primary, size]: sums are matrix products
    logits = votes.new_zeros(votes.shape[:3])  # b
    for iteration in range(routings):
        couplings = logits.softmax(1)  # c_i = softmax(b_i): what each primary capsule sends adds up to 1
        capsules, lengths = squash((couplings[:, :, None] @ votes)[:, :, 0])
        if iteration < routings - 1:
            logits = logits + (votes @ capsules[..., None])[..., 0]
    return capsules, lengths
