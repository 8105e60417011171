"""Two CNNs: the baseline of Sabour et al. (2017) for MultiMNIST, and a small one as one would try first today."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.config import AnswerRule, NetworkConfig, check_whole_numbers
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.losses import LossWeights
from ocra.model.network import Network
from ocra.model.trace import Trace, one_look

if TYPE_CHECKING:
    from typing_extensions import Self


class CountLosses(NamedTuple):
    """Sigmoid cross-entropy, summed over the outputs and averaged over images."""

    total: Tensor


@dataclass(frozen=True)
class CountedTrace(Trace):
    """A trace with the outputs that the scores were made of."""

    logits: Tensor | None = None
    """[batch, classes, most]: output k of a class says whether there are more than k of it."""


@dataclass(frozen=True)
class CountConfig(NetworkConfig):
    """A network with sigmoid outputs, one for each class or, where a class may repeat, one for each time."""

    most: int = 1
    """How often a class can be in an image."""
    objects: int = 2
    """How many objects an image has; 0 where that is not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_numbers(self, "model", most=1, objects=0)

    def fitted_to(
        self, image_shape: tuple[int, int, int], classes: int, answer: AnswerRule, sequence_length: int
    ) -> Self:
        """The same network for other images, classes and numbers of objects."""
        fitted = super().fitted_to(image_shape, classes, answer, sequence_length)
        return replace(
            fitted, most=(answer.objects or 2) if answer.repeats else 1, objects=answer.objects or 0
        )


class CountNetwork(Network):
    """What both networks share: from images to logits, scores and the loss."""

    config: CountConfig
    supports_bf16 = True

    def logits(self, images: Tensor) -> Tensor:
        """Outputs [batch, classes · most] for images [batch, channels, height, width]."""
        raise NotImplementedError

    def forward(self, images: Tensor, *, record: bool = False) -> CountedTrace:
        """Look at the whole of images [batch, channels, height, width], once."""
        with self.mixed_precision():
            logits = self.logits(images).float()
        logits = logits.unflatten(1, (self.config.classes, self.config.most))
        scores = count_scores(logits.detach().sigmoid(), self.config.objects)
        return CountedTrace(**one_look(images, scores), logits=logits)

    def losses(self, trace: CountedTrace, batch: Batch, weights: LossWeights) -> CountLosses:
        """Sigmoid cross-entropy of each output."""
        assert trace.logits is not None
        more_than = torch.arange(self.config.most, device=batch.counts.device)
        targets = (batch.counts[:, :, None] > more_than).to(trace.logits.dtype)
        loss = F.binary_cross_entropy_with_logits(trace.logits, targets, reduction="sum")
        return CountLosses(loss / len(targets))


def count_scores(more: Tensor, objects: int) -> Tensor:
    """Scores [batch, classes] from the probabilities more [batch, classes, most] of more than k of a class.

    The answer is the likeliest `objects` of all (class, k), or without a number all that are more likely than not.
    """
    expected = more.sum(2)
    if more.shape[2] == 1:
        return expected
    if objects:
        chosen = more.flatten(1).topk(objects, dim=1).indices
        said = torch.zeros_like(more.flatten(1)).scatter(1, chosen, 1.0).view_as(more)
        return decided(said.sum(2), expected)
    said = (more > 0.5).to(more.dtype).sum(2)
    return expected.clamp(said - 0.49, said + 0.49)  # the rule names what is above a half


def decided(answer: Tensor, expected: Tensor) -> Tensor:
    """Scores as near to the expected numbers of each class as the rule for OCRA's scores makes this answer of them.

    answer, expected: how many of each class there are said to be, and are on average; both [batch, classes]. The rule
    names the highest, and a class n times from a score of n − 0.2 on.
    """
    rejected = expected.clamp(max=1.7)
    best = rejected.masked_fill(answer > 0, 0.0).amax(1, keepdim=True)
    once = torch.maximum(rejected, best + 0.01)
    several = expected.clamp(answer - 0.19, answer + 0.79)
    return torch.where(answer > 1, several, torch.where(answer > 0, once, rejected))


@dataclass(frozen=True)
class CNNConfig(CountConfig):
    """The baseline of Sabour et al. (2017), section 6: 24.56 million parameters for images of 36 × 36."""

    filters: tuple[int, int] = (512, 256)
    """Kernels of the two convolutions, 9 × 9 and 5 × 5."""
    hidden: int = 1024
    """Units of the fully connected layer."""


class CNN(CountNetwork, kind="cnn"):
    """Two convolutions with 2 × 2 pooling, and two fully connected layers; ReLU after all but the last."""

    Config = CNNConfig
    config: CNNConfig

    def __init__(self, config: CNNConfig | None = None) -> None:
        config = config or CNNConfig()
        super().__init__(config)
        first, second = config.filters
        self.convolution1 = nn.Conv2d(config.channels, first, 9, padding=4)
        self.convolution2 = nn.Conv2d(first, second, 5, padding=2)
        features = second * (config.height // 4) * (config.width // 4)
        self.hidden = nn.Linear(features, config.hidden)
        self.output = nn.Linear(config.hidden, config.classes * config.most)

    def logits(self, images: Tensor) -> Tensor:
        """[batch, classes · most]."""
        maps = F.relu(F.max_pool2d(self.convolution1(images), 2))  # [batch, 512, 18, 18]
        maps = F.relu(F.max_pool2d(self.convolution2(maps), 2))  # [batch, 256, 9, 9]
        return self.output(F.relu(self.hidden(maps.flatten(1))))


@dataclass(frozen=True)
class SmallCNNConfig(CountConfig):
    """A small network as one would try first: no more arithmetic than three glimpses of OCRA."""

    widths: tuple[int, ...] = (32, 48, 96, 192)
    """Channels of the convolutions; after each but the last the maps are pooled to half the size."""
    stride: int = 1
    """Of the first convolution; 2 for large images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_numbers(self, "model", stride=1)
        smallest = self.stride * 2 ** (len(self.widths) - 1)
        if not self.widths or min(self.height, self.width) < smallest:
            raise OcraError(
                f"{len(self.widths)} model.widths need images of at least {smallest} pixels a side."
            )


class SmallCNN(CountNetwork, kind="cnn-small"):
    """Convolutions with batch norm, pooling to half the size in between, global average pooling, one linear layer."""

    Config = SmallCNNConfig
    config: SmallCNNConfig

    def __init__(self, config: SmallCNNConfig | None = None) -> None:
        config = config or SmallCNNConfig()
        super().__init__(config)
        layers: list[nn.Module] = []
        inputs = config.channels
        for k, width in enumerate(config.widths):
            size, stride = (5, config.stride) if k == 0 else (3, 1)
            layers += [nn.MaxPool2d(2)] if k else []
            layers += [
                nn.Conv2d(inputs, width, size, stride, size // 2, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            inputs = width
        self.convolutions = nn.Sequential(*layers)
        self.output = nn.Linear(inputs, config.classes * config.most)

    def logits(self, images: Tensor) -> Tensor:
        """[batch, classes · most]."""
        return self.output(self.convolutions(images).mean((2, 3)))
