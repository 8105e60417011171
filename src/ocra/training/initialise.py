"""How the weights of a model start."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from ocra.model.ocra import OCRA
from ocra.presets import Experiment
from ocra.training.config import TrainingConfig


def build_model(experiment: Experiment) -> OCRA:
    """The model of an experiment as training starts it: a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = OCRA(experiment.model)
        initialise(model, experiment.training)
    return model


@torch.no_grad()
def initialise(model: OCRA, training: TrainingConfig) -> None:
    """Change PyTorch's start to that of the recipe, or to given weights; draws from torch's random stream."""
    if model.config.capsules:
        nn.init.normal_(model.object_capsules.weight, std=training.capsule_init)
    hidden = model.config.hidden
    for cell in (model.encoder, model.decoder):
        # Of the four gates in order (input, forget, cell, output).
        cell.bias_ih[hidden : 2 * hidden] += training.forget_bias
        if training.orthogonal and cell.recurrent:
            for gate in range(4):
                nn.init.orthogonal_(cell.weight_hh[gate * hidden : (gate + 1) * hidden])
    if training.start_from is not None:
        _take_over(model, training.start_from)
    if model.config.capsules:
        model.object_capsules.weight[model.config.classes :] *= training.background_scale
    if model.config.attention:
        for layer, share in (
            (model.read_attention, training.read_window),
            (model.write_attention, training.write_window),
        ):
            layer.weight *= training.attention_init
            _narrow(layer, share)


def _narrow(layer: nn.Linear, share: float) -> None:
    """Let the windows of an attention layer do in the middle of the image what they did in all of it."""
    layer.weight[:2] *= share  # g_X and g_Y, from the middle of the image
    layer.bias[:2] *= share
    layer.bias[3] += math.log(share)  # log δ


def _take_over(model: OCRA, source: str) -> None:
    """Copy all weights of another model that fit by name; say what is left.

    A wider model (more filters, more object capsules) goes on computing what the other did with its first units.
    """
    from ocra.model.weights import load

    given, own = load(source).state_dict(), model.state_dict()
    fitting = {
        name: _widened(value, own[name]) for name, value in given.items() if _fits(value, own.get(name))
    }
    model.load_state_dict(fitting, strict=False)
    left = sorted(set(own) - set(fitting))
    if left:
        warnings.warn(
            f"{source} has no fitting weights for {', '.join(left)}: these start afresh.", stacklevel=2
        )


def _fits(given: Tensor, own: Tensor | None) -> bool:
    """Whether given weights are of the same kind as our own and not larger."""
    return (
        own is not None
        and given.dim() == own.dim()
        and all(few <= many for few, many in zip(given.shape, own.shape, strict=True))
    )


def _widened(given: Tensor, own: Tensor) -> Tensor:
    """The given weights in the first rows and columns of our own; those rows ignore all further columns."""
    wider = own.clone()
    wider[: len(given)] = 0
    wider[tuple(slice(size) for size in given.shape)] = given
    return wider
