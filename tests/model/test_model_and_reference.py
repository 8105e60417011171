"""The fast model against the plain transcription of the paper's pseudocode."""

from __future__ import annotations

import pytest
import torch
from model_variants import PAPER, VARIATIONS, assert_same_trace, lively, random_images
from torch import Tensor

from ocra.config import ModelConfig
from ocra.model import OCRA
from ocra.reference import reference_pass
from ocra.trace import Trace


def gradients(model: OCRA, trace: Trace) -> dict[str, Tensor]:
    """Parameter gradients of a loss in which every differentiable output has its own random weight."""
    generator = torch.Generator().manual_seed(7)
    outputs = [trace.scores, trace.canvas, trace.capsule_lengths, trace.readout]
    loss = torch.zeros((), dtype=trace.scores.dtype)
    for output in outputs:
        if output is not None:
            loss = loss + (output * torch.randn(output.shape, generator=generator).to(output.dtype)).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_agreement(config: ModelConfig, dtype: torch.dtype, tolerance: float) -> None:
    model, images = lively(config).to(dtype), random_images(config).to(dtype)
    trace, expected = model(images, record=True), reference_pass(model, images, attended=True)
    assert_same_trace(trace, expected, rtol=tolerance, atol=tolerance)
    ours, theirs = gradients(model, trace), gradients(model, expected)
    for name, gradient in theirs.items():
        assert gradient.abs().max() > 0, f"the comparison is idle: {name} has no gradient"
        error = (ours[name] - gradient).abs().max() / gradient.abs().max()
        assert error < tolerance, f"gradient of {name}: relative error {error:.1e}"


@pytest.mark.parametrize("name", PAPER)
def test_every_network_of_the_paper_agrees_with_the_pseudocode(name: str) -> None:
    assert_agreement(PAPER[name], torch.float32, 5e-5)


@pytest.mark.parametrize("name", PAPER)
def test_every_network_of_the_paper_agrees_in_double_precision(name: str) -> None:
    assert_agreement(PAPER[name], torch.float64, 1e-7)


@pytest.mark.parametrize("name", VARIATIONS)
def test_every_option_agrees_with_the_pseudocode(name: str) -> None:
    assert_agreement(VARIATIONS[name], torch.float64, 1e-7)
