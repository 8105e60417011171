"""All parameters of a model in one tensor: one message, one optimiser step, one average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# 64 bytes: what vectorised kernels like their operands to be aligned to.
ALIGNMENT = 16


class FlatParameters:
    """Lays the parameters of a model out in one flat float32 tensor; the model goes on with views of it."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._offsets = {}
        self.size = 0
        for name, value in self._parameters.items():
            self._offsets[name] = self.size
            self.size += -(-value.numel() // ALIGNMENT) * ALIGNMENT
        device = next(iter(self._parameters.values())).device
        self.values = nn.Parameter(torch.zeros(self.size, device=device), requires_grad=False)
        for name, view in self.unflatten(self.values.data).items():
            view.copy_(self._parameters[name].data)
            self._parameters[name].data = view

    def send_gradients_to(self, flat: Tensor) -> None:
        """Let the model's gradients add up in a flat tensor [size]; empty it before each backward pass."""
        for name, view in self.unflatten(flat).items():
            self._parameters[name].grad = view

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat tensor [size], one for each parameter, by name, in the parameter's memory format."""
        start = flat.storage_offset()
        return {
            name: flat.as_strided(value.shape, value.stride(), start + self._offsets[name])
            for name, value in self._parameters.items()
        }

    @contextmanager
    def holding(self, values: Tensor) -> Iterator[None]:
        """Within the block the model has these values [size]; afterwards its own again."""
        own = self.values.detach().clone()
        self.values.data.copy_(values)
        try:
            yield
        finally:
            self.values.data.copy_(own)
