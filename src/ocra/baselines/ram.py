"""Hard attention: RAM (Mnih et al. 2014, "Recurrent Models of Visual Attention") and DRAM (Ba, Mnih and Kavukcuoglu
2015, "Multiple Object Recognition with Visual Attention"), as the latter compared them on two digits among clutter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.baselines.cnn import decided
from ocra.config import AnswerRule, NetworkConfig, check_numbers, check_switches, check_whole_numbers
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.losses import LossWeights
from ocra.model.network import Network
from ocra.model.ocra import how_often
from ocra.model.trace import Trace, Windows

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_ANSWERS = 5000
COARSE = 25
"""Side in pixels to which the context network's image is averaged down."""


class ReinforceLosses(NamedTuple):
    """What is minimised, and its parts, averaged over images."""

    total: Tensor
    cross_entropy: Tensor
    policy: Tensor
    value: Tensor


@dataclass(frozen=True)
class HardTrace(Trace):
    """A trace with what REINFORCE needs."""

    logits: Tensor | None = None
    """[batch, answers]: of every set of objects that may be in an image."""
    log_probabilities: Tensor | None = None
    """[batch, choices]: of the places that were chosen."""
    values: Tensor | None = None
    """[batch, choices]: the reward expected before each choice, REINFORCE's baseline."""


@dataclass(frozen=True)
class RAMConfig(NetworkConfig):
    """RAM with the sizes of its paper, answering as in Ba et al.: one of the 55 pairs of digits after four glimpses."""

    height: int = 100
    width: int = 100
    glimpses: int = 4
    """Places that are looked at."""
    glimpse_size: int = 12
    """Side in pixels of the patches of a glimpse."""
    scales: int = 4
    """Patches of a glimpse, each twice as wide as the one before, all averaged down to the same number of pixels."""
    location_sigma: float = 0.15
    """Standard deviation of the places chosen in training; half an image is 1."""
    objects: int = 2
    """How many objects an image has."""
    repeats: bool = True
    """Whether a class may occur more than once."""
    hidden: int = 256
    """Units of the core."""

    attention = True
    recurrent = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_numbers(self, "model", glimpses=1, glimpse_size=8, scales=1, objects=1, hidden=2)
        check_numbers(self, "model", ("location_sigma",), lambda value: value > 0, "above 0")
        check_switches(self, "model")
        repeated = self.classes + (self.objects - 1 if self.repeats else 0)
        if not 1 <= math.comb(repeated, self.objects) <= MOST_ANSWERS:
            raise OcraError(
                f"model.objects of {self.objects} and {self.classes} classes make no number of answers from 1 to "
                f"{MOST_ANSWERS:,} to choose from."
            )

    def fitted_to(
        self, image_shape: tuple[int, int, int], classes: int, answer: AnswerRule, sequence_length: int
    ) -> Self:
        """The same network for other images, classes and numbers of objects."""
        if answer.objects is None:
            raise OcraError(f"{self.network.__name__} needs a task that says how many objects an image has.")
        fitted = super().fitted_to(image_shape, classes, answer, sequence_length)
        return replace(fitted, objects=answer.objects, repeats=answer.repeats)


