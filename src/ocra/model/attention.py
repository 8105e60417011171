"""The Gaussian window, a zoom lens: filter banks, read and write (Pseudocodes 3 and 4)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ocra.model.kernels import at_least_float32, relu

# exp() of a larger logarithm overflows; real windows stay within ±5.
LOG_LIMIT = 20.0
CENTER_LIMIT = 1e4
# Keeps a row that sees nothing at zero instead of 0 / 0; the authors' value, once for each pixel.
ROW_EPSILON = 1e-8
# Taken off each Gaussian of height 1: far below what float32 resolves beside ROW_EPSILON. Without it the tails
# are denormal numbers, which make every product with them many times slower.
TAIL = 2e-16


class Window(NamedTuple):
    """One attention window for each image of a batch, in pixels from 0 of the image's own frame."""

    center: Tensor  # [batch, 2] as (x, y): g_X - 1, g_Y - 1
    stride: Tensor  # [batch]: δ, the distance between neighbouring filters
    sigma: Tensor  # [batch]: σ, the standard deviation of each filter


def window_from_parameters(parameters: Tensor, height: int, width: int, size: int) -> Window:
    """Scale the four outputs of an attention layer to pixels (Pseudocode 3, lines 4-6).

    parameters: [batch, 4] as g_X, g_Y, log σ², log δ; zeros give a window over the whole image.
    """
    parameters = at_least_float32(parameters)
    extent = parameters.new_tensor([width + 1, height + 1]) / 2
    center = extent * (parameters[:, :2].clamp(-CENTER_LIMIT, CENTER_LIMIT) + 1) - 1
    log_variance, log_stride = parameters[:, 2:].clamp(-LOG_LIMIT, LOG_LIMIT).unbind(1)
    stride = (max(height, width) - 1) / (size - 1) * log_stride.exp()
    return Window(center, stride, (log_variance / 2).exp())


def filter_banks(window: Window, height: int, width: int, size: int) -> tuple[Tensor, Tensor]:
    """F_Y [batch, size, height] and F_X [batch, size, width] (Pseudocode 3, lines 7-12)."""
    center_x, center_y = window.center.unbind(1)
    return (
        _filter_bank(center_y, window.stride, window.sigma, size, height),
        _filter_bank(center_x, window.stride, window.sigma, size, width),
    )


def _filter_bank(center: Tensor, stride: Tensor, sigma: Tensor, size: int, length: int) -> Tensor:
    """Rows of Gaussians at μ_i = g + (i - N/2 - 0.5) δ, i = 1…N: [batch, size, length]."""
    offsets = torch.arange(size, device=center.device, dtype=center.dtype) - (size - 1) / 2
    means = center[:, None] + offsets * stride[:, None]
    pixels = torch.arange(length, device=center.device, dtype=center.dtype)
    square = ((pixels - means[:, :, None]) / sigma[:, None, None]).square()
    bank = relu(torch.exp(-0.5 * square) - TAIL)
    return bank / (bank.sum(2, keepdim=True) + length * ROW_EPSILON)


def read(images: Tensor, bank_y: Tensor, bank_x: Tensor) -> Tensor:
    """g_t = F_Y x F_Xᵀ for each channel: [batch, channels, N, N] from [batch, channels, height, width]."""
    if images.shape[1] == 1:
        return torch.bmm(torch.bmm(bank_y, images[:, 0]), bank_x.transpose(1, 2))[:, None]
    return bank_y[:, None] @ images @ bank_x[:, None].transpose(2, 3)


def write(patch: Tensor, bank_y: Tensor, bank_x: Tensor) -> Tensor:
    """F_Yᵀ w_t F_X for each channel: [batch, channels, height, width] from [batch, channels, M, M]."""
    if patch.shape[1] == 1:
        return torch.bmm(bank_y.transpose(1, 2), torch.bmm(patch[:, 0], bank_x))[:, None]
    return bank_y[:, None].transpose(2, 3) @ (patch @ bank_x[:, None])
