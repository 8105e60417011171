"""No NaN and no infinity comes out of a finite input, neither in values nor in gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_variants import PAPER, SMALL, VARIATIONS, flat, lively
from torch import Tensor

from ocra.config import ModelConfig
from ocra.model.attention import Window, filter_banks, read, write
from ocra.model.capsules import route, squash
from ocra.model.ocra import OCRA

IMAGES = {
    "black": lambda shape: torch.zeros(shape),
    "white": lambda shape: torch.ones(shape),
    "grey": lambda shape: torch.full(shape, 0.5),
    "noise": lambda shape: torch.rand(shape, generator=torch.Generator().manual_seed(0)),
    "one dot": lambda shape: torch.zeros(shape).index_fill(3, torch.tensor([1]), 1.0),
}


def assert_finite(model: OCRA, images: Tensor) -> None:
    trace = model(images, record=True)
    for name, value in flat(trace).items():
        assert value.isfinite().all(), name
    loss = trace.scores.square().sum() + (trace.canvas - images).square().sum() + trace.capsule_lengths.sum()
    if trace.readout is not None:
        loss = loss + trace.readout.square().sum()
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert model.config.glimpses == 1, f"{name} has no gradient"  # a single glimpse uses no memory
        else:
            assert parameter.grad.isfinite().all(), f"gradient of {name}"


@pytest.mark.parametrize("image", ["black", "white"])
@pytest.mark.parametrize("name", ["multimnist-3", "multimnist-3-no-capsules", "multimnist-feedforward"])
def test_empty_and_full_images_are_finite_at_the_start_of_training(name: str, image: str) -> None:
    assert_finite(OCRA(PAPER[name]), IMAGES[image]((2, *PAPER[name].image_shape)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    variation=st.sampled_from(sorted(VARIATIONS)),
    image=st.sampled_from(sorted(IMAGES)),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 10.0, 1e3]),
    bias=st.lists(st.sampled_from([-1e6, -30.0, -1.0, 0.0, 1.0, 30.0, 1e6]), min_size=4, max_size=4),
)
def test_any_weights_and_any_window_give_finite_values_and_gradients(
    variation: str, image: str, scale: float, bias: list[float]
) -> None:
    """Scale 0 makes capsules of length zero and equal logits; biases of ±1e6 ask for impossible windows."""
    config = VARIATIONS[variation]
    model = lively(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention" not in name:
                parameter.mul_(scale)
            elif name.endswith("bias"):
                parameter.copy_(torch.tensor(bias))
    assert_finite(model, IMAGES[image]((2, *config.image_shape)))


@pytest.mark.parametrize("bias", [-1e6, 1e6])
@pytest.mark.parametrize("which", range(4))
def test_a_window_of_impossible_place_or_size_is_finite(which: int, bias: float) -> None:
    model = lively(SMALL)
    with torch.no_grad():
        for layer in (model.read_attention, model.write_attention):
            layer.bias.zero_()
            layer.bias[which] = bias
    assert_finite(model, IMAGES["noise"]((2, *SMALL.image_shape)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    x=st.floats(-1e6, 1e6),
    y=st.floats(-1e6, 1e6),
    stride=st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e3, 1e9]),
    sigma=st.sampled_from([5e-5, 1e-3, 0.1, 1.0, 1e3, 2e4]),
)
def test_reading_and_writing_are_finite_through_any_window(
    x: float, y: float, stride: float, sigma: float
) -> None:
    values = [torch.tensor(value, requires_grad=True) for value in ([[x, y]], [stride], [sigma])]
    banks = filter_banks(Window(*values), 9, 12, 8)
    images, patch = torch.ones(1, 1, 9, 12, requires_grad=True), torch.ones(1, 1, 8, 8, requires_grad=True)
    seen, written = read(images, *banks), write(patch, *banks)
    assert seen.isfinite().all() and written.isfinite().all()
    (seen.sum() + written.square().sum()).backward()
    for value in (*values, images, patch):
        assert value.grad is not None and value.grad.isfinite().all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-12, 1e-4, 1.0, 1e4, 1e9]),
    objects=st.integers(1, 4),
    routings=st.integers(1, 4),
    equal=st.booleans(),
)
def test_routing_is_finite_for_votes_of_any_size(
    scale: float, objects: int, routings: int, equal: bool
) -> None:
    votes = torch.ones(2, 5, objects, 3) if equal else torch.randn(2, 5, objects, 3)
    votes = (votes * scale).requires_grad_()
    capsules, lengths, couplings = route(votes, routings)
    assert capsules.isfinite().all() and lengths.isfinite().all() and couplings.isfinite().all()
    (capsules.sum() + lengths.sum()).backward()
    assert votes.grad is not None and votes.grad.isfinite().all()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-20, 1e-8, 1.0, 1e9, 1e18])
def test_squash_is_finite_for_vectors_of_any_length(scale: float) -> None:
    vectors = (torch.randn(4, 16) * scale).requires_grad_()
    squashed, lengths = squash(vectors)
    assert squashed.isfinite().all() and lengths.isfinite().all() and (lengths <= 1).all()
    (squashed.sum() + lengths.sum()).backward()
    assert vectors.grad is not None and vectors.grad.isfinite().all()


def test_one_object_capsule_and_one_class_are_finite() -> None:
    config = replace(SMALL, classes=1)
    assert_finite(lively(config), IMAGES["noise"]((2, *config.image_shape)))


def test_the_smallest_network_is_finite() -> None:
    config = ModelConfig(
        height=8, width=8, glimpses=1, glimpse_size=8, write_size=2, filters=1, hidden=1, primary_capsules=1,
        primary_size=1, classes=1, capsule_size=1, routings=1,
    )  # fmt: skip
    assert_finite(OCRA(config), IMAGES["noise"]((1, *config.image_shape)))
