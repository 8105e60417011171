"""What exists only for speed: a fused first layer, deferred weight gradients, compilation, fast arithmetic.

Nothing here changes what the network computes; `ocra.model.reference` does without all of it.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
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


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """inputs [batch, in] times a matrix [out, in], in the precision of the matrix, plus a bias: [batch, out]."""
    if weight.dtype != torch.bfloat16:
        return F.linear(inputs, weight, bias)
    return F.linear(inputs.bfloat16(), weight).float() + bias


def add_product(outputs: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """outputs [batch, out] plus inputs [batch, in] times a matrix [out, in], in the precision of the matrix."""
    if weight.dtype != torch.bfloat16:
        return torch.addmm(outputs, inputs, weight.t())
    return outputs + F.linear(inputs.bfloat16(), weight).float()


class Matrices(NamedTuple):
    """The large matrices of a network, nearly all of its parameters, as a step multiplies by them."""

    encoder_ih: Tensor
    encoder_hh: Tensor | None
    decoder_ih: Tensor
    decoder_hh: Tensor | None
    primary: Tensor
    patch: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> Matrices:
        """The same matrices, each changed."""
        return Matrices(*(None if matrix is None else change(matrix) for matrix in self))  # type: ignore[arg-type]


@contextmanager
def float32_by_onednn() -> Iterator[None]:
    """Within the block, PyTorch makes float32 products on a CPU by oneDNN, where that is as exact as MKL.

    MKL has kernels for AVX-512 that it keeps for Intel's CPUs. oneDNN's take half the time on an AMD EPYC of 2024. For
    training steps only: scored by it, the same weights had another mean squared error (5e-8) in a run that was resumed.
    """
    if not _onednn_is_exact():
        yield
        return
    before = _matmul.fp32_precision
    _matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        _matmul.fp32_precision = before


_matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)  # PyTorch 2.6 has none


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN, allowed to round float32 to bfloat16, does not do so: it does only where a CPU has AMX."""
    if _matmul is None:
        return False
    before = _matmul.fp32_precision
    values = torch.full((256, 256), 1 + 2**-12)
    try:
        _matmul.fp32_precision = "bf16"
        return torch.equal(values @ torch.eye(256), values)
    except RuntimeError:  # settings of older versions, if used as well, get into its way
        return False
    finally:
        _matmul.fp32_precision = before


def bf16_copy(matrix: Tensor) -> Tensor:
    """The matrix in bfloat16, as a constant."""
    return matrix.detach().bfloat16()