@dataclass(frozen=True)
class DRAMConfig(RAMConfig):
    """DRAM: a convolutional glimpse network, two LSTMs, and a context network that plans from the coarse image."""

    hidden: int = 512
    """Units of each LSTM."""
    filters: tuple[int, int, int] = (64, 64, 128)
    """Of the convolutions (5 × 5, 3 × 3, 3 × 3) of the glimpse network and of the context network."""
    glimpse_features: int = 1024
    """What a glimpse, and its place, are made into."""
    context: bool = True
    """Start the second LSTM from the coarse image; off: from zeros."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # What the convolutions, which are not padded, leave something of.
        check_whole_numbers(self, "model", glimpse_size=9, height=11, width=11)


class HardAttention(Network):
    """What RAM and DRAM share: places, glimpses, answers, and how they learn."""

    config: RAMConfig
    stochastic = True

    def __init__(self, config: RAMConfig) -> None:
        super().__init__(config)
        choose = combinations_with_replacement if config.repeats else combinations
        answers = torch.tensor(list(choose(range(config.classes), config.objects)))
        counts = (answers[:, :, None] == torch.arange(config.classes)).sum(1).float()
        self.register_buffer("answers", counts, persistent=False)  # [answers, classes]
        self.answers: Tensor

    def start(self, images: Tensor) -> Any:
        """The state before the first glimpse."""
        raise NotImplementedError

    def choose(self, state: Any) -> tuple[Tensor, Tensor]:
        """The mean of the next place [batch, 2], in [-1, 1] as (x, y), and the reward expected [batch]."""
        raise NotImplementedError

    def take_in(self, glimpse: Tensor, place: Tensor, state: Any) -> Any:
        """The state after a glimpse [batch, scales · channels, N, N] at a place [batch, 2]."""
        raise NotImplementedError

    def classify(self, state: Any) -> Tensor:
        """Logits of the answers [batch, answers]."""
        raise NotImplementedError

    def forward(self, images: Tensor, *, glimpses: int | None = None, record: bool = False) -> HardTrace:
        """Look at images [batch, channels, height, width]: at sampled places in training, else at their means."""
        count = self.config.glimpses if glimpses is None else how_often("glimpses", glimpses)
        sigma = self.config.location_sigma
        pyramid, state = self.pyramid(images), self.start(images)
        steps = []
        for _ in range(count):
            mean, value = self.choose(state)
            place = mean.detach()
            if self.training:
                place = place + sigma * torch.randn_like(place)
            log_probability = -((place - mean) / sigma).square().sum(1) / 2  # but for a constant
            glimpse = self.read(pyramid, place)
            state = self.take_in(glimpse, place, state)
            steps.append(
                (place, glimpse[:, : self.config.channels], self.classify(state), log_probability, value)
            )
        places, patches, logits, log_probabilities, values = (
            torch.stack(part, 1) for part in zip(*steps, strict=True)
        )
        expected = logits.detach().softmax(2) @ self.answers  # after each glimpse, [batch, glimpses, classes]
        canvas = torch.full_like(images, torch.nan)
        center = self.pixels(places)
        stride = torch.ones_like(values.detach())
        return HardTrace(
            scores=decided(self.answers[logits[:, -1].argmax(1)], expected[:, -1]),
            canvas=canvas,
            capsule_lengths=expected / count,
            attended=images.detach(),
            glimpses=patches,
            read_windows=Windows(center, stride, 0 * stride),  # of the finest patch
            winners=expected.argmax(2),
            canvases=canvas[:, None].expand(-1, count, -1, -1, -1),
            logits=logits[:, -1],
            log_probabilities=log_probabilities,
            values=values,
        )

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """The image at each scale, half as large each time; padded so that all scales cover the same."""
        coarsest = 2 ** (self.config.scales - 1)
        padded = F.pad(images, (0, -self.config.width % coarsest, 0, -self.config.height % coarsest))
        levels = [padded]
        for _ in range(self.config.scales - 1):
            levels.append(F.avg_pool2d(levels[-1], 2))
        return levels

    def read(self, pyramid: list[Tensor], place: Tensor) -> Tensor:
        """Patches around a place [batch, 2] as (x, y): [batch, scales · channels, N, N], the finest first."""
        size = self.config.glimpse_size
        _, _, rows, columns = pyramid[0].shape
        span = place.new_tensor([columns, rows])
        center = 2 * (self.pixels(place) + 0.5) / span - 1  # in the padded image
        offsets = torch.arange(size, device=place.device) - (size - 1) / 2
        across = torch.stack(torch.meshgrid(offsets, offsets, indexing="xy"), -1)  # [N, N, 2] as (x, y)
        patches = [
            F.grid_sample(level, center[:, None, None] + 2**scale * across * 2 / span, align_corners=False)
            for scale, level in enumerate(pyramid)
        ]
        return torch.cat(patches, 1)

    def pixels(self, place: Tensor) -> Tensor:
        """Places [..., 2] in [-1, 1] as pixels of the image, from 0 at the centre of the first."""
        span = place.new_tensor([self.config.width, self.config.height])
        return (place.clamp(-1, 1) + 1) / 2 * span - 0.5

    def losses(self, trace: HardTrace, batch: Batch, weights: LossWeights) -> ReinforceLosses:
        """Cross-entropy of the answer; REINFORCE for the places.

        The reward is the probability of the right answer: what a reward of 1 for a right answer, drawn from the
        softmax, is on average. It says more than one draw, above all while nearly all answers are wrong.
        """
        assert trace.logits is not None and trace.log_probabilities is not None and trace.values is not None
        right = (batch.counts[:, None] == self.answers).all(2)  # [batch, answers]
        known = right.any(1)  # not so for images of another number of objects
        log_right = (trace.logits.log_softmax(1) * right).sum(1)
        entropy, reward = -log_right.mean(), log_right.detach().exp()
        policy, value = (
            (part * known).mean() for part in reinforce(trace.log_probabilities, reward, trace.values)
        )
        return ReinforceLosses(entropy + policy + value, entropy, policy, value)


def reinforce(log_probabilities: Tensor, reward: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Two losses of each image [batch]: REINFORCE's, and that of the baseline.

    log_probabilities, values [batch, choices]: of what was chosen, and the baseline's guess of the reward [batch]
    before each choice. The gradient of the first is, on average over the choices, that of minus the expected reward,
    whatever the baseline is; the nearer the baseline is to the reward, the less it varies.
    """
    advantage = reward[:, None] - values
    return -(log_probabilities * advantage.detach()).sum(1), advantage.square().sum(1)


