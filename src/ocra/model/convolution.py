"""A 5×5 convolution, 2×2 max-pooling and ReLU in one, trained several times faster on a CPU.

The first convolution has one or three input channels. For so few, the usual CPU kernels spend most of a
training step on its gradient. Here each pooled output looks at the 6×6 pixels under its four convolution
outputs, so the layer is one matrix product [positions, 36·channels] × [36·channels, 4·filters] and a maximum
over four.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.model.numerics import relu

KERNEL = 5
PAD = KERNEL // 2
FIELD = KERNEL + 1  # side of the square that the four outputs of a pooled one look at
# PyTorch 2.6 cannot tell; there an exported model holds our operator unless it is exported under no_grad.
_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def convolve_and_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool(conv(images))): [batch, filters, height // 2, width // 2].

    images [batch, channels, height, width], weight [filters, channels, 5, 5], bias [filters].
    """
    plain = torch.is_autocast_enabled(images.device.type) or _exporting()
    if images.device.type != "cpu" or not torch.is_grad_enabled() or plain:
        return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=PAD), 2))
    batch, _, height, width = images.shape
    fields = _fields(images.to(weight.dtype).contiguous())
    outputs = (fields @ _spread_weight(weight).t()).unflatten(1, (4, len(weight)))
    maps = relu((outputs * _winners(outputs.detach())).sum(1) + bias)
    return maps.view(batch, height // 2, width // 2, len(weight)).permute(0, 3, 1, 2)


def _winners(outputs: Tensor) -> Tensor:
    """1 at the first of the largest of four outputs [positions, 4, filters], 0 at the other three.

    All in numbers, for truth values are slow in compiled CPU code, see `relu`.
    """
    above_left, above_right, below_left, below_right = outputs.unbind(1)
    right_above, right_below = _greater(above_right, above_left), _greater(below_right, below_left)
    below = _greater(torch.maximum(below_left, below_right), torch.maximum(above_left, above_right))
    place = right_above + below * (2 + right_below - right_above)
    places = torch.arange(4, device=outputs.device, dtype=outputs.dtype)
    return 1 - (place[:, None] - places[:, None]).sign().abs()


def _greater(left: Tensor, right: Tensor) -> Tensor:
    """1 where left > right, else 0."""
    return (0.5 * (left - right).sign()).ceil()


@torch.library.custom_op("ocra::fields", mutates_args=())
def _fields(images: Tensor) -> Tensor:
    """The 6×6 pixels under each pooled output: [batch · rows · columns, channels · 36].

    An operator of its own, like its gradient, because the compiler makes slow code of overlapping windows.
    """
    padded = F.pad(images, (PAD,) * 4)
    return (
        padded.unfold(2, FIELD, 2)
        .unfold(3, FIELD, 2)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(-1, images.shape[1] * FIELD**2)
    )


@_fields.register_fake
def _(images: Tensor) -> Tensor:
    batch, channels, height, width = images.shape
    return images.new_empty(batch * (height // 2) * (width // 2), channels * FIELD**2)


@torch.library.custom_op("ocra::fields_backward", mutates_args=())
def _fields_backward(gradient: Tensor, channels: int, height: int, width: int) -> Tensor:
    """The gradient of images [batch, channels, height, width] from that of their fields."""
    rows, columns = height // 2, width // 2
    gradient = gradient.view(-1, rows * columns, channels * FIELD**2).transpose(1, 2)
    padded = F.fold(gradient, (2 * rows + KERNEL - 1, 2 * columns + KERNEL - 1), FIELD, stride=2)
    return padded[:, :, PAD : PAD + height, PAD : PAD + width].contiguous()


@_fields_backward.register_fake
def _(gradient: Tensor, channels: int, height: int, width: int) -> Tensor:
    batch = gradient.shape[0] // ((height // 2) * (width // 2))
    return gradient.new_empty(batch, channels, height, width)


def _remember(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.size = inputs[0].shape[1:]  # type: ignore[attr-defined]


def _backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
    return _fields_backward(gradient.contiguous(), *ctx.size)  # type: ignore[attr-defined]


def _backward_of_backward(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor
) -> tuple[Tensor, None, None, None]:
    return _fields(gradient.contiguous()), None, None, None


_fields.register_autograd(_backward, setup_context=_remember)
_fields_backward.register_autograd(_backward_of_backward)  # the one is the transpose of the other


def _spread_weight(weight: Tensor) -> Tensor:
    """The kernel at the four places it has in a field: [4 · filters, channels · 36]."""
    places = [F.pad(weight, (x, 1 - x, y, 1 - y)) for y in (0, 1) for x in (0, 1)]
    return torch.stack(places).view(-1, weight.shape[1] * FIELD**2)
