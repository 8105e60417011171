"""How the weights of a model start."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from ..model import OCRA
from ..presets import Spec
from .config import TrainingConfig


def build_model(spec: Spec) -> OCRA:
    """The model of an experiment as training starts it: a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = OCRA(spec.model)
        initialise(model, spec.training)
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


def _take_over(model: OCRA, source: str) -> None:
    """Copy all weights of another model that fit by name and shape; say which do not."""
    from ..pretrained import load

    given, own = load(source).state_dict(), model.state_dict()
    fitting = {name: value for name, value in given.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    left = sorted(set(own) - set(fitting))
    if left:
        warnings.warn(
            f"{source} has no fitting weights for {', '.join(left)}: these start afresh.", stacklevel=2
        )
