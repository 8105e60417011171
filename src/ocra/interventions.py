"""Interventions in a pass: forced or jittered windows, clamped winners, lesions.

Each changes the one thing it names and leaves the rest of the pass untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import Window
from .config import ModelConfig
from .errors import OcraError
from .trace import Windows


@dataclass(frozen=True)
class Lesion:
    """Parts of the network that are silenced during a pass."""

    capsules: tuple[int, ...] = ()
    """Object capsules that stay at zero: never long, never the winner unless all are silent."""
    encoder_memory: bool = False
    """The encoder forgets its state before each glimpse."""
    decoder_memory: bool = False
    """The decoder forgets its state before each glimpse; the next window still follows from its last output."""
    feedback: bool = False
    """The encoder gets zeros in place of the decoder state (models with feedback only)."""


@dataclass(frozen=True)
class Interventions:
    """What a caller asked for, checked and laid out for a batch by `prepare`."""

    windows: Windows | None = None
    jitter: Tensor | None = None
    winners: Tensor | None = None
    lesion: Lesion | None = None

    def prepare(self, images: Tensor, glimpses: int, config: ModelConfig) -> Interventions | None:
        """The same interventions with full shapes on the images' device; None if there are none."""
        if self.windows is None and self.jitter is None and self.winners is None and self.lesion is None:
            return None
        self._check(glimpses, config)
        batch = len(images)

        def full(name: str, value: Tensor | None, *shape: int) -> Tensor | None:
            if value is None:
                return None
            value = torch.as_tensor(value, device=images.device)
            if value.dim() == len(shape) - 1:  # the same for all images
                value = value[None]
            try:
                return value.expand(batch, *shape[1:])
            except RuntimeError:
                raise OcraError(
                    f"{name} must have the shape {list(shape)} or that of one image, not {list(value.shape)}."
                ) from None

        windows = self.windows
        if windows is not None:
            center = full("windows.center", windows.center, batch, glimpses, 2)
            stride = full("windows.stride", windows.stride, batch, glimpses)
            sigma = full("windows.sigma", windows.sigma, batch, glimpses)
            assert center is not None and stride is not None and sigma is not None
            windows = Windows(center.float(), stride.float(), sigma.float())
        return Interventions(
            windows,
            full("jitter", self.jitter, batch, glimpses, 2),
            full("winners", self.winners, batch, glimpses),
            self.lesion or Lesion(),
        )

    def _check(self, glimpses: int, config: ModelConfig) -> None:
        if not config.attention and (self.windows is not None or self.jitter is not None):
            raise OcraError("This model reads the whole image at each step: it has no windows to move.")
        if not config.capsules and (self.winners is not None or (self.lesion and self.lesion.capsules)):
            raise OcraError("This model has no capsules to clamp or silence.")
        if self.winners is not None:
            winners = torch.as_tensor(self.winners)
            if winners.is_floating_point() or int(winners.max()) >= config.object_capsules or int(winners.min()) < -1:
                raise OcraError(
                    f"winners must be whole numbers from 0 to {config.object_capsules - 1}, or -1 to leave a step free."
                )
        if self.lesion:
            outside = [j for j in self.lesion.capsules if not 0 <= j < config.object_capsules]
            if outside:
                raise OcraError(f"There is no object capsule {outside[0]}; they run from 0 to {config.object_capsules - 1}.")
            if self.lesion.feedback and not config.feedback:
                raise OcraError("This model has no decoder-to-encoder feedback to lesion (model.feedback is off).")

    def at(self, t: int) -> StepControl:
        """What holds for step t, counted from 0."""
        windows = None if self.windows is None else Window(*(value[:, t] for value in vars(self.windows).values()))
        return StepControl(
            windows,
            None if self.jitter is None else self.jitter[:, t],
            None if self.winners is None else self.winners[:, t],
            self.lesion or Lesion(),
        )


@dataclass(frozen=True)
class StepControl:
    """The interventions of one step."""

    window: Window | None
    jitter: Tensor | None
    winner: Tensor | None
    lesion: Lesion

    def window_instead_of(self, own: Window) -> Window:
        """The forced window where its numbers are not NaN, the model's own elsewhere; then shifted by the jitter."""
        center, stride, sigma = own
        if self.window is not None:
            forced = self.window
            center = torch.where(forced.center.isnan(), center, forced.center)
            stride = torch.where(forced.stride.isnan(), stride, forced.stride)
            sigma = torch.where(forced.sigma.isnan(), sigma, forced.sigma)
        if self.jitter is not None:
            center = center + self.jitter
        return Window(center, stride, sigma)

    def winner_instead_of(self, own: Tensor) -> Tensor:
        """The clamped winner where it is not -1, the longest capsule elsewhere: [batch]."""
        return own if self.winner is None else torch.where(self.winner < 0, own, self.winner)

    def silence(self, capsules: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Capsules [batch, objects, size] and lengths [batch, objects] with the lesioned ones at zero."""
        if not self.lesion.capsules:
            return capsules, lengths
        alive = torch.ones_like(lengths)
        alive[:, list(self.lesion.capsules)] = 0
        return capsules * alive[:, :, None], lengths * alive
