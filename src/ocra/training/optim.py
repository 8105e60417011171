"""Optimisers: one-sided Shampoo beside Adam, over parameters that lie in one flat tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ocra.experiment import Stage
from ocra.model.network import Network
from ocra.training.distributed import Group

COVARIANCE_EVERY = 8
"""Steps between two updates of the covariance of the gradients' columns."""
ROOT_EVERY = 40
"""Steps between two inverse roots of it; at first each update is followed by one."""
COLUMNS = 128
"""Columns of the covariance that are made at a time: fewer leave out more of its upper triangle."""
DIRECTION_EVERY = 2
"""Steps taken in one direction: the momentum hardly turns between two, and its product with the root is dear."""
MOST_COLUMNS = 2048
"""Matrices with more (networks that see the whole image at once) are left to Adam: their roots take too long."""


class Shampoo(torch.optim.Optimizer):
    """One-sided Shampoo: steps that treat all input directions of a weight matrix alike.

    Adam scales each weight by itself. The inputs of a layer are correlated, so its steps are long in a few directions
    and short in most. Here the momentum M [rows, columns] of a matrix is multiplied by (mean of MᵀM)^(-1/2), and the
    step is given a fixed length: √rows for each of the `blocks` of rows (an LSTM's matrix has four, one for each gate).
    Close to Muon, and much cheaper. lr: change of a square matrix's output for an input of length 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.015,
        momentum: float = 0.9,
        decay: float = 0.8,
        floor: float = 1e-5,
        precision: torch.dtype = torch.float32,
    ) -> None:
        """decay: of the mean of MᵀM. floor: smallest eigenvalue of it that counts, as a share of the largest.

        precision: of the product that makes the direction; the covariance needs all 32 bits.
        """
        defaults = {"lr": lr, "momentum": momentum, "decay": decay, "floor": floor, "blocks": 1}
        super().__init__(params, {**defaults, "precision": precision})
        for group in self.param_groups:
            for parameter in group["params"]:
                columns = parameter.shape[1]
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.int64),
                    "momentum": torch.zeros_like(parameter),
                    "covariance": parameter.new_zeros(columns, columns),
                    "root": parameter.new_zeros(columns, columns),
                    "direction": torch.zeros_like(parameter),
                }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(self.state[parameter], parameter.grad, group)
                    parameter.add_(self.state[parameter]["direction"], alpha=-group["lr"])

    @staticmethod
    def _update(state: dict[str, Tensor], gradient: Tensor, group: dict[str, Any]) -> None:
        """Take in a gradient; every few steps also turn the direction."""
        step, momentum, covariance = int(state["step"]), state["momentum"], state["covariance"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        if step % COVARIANCE_EVERY == 0:
            decay = min(group["decay"], 1 - 1 / (1 + step // COVARIANCE_EVERY))
            covariance.mul_(decay)
            for start in range(0, len(covariance), COLUMNS):  # its upper triangle is not needed
                block = covariance[start:, start : start + COLUMNS]
                block.addmm_(momentum[:, start:].T, momentum[:, start : start + COLUMNS], alpha=1 - decay)
            if step % ROOT_EVERY == 0 or step < ROOT_EVERY:
                state["root"].copy_(inverse_root(covariance, group["floor"]))
        if step % DIRECTION_EVERY == 0:
            product = momentum.to(group["precision"]) @ state["root"].to(group["precision"])
            state["direction"].copy_(product)
            blocks = state["direction"].unflatten(0, (group["blocks"], -1))
            norms = blocks.flatten(1).norm(dim=1).clamp(min=1e-20)
            blocks.mul_((blocks.shape[1] ** 0.5 / norms)[:, None, None])
        state["step"] += 1


def inverse_root(covariance: Tensor, floor: float) -> Tensor:
    """C^(-1/2) of a symmetric matrix C [n, n], given by its lower triangle.

    Directions that are hardly seen count as a little seen.
    """
    values, vectors = torch.linalg.eigh(covariance)
    bounded = values.maximum(floor * values[-1].clamp(min=1e-30))
    return (vectors * bounded.rsqrt()) @ vectors.T


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam with its state made at once, so that a checkpoint finds it before the first step."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, fused=True, **options)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


class FlatParameters:
    """The parameters of a model as views of one flat float32 tensor `values` [size], with their gradients and averages.

    The processes of a run share the update (as ZeRO stage 1): each owns whole parameters, which lie side by side in
    its slice `own`, adds up their gradients over all processes, and moves them. Processes on one machine have
    `values` and `average` in common.
    """

    ALIGNMENT = 16  # 64 bytes: what vectorised kernels like their operands to be aligned to

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.group = group
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        shares = _share_out({name: value.numel() for name, value in named.items()}, group.size)
        self.parameters = {name: named[name] for names in shares for name in names}
        self.owner = {name: rank for rank, names in enumerate(shares) for name in names}
        self.slices: list[slice] = []
        self._offsets, self.size = {}, 0
        for names in shares:
            start = self.size
            for name in names:
                self._offsets[name] = self.size
                self.size += -(-named[name].numel() // self.ALIGNMENT) * self.ALIGNMENT
            self.slices.append(slice(start, self.size))
        self.own = self.slices[group.rank]
        (self.values, self.average), self.shared = group.buffers(2, self.size)
        self.bf16: Tensor | None = None
        self._gradients, _ = group.buffers(group.size, self.size)
        self.gradient = self._gradients[group.rank]
        """What this process's backward pass adds up in; after `reduce` its own slice is the sum over all processes."""
        for name, view in self.unflatten(self.values).items():
            view.copy_(self.parameters[name].data)
            self.parameters[name].data = view
        for name, view in self.unflatten(self.gradient).items():
            self.parameters[name].grad = view
        self.average[self.own].copy_(self.values[self.own])
        group.barrier()

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat tensor [size], one for each parameter, by name, in the parameter's memory format."""
        start = flat.storage_offset()
        return {
            name: flat.as_strided(value.shape, value.stride(), start + self._offsets[name])
            for name, value in self.parameters.items()
        }

    def zero_gradients(self, but_for: Collection[Tensor] = ()) -> None:
        """Set the gradients to zero, but for those of some parameters, which the backward pass overwrites."""
        kept = {id(parameter) for parameter in but_for}
        torch._foreach_zero_(
            [p.grad for p in self.parameters.values() if id(p) not in kept and p.grad is not None]
        )

    def owned(self) -> dict[str, nn.Parameter]:
        """The parameters that this process updates."""
        return {name: value for name, value in self.parameters.items() if self.owner[name] == self.group.rank}

    def reduce(self) -> float:
        """Add up the gradients of the own slice over all processes; returns the norm of the whole gradient.

        All backward passes must be made: an `all_reduce` of anything else after them sees to that.
        """
        own = self.gradient[self.own]
        if self.shared:
            for rank, row in enumerate(self._gradients):
                if rank != self.group.rank:
                    own += row[self.own]
        elif self.group.size > 1:
            self.gradient.copy_(self.group.all_reduce(self.gradient))
        # In one pass: copies as large as the gradient are new memory at every step, and cost more than all the rest.
        square = torch.linalg.vector_norm(own).double().square()
        return float(self.group.all_reduce(square[None]).sqrt())

    def make_bf16_copy(self) -> dict[str, Tensor]:
        """Keep a bfloat16 copy of the values from now on; its views by the parameters' names."""
        (halves,), _ = self.group.buffers(1, (self.size + 1) // 2)
        self.bf16 = halves.view(torch.bfloat16)[: self.size]
        self.publish()
        return self.unflatten(self.bf16)

    def publish(self) -> None:
        """Let all processes have the values that this one has changed in its own slice."""
        if self.bf16 is not None and self.shared:
            self.bf16[self.own] = self.values[self.own]
        self.synchronise(self.values)
        if self.bf16 is not None and not self.shared:
            self.bf16.copy_(self.values)

    def synchronise(self, flat: Tensor) -> None:
        """Let all processes have every slice of a flat tensor as its owner has it."""
        if self.shared:
            self.group.barrier()
        elif self.group.size > 1:
            for rank, part in enumerate(self.slices):
                flat[part] = self.group.broadcast(flat[part].clone(), rank)

    @contextmanager
    def holding(self, values: Tensor) -> Iterator[None]:
        """Within the block the model has these values [size]; afterwards its own again."""
        kept = self.values[self.own].clone()
        self.group.barrier()  # nobody is computing with the model
        self.values[self.own] = values[self.own]
        self.publish()
        try:
            yield
            self.group.barrier()  # not after an error: the others may be elsewhere, and it could last for ever
        finally:
            self.values[self.own] = kept
        self.publish()


def _share_out(sizes: dict[str, int], shares: int) -> list[list[str]]:
    """Names in about equal shares by size, the largest first to whoever has least; within a share in their order."""
    loads, owner = [0] * shares, {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        owner[name] = loads.index(min(loads))
        loads[owner[name]] += sizes[name]
    return [[name for name in sizes if owner[name] == rank] for rank in range(shares)]


class Optimisers:
    """Adam, and Shampoo for the large matrices, over the parameters that this process owns."""

    def __init__(self, model: Network, flat: FlatParameters, shampoo: bool) -> None:
        precision = torch.float32 if flat.bf16 is None else torch.bfloat16
        self.flat, self.uses_shampoo = flat, shampoo
        matrices = shampoo_blocks(model) if shampoo else {}
        owned = flat.owned()
        adam = [
            {
                "params": [
                    p
                    for n, p in owned.items()
                    if n not in matrices and n.startswith(model.attention_layers) == slow
                ],
                "attention": slow,
            }
            for slow in (False, True)
        ]
        large = [
            {"params": [p for n, p in owned.items() if matrices.get(n) == blocks], "blocks": blocks}
            for blocks in (1, 4)
        ]
        self.named = {
            name: kind([group for group in groups if group["params"]])
            for name, kind, groups in (
                ("adam", Adam, adam),
                ("shampoo", partial(Shampoo, precision=precision), large),
            )
            if any(group["params"] for group in groups)
        }

    def step(self, stage: Stage, lr: float, shampoo_lr: float) -> None:
        """Move the own parameters by their gradients."""
        for name, optimiser in self.named.items():
            for group in optimiser.param_groups:
                if name == "adam":
                    group["lr"] = lr * (stage.attention_lr_mult if group["attention"] else 1.0)
                    group["betas"] = (0.9, stage.beta2)
                else:
                    group["lr"] = shampoo_lr
            optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        """The optimisers' memory of the own parameters, by name, to be read or filled in place."""
        owned = self.flat.owned()
        return {
            f"{kind}.{name}.{key}": value
            for kind, optimiser in self.named.items()
            for name, parameter in owned.items()
            for key, value in optimiser.state.get(parameter, {}).items()
        }


def shampoo_blocks(model: Network) -> dict[str, int]:
    """The matrices that Shampoo moves, by name, with the number of blocks of rows: nine tenths of OCRA."""
    parameters = dict(model.named_parameters())
    return {
        name: blocks
        for name, blocks in model.matrices.items()
        if name in parameters and parameters[name].shape[1] <= MOST_COLUMNS
    }


class Buffers:
    """What a model gathers beside its parameters (batch norm's running statistics), with its moving average.

    Each process gathers from its own images; the trainer makes them the same in all, at each step. Models without any
    lose no time here.
    """

    def __init__(self, model: Network) -> None:
        saved = model.state_dict().keys()
        self.values = {name: value for name, value in model.named_buffers() if name in saved}
        self.average = {name: value.clone() for name, value in self.values.items()}
        self._real = [value for value in self.values.values() if value.is_floating_point()]

    def flat(self) -> Tensor:
        """All that can be averaged, float64 [size]."""
        parts = [value.flatten().double().cpu() for value in self._real]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def fill(self, flat: Tensor) -> None:
        """Take over what `flat` gave, averaged over the processes."""
        for value, part in zip(self._real, flat.split([value.numel() for value in self._real]), strict=True):
            value.copy_(part.view_as(value))

    def update_average(self, decay: float) -> None:
        """Move the average towards the values; what only counts is copied."""
        for name, value in self.values.items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
            else:
                self.average[name].copy_(value)

    @contextmanager
    def holding(self, values: dict[str, Tensor]) -> Iterator[None]:
        """Within the block the model has these; afterwards its own again."""
        kept = {name: value.clone() for name, value in self.values.items()}
        for name, value in self.values.items():
            value.copy_(values[name])
        try:
            yield
        finally:
            for name, value in self.values.items():
                value.copy_(kept[name])

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be read or filled in place."""
        return {
            f"{kind}.{name}": value
            for kind, values in (("buffer", self.values), ("average_buffer", self.average))
            for name, value in values.items()
        }
