"""What `predict`, `look` and `scanpath` share: weights, pictures, images of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ocra.data import Task, TaskConfig, make_task, task_of_model
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Fit, Invert, Prepared
from ocra.images.reading import find_pictures
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace
from ocra.model.weights import ModelInfo
from ocra.prediction import picture_for, run

TaskName = Literal["multimnist", "cluttered", "svhn", "folder"]
Split = Literal["train", "validation", "test"]

USUAL_WEIGHTS = {"multimnist": "multimnist-3", "cluttered": "cluttered-5", "svhn": "svhn-12"}
LAST_INDEX = 2**53
TOGETHER = 32
"""Images that go through the model at once."""


@dataclass(frozen=True)
class Network:
    """A model and what it is called."""

    model: OCRA
    name: str

    @property
    def info(self) -> ModelInfo:
        """What is known about the model."""
        return self.model.info


def load_network(weights: str | None, task: str | None = None) -> Network:
    """The weights of this name or folder; by default the shipped ones for the task."""
    if weights is None:
        if task == "folder":
            raise UsageError(
                "Say with --weights which model to use: none is shipped for folders of your own."
            )
        weights = USUAL_WEIGHTS[task or "multimnist"]
    model = OCRA.from_pretrained(weights)
    return Network(model, model.info.name or Path(weights).name or weights)


def prepare_pictures(
    sources: Iterable[str], network: Network, invert: Invert, fit: Fit
) -> Iterator[tuple[str, Prepared | OcraError]]:
    """Every picture made fit for the model, or the error that names what is wrong with it."""
    config, task = network.model.config, network.info.task_name
    for file in find_pictures(sources):
        try:
            yield file, picture_for(config, task, file, invert, fit)
        except OcraError as error:
            yield file, error


def in_batches(
    pictures: Iterable[tuple[str, Prepared | OcraError]],
) -> Iterator[list[tuple[str, Prepared | OcraError]]]:
    """The same pictures, some at a time."""
    batch: list[tuple[str, Prepared | OcraError]] = []
    for item in pictures:
        batch.append(item)
        if len(batch) == TOGETHER:
            yield batch
            batch = []
    if batch:
        yield batch


def check_index(index: int) -> None:
    """Refuse a number that no image of a task has."""
    if not 0 <= index < LAST_INDEX:
        raise UsageError(f"--index must be a whole number from 0 to {LAST_INDEX:,}, not {index:,}.")


def pass_over(network: Network, prepared: Sequence[Prepared], glimpses: int | None = None) -> Trace:
    """One recorded pass over prepared pictures."""
    return run(network.model, torch.stack([item.image for item in prepared]), glimpses)


def task_config(model: OCRA, name: str | None = None) -> TaskConfig:
    """The task that weights were trained on, or the one of this name; its settings where they were saved.

    Pictures of a folder are made in the size that the model takes.
    """
    return task_of_model(model.info.task, model.config, name)


def task_for(
    network: Network,
    name: TaskName | None,
    split: Split,
    digits: Literal["mnist", "glyphs"] | None = None,
    root: Path | None = None,
    seed: int = 0,
) -> Task:
    """The task of this name; where it is the one the model was trained on, with the same settings."""
    config = task_config(network.model, name).with_settings(digits=digits, root=root)
    task = make_task(config, split, seed)
    if task.image_shape != network.model.config.image_shape:
        raise UsageError(
            f"The weights {network.name} take images of {_shape(network.model.config.image_shape)}, "
            f"but {config.name} has {_shape(task.image_shape)}; choose weights of that task with --weights."
        )
    return task


def _shape(shape: tuple[int, int, int]) -> str:
    channels, height, width = shape
    return f"{width} × {height} pixels in {'grey' if channels == 1 else 'colour'}"
