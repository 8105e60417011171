"""Scoring a model on a task: OCRA, or anything that turns images into scores."""

from __future__ import annotations

import csv
import inspect
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ocra.config import AnswerRule, NetworkConfig
from ocra.data import Batch, Task, TaskConfig, make_task, task_config, task_of_model
from ocra.data.random import Ints, permutation
from ocra.errors import OcraError, UsageError
from ocra.files import cores, csv_cell, write_text_atomically
from ocra.metrics import ErrorCounter, wrong_answers
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows
from ocra.prediction import BATCH, answers, given, load, move

Model = Network | str | os.PathLike[str] | Callable[..., Tensor | Trace]
"""What can be scored: a network, the name or folder of weights, or any module or function that takes images
[batch, channels, height, width] and returns scores [batch, classes] or a Trace."""
LAST_INDEX = 2**53
# Below this many glimpses in all, compiling takes longer than it saves.
WORTH_COMPILING = 1_000_000


@dataclass(frozen=True)
class Trial:
    """One image: what was there, what was answered, where the model looked. Places are pixels of the image."""

    index: int
    truth: tuple[str, ...]
    answer: tuple[str, ...]
    correct: bool
    confidence: float
    """That of the least certain object of the answer; 0 where nothing was answered."""
    glimpses: int
    scores: dict[str, float]
    windows: tuple[tuple[float, float, float], ...] = ()
    """x, y and width of the window of each glimpse."""
    boxes: tuple[tuple[str, int, int, int, int], ...] = ()
    """Class, x, y, width and height of each object, where the task knows them."""


@dataclass(frozen=True)
class Evaluation:
    """What came out: `figures` (n, errors as fractions, …) and `details` (by class, pair, length of number)."""

    task: dict[str, Any]
    """The task with all its settings."""
    split: str
    seed: int
    glimpses: int | None
    """None for a model that makes none."""
    rule: AnswerRule
    figures: dict[str, Any]
    details: dict[str, Any]
    trials: tuple[Trial, ...] = ()
    """One for each image, in the order of their index, if they were asked for."""

    @property
    def exact_error(self) -> float:
        """Share of images with anything wrong."""
        return self.figures["exact_error"]

    def to_dict(self) -> dict[str, Any]:
        """As one flat dictionary, ready for JSON, without the trials."""
        settings = {name: value for name, value in self.task.items() if name != "name" and value is not None}
        about = {"task": self.task["name"], "split": self.split, "seed": self.seed, "glimpses": self.glimpses}
        return {**settings, **about, "answer": asdict(self.rule), **self.figures, **self.details}

    def save_trials(self, path: str | os.PathLike[str]) -> None:
        """Write one row of CSV for each image: truth, answer, correct, confidence, scores, windows, boxes.

        Objects are separated by spaces, columns are numbered from 1: window_1_x, box_2_width.
        """
        try:
            write_text_atomically(path, trials_to_csv(self.trials))
        except OSError as error:
            raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None


def trials_to_csv(trials: Sequence[Trial]) -> str:
    """The table that `Evaluation.save_trials` writes."""
    windows = max((len(trial.windows) for trial in trials), default=0)
    boxes = max((len(trial.boxes) for trial in trials), default=0)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        [
            "index", "truth", "answer", "correct", "confidence", "glimpses",
            *(f"score_{name}" for name in (trials[0].scores if trials else ())),
            *(f"window_{k + 1}_{part}" for k in range(windows) for part in ("x", "y", "width")),
            *(f"box_{k + 1}_{part}" for k in range(boxes) for part in ("class", "x", "y", "width", "height")),
        ]
    )  # fmt: skip
    for trial in trials:
        places = [f"{value:.4g}" for window in trial.windows for value in window]
        objects = [
            csv_cell(value) if isinstance(value, str) else value for box in trial.boxes for value in box
        ]
        table.writerow(
            [
                trial.index, csv_cell(" ".join(trial.truth)), csv_cell(" ".join(trial.answer)), int(trial.correct),
                f"{trial.confidence:.4f}", trial.glimpses, *(f"{score:.4f}" for score in trial.scores.values()),
                *places, *[""] * (3 * windows - len(places)), *objects, *[""] * (5 * boxes - len(objects)),
            ]
        )  # fmt: skip
    return text.getvalue()


