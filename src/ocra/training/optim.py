"""Steps that treat all directions of a weight matrix alike: one-sided Shampoo, close to Muon and much cheaper.

Adam scales each weight by itself. The inputs of a layer are correlated, so its steps are long in a few directions and
short in most. Here the mean gradient M [rows, columns] of a matrix is multiplied by (mean of MᵀM)^(-1/2), which makes
the directions of its columns alike, and the step is given a fixed length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ocra.training.channel import SharedMatrices
from ocra.training.distributed import Group

LSTMS = ("encoder.weight", "decoder.weight")
MATRICES = (*LSTMS, "primary.weight")
"""What the names of the whitened weights begin with: more than nine tenths of a network."""
MOST_COLUMNS = 2048
"""Matrices with more (networks that see the whole image at once) are left to Adam: their roots would take too long."""
GATES = 4
TURN_EVERY = 2
"""Steps that go in one direction: the mean gradient hardly turns between two, and its product with the root is dear."""
WATCH_EVERY = 4
"""Steps between two looks at MᵀM."""
INVERT_EVERY = 20
"""Steps between two inverse roots; at first each look is followed by one."""
MEMORY = 0.9
"""Share of the mean of MᵀM that is kept at each look."""
FLOOR = 1e-5
"""Smallest eigenvalue of that mean that counts, as a share of the largest."""


class Whitening:
    """What is remembered of the gradients of the large matrices, and the steps that are made of it.

    weights, means: the weights and their mean gradients as Adam keeps them, by name, to be read and moved in place.
    group: the processes that share the largest product, that with the roots; all of them remember the same.
    """

    def __init__(self, weights: dict[str, Tensor], means: dict[str, Tensor], group: Group) -> None:
        self.weights = {
            name: value
            for name, value in weights.items()
            if name.startswith(MATRICES) and value.shape[1] <= MOST_COLUMNS
        }
        self.means = means
        self.covariances = {
            name: value.new_zeros(value.shape[1], value.shape[1]) for name, value in self.weights.items()
        }
        self.roots = {name: torch.zeros_like(value) for name, value in self.covariances.items()}
        self.directions = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self._products = SharedMatrices(group, {name: value.shape for name, value in self.weights.items()})

    @contextmanager
    @torch.no_grad()
    def instead(self, rate: float, step: int) -> Iterator[None]:
        """Whatever the block does to the matrices, they make a whitened step instead.

        rate: length of the step; a vector of length 1 that meets a square matrix sees a change of about this length.
        """
        before = {name: value.clone() for name, value in self.weights.items()}
        yield
        if step % WATCH_EVERY == 0:
            self._watch(step)
        if step % TURN_EVERY == 0:
            self._turn()
        for name, direction in self.directions.items():
            torch.sub(before[name], direction, alpha=rate, out=self.weights[name])

    def _turn(self) -> None:
        """Take the directions of the next steps from the mean gradients."""
        products = self._products.make(lambda name, rows: self.means[name][rows] @ self.roots[name])
        for name, product in products.items():
            self.directions[name].copy_(of_equal_length(product, GATES if name.startswith(LSTMS) else 1))

    def _watch(self, step: int) -> None:
        """Take the mean gradients into the covariances, and now and then the roots from those."""
        memory = min(MEMORY, 1 - 1 / (1 + step // WATCH_EVERY))
        for name, covariance in self.covariances.items():
            mean = self.means[name]
            covariance.mul_(memory).addmm_(mean.T, mean, alpha=1 - memory)
            if step % INVERT_EVERY == 0 or step < INVERT_EVERY:
                self.roots[name].copy_(inverse_root(covariance))

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, by name, to be read and filled in place."""
        kinds = {"covariance": self.covariances, "root": self.roots, "direction": self.directions}
        return {f"{kind}.{name}": value for kind, values in kinds.items() for name, value in values.items()}


def inverse_root(covariance: Tensor) -> Tensor:
    """C^(-1/2) of a symmetric matrix C [n, n]; directions that are hardly seen count as a little seen."""
    values, vectors = torch.linalg.eigh(covariance)
    bounded = values.clamp(min=FLOOR * float(values[-1].clamp(min=1e-30)))
    return (vectors * bounded.rsqrt()) @ vectors.T


def of_equal_length(change: Tensor, blocks: int) -> Tensor:
    """A change [rows, columns] whose blocks of rows each have the length √rows: a length of 1 for each row."""
    parts = change.unflatten(0, (blocks, -1))
    norms = parts.flatten(1).norm(dim=1).clamp(min=1e-20)
    return (parts * (parts.shape[1] ** 0.5 / norms)[:, None, None]).flatten(0, 1)
