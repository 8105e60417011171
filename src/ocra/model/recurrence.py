"""The LSTM of the encoder and the decoder, RNN^enc and RNN^dec of Pseudocode 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.model.numerics import at_least_float32


class LSTMCell(nn.Module):
    """An LSTM cell that multiplies nothing by a zero state and, for a single pass, has no recurrent weights."""

    def __init__(self, inputs: int, hidden: int, recurrent: bool) -> None:
        super().__init__()
        bound = hidden**-0.5
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, inputs).uniform_(-bound, bound))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        if recurrent:
            self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden).uniform_(-bound, bound))
            self.bias_hh = nn.Parameter(torch.empty(4 * hidden).uniform_(-bound, bound))
        self.recurrent = recurrent

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, Tensor] | None, slot: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Next hidden and cell state [batch, hidden] from inputs [batch, inputs]; None stands for zeros.

        slot [batch, 4 · hidden]: where the gradient of the weights is to be gathered, see `ocra.model.kernels`.
        """
        bias = self.bias_ih + self.bias_hh if self.recurrent else self.bias_ih
        gates = F.linear(inputs, _constant_with(slot, self.weight_ih), bias)
        if state is not None and self.recurrent:
            gates = torch.addmm(gates, state[0], _constant_with(slot, self.weight_hh).t())
        if slot is not None:
            gates = gates + slot
        enter, keep, new, out = at_least_float32(gates).chunk(4, 1)
        cell = enter.sigmoid() * new.tanh()
        if state is not None:
            cell = cell + keep.sigmoid() * state[1]
        return out.sigmoid() * cell.tanh(), cell


def _constant_with(slot: Tensor | None, weight: Tensor) -> Tensor:
    """The weight; with a slot, which gets its gradient, as a constant."""
    return weight if slot is None else weight.detach()
