"""The Gaussian window: where it looks, what it reads, where it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_variants import SMALL, lively
from torch import Tensor

from ocra.config import ModelConfig
from ocra.model.attention import Window, filter_banks, read, window_from_parameters, write
from ocra.model.ocra import OCRA

SHAPES = [(12, 12), (20, 31), (31, 20)]  # height, width


def glimpse_through(parameters: Tensor, images: Tensor, size: int) -> Tensor:
    height, width = images.shape[2:]
    return read(
        images, *filter_banks(window_from_parameters(parameters, height, width, size), height, width, size)
    )


def written_through(parameters: Tensor, patch: Tensor, height: int, width: int) -> Tensor:
    size = patch.shape[-1]
    return write(
        patch, *filter_banks(window_from_parameters(parameters, height, width, size), height, width, size)
    )


def dot(height: int, width: int, x: int, y: int) -> Tensor:
    """A black image [1, 1, height, width] with one white pixel."""
    image = torch.zeros(1, 1, height, width)
    image[0, 0, y, x] = 1
    return image


def window(x: float, y: float, stride: float, sigma: float) -> Window:
    return Window(torch.tensor([[x, y]]), torch.tensor([stride]), torch.tensor([sigma]))


def peak(picture: Tensor) -> tuple[int, int]:
    """Column and row of the largest value of the last two axes."""
    row, column = divmod(int(picture.flatten().argmax()), picture.shape[-1])
    return column, row


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("size", [8, 11, 18])
def test_zero_parameters_give_a_window_over_the_whole_image(height: int, width: int, size: int) -> None:
    whole = window_from_parameters(torch.zeros(1, 4), height, width, size)
    assert whole.center.tolist() == [[(width - 1) / 2, (height - 1) / 2]]
    assert whole.stride.item() * (size - 1) == pytest.approx(max(height, width) - 1)
    assert whole.sigma.item() == 1


def test_parameters_are_x_then_y_then_log_variance_then_log_stride() -> None:
    parameters = torch.tensor([[0.5, -0.25, 1.0, -0.5]])
    moved = window_from_parameters(parameters, height=20, width=30, size=8)
    assert moved.center[0].tolist() == pytest.approx([31 / 2 * 1.5 - 1, 21 / 2 * 0.75 - 1])
    assert moved.sigma.item() == pytest.approx(torch.tensor(0.5).exp().item())
    assert moved.stride.item() == pytest.approx(29 / 7 * torch.tensor(-0.5).exp().item())


def test_first_window_covers_whole_image() -> None:
    model = OCRA(ModelConfig(height=24, width=40))
    torch.nn.init.zeros_(model.read_attention.bias)
    windows = model(torch.rand(2, 1, 24, 40), record=True).read_windows
    assert windows.center[:, 0].tolist() == [[19.5, 11.5]] * 2
    assert windows.width(18)[:, 0].tolist() == pytest.approx([39] * 2)


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize(("x", "y"), [(1, 6), (9, 6), (6, 1), (6, 9), (2, 8)])
def test_a_dot_is_found_where_it_was_placed(height: int, width: int, x: int, y: int) -> None:
    size = 9
    looked_at = window(5, 5, 1.0, 0.5)
    banks = filter_banks(looked_at, height, width, size)
    column, row = peak(read(dot(height, width, x, y), *banks))
    assert (column + 1, row + 1) == (x, y)
    patch = torch.zeros(1, 1, size, size)
    patch[0, 0, y - 1, x - 1] = 1
    assert peak(write(patch, *banks)) == (x, y)


def test_the_model_finds_a_dot_on_the_left_on_the_left() -> None:
    """Through the whole model, in an image wider than high, so that swapped axes cannot go unseen."""
    model = OCRA(ModelConfig(height=20, width=40))
    torch.nn.init.zeros_(model.read_attention.bias)
    for x, y in [(3, 10), (36, 10), (20, 3), (20, 17)]:
        trace = model(dot(20, 40, x, y), record=True)
        column, row = peak(trace.glimpses[0, 0])
        (center_x, center_y), stride = (
            trace.read_windows.center[0, 0].tolist(),
            trace.read_windows.stride[0, 0],
        )
        assert abs(center_x + (column - 8.5) * stride - x) <= stride / 2 + 1e-4
        assert abs(center_y + (row - 8.5) * stride - y) <= stride / 2 + 1e-4


@settings(max_examples=50, deadline=None, derandomize=True)
@given(x=st.integers(5, 34), y=st.integers(5, 18), seed=st.integers(0, 50))
def test_a_window_drawn_from_a_trace_contains_what_the_glimpse_shows(x: int, y: int, seed: int) -> None:
    """A dot inside the drawn square is seen at its place in the glimpse, one well outside is not seen.

    Dots at the very border are left out: filters beyond it see nothing but the border.
    """
    config = replace(SMALL, height=24, width=40, glimpse_size=18)
    trace = lively(config, seed)(dot(24, 40, x, y), record=True)
    for t in range(config.glimpses):
        center, stride = trace.read_windows.center[0, t], trace.read_windows.stride[0, t].item()
        sigma = trace.read_windows.sigma[0, t].item()
        reach = stride * (config.glimpse_size - 1) / 2
        outside = max(abs(x - center[0].item()), abs(y - center[1].item())) - reach
        seen = trace.glimpses[0, t, 0]
        if outside <= 0 and stride < 3 * sigma:  # filters far apart have blind gaps between them
            assert seen.max() > 1e-3
            column, row = peak(seen)
            middle = (config.glimpse_size - 1) / 2
            assert abs(center[0].item() + (column - middle) * stride - x) <= stride
            assert abs(center[1].item() + (row - middle) * stride - y) <= stride
        if outside > 7 * sigma:
            assert seen.max() < 1e-3


def test_rows_of_a_filter_bank_sum_to_one_inside_the_image() -> None:
    for bank in filter_banks(window(15, 10, 1.0, 1.0), 24, 40, 8):
        torch.testing.assert_close(bank.sum(2), torch.ones(1, 8))


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_a_window_far_outside_sees_nothing(far: float) -> None:
    seen = glimpse_through(torch.tensor([[far, far, 0.0, 0.0]]), torch.ones(1, 1, 12, 12), 8)
    assert seen.abs().max() == 0


def test_colour_channels_are_read_and_written_alike() -> None:
    parameters = torch.randn(2, 4) * 0.3
    images, patch = torch.rand(2, 3, 10, 14), torch.rand(2, 3, 8, 8)
    seen, written = glimpse_through(parameters, images, 8), written_through(parameters, patch, 10, 14)
    for channel in range(3):
        one = slice(channel, channel + 1)
        torch.testing.assert_close(seen[:, one], glimpse_through(parameters, images[:, one], 8))
        torch.testing.assert_close(written[:, one], written_through(parameters, patch[:, one], 10, 14))


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_of_reading_are_right(channels: int) -> None:
    parameters = (torch.randn(2, 4, dtype=torch.float64) * 0.3).requires_grad_()
    images = torch.rand(2, channels, 7, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p, x: glimpse_through(p, x, 8), (parameters, images))


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_of_writing_are_right(channels: int) -> None:
    parameters = (torch.randn(2, 4, dtype=torch.float64) * 0.3).requires_grad_()
    patch = torch.randn(2, channels, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p, w: written_through(p, w, 7, 9), (parameters, patch))
