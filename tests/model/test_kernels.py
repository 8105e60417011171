"""What exists only for speed computes the same as the plain way."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_variants import SMALL, VARIATIONS, assert_same_trace, lively, random_images
from torch import Tensor

from ocra.model.interventions import Lesion
from ocra.model.kernels import compiled_or_eager, convolve_and_pool, float32_by_onednn
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace

DEFERRED = {f"{part}.weight_{which}" for part in ("encoder", "decoder") for which in ("ih", "hh")}


def a_loss(trace: Trace) -> Tensor:
    """Something that every weight has a part in, the readouts too."""
    readout = 0 if trace.readout is None else trace.readout.square().sum()
    return trace.scores.square().sum() + trace.canvas.square().sum() + readout


def gradients(model: OCRA, images: Tensor, **options: object) -> dict[str, Tensor]:
    """The gradient of each weight that gets one."""
    model.zero_grad()
    a_loss(model(images, **options)).backward()  # type: ignore[arg-type]
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def pair(name: str) -> tuple[OCRA, OCRA, Tensor]:
    """A network in double precision that does not defer its weight gradients, one that does, and images."""
    config = VARIATIONS[name]
    plain, deferring = lively(config).double(), lively(config).double()
    deferring.defer_weight_gradients = True
    return plain, deferring, random_images(config).double()


@pytest.mark.parametrize("name", list(VARIATIONS))
def test_deferred_weight_gradients_are_the_same(name: str) -> None:
    plain, deferring, images = pair(name)
    expected, found = gradients(plain, images), gradients(deferring, images)
    assert expected.keys() == found.keys() >= DEFERRED
    for which, value in expected.items():
        assert which not in DEFERRED or float(value.abs().max()) > 0
        torch.testing.assert_close(found[which], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"glimpses": 1}, {"glimpses": 6}, {"lesion": Lesion(encoder_memory=True)}]
)
def test_gradients_are_the_same_for_other_numbers_of_glimpses_and_with_a_lesion(
    options: dict[str, object],
) -> None:
    plain, deferring, images = pair("small")
    expected, found = gradients(plain, images, **options), gradients(deferring, images, **options)
    assert expected.keys() == found.keys()
    for which, value in expected.items():
        torch.testing.assert_close(found[which], value, rtol=1e-9, atol=1e-12)


def test_the_answer_and_the_gradient_of_the_image_do_not_change() -> None:
    plain, deferring, images = pair("small")
    assert_same_trace(deferring(images), plain(images), rtol=0, atol=0)
    slopes = []
    for model in (plain, deferring):
        looked_at = images.clone().requires_grad_()
        slopes.append(torch.autograd.grad(a_loss(model(looked_at)), looked_at)[0])
    torch.testing.assert_close(slopes[1], slopes[0])


def test_weights_that_are_frozen_stay_without_a_gradient() -> None:
    plain, deferring, images = pair("small")
    for model in (plain, deferring):
        model.encoder.weight_ih.requires_grad_(False)
        model.decoder.requires_grad_(False)
    expected, found = gradients(plain, images), gradients(deferring, images)
    assert expected.keys() == found.keys()
    assert "encoder.weight_hh" in found and "encoder.weight_ih" not in found
    torch.testing.assert_close(found["encoder.weight_hh"], expected["encoder.weight_hh"])


def test_a_deferred_gradient_cannot_be_differentiated_again() -> None:
    deferring, images = lively(SMALL), random_images(SMALL)
    deferring.defer_weight_gradients = True
    weight = deferring.encoder.weight_ih
    (slope,) = torch.autograd.grad(a_loss(deferring(images)), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_nothing_is_deferred_under_autocast() -> None:
    """The zeros are as precise as the weights, the gates are not."""
    deferring, images = lively(SMALL), random_images(SMALL)
    deferring.defer_weight_gradients = True
    with torch.autocast("cpu", torch.bfloat16):
        assert deferring._deferred(images, glimpses=3) is None
    assert deferring._deferred(images, glimpses=3) is not None
    with torch.no_grad():
        assert deferring._deferred(images, glimpses=3) is None


def plain_layers(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.max_pool2d(F.conv2d(images, weight, bias, padding=2), 2))


def inputs(channels: int, height: int, width: int) -> list[Tensor]:
    shapes = (2, channels, height, width), (3, channels, 5, 5), (3,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(18, 18), (8, 11), (13, 9), (36, 20)])
def test_the_fused_layer_equals_convolution_pooling_and_relu(channels: int, height: int, width: int) -> None:
    values = inputs(channels, height, width)
    ours, theirs = convolve_and_pool(*values), plain_layers(*values)
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
    (theirs,) = torch.autograd.grad(plain_layers(images, weight, bias).sum(), images)
    torch.testing.assert_close(ours, theirs)


def test_without_gradients_the_layer_gives_the_same() -> None:
    values = inputs(3, 18, 18)
    with torch.no_grad():
        torch.testing.assert_close(convolve_and_pool(*values), plain_layers(*values))


def test_gradients_in_bf16_leave_the_layers_outputs_alone_and_are_close() -> None:
    values = [value.detach().float().requires_grad_() for value in inputs(1, 18, 18)]
    exact, low = convolve_and_pool(*values), convolve_and_pool(*values, bf16=True)
    assert torch.equal(exact, low)
    weights = torch.randn_like(exact)
    expected = torch.autograd.grad((exact * weights).sum(), values)
    for value, found in zip(expected, torch.autograd.grad((low * weights).sum(), values), strict=True):
        assert found.dtype == torch.float32 and (found - value).norm() < 0.01 * value.norm()


def test_a_step_is_compiled_for_more_batches_than_pytorch_compiles_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The limit is that of the front end; the back end would only take time.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    seen = []

    def step(values: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return values * len(values)

    compiled = compiled_or_eager(step)
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        for size in range(2, 12):
            compiled(torch.ones(size))
    assert all(seen)


@pytest.mark.parametrize("name", VARIATIONS)
def test_a_pass_that_only_answers_gives_the_same_answer(name: str) -> None:
    config = VARIATIONS[name]
    model, images = lively(config), random_images(config)
    with torch.no_grad():
        whole = model(images)
    quick = model.answer(images)
    assert torch.equal(quick.capsule_lengths, whole.capsule_lengths)
    assert torch.equal(quick.scores, whole.scores)
    assert config.readout_digits == 0 or torch.equal(quick.readout, whole.readout)
    assert quick.canvas.shape == whole.canvas.shape and not quick.canvas.any()
    assert not quick.scores.requires_grad


def test_a_pass_in_bf16_that_only_answers_ranks_nearly_as_the_whole_one() -> None:
    model, images = lively(SMALL), random_images(SMALL, batch=64)
    exact = model.answer(images, 3).scores
    model.use_bf16()
    rounded = model.answer(images, 3).scores
    assert not torch.equal(rounded, exact)
    assert torch.allclose(rounded, exact, atol=0.05)


def test_float32_stays_float32_by_onednn_and_the_setting_is_put_back() -> None:
    left, right = torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(0))
    setting: Any = getattr(torch.backends.mkldnn, "matmul", None)
    before = getattr(setting, "fp32_precision", None)
    with float32_by_onednn():
        product = left @ right
    exact = (left.double() @ right.double()).float()
    torch.testing.assert_close(product, exact, rtol=0, atol=1e-4)  # bfloat16 would be off by 0.1
    assert getattr(setting, "fp32_precision", None) == before
