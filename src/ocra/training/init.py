"""How the weights of a run start, and what is known of them when they are saved."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ocra.data.task import Task
from ocra.experiment import Experiment, Stage
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo, load
from ocra.training.logging import versions


def build_model(experiment: Experiment, fine_tune: bool = True) -> OCRA:
    """The model of an experiment as training starts it: a function of the seed, and of the weights to fine-tune."""
    stage = experiment.stages[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = OCRA(experiment.model)
        if experiment.init == "ours":
            initialise(model)
    if fine_tune and stage.init_from is not None:
        take_over(model, stage.init_from)
    begin_stage(model, stage)
    return model


@torch.no_grad()
def initialise(model: OCRA, capsule_std: float = 0.1, forget_bias: float = 1.0) -> None:
    """Our random start in place of the paper's: it learns the same from less than half the images.

    Larger capsule transforms, so that capsules speak from the beginning; LSTMs that begin by remembering.
    """
    if model.config.capsules:
        nn.init.normal_(model.object_capsules.weight, std=capsule_std)
    hidden = model.config.hidden
    for cell in (model.encoder, model.decoder):
        cell.bias_ih[hidden : 2 * hidden] += forget_bias  # of the four gates (input, forget, cell, output)
        if cell.recurrent:
            for gate in range(4):
                nn.init.orthogonal_(cell.weight_hh[gate * hidden : (gate + 1) * hidden])


@torch.no_grad()
def begin_stage(model: OCRA, stage: Stage) -> None:
    """Change the attention layers as a stage says that begins."""
    if not model.config.attention:
        return
    for layer in (model.read_attention, model.write_attention):
        layer.weight *= stage.attention_scale
    # The read windows do in the middle of the image what they did in all of it.
    read = model.read_attention
    read.weight[:2] *= stage.read_window  # g_X and g_Y, from the middle of the image
    read.bias[:2] *= stage.read_window
    read.bias[3] += math.log(stage.read_window)  # log δ


def take_over(model: OCRA, source: str) -> None:
    """Copy all weights of another model that fit by name; say what is left.

    A wider model (more filters, more object capsules) goes on computing what the other did with its first units.
    """
    given, own = load(source).state_dict(), model.state_dict()
    fitting = {
        name: _widened(value, own[name]) for name, value in given.items() if _fits(value, own.get(name))
    }
    model.load_state_dict(fitting, strict=False)
    if left := sorted(set(own) - set(fitting)):
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


def info_of(experiment: Experiment, task: Task, **progress: Any) -> ModelInfo:
    """What is saved with weights, so that they can be used without the run they came from."""
    return ModelInfo(
        name=experiment.name,
        task=experiment.task.to_dict(),
        title=task.title,
        class_names=tuple(task.class_names),
        answer=task.answer_rule,
        preprocessing=task.preprocessing,
        glimpses=experiment.model.glimpses,
        masked=experiment.loss.needs_attended,
        record={"experiment": experiment.to_dict(), **progress, "versions": versions()},
    )
