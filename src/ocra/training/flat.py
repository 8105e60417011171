"""All parameters of a model in one tensor: one all-reduce, one optimiser step, one average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# 64 bytes: what vectorised kernels like their operands to be aligned to.
ALIGNMENT = 16


class FlatParameters:
    """Lays the parameters of a model, and their gradients, out in two flat float32 tensors.

    The model goes on as before, its parameters are views. Room for `extras` numbers follows the gradients, so
    that what else the processes have to tell each other travels in the same message.
    """

    def __init__(self, model: nn.Module, extras: int = 0) -> None:
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self._places: dict[str, tuple[int, torch.Size, tuple[int, ...]]] = {}
        size = 0
        for name, value in named:
            self._places[name] = (size, value.shape, value.stride())
            size += -(-value.numel() // ALIGNMENT) * ALIGNMENT
        device = named[0][1].device
        self.values = nn.Parameter(torch.zeros(size, device=device), requires_grad=False)
        self.message = torch.zeros(size + extras, device=device)
        self.gradient = self.message[:size]
        self.extras = self.message[size:]
        self.values.grad = self.gradient
        values, gradients = self.unflatten(self.values.data), self.unflatten(self.gradient)
        for name, value in named:
            values[name].copy_(value.data)
            value.data = values[name]
            value.grad = gradients[name]

    @contextmanager
    def holding(self, values: Tensor) -> Iterator[None]:
        """Within the block the model has these values; afterwards its own again."""
        own = self.values.detach().clone()
        self.values.data.copy_(values)
        try:
            yield
        finally:
            self.values.data.copy_(own)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat tensor, one for each parameter, by name."""
        return {
            name: flat.as_strided(shape, stride, flat.storage_offset() + offset)
            for name, (offset, shape, stride) in self._places.items()
        }
