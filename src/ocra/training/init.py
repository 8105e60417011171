"""How the weights of a run start, and what is known of them when they are saved."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ocra.data.task import Task
from ocra.experiment import Experiment
from ocra.model.network import Network
from ocra.model.weights import ModelInfo, load
from ocra.training.logging import versions


def build_model(experiment: Experiment, fine_tune: bool = True) -> Network:
    """The model of an experiment as training starts it: a function of the seed, and of the weights to fine-tune."""
    stage = experiment.stages[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model: Network = experiment.model.network(experiment.model)
        if experiment.init == "ours":
            model.initialise()
    if fine_tune and stage.init_from is not None:
        take_over(model, stage.init_from)
    model.begin_stage(stage.attention_scale, stage.read_window)
    return model


def take_over(model: Network, source: str) -> None:
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
