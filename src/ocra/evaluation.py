"""Scoring a model on a task."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.config import AnswerRule, ModelConfig
from ocra.data import Task, TaskConfig, make_task
from ocra.data.random import permutation
from ocra.data.task import Batch
from ocra.errors import UsageError
from ocra.files import cores
from ocra.metrics import ErrorCounter
from ocra.model.ocra import OCRA, how_often
from ocra.model.trace import Trace


@dataclass(frozen=True)
class Evaluation:
    """What came out: `figures` (n, errors as fractions, …) and `details` (by class, pair, length of number)."""

    task: str
    split: str
    seed: int
    glimpses: int
    rule: AnswerRule
    figures: dict[str, Any]
    details: dict[str, Any]

    @property
    def exact_error(self) -> float:
        """Share of images with anything wrong."""
        return self.figures["exact_error"]

    def to_dict(self) -> dict[str, Any]:
        """As one flat dictionary, ready for JSON."""
        about = {"task": self.task, "split": self.split, "seed": self.seed, "glimpses": self.glimpses}
        return {**about, "answer": asdict(self.rule), **self.figures, **self.details}


def evaluate(
    model: OCRA | str | os.PathLike[str],
    task: Task | TaskConfig | str,
    *,
    split: str = "test",
    seed: int = 0,
    images: int | None = None,
    glimpses: int | None = None,
    batch: int = 128,
    threads: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Score a model, or the weights of a name or folder, on a task, given as an object, a config or a name.

    split, seed: which images, for a config or a name. images: how many, the whole split by default.
    glimpses: another number than the model's own. threads: how many batches at once; 0 takes one for each core.
    on_progress: called with the number of images scored since its last call.
    """
    if batch < 1 or threads < 0:
        raise UsageError(f"A batch of {batch} in {threads} threads cannot be scored; both must be positive.")
    model = model if isinstance(model, OCRA) else OCRA.from_pretrained(os.fspath(model))
    source = task if isinstance(task, Task) else make_task(task, split, seed)
    check_fit(model.config, source)
    indices = sample(source, images)
    steps = model.config.glimpses if glimpses is None else how_often("glimpses", glimpses)
    was_training = model.training
    model.eval()
    try:
        result = _in_threads(model, source, indices, batch, glimpses, threads, on_progress)
    finally:
        model.train(was_training)
    rule = rule_for(model, source)
    return Evaluation(source.name, source.split, source.seed, steps, rule, result.figures(), result.details())


def sample(task: Task, images: int | None = None) -> NDArray[np.int64]:
    """Indices of a fixed random sample of a task, or of the whole.

    Not the first ones: the first half of MNIST's test digits is harder than the second.
    """
    if images is None or images >= len(task):
        return np.arange(len(task))
    if images < 1:
        raise UsageError(f"An evaluation needs at least 1 image, not {images}.")
    return permutation(0, "evaluation", len(task))[:images]


def check_fit(model: ModelConfig, task: Task) -> None:
    """Refuse a task whose images or classes are not those of the model."""
    if task.image_shape != model.image_shape:
        theirs, ours = (" × ".join(map(str, shape)) for shape in (task.image_shape, model.image_shape))
        raise UsageError(f"The task {task.name} makes images of {theirs}, but the model takes {ours}.")
    if len(task.class_names) != model.classes:
        counts = f"{len(task.class_names)} classes, but the model has {model.classes}"
        raise UsageError(f"The task {task.name} has {counts}.")


def rule_for(model: OCRA, task: Task) -> AnswerRule:
    """How answers are made: as the task says, given the rule saved with the weights, if there is one."""
    return task.answer_rule_for(model.info.answer if model.info.task else None)


def _in_threads(
    model: OCRA,
    task: Task,
    indices: NDArray[np.int64],
    batch: int,
    glimpses: int | None,
    threads: int,
    on_progress: Callable[[int], None] | None,
) -> ErrorCounter:
    """ErrorCounter in Python threads of one core each: PyTorch lets go of the interpreter while it computes."""
    device = next(model.parameters()).device
    count = min(threads or cores(), len(indices) // batch) if device.type == "cpu" else 1
    count = max(1, count)
    before = torch.get_num_threads()

    def part(chosen: NDArray[np.int64]) -> ErrorCounter:
        torch.set_num_threads(1)
        return count_errors(model, task, chosen, batch, glimpses, device, on_progress)

    try:
        with ThreadPoolExecutor(count) as pool:
            results = list(pool.map(part, np.array_split(indices, count)))
    finally:
        torch.set_num_threads(before)
    return sum(results[1:], start=results[0])


@torch.no_grad()
def count_errors(
    model: OCRA,
    task: Task,
    indices: NDArray[np.int64],
    batch: int,
    glimpses: int | None = None,
    device: torch.device | str = "cpu",
    on_progress: Callable[[int], None] | None = None,
) -> ErrorCounter:
    """Score the images of these indices, `batch` at a time.

    The last batch is filled up to that size, so that a compiled model meets one size only.
    """
    rule = rule_for(model, task)
    result = ErrorCounter.for_model(model.config, task.class_names, glimpses)
    for start in range(0, len(indices), batch):
        chosen = indices[start : start + batch]
        pictures = task.batch(np.resize(chosen, batch))
        trace = model(pictures.images.to(device), glimpses=glimpses)
        result.add(_first(trace, len(chosen)), _first_pictures(pictures, len(chosen)), rule)
        if on_progress is not None:
            on_progress(len(chosen))
    return result


def _first(trace: Trace, count: int) -> Trace:
    """What scoring needs of the first images of a trace, on the CPU."""
    readout = None if trace.readout is None else trace.readout[:count].cpu()
    return Trace(
        trace.scores[:count].cpu(), trace.canvas[:count].cpu(), trace.capsule_lengths[:count].cpu(), readout
    )


def _first_pictures(batch: Batch, count: int) -> Batch:
    sequence = None if batch.sequence is None else batch.sequence[:count]
    return Batch(batch.images[:count], batch.counts[:count], sequence)
