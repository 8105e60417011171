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
    if images.device.type == "cpu" and torch.is_grad_enabled() and not plain:
        return _pooled(images.to(weight.dtype).contiguous(), weight, bias)[0].permute(0, 3, 1, 2)
    return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=PAD), 2))


@torch.library.custom_op("ocra::convolve_and_pool", mutates_args=())
def _pooled(images: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The pooled maps [batch, height // 2, width // 2, filters], and what the gradient needs.

    That is the fields [positions, channels · 36] and which of the four outputs won, as three comparisons
    [positions, filters], 1 or 0: right against left above, right against left below, below against above.
    They are numbers because products of numbers are fast where a choice by truth values is not.
    """
    batch, _, height, width = images.shape
    fields = _fields(images)
    outputs = fields @ _spread_weight(weight).t()
    above_left, above_right, below_left, below_right = outputs.view(len(fields), 4, -1).unbind(1)
    above, below = torch.maximum(above_left, above_right), torch.maximum(below_left, below_right)
    maps = torch.maximum(above, below).add_(bias).relu_().view(batch, height // 2, width // 2, -1)
    return (
        maps,
        fields,
        (above_right > above_left).to(images.dtype),
        (below_right > below_left).to(images.dtype),
        (below > above).to(images.dtype),
    )


@_pooled.register_fake
def _(images: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, channels, height, width = images.shape
    filters, rows, columns = weight.shape[0], height // 2, width // 2
    positions = batch * rows * columns
    won = images.new_empty(positions, filters)
    return (
        images.new_empty(batch, rows, columns, filters),
        images.new_empty(positions, channels * FIELD**2),
        won,
        torch.empty_like(won),
        torch.empty_like(won),
    )


@torch.library.custom_op("ocra::convolve_and_pool_backward", mutates_args=())
def _pooled_backward(
    gradient: Tensor,
    maps: Tensor,
    fields: Tensor,
    right_above: Tensor,
    right_below: Tensor,
    below: Tensor,
    weight: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of images, weight and bias from that of the pooled maps [batch, rows, columns, filters]."""
    filters, channels = weight.shape[:2]
    batch, rows, columns, _ = maps.shape
    gradient = torch.ops.aten.threshold_backward(gradient, maps, 0).view(len(fields), filters)
    outputs = gradient.new_empty(len(fields), 4, filters)
    gradient_below = gradient * below
    for row, share, right in ((0, gradient - gradient_below, right_above), (1, gradient_below, right_below)):
        torch.mul(share, right, out=outputs[:, 2 * row + 1])
        torch.sub(share, outputs[:, 2 * row + 1], out=outputs[:, 2 * row])
    outputs = outputs.view(len(fields), 4 * filters)
    field_gradient = (outputs @ _spread_weight(weight)).view(batch, rows * columns, channels * FIELD**2)
    padded = F.fold(
        field_gradient.transpose(1, 2), (2 * rows + KERNEL - 1, 2 * columns + KERNEL - 1), FIELD, stride=2
    )
    image_gradient = padded[:, :, PAD : PAD + height, PAD : PAD + width].contiguous()
    return image_gradient, _gathered_weight(outputs.t() @ fields, weight), gradient.sum(0)


@_pooled_backward.register_fake
def _(
    gradient: Tensor,
    maps: Tensor,
    fields: Tensor,
    right_above: Tensor,
    right_below: Tensor,
    below: Tensor,
    weight: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    image_gradient = gradient.new_empty(len(maps), weight.shape[1], height, width)
    return image_gradient, torch.empty_like(weight), gradient.new_empty(len(weight))


def _fields(images: Tensor) -> Tensor:
    """The 6×6 pixels under each pooled output: [batch · rows · columns, channels · 36]."""
    padded = F.pad(images, (PAD,) * 4)
    return (
        padded.unfold(2, FIELD, 2)
        .unfold(3, FIELD, 2)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(-1, images.shape[1] * FIELD**2)
    )


def _spread_weight(weight: Tensor) -> Tensor:
    """The kernel at the four places it has in a field: [4 · filters, channels · 36]."""
    places = [F.pad(weight, (x, 1 - x, y, 1 - y)) for y in (0, 1) for x in (0, 1)]
    return torch.stack(places).view(-1, weight.shape[1] * FIELD**2)


def _gathered_weight(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the kernel from that of its four places, the reverse of `_spread_weight`."""
    places = gradient.view(2, 2, *weight.shape[:2], FIELD, FIELD)
    total = torch.zeros_like(weight)
    for y in (0, 1):
        for x in (0, 1):
            total += places[y, x, :, :, y : y + KERNEL, x : x + KERNEL]
    return total


def _remember(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]
) -> None:
    images, weight, _ = inputs
    ctx.save_for_backward(*output, weight)
    ctx.size = images.shape[2:]  # type: ignore[attr-defined]
    ctx.mark_non_differentiable(*output[2:])


def _backward(
    ctx: torch.autograd.function.FunctionCtx, gradient: Tensor, *_: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    height, width = ctx.size  # type: ignore[attr-defined]
    return _pooled_backward(gradient.contiguous(), *ctx.saved_tensors, height, width)  # type: ignore[attr-defined]


_pooled.register_autograd(_backward, setup_context=_remember)