class RAM(HardAttention, kind="ram"):
    """Mnih et al. 2014: a fully connected glimpse network and a core of ReLU units."""

    Config = RAMConfig
    attention_layers = ("location.",)

    def __init__(self, config: RAMConfig | None = None) -> None:
        config = config or RAMConfig()
        super().__init__(config)
        half = config.hidden // 2
        self.what = nn.Linear(config.channels * config.scales * config.glimpse_size**2, half)
        self.where = nn.Linear(2, half)
        self.what_glimpse, self.where_glimpse = (nn.Linear(half, config.hidden) for _ in range(2))
        self.core = nn.Linear(config.hidden, config.hidden)
        self.core_glimpse = nn.Linear(config.hidden, config.hidden)
        self.location = _location(config.hidden)
        self.value = nn.Linear(config.hidden, 1)
        self.action = nn.Linear(config.hidden, len(self.answers))
        _keep_variance(self.what, self.where, self.what_glimpse, self.where_glimpse, self.core_glimpse)

    def start(self, images: Tensor) -> Tensor:
        return images.new_zeros(images.shape[0], self.config.hidden)

    def choose(self, state: Tensor) -> tuple[Tensor, Tensor]:
        # The core learns from the answer alone.
        return self.location(state.detach()).tanh(), self.value(state.detach())[:, 0]

    def take_in(self, glimpse: Tensor, place: Tensor, state: Tensor) -> Tensor:
        what, where = F.relu(self.what(glimpse.flatten(1))), F.relu(self.where(place))
        features = F.relu(self.what_glimpse(what) + self.where_glimpse(where))
        return F.relu(self.core(state) + self.core_glimpse(features))

    def classify(self, state: Tensor) -> Tensor:
        return self.action(state)


class DRAM(HardAttention, kind="dram"):
    """Ba et al. 2015: the first LSTM takes in glimpses and answers, the second one chooses where to look."""

    Config = DRAMConfig
    config: DRAMConfig
    attention_layers = ("location.", "plan.", "context.")
    supports_bf16 = True

    def __init__(self, config: DRAMConfig | None = None) -> None:
        config = config or DRAMConfig()
        super().__init__(config)
        patch = (config.channels * config.scales, config.glimpse_size, config.glimpse_size)
        self.what = _convolutions(patch, config.filters, 1, config.glimpse_features)
        self.where = nn.Linear(2, config.glimpse_features)
        nn.init.ones_(self.where.bias)  # at first every feature of a glimpse passes
        self.recognise = nn.LSTMCell(config.glimpse_features, config.hidden)
        self.plan = nn.LSTMCell(config.hidden, config.hidden)
        if config.context:
            self.context = _convolutions(self.coarse, config.filters, 2, config.hidden)
        self.location = _location(config.hidden)
        self.value = nn.Linear(config.hidden, 1)
        self.action = nn.Sequential(
            nn.Linear(config.hidden, config.glimpse_features), nn.ReLU(),
            nn.Linear(config.glimpse_features, len(self.answers)),
        )  # fmt: skip

    @property
    def coarse(self) -> tuple[int, int, int]:
        """Channels, height and width of what the context network sees."""
        channels, height, width = self.config.image_shape
        return channels, min(height, COARSE), min(width, COARSE)

    def start(self, images: Tensor) -> Any:
        zeros = images.new_zeros(images.shape[0], self.config.hidden)
        context = zeros
        if self.config.context:
            with self.mixed_precision():
                context = self.context(F.adaptive_avg_pool2d(images, self.coarse[1:])).to(images.dtype)
        return (zeros, zeros), (context, zeros)

    def choose(self, state: Any) -> tuple[Tensor, Tensor]:
        planned, _ = state[1]
        return self.location(planned).tanh(), self.value(planned.detach())[:, 0]

    def take_in(self, glimpse: Tensor, place: Tensor, state: Any) -> Any:
        with self.mixed_precision():
            what = self.what(glimpse).to(glimpse.dtype)
        features = F.relu(what) * F.relu(self.where(place))
        recognised = self.recognise(features, state[0])
        # As in RAM, what recognises learns from the answer alone, and what plans from the reward alone.
        return recognised, self.plan(recognised[0].detach(), state[1])

    def classify(self, state: Any) -> Tensor:
        recognised, _ = state[0]
        return self.action(recognised)


def _location(hidden: int) -> nn.Linear:
    """The layer that chooses a place; it begins in the middle of the image."""
    layer = nn.Linear(hidden, 2)
    nn.init.zeros_(layer.bias)
    return layer


def _convolutions(
    shape: tuple[int, int, int], filters: tuple[int, int, int], stride: int, features: int
) -> nn.Sequential:
    """Three convolutions, the later ones with this stride, without pooling, and a fully connected layer."""
    (channels, *sides), (first, second, third) = shape, filters
    rows, columns = ((((side - 4 - 3) // stride + 1) - 3) // stride + 1 for side in sides)
    layers = nn.Sequential(
        nn.Conv2d(channels, first, 5), nn.ReLU(),
        nn.Conv2d(first, second, 3, stride), nn.ReLU(),
        nn.Conv2d(second, third, 3, stride), nn.ReLU(),
        nn.Flatten(), nn.Linear(third * rows * columns, features),
    )  # fmt: skip
    _keep_variance(*layers)
    return layers


def _keep_variance(*layers: nn.Module) -> None:
    """Start layers before ReLUs such that what comes out varies as much as what goes in (He et al. 2015).

    As PyTorch starts them, little of a glimpse is left after a few layers, and nothing is learnt for long.
    """
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
