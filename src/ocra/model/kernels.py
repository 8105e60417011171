"""What exists only for speed: a fused first layer, deferred weight gradients, compilation, fast arithmetic.

Nothing here changes what the network computes; `ocra.model.reference` does without all of it.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

Result = TypeVar("Result")


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 where autocast made them shorter; float64 stays as it is."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def relu(values: Tensor) -> Tensor:
    """ReLU as (x + |x|) / 2, exactly: values [...] → [...].

    Its gradient is a sign, a number. That of `torch.relu` is a choice by truth values, and storing those for the
    backward pass is slow in a step compiled for a CPU (12 ns each in a profile of its kernels).
    """
    return 0.5 * (values + values.abs())


# The first convolution has one or three input channels. For so few, the usual CPU kernels spend most of a training
# step on its gradient. Here each pooled output looks at the 6×6 pixels (its field) under its four convolution outputs,
# so that convolution and pooling are one matrix product [positions, 36·channels] × [36·channels, 4·filters] and a
# maximum over four.
KERNEL = 5
PAD = KERNEL // 2
FIELD = KERNEL + 1
# PyTorch 2.6 cannot tell; there an exported model holds our operator unless it is exported under no_grad.
_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def convolve_and_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool(conv(images))): [batch, filters, height // 2, width // 2].

    images [batch, channels, height, width], weight [filters, channels, 5, 5], bias [filters].
    """
    plain = torch.is_autocast_enabled(images.device.type) or _exporting()
    if images.device.type != "cpu" or not torch.is_grad_enabled() or plain:
        return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=PAD), 2))
    batch, channels, height, width = images.shape
    fields = _fields(images.to(weight.dtype).contiguous())
    # The kernel at the four places it has in a field: [4 · filters, channels · 36].
    places = [F.pad(weight, (x, 1 - x, y, 1 - y)) for y in (0, 1) for x in (0, 1)]
    kernels = torch.stack(places).view(-1, channels * FIELD**2)
    outputs = (fields @ kernels.t()).unflatten(1, (4, len(weight)))
    maps = relu((outputs * _first_largest(outputs.detach())).sum(1) + bias)
    return maps.view(batch, height // 2, width // 2, len(weight)).permute(0, 3, 1, 2)


def _first_largest(outputs: Tensor) -> Tensor:
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
    """The field of each pooled output: [batch · rows · columns, channels · 36].

    An operator of its own, like its gradient, because the compiler makes slow code of overlapping windows.
    """
    padded = F.pad(images, (PAD,) * 4)
    windows = padded.unfold(2, FIELD, 2).unfold(3, FIELD, 2).permute(0, 2, 3, 1, 4, 5)
    return windows.reshape(-1, images.shape[1] * FIELD**2)


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


def _remember_size(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.size = inputs[0].shape[1:]


def _backward(ctx: Any, gradient: Tensor) -> Tensor:
    return _fields_backward(gradient.contiguous(), *ctx.size)


def _backward_of_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return _fields(gradient.contiguous()), None, None, None


_fields.register_autograd(_backward, setup_context=_remember_size)
_fields_backward.register_autograd(_backward_of_backward)  # the one is the transpose of the other


class GateZeros(NamedTuple):
    """Zeros that one glimpse adds to the gates of its two LSTMs, each [batch, 4 · hidden]."""

    encoder: Tensor
    decoder: Tensor


class DeferredWeightGradients:
    """The gradients of the LSTMs' weights, which are nine tenths of all, from all glimpses in one product.

    Left to itself, autograd makes a gradient as large as each weight matrix at every glimpse and adds them up, which
    is bound by memory. Here a glimpse multiplies by weights that ask for no gradient and adds zeros that do. What
    arrives at the zeros of all glimpses, times the inputs of all glimpses, is the gradient of the weights: the same
    sums in another order. First derivatives only.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, Tensor]], glimpses: int, batch: int) -> None:
        """weights: input-to-hidden and hidden-to-hidden matrices of the encoder, then of the decoder."""
        self._inputs: list[list[list[Tensor]]] = [[[], []] for _ in weights]
        zeros = [
            _ZerosForWeights.apply(inputs, glimpses, batch, *matrices).unbind(0)
            for inputs, matrices in zip(self._inputs, weights, strict=True)
        ]
        self._zeros = [GateZeros(*parts) for parts in zip(*zeros, strict=True)]

    def zeros(self, glimpse: int) -> GateZeros:
        """What one glimpse adds to its gates."""
        return self._zeros[glimpse]

    def keep(self, *used: tuple[Tensor, Tensor | None]) -> None:
        """Remember what the matrices of encoder and decoder were multiplied by; None is a state of zeros."""
        for matrices, values in zip(self._inputs, used, strict=True):
            for inputs, value in zip(matrices, values, strict=True):
                if value is not None:
                    inputs.append(value.detach())


class _ZerosForWeights(torch.autograd.Function):
    """Zeros [glimpses, batch, outputs] whose gradient becomes that of the weights [outputs, inputs]."""

    @staticmethod
    def forward(ctx: Any, inputs: list[list[Tensor]], glimpses: int, batch: int, *weights: Tensor) -> Tensor:
        ctx.inputs = inputs  # filled while the pass is made
        return weights[0].new_zeros(glimpses, batch, len(weights[0]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[3:]
        # A matrix that met a state of zeros at the first glimpse has one input less than there are glimpses.
        products = [
            gradient[len(gradient) - len(inputs) :].flatten(0, 1).t() @ torch.cat(inputs) if asked else None
            for inputs, asked in zip(ctx.inputs, wanted, strict=True)
        ]
        return None, None, None, *products


def compiled_or_eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """A compiled `function` that turns back into the plain one, with a warning, where compilation fails."""
    compiled: Callable[..., Result] = torch.compile(_with_own_code(function))
    failed = False

    def call(*args: Any, **kwargs: Any) -> Result:
        nonlocal failed
        if not failed:
            try:
                return compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:  # that of its back end too
                failed = True
                warnings.warn(
                    f"Compilation failed, going on uncompiled: {str(error).splitlines()[0]}", stacklevel=2
                )
        return function(*args, **kwargs)

    return call


def _with_own_code(function: Callable[..., Result]) -> Callable[..., Result]:
    """A copy with a code object of its own.

    PyTorch keeps what it compiles with the code, and gives up after the eighth variant of it: several networks
    trained in one process would soon have used them up.
    """
    plain = getattr(function, "__func__", function)
    copy = types.FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    owner = getattr(function, "__self__", None)
    return copy if owner is None else types.MethodType(copy, owner)
