"""The fused first layer against the three plain operations it stands for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.model.convolution import convolve_and_pool


def plain(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=2), 2))


def inputs(channels: int, height: int, width: int) -> list[Tensor]:
    shapes = (2, channels, height, width), (3, channels, 5, 5), (3,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(18, 18), (8, 11), (13, 9), (36, 20)])
def test_the_fused_layer_equals_convolution_pooling_and_relu(channels: int, height: int, width: int) -> None:
    values = inputs(channels, height, width)
    ours, theirs = convolve_and_pool(*values), plain(*values)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(theirs)
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), values),
        torch.autograd.grad((theirs * weights).sum(), values),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_gradients_of_the_fused_layer_are_right() -> None:
    assert torch.autograd.gradcheck(convolve_and_pool, inputs(1, 6, 7))


def test_second_derivatives_of_the_fused_layer_are_right() -> None:
    torch.autograd.gradgradcheck(convolve_and_pool, inputs(2, 6, 7))


def test_equal_pixels_share_no_gradient_twice() -> None:
    """In a blank image all four outputs of a pool are equal: one of them gets the gradient, as in torch."""
    images = torch.ones(1, 1, 12, 12, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.rand(3, 1, 5, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    (ours,) = torch.autograd.grad(convolve_and_pool(images, weight, bias).sum(), images)
    (theirs,) = torch.autograd.grad(plain(images, weight, bias).sum(), images)
    torch.testing.assert_close(ours, theirs)


def test_without_gradients_the_layer_gives_the_same() -> None:
    values = inputs(3, 18, 18)
    with torch.no_grad():
        torch.testing.assert_close(convolve_and_pool(*values), plain(*values))
