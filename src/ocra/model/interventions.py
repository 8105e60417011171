"""Interventions in a pass: forced or jittered windows, clamped winners, lesions.

Each changes the one thing it names and leaves the rest of the pass untouched.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ocra.config import ModelConfig
from ocra.errors import OcraError, UsageError
from ocra.model.attention import Window
from ocra.model.trace import Windows

# In pixels, wider than any window of the model's own; beyond them the square in the Gaussian overflows.
FARTHEST, NARROWEST = 1e10, 1e-5


@dataclass(frozen=True)
class Lesion:
    """Parts of the network that are silenced during a pass."""

    capsules: tuple[int, ...] = ()
    """Object capsules that stay at zero: never long, never the winner unless all are silent."""
    encoder_memory: bool = False
    """The encoder forgets its state before each glimpse."""
    decoder_memory: bool = False
    """The decoder forgets its state before each glimpse; the next window still follows its last output."""
    feedback: bool = False
    """The encoder gets zeros in place of the decoder state (models with feedback only)."""

    def __str__(self) -> str:
        """As words of the command line: decoder-memory, 3."""
        parts = [name for name in ("encoder_memory", "decoder_memory", "feedback") if getattr(self, name)]
        return " ".join([*(part.replace("_", "-") for part in parts), *map(str, self.capsules)])


def cued(x: float, y: float) -> Windows:
    """Windows of which the first has its middle at a place; its width, and all others, are free."""
    return Windows(torch.tensor([[x, y]]), torch.tensor([math.nan]), torch.tensor([math.nan]))


def lesion_of(words: Sequence[str]) -> Lesion | None:
    """The lesion that words such as encoder-memory, feedback or 3 (an object capsule) stand for."""
    parts = {field.name for field in dataclasses.fields(Lesion)} - {"capsules"}
    capsules = tuple(int(word) for word in words if word.isdecimal())
    named = {word.replace("-", "_") for word in words if not word.isdecimal()}
    if unknown := sorted(named - parts):
        known = ", ".join(sorted(part.replace("_", "-") for part in parts))
        raise UsageError(f"A lesion names {known} or numbers of object capsules, not '{unknown[0]}'.")
    return Lesion(capsules=capsules, **dict.fromkeys(named, True)) if words else None


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
        self._check_kinds()
        self._check_windows(config)
        self._check_capsules(config)
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
            center = full("windows.center", _free_after(windows.center, glimpses, 2), batch, glimpses, 2)
            stride = full("windows.stride", _free_after(windows.stride, glimpses, 1), batch, glimpses)
            sigma = full("windows.sigma", _free_after(windows.sigma, glimpses, 1), batch, glimpses)
            assert center is not None and stride is not None and sigma is not None
            windows = Windows(center, stride, sigma)
        return Interventions(
            windows,
            full("jitter", self.jitter, batch, glimpses, 2),
            full("winners", self.winners, batch, glimpses),
            self.lesion or Lesion(),
        )

    def _check_kinds(self) -> None:
        for name, value, kind in (("windows", self.windows, Windows), ("lesion", self.lesion, Lesion)):
            if value is not None and not isinstance(value, kind):
                raise OcraError(f"{name} must be an ocra.{kind.__name__}, not {value!r}.")
        for name, numbers in (("jitter", self.jitter), ("winners", self.winners)):
            try:
                torch.as_tensor(numbers if numbers is not None else ())
            except (TypeError, ValueError, RuntimeError):
                raise OcraError(f"{name} must be a tensor of numbers, not {numbers!r}.") from None
        silenced = self.lesion.capsules if self.lesion else ()
        if not isinstance(silenced, list | tuple) or any(type(number) is not int for number in silenced):
            raise OcraError(
                f"Lesion(capsules=...) takes whole numbers such as (3,) or (1, 2), not {silenced!r}."
            )

    def _check_windows(self, config: ModelConfig) -> None:
        if not config.attention and (self.windows is not None or self.jitter is not None):
            raise OcraError("This model reads the whole image at each step: it has no windows to move.")
        if self.windows is not None:
            _check_range("windows.center", self.windows.center, -FARTHEST, FARTHEST)
            _check_range("windows.stride", self.windows.stride, 0, FARTHEST)
            _check_range("windows.sigma", self.windows.sigma, NARROWEST, FARTHEST)
        if self.jitter is not None:
            _check_range("jitter", self.jitter, -FARTHEST, FARTHEST)
            if torch.as_tensor(self.jitter).isnan().any():
                raise OcraError("jitter holds NaN; give 0 where a window is not to move.")

    def _check_capsules(self, config: ModelConfig) -> None:
        last = config.object_capsules - 1
        silenced = self.lesion.capsules if self.lesion else ()
        if not config.capsules and (self.winners is not None or silenced):
            raise OcraError("This model has no capsules to clamp or silence.")
        if self.winners is not None:
            if not config.masking:
                raise OcraError(
                    "This model sends all capsules to the decoder (model.masking is off): none wins."
                )
            winners = torch.as_tensor(self.winners)
            if winners.is_floating_point() or ((winners > last) | (winners < -1)).any():
                raise OcraError(
                    f"winners must be whole numbers from 0 to {last}, or -1 to leave a step free."
                )
        outside = [j for j in silenced if not 0 <= j <= last]
        if outside:
            raise OcraError(f"There is no object capsule {outside[0]}; they run from 0 to {last}.")
        if self.lesion and self.lesion.feedback and not config.feedback:
            raise OcraError(
                "This model has no decoder-to-encoder feedback to lesion (model.feedback is off)."
            )

    def at(self, t: int) -> StepControl:
        """What holds for step t, counted from 0."""
        window = None
        if self.windows is not None:
            window = Window(self.windows.center[:, t], self.windows.stride[:, t], self.windows.sigma[:, t])
        return StepControl(
            window,
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

    def of_images(self, positions: Tensor) -> StepControl:
        """The same for some images of the batch alone."""
        window = None if self.window is None else Window(*(part[positions] for part in self.window))
        jitter = None if self.jitter is None else self.jitter[positions]
        return StepControl(
            window, jitter, None if self.winner is None else self.winner[positions], self.lesion
        )

    def window_instead_of(self, own: Window) -> Window:
        """The forced window where its numbers are not NaN, the model's own elsewhere; then the jitter."""
        center, stride, sigma = own
        if self.window is not None:
            center = _forced(center, self.window.center)
            stride = _forced(stride, self.window.stride)
            sigma = _forced(sigma, self.window.sigma)
        if self.jitter is not None:
            center = center + self.jitter.to(center.dtype)
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


def _forced(own: Tensor, wanted: Tensor) -> Tensor:
    """The wanted numbers where they are not NaN, the model's own elsewhere."""
    return torch.where(wanted.isnan(), own, wanted.to(own.dtype))


def _free_after(values: Tensor, glimpses: int, axis: int) -> Tensor:
    """Values of the first glimpse alone, on the axis so many from the end, NaN (free) for the others; else as given."""
    values = torch.as_tensor(values)
    if values.dim() < axis or values.shape[-axis] != 1:
        return values
    missing = glimpses - 1
    shape = (*values.shape[: values.dim() - axis], missing, *values.shape[values.dim() - axis + 1 :])
    return torch.cat([values.float(), values.new_full(shape, math.nan, dtype=torch.float32)], dim=-axis)


def _check_range(name: str, values: Tensor, least: float, most: float) -> None:
    """Refuse numbers (pixels) outside the range; NaN passes."""
    values = torch.as_tensor(values)
    if values.is_complex() or ((values < least) | (values > most)).any():
        raise OcraError(f"{name} must lie between {least:g} and {most:g} pixels.")
