"""The gradients of the LSTMs' weights, which are nine tenths of all, from all glimpses in one product.

Left to itself, autograd makes a gradient as large as each weight matrix at every glimpse and adds them up, which is
bound by memory. Here a glimpse multiplies by weights that ask for no gradient and adds zeros that do: a slot for
each LSTM. What arrives at the slots of all glimpses, times the inputs of all glimpses, is the gradient of the
weights: the same sums in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ocra.model.ocra import OCRA, State, Step


class Slots(NamedTuple):
    """Zeros that one glimpse adds to the gates of its two LSTMs, each [batch, 4 · hidden]."""

    encoder: Tensor
    decoder: Tensor


class Gatherer:
    """Makes the slots of one pass and remembers what its LSTMs were given."""

    def __init__(self, model: OCRA, glimpses: int, batch: int) -> None:
        weights = (  # in the order of the slots
            (model.encoder.weight_ih, model.encoder.weight_hh),
            (model.decoder.weight_ih, model.decoder.weight_hh),
        )
        self._inputs: list[list[list[Tensor]]] = [[[] for _ in matrices] for matrices in weights]
        slots = [
            _Gathered.apply(inputs, glimpses, batch, *matrices).unbind(0)
            for inputs, matrices in zip(self._inputs, weights, strict=True)
        ]
        self._slots = [Slots(*parts) for parts in zip(*slots, strict=True)]

    def slots(self, glimpse: int) -> Slots:
        """The slots of one glimpse."""
        return self._slots[glimpse]

    def keep(self, before: State | None, step: Step) -> None:
        """Remember what each matrix was multiplied by in a step; nothing for those that met a state of zeros."""
        assert step.features is not None and step.latent is not None
        encoder, decoder = (None, None) if before is None else (before.encoder, before.decoder)
        used = ((step.features, encoder), (step.latent, decoder))
        for matrices, values in zip(self._inputs, used, strict=True):
            for inputs, value in zip(matrices, values, strict=True):
                if value is not None:
                    inputs.append(value.detach())


class _Gathered(torch.autograd.Function):
    """Zeros [glimpses, batch, outputs] whose gradient becomes that of the weights."""

    @staticmethod
    def forward(ctx: Any, inputs: list[list[Tensor]], glimpses: int, batch: int, *weights: Tensor) -> Tensor:
        ctx.inputs = inputs  # filled while the pass is made
        return weights[0].new_zeros(glimpses, batch, len(weights[0]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        products = [
            _product(gradient, given) if asked else None
            for given, asked in zip(ctx.inputs, wanted, strict=True)
        ]
        return None, None, None, *products


def _product(gradient: Tensor, inputs: list[Tensor]) -> Tensor:
    """Gradient of a matrix [outputs, inputs] from that of its outputs [glimpses, batch, outputs].

    inputs: [batch, inputs] for each glimpse, or for all but the first, where the matrix met a state of zeros.
    """
    return gradient[len(gradient) - len(inputs) :].flatten(0, 1).t() @ torch.cat(inputs)