def evaluate(
    model: Model,
    task: Task | TaskConfig | str | None = None,
    *,
    split: str = "test",
    seed: int = 0,
    images: int | None = None,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: Lesion | None = None,
    windows: Windows | None = None,
    batch_size: int = 128,
    threads: int = 0,
    device: str | None = None,
    trials: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Score a model on a task: exact error, error per object, confusions.

        ocra.evaluate("multimnist-3", images=10_000, max_shift=6)
        ocra.evaluate(my_network, "cluttered", lesion=None, trials=True).save_trials("trials.csv")

    model: OCRA, the name or folder of weights, or any module or function that takes images and returns scores
    [batch, classes] or a Trace. task: an object, a config or a name; by default what the model was trained on.
    split, seed, settings: which images, unless the task is an object; settings are fields of the task's config.
    images: how many; the whole split by default. Fewer are a fixed random sample without repetition, the same for
    every model and machine, and 1,000 are among the 2,000: not the first ones, because the first half of MNIST's test
    digits is harder than the second.
    glimpses, until, routings, lesion, windows: interventions, as in `OCRA.forward`, the same for all images.
    device: cpu, cuda or mps, where the model is moved to. threads: how many batches at once on a CPU; 0 takes one
    for each core. trials: keep what happened with each image. on_progress: called with the number of images scored
    since its last call and that of all.
    """
    if batch_size < 1 or threads < 0:
        raise UsageError(
            f"A batch of {batch_size} in {threads} threads cannot be scored; both must be positive."
        )
    named = isinstance(model, str | os.PathLike)
    network: Any = load(model, device) if named else move(model, device)  # type: ignore[arg-type]
    source = task_for(network, task, split, seed, **settings)
    indices = sample(source, images)
    options = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion, windows=windows)
    _check_takes(network, options)
    if named and not trials and len(indices) * (glimpses or network.config.glimpses) >= WORTH_COMPILING:
        network.compile_step()
    rule = rule_for(network, source)
    kept: list[Trial] = []

    def on_batch(chosen: Ints, batch: Batch, trace: Trace) -> None:
        if trials:
            size = network.config.glimpse_size if isinstance(network, Network) else 1
            kept.extend(make_trials(chosen, batch, trace, source, rule, size))
        if on_progress is not None:
            on_progress(len(chosen), len(indices))

    if trials and isinstance(network, Network):
        options["record"] = True
    parameters = list(network.parameters()) if isinstance(network, nn.Module) else []
    place = parameters[0].device if parameters else torch.device(device or "cpu")
    parallel = max(1, min(threads or cores(), len(indices) // batch_size)) if place.type == "cpu" else 1

    options.update(device=place, annotations=trials, on_batch=on_batch)

    def count(chosen: Ints) -> ErrorCounter:
        torch.set_num_threads(1)
        return count_errors(network, source, chosen, batch_size, **options)

    # Python threads of one core each: PyTorch lets go of the interpreter while it computes.
    before = torch.get_num_threads()
    try:
        with _evaluating(network), ThreadPoolExecutor(parallel) as pool:
            result, *more = pool.map(count, np.array_split(indices, parallel))
    finally:
        torch.set_num_threads(before)
    result = sum(more, start=result)
    return Evaluation(
        source.config.to_dict(),
        source.split,
        source.seed,
        result.glimpses or None,
        rule,
        {name: value for name, value in result.figures().items() if value == value},
        result.details(),
        tuple(sorted(kept, key=lambda trial: trial.index)),
    )


def task_for(
    model: Any, task: Task | TaskConfig | str | None, split: str = "test", seed: int = 0, **settings: Any
) -> Task:
    """A task that fits the model: the object itself, or made from a config, a name, or what the model was trained on.

    Where it is the task the model was trained on, its settings are those of the training, unless given.
    """
    if isinstance(task, Task):
        if settings:
            raise UsageError(
                f"The task is made already; give its settings ({', '.join(settings)}) when making it."
            )
        made = task
    else:
        config = task if isinstance(task, TaskConfig) else config_for(model, task)
        made = make_task(config.with_settings(**settings), split, seed)
    if isinstance(model, Network):
        check_fit(model.config, made)
    return made


def config_for(model: Any, name: str | None = None) -> TaskConfig:
    """The settings of the task of this name, or of the model's own, as in its training if that was it.

    A task that makes images of any shape gets those of the model.
    """
    if not isinstance(model, Network):
        if name is None:
            raise UsageError("It is not known what this model was trained on; say which task to take.")
        return task_config(name)
    config = task_of_model(model.info.task, model.config, name)
    named = model.info.task and "class_names" in config.to_dict()
    return config.with_settings(class_names=model.info.class_names) if named else config


def sample(task: Task, images: int | None = None) -> Ints:
    """Indices of a fixed random sample of a task, or of the whole."""
    if images is None or images >= len(task):
        return np.arange(len(task))
    if images < 1:
        raise UsageError(f"An evaluation needs at least 1 image, not {images}.")
    return permutation(0, "evaluation", len(task))[:images]


def task_batches(task: Task, first: int, number: int) -> Iterator[tuple[Ints, Batch]]:
    """Indices and images of a task from the first on, some at a time."""
    if not 0 <= first < LAST_INDEX:
        raise UsageError(f"The index of an image is a whole number from 0 to {LAST_INDEX:,}, not {first:,}.")
    for start in range(first, first + number, BATCH):
        indices = np.arange(start, min(start + BATCH, first + number))
        yield indices, task.batch(indices)


def check_fit(model: NetworkConfig, task: Task) -> None:
    """Refuse a task whose images or classes are not those of the model."""
    if task.image_shape != model.image_shape:
        theirs, ours = (" × ".join(map(str, shape)) for shape in (task.image_shape, model.image_shape))
        raise UsageError(f"The task {task.name} makes images of {theirs}, but the model takes {ours}.")
    if len(task.class_names) != model.classes:
        counts = f"{len(task.class_names)} classes, but the model has {model.classes}"
        raise UsageError(f"The task {task.name} has {counts}.")


def rule_for(model: Any, task: Task) -> AnswerRule:
    """How answers are made: as the task says, which may ask how the model was trained."""
    info = getattr(model, "info", None)
    return task.answer_rule_for(info.answer if info is not None and info.task else None)


def _check_takes(model: Any, interventions: dict[str, Any]) -> None:
    """Refuse interventions that a model of another kind does not know."""
    if not interventions:
        return
    taken = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    if not anything and (unknown := interventions.keys() - taken):
        raise UsageError(f"This model takes no '{min(unknown)}'; that is for OCRA and its like.")


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """The model in evaluation mode, if it has one, and then as it was."""
    if not isinstance(model, nn.Module) or not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


@torch.no_grad()
def count_errors(
    model: Callable[..., Tensor | Trace],
    task: Task,
    indices: Ints,
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    annotations: bool = False,
    on_batch: Callable[[Ints, Batch, Trace], None] | None = None,
    **interventions: Any,
) -> ErrorCounter:
    """Score the images of these indices, `batch_size` at a time.

    The last batch is filled up to that size, so that a compiled model meets one size only.
    on_batch: called with the indices, the images and what the model made of them, on the CPU.
    """
    rule, result = rule_for(model, task), None
    for start in range(0, len(indices), batch_size):
        chosen = indices[start : start + batch_size]
        batch = task.batch(np.resize(chosen, batch_size), annotations=annotations)
        trace = _as_trace(model(batch.images.to(device), **interventions), batch)
        batch, trace = batch.take(torch.arange(len(chosen))), _first(trace, len(chosen))
        if result is None:
            readout = () if trace.readout is None else trace.readout.shape[1:]
            result = ErrorCounter(task.class_names, trace.capsule_lengths.shape[1], *readout)
        result.add(trace, batch, rule)
        if on_batch is not None:
            on_batch(chosen, batch, trace)
    if result is None:  # a process without images of its own
        config: NetworkConfig = model.config  # type: ignore[attr-defined]
        glimpses = interventions.get("glimpses") or config.glimpses
        return ErrorCounter(task.class_names, glimpses, config.readout_digits, config.readout_classes)
    return result


def _as_trace(output: Tensor | Trace, batch: Batch) -> Trace:
    """What a model returned; plain scores become a trace without glimpses and without a reconstruction."""
    scores = output.scores if isinstance(output, Trace) else output
    if not isinstance(scores, Tensor) or scores.shape != batch.counts.shape:
        shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise UsageError(
            f"The model must return scores of shape {list(batch.counts.shape)} or a Trace, not {shape}."
        )
    if isinstance(output, Trace):
        return output
    scores = scores.float()
    return Trace(scores, torch.full_like(batch.images, torch.nan), scores[:, None][:, :0])


def _first(values: Any, count: int) -> Any:
    """The first images of a trace or of any part of it, on the CPU."""
    if isinstance(values, Trace | Windows):
        return type(values)(**{name: _first(value, count) for name, value in vars(values).items()})
    return None if values is None else values[:count].cpu()


def make_trials(
    indices: Ints, batch: Batch, trace: Trace, task: Task, rule: AnswerRule, size: int
) -> Iterator[Trial]:
    """What happened with each image of a batch. size: filters along a side of the grid that reads a glimpse."""
    names, wrong = task.class_names, wrong_answers(trace, batch, rule).tolist()
    truths, found, scores = batch.names(names), answers(trace, names, rule), trace.scores.tolist()
    looks = None
    if trace.read_windows is not None:
        looks = torch.cat([trace.read_windows.center, trace.read_windows.width(size)[..., None]], 2).tolist()
    known = batch.annotations
    for k, index in enumerate(indices.tolist()):
        boxes = [] if known is None else zip(known.classes[k].tolist(), known.boxes[k].tolist(), strict=True)
        yield Trial(
            index,
            truths[k],
            tuple(item.label for item in found[k]),
            not wrong[k],
            min((item.confidence for item in found[k]), default=0.0),
            (took := trace.glimpses_of(k)),
            dict(zip(names, scores[k], strict=True)),
            tuple(map(tuple, looks[k][:took])) if looks else (),
            tuple((names[label], *box) for label, box in boxes if label >= 0),
        )
