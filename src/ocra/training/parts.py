"""A learning rate of its own for one part of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ocra.model.ocra import OCRA


def attention_parameters(model: OCRA) -> list[Tensor]:
    """The parameters of the two layers that place the windows; none in a model without attention."""
    if not model.config.attention:
        return []
    return [*model.read_attention.parameters(), *model.write_attention.parameters()]


@contextmanager
@torch.no_grad()
def slower(parameters: Sequence[Tensor], rate: float) -> Iterator[None]:
    """What the block does to these parameters is done to them by a share of `rate` only.

    A window's place is a sum over all 512 units of the decoder, which a step of Adam moves all at once: at the
    learning rate of the rest a window jumps by many pixels a step, leaves the image and never comes back.
    """
    before = [parameter.detach().clone() for parameter in parameters] if rate != 1 else []
    yield
    for parameter, old in zip(parameters, before, strict=False):
        parameter.copy_(torch.lerp(old, parameter, rate))
