"""Capsules: squash (eq. 4) and dynamic routing with max-min couplings (Pseudocode 2, eq. 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocra.model.kernels import at_least_float32

LOWER, UPPER = 0.01, 1.0  # lb and ub of the max-min normalisation
# Under the square root only, where it keeps the gradient of a zero vector finite.
LENGTH_EPSILON = 1e-16


def squash(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Shrink vectors [..., size] to a length below 1; returns them and their lengths [...].

    The length ‖d‖ = ‖v‖² / (1 + ‖v‖²) needs no square root, so its gradient is smooth everywhere.
    """
    square = vectors.square().sum(-1)
    scale = (square + LENGTH_EPSILON).sqrt() / (1 + square)
    return vectors * scale[..., None], square / (1 + square)


def max_min_coupling(logits: Tensor) -> Tensor:
    """Stretch logits [batch, primary, objects] to [0.01, 1] over the object capsules (eq. 3).

    Equal logits prefer nothing, so they keep the coupling that routing starts with, 1 / objects.
    """
    low, high = logits.amin(-1, keepdim=True), logits.amax(-1, keepdim=True)
    span = high - low
    stretched = LOWER + (UPPER - LOWER) * (logits - low) / torch.where(span > 0, span, torch.ones_like(span))
    return torch.where(span > 0, stretched, torch.full_like(logits, 1 / logits.shape[-1]))


def route(predictions: Tensor, routings: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dynamic routing of predictions [batch, primary, objects, size] (Pseudocode 2, lines 4-11).

    Returns the object capsules [batch, objects, size], their lengths [batch, objects] and the couplings
    [batch, primary, objects] of the last pass. Gradients flow through the last weighted sum only.
    """
    couplings = _agreed_couplings(predictions.detach(), routings)
    capsules, lengths = squash(_weighted_sum(couplings, predictions))
    return capsules, lengths, couplings


def _agreed_couplings(predictions: Tensor, routings: int) -> Tensor:
    """The couplings after routings - 1 updates, starting from uniform ones."""
    batch, primary, objects, _ = predictions.shape
    couplings = predictions.new_full((batch, primary, objects), 1 / objects)
    logits = torch.zeros_like(couplings)
    for _ in range(routings - 1):
        capsules, _ = squash(_weighted_sum(couplings, predictions))
        logits = logits + (predictions * capsules[:, None]).sum(-1)
        couplings = max_min_coupling(logits)
    return couplings


def _weighted_sum(couplings: Tensor, predictions: Tensor) -> Tensor:
    """v_j = Σ_i c_ij p̂_j|i: [batch, objects, size]."""
    return (couplings[..., None] * predictions).sum(1)


class CapsuleLayer(nn.Module):
    """Primary capsules vote for object capsules: p̂_j|i = W_ij p_i, then routing."""

    def __init__(self, primary: int, primary_size: int, objects: int, size: int, scale: float = 0.01) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(objects, primary, size, primary_size))

    def predictions(self, capsules: Tensor) -> Tensor:
        """All votes, as one batched product over primary capsules.

        capsules [batch, primary, primary_size] → [batch, primary, objects, size]
        """
        objects, primary, size, primary_size = self.weight.shape
        weight = self.weight.permute(1, 3, 0, 2).reshape(primary, primary_size, objects * size)
        votes = torch.bmm(capsules.transpose(0, 1), weight)  # [primary, batch, objects * size]
        return votes.transpose(0, 1).unflatten(2, (objects, size))

    def forward(self, capsules: Tensor, routings: int) -> tuple[Tensor, Tensor, Tensor]:
        """Object capsules [batch, objects, size], lengths [batch, objects], couplings [batch, primary, objects]."""
        return route(at_least_float32(self.predictions(capsules)), routings)
