"""Gradients gathered over the glimpses are those that autograd adds up by itself."""

from __future__ import annotations

import pytest
import torch
from model_variants import SMALL, VARIATIONS, assert_same_trace, lively, random_images
from torch import Tensor

from ocra.model.interventions import Lesion
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace

GATHERED = {f"{part}.weight_{which}" for part in ("encoder", "decoder") for which in ("ih", "hh")}


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
    """A network in double precision that does not gather, one that does, and images."""
    config = VARIATIONS[name]
    plain, gathering = lively(config).double(), lively(config).double()
    gathering.gather_gradients = True
    return plain, gathering, random_images(config).double()


@pytest.mark.parametrize("name", list(VARIATIONS))
def test_gathered_gradients_are_the_same(name: str) -> None:
    plain, gathering, images = pair(name)
    expected, found = gradients(plain, images), gradients(gathering, images)
    assert expected.keys() == found.keys() >= GATHERED
    for which, value in expected.items():
        assert which not in GATHERED or float(value.abs().max()) > 0
        torch.testing.assert_close(found[which], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"glimpses": 1}, {"glimpses": 6}, {"lesion": Lesion(encoder_memory=True)}]
)
def test_gradients_are_the_same_for_other_numbers_of_glimpses_and_with_a_lesion(
    options: dict[str, object],
) -> None:
    plain, gathering, images = pair("small")
    expected, found = gradients(plain, images, **options), gradients(gathering, images, **options)
    assert expected.keys() == found.keys()
    for which, value in expected.items():
        torch.testing.assert_close(found[which], value, rtol=1e-9, atol=1e-12)


def test_the_answer_and_the_gradient_of_the_image_do_not_change() -> None:
    plain, gathering, images = pair("small")
    assert_same_trace(gathering(images), plain(images), rtol=0, atol=0)
    slopes = []
    for model in (plain, gathering):
        looked_at = images.clone().requires_grad_()
        slopes.append(torch.autograd.grad(a_loss(model(looked_at)), looked_at)[0])
    torch.testing.assert_close(slopes[1], slopes[0])


def test_weights_that_are_frozen_stay_without_a_gradient() -> None:
    plain, gathering, images = pair("small")
    for model in (plain, gathering):
        model.encoder.weight_ih.requires_grad_(False)
        model.decoder.requires_grad_(False)
    expected, found = gradients(plain, images), gradients(gathering, images)
    assert expected.keys() == found.keys()
    assert "encoder.weight_hh" in found and "encoder.weight_ih" not in found
    torch.testing.assert_close(found["encoder.weight_hh"], expected["encoder.weight_hh"])


def test_the_gathered_gradient_cannot_be_differentiated_again() -> None:
    gathering, images = lively(SMALL), random_images(SMALL)
    gathering.gather_gradients = True
    weight = gathering.encoder.weight_ih
    (slope,) = torch.autograd.grad(a_loss(gathering(images)), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_nothing_is_gathered_under_autocast() -> None:
    """The slots are as precise as the weights, the gates are not."""
    gathering, images = lively(SMALL), random_images(SMALL)
    gathering.gather_gradients = True
    with torch.autocast("cpu", torch.bfloat16):
        assert not gathering._gathers(images, glimpses=3)
    assert gathering._gathers(images, glimpses=3)
    with torch.no_grad():
        assert not gathering._gathers(images, glimpses=3)
