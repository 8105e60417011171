"""The typed record of one pass of the model over a batch of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ocra.model.attention import Window


@dataclass(frozen=True)
class Windows:
    """Attention windows in pixels, origin 0 at the centre of the top left pixel of the image.

    `center ± stride · (N − 1) / 2` is the square of filter centres that a window covers.
    """

    center: Tensor
    """[batch, glimpses, 2] as (x, y)."""
    stride: Tensor
    """[batch, glimpses], δ."""
    sigma: Tensor
    """[batch, glimpses], σ."""

    def width(self, size: int) -> Tensor:
        """Distance between the outermost filters of a grid of `size` × `size`: [batch, glimpses]."""
        return self.stride * (size - 1)


@dataclass(frozen=True)
class Trace:
    """What came out of one pass; the fields after `attended` are filled by `record=True`."""

    scores: Tensor
    """[batch, classes]: capsule lengths summed over the glimpses, background left out."""
    canvas: Tensor
    """[batch, channels, height, width]: the reconstruction."""
    capsule_lengths: Tensor
    """[batch, glimpses, object capsules]: ‖d_j‖ at each step."""
    readout: Tensor | None = None
    """[batch, digits, readout classes]: the sequence read out, where the model has readouts."""
    attended: Tensor | None = None
    """[batch, channels, height, width]: the read glimpses put back into the image and summed, no gradient."""
    glimpses: Tensor | None = None
    """[batch, glimpses, channels, N, N]."""
    read_windows: Windows | None = None
    """Where each glimpse was read; None for a model without attention."""
    write_windows: Windows | None = None
    """Where each write went; None for a model without attention."""
    winners: Tensor | None = None
    """[batch, glimpses]: index of the capsule sent to the decoder."""
    canvases: Tensor | None = None
    """[batch, glimpses, channels, height, width]: the canvas after each step."""
    couplings: Tensor | None = None
    """[batch, glimpses, object capsules, primary capsules]; None for a model without capsules."""
    taken: Tensor | None = None
    """[batch]: how many glimpses each image took, for a pass with `until`; None where each took all."""

    def glimpses_of(self, image: int) -> int:
        """How many glimpses an image of the batch took."""
        return self.capsule_lengths.shape[1] if self.taken is None else int(self.taken[image])


for _record in (Windows, Trace):
    torch.export.register_dataclass(_record, serialized_type_name=f"ocra.{_record.__name__}")


def one_look(images: Tensor, scores: Tensor, canvas: Tensor | None = None) -> dict[str, Any]:
    """The fields of a recorded trace of a network that looks once, at the whole image, with scores [batch, classes].

    canvas: its reconstruction; a network that makes none has a canvas that is not a number anywhere.
    """
    canvas = torch.full_like(images, torch.nan) if canvas is None else canvas
    return {
        "scores": scores,
        "canvas": canvas,
        "capsule_lengths": scores[:, None],
        "attended": images.detach(),
        "glimpses": images[:, None],
        "winners": scores.argmax(1, keepdim=True),
        "canvases": canvas[:, None],
    }


def stack_steps(values: list[Tensor | None]) -> Tensor | None:
    """The records of all steps stacked along axis 1; None where there are none."""
    present = [value for value in values if value is not None]
    return torch.stack(present, 1) if present else None


def stack_windows(windows: list[Window | None]) -> Windows | None:
    """The windows of all steps as one record."""
    present = [window for window in windows if window is not None]
    if not present:
        return None
    return Windows(*(torch.stack(values, 1) for values in zip(*present, strict=True)))