def convolve_and_pool(images: Tensor, weight: Tensor, bias: Tensor, bf16: bool = False) -> Tensor:
    """relu(max_pool(conv(images))): [batch, filters, height // 2, width // 2].

    images [batch, channels, height, width], weight [filters, channels, 5, 5], bias [filters]. bf16: make the
    gradients in bfloat16; in training, the maps themselves are too small a part of the work for what rounding them does
    to the rest. Without gradients, where the answer is wanted fast, they are in bfloat16 too.
    """
    if images.device.type != "cpu" or torch.is_autocast_enabled(images.device.type) or _exporting():
        return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=PAD), 2))
    batch, channels, height, width = images.shape
    learning = torch.is_grad_enabled()
    fields = _fields(images.to(torch.bfloat16 if bf16 and not learning else weight.dtype).contiguous())
    # The kernel at the four places it has in a field: [channels · 36, 4 · filters]. Its gradient takes a third less
    # time where these are rows, not columns.
    places = [F.pad(weight, (x, 1 - x, y, 1 - y)) for y in (0, 1) for x in (0, 1)]
    kernels = torch.stack(places).view(-1, channels * FIELD**2).t().contiguous()
    product = (
        _GradientsInBf16.apply(fields, kernels) if bf16 and learning else fields @ kernels.to(fields.dtype)
    )
    outputs = product.unflatten(1, (4, len(weight)))
    if learning:
        largest = (outputs * _first_largest(outputs.detach())).sum(1)
    else:
        above, below = outputs.unflatten(1, (2, 2)).unbind(1)
        largest = torch.maximum(above, below)
        largest = torch.maximum(*largest.unbind(1))
    maps = relu(largest.to(weight.dtype) + bias)
    return maps.view(batch, height // 2, width // 2, len(weight)).permute(0, 3, 1, 2)


class _GradientsInBf16(torch.autograd.Function):
    """left [m, k] times right [k, n], with gradients that are made in bfloat16; first derivatives only."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left.bfloat16(), right.bfloat16())
        return left @ right

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        low = gradient.bfloat16()
        return (low @ right.t()).float(), (left.t() @ low).float()


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


class Zeros(NamedTuple):
    """Zeros that one glimpse adds to the outputs of its large matrices, each [batch, outputs]."""

    encoder: Tensor
    decoder: Tensor
    primary: Tensor
    patch: Tensor


class DeferredWeightGradients:
    """The gradients of the large matrices, which are nearly all of a network, from all glimpses in one product.

    Left to itself, autograd makes a gradient as large as each weight matrix at every glimpse and adds them up, which
    is bound by memory. Here a glimpse multiplies by weights that ask for no gradient and adds zeros that do. What
    arrives at the zeros of all glimpses, times the inputs of all glimpses, is the gradient of the weights: the same
    sums in another order. First derivatives only. Where a weight has a gradient already, that is overwritten, not
    added to: it need not be set to zero before.
    """

    def __init__(
        self, weights: Sequence[Sequence[Tensor]], glimpses: int, batch: int, precision: torch.dtype
    ) -> None:
        """weights: the matrices whose products are added up, for each of the `Zeros`."""
        self._inputs: list[list[list[Tensor]]] = [[[] for _ in matrices] for matrices in weights]
        zeros = [
            _ZerosForWeights.apply(inputs, precision, glimpses, batch, *matrices).unbind(0)
            for inputs, matrices in zip(self._inputs, weights, strict=True)
        ]
        self._zeros = [Zeros(*parts) for parts in zip(*zeros, strict=True)]

    def zeros(self, glimpse: int) -> Zeros:
        """What one glimpse adds to its outputs."""
        return self._zeros[glimpse]

    def keep(self, *used: Sequence[Tensor | None]) -> None:
        """Remember what the matrices were multiplied by at a glimpse; None is a state of zeros."""
        for matrices, values in zip(self._inputs, used, strict=True):
            for inputs, value in zip(matrices, values, strict=True):
                if value is not None:
                    inputs.append(value.detach())


class _ZerosForWeights(torch.autograd.Function):
    """Zeros [glimpses, batch, outputs] whose gradient becomes that of the weights [outputs, inputs]."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: list[list[Tensor]],
        precision: torch.dtype,
        glimpses: int,
        batch: int,
        *weights: Tensor,
    ) -> Tensor:
        ctx.inputs = inputs  # filled in while the pass is made
        ctx.precision, ctx.weights = precision, weights
        return weights[0].new_zeros(glimpses, batch, len(weights[0]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        outputs = gradient.to(ctx.precision)

        def of_weight(weight: Tensor, inputs: list[Tensor]) -> Tensor | None:
            # A matrix that met a state of zeros at the first glimpse has one input less than there are glimpses.
            met = outputs[len(outputs) - len(inputs) :].flatten(0, 1)
            product = met.t() @ torch.cat(inputs).to(ctx.precision)
            if weight.grad is None:
                return product.to(weight.dtype)
            weight.grad.copy_(product)
            return None

        asked = ctx.needs_input_grad[4:]
        given = zip(ctx.weights, ctx.inputs, asked, strict=True)
        return None, None, None, None, *(of_weight(*pair) if wanted else None for *pair, wanted in given)


MOST_VARIANTS = 32
"""Variants of a step that are compiled: first or later glimpse, with gradients or not, in either precision, for the
batch of each stage. PyTorch's own limit of eight would leave the later ones uncompiled."""


def compiled_or_eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """A compiled `function` that turns back into the plain one, with a warning, where compilation fails."""
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, MOST_VARIANTS)
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
