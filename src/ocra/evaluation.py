"""Scoring a model on a task: OCRA, or anything that turns images into scores."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ocra.config import AnswerRule, Calibration, NetworkConfig
from ocra.data import Batch, Task, TaskConfig, make_task, task_config, task_of_model
from ocra.data.random import Ints
from ocra.errors import OcraError, UsageError
from ocra.files import cores, csv_cell, write_text_atomically
from ocra.metrics import ErrorCounter, wrong_answers
from ocra.model.deciding import evidence, margins, predicted_counts
from ocra.model.interventions import Lesion
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows
from ocra.prediction import BATCH, answer_confidence, answers, given, load, move

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
    """The probability that the answer is right; of a model that was not calibrated that of its least certain object,
    0 where nothing was answered."""
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
        """Write one row of CSV for each image: truth, answer, correct, confidence, scores, windows, and the stimulus.

        Objects are separated by spaces, columns are numbered from 1: window_1_x, box_2_width. The stimulus: boxes,
        how much of the smaller of two boxes another one covers at most (overlap), and the settings of the task such as
        task_distractors, the same in all rows.
        """
        try:
            write_text_atomically(path, trials_to_csv(self.trials, self.task))
        except OSError as error:
            raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None


def overlap(boxes: Sequence[tuple[str, int, int, int, int]]) -> float:
    """The largest share of the smaller of any two boxes that the other covers; 0 for less than two."""
    shares = [0.0]
    for (_, x1, y1, w1, h1), (_, x2, y2, w2, h2) in combinations(boxes, 2):
        wide, high = min(x1 + w1, x2 + w2) - max(x1, x2), min(y1 + h1, y2 + h2) - max(y1, y2)
        shares.append(max(0, wide) * max(0, high) / max(1, min(w1 * h1, w2 * h2)))
    return max(shares)


def trials_to_csv(trials: Sequence[Trial], task: dict[str, Any] | None = None) -> str:
    """The table that `Evaluation.save_trials` writes. task: its settings."""
    settings = {
        f"task_{name}": value
        for name, value in (task or {}).items()
        if name not in ("name", "root", "download") and isinstance(value, str | int | float)
    }
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
            "overlap", *settings,
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
                f"{overlap(trial.boxes):.4f}" if trial.boxes else "", *map(csv_cell, map(str, settings.values())),
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
    images: how many; the whole split by default. Fewer are those of `task.sample(images)`: a fixed random sample, so
    that `task.batch(task.sample(1_000))` has the very images that are scored.
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
    indices = source.sample(images)
    options = given(glimpses=glimpses, until=until, routings=routings, lesion=lesion, windows=windows)
    _check_takes(network, options)
    if named and not trials and len(indices) * (glimpses or network.config.glimpses) >= WORTH_COMPILING:
        network.compile_step()
    rule = rule_for(network, source)
    kept: list[Trial] = []

    def on_batch(chosen: Ints, batch: Batch, trace: Trace) -> None:
        if trials:
            size = network.config.glimpse_size if isinstance(network, Network) else 1
            kept.extend(make_trials(chosen, batch, trace, source, rule, size, calibration_of(network)))
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


def calibrate(
    model: Network | str | os.PathLike[str],
    task: Task | TaskConfig | str | None = None,
    *,
    images: int = 5_000,
    batch_size: int = 128,
    device: str | None = None,
    **settings: Any,
) -> Calibration:
    """How sure a model's answers are, found on images of the validation split, none of which it was trained on.

        model.info = dataclasses.replace(model.info, calibration=ocra.calibrate(model))

    Margins become probabilities by a temperature and an offset of the highest likelihood. The threshold is the lowest
    at which those answers that are given are wrong at most half as often as all would be. A network that always names
    so many is also shown single objects and noise: what looks more like these than all but 5 % of its own images do is
    "unsure", or fewer if fewer tell 99 % of these.
    """
    network = load(model, device)
    source = task_for(network, task, "validation", **settings)
    rule, place = rule_for(network, source), next(network.parameters()).device
    kept: dict[str, list[Tensor]] = {
        "margin": [], "right": [], "object": [], "there": [], "highest": [], "evidence": [], "foreign": []
    }  # fmt: skip
    indices = source.sample(images)
    with torch.inference_mode(), _evaluating(network):
        for start in range(0, len(indices), batch_size):
            batch = source.batch(indices[start : start + batch_size])
            trace = _as_trace(network(batch.images.to(place)), batch)
            trace = _first(trace, len(batch))
            clear, whole = margins(trace.scores, trace.readout, rule)
            if trace.readout is not None and batch.sequence is not None:
                named, there = (
                    torch.ones_like(clear, dtype=torch.bool),
                    trace.readout.argmax(2) == batch.sequence,
                )
                highest = clear.new_full((len(clear),), torch.inf)
            else:
                counts = predicted_counts(trace.scores, rule)
                named, there = counts > 0, batch.counts >= counts
                highest = trace.scores.amax(1)
            for name, values in {
                "margin": whole, "right": ~wrong_answers(trace, batch, rule), "object": clear[named],
                "there": there[named], "highest": highest,
            }.items():  # fmt: skip
                kept[name].append(values)
            if rule.objects is not None and trace.readout is None:
                kept["evidence"].append(evidence(trace.scores, trace.canvas, rule))
                foreign = network(foreign_images(source, indices[start : start + batch_size]).to(place))
                kept["foreign"].append(evidence(foreign.scores, foreign.canvas, rule).cpu())
    found = {name: torch.cat(values).double() for name, values in kept.items() if values}
    temperature, offset = fit_probability(found["margin"], found["right"])
    fixed = rule.objects is not None and torch.isfinite(found["highest"]).all()
    calibration = Calibration(
        temperature,
        offset,
        *fit_probability(found["object"], found["there"]),
        threshold=0.0,
        silence=round(0.5 * float(found["highest"].min()), 4) if fixed else 0.0,
        images=len(indices),
        plausible=fit_plausible(found["evidence"], found["foreign"]) if "evidence" in found else (),
    )
    sure = torch.sigmoid((found["margin"] - offset) / temperature)
    return dataclasses.replace(calibration, threshold=halving_threshold(sure, found["right"]))


def fit_probability(margin: Tensor, right: Tensor, steps: int = 50) -> tuple[float, float]:
    """The temperature and offset that make what came out most likely: margins [n], and 1 where it was right [n].

    Newton's method on the slope and the intercept of a logistic regression. A right and a wrong answer are added at
    both ends of the margins, so that it ends where there is no error.
    """
    ends = torch.stack([margin.min(), margin.max()]) if len(margin) else torch.zeros(2, dtype=torch.float64)
    margin = torch.cat([margin.double(), ends.double(), ends.double()])
    right = torch.cat([right.double(), torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)])
    inputs = torch.stack([margin, torch.ones_like(margin)], 1)
    weights = torch.zeros(2, dtype=torch.float64)
    for _ in range(steps):
        chance = torch.sigmoid(inputs @ weights)
        slope = inputs.T @ (right - chance) - 1e-6 * weights
        bend = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + 1e-6 * torch.eye(
            2, dtype=torch.float64
        )
        weights = weights + torch.linalg.solve(bend, slope).clamp(-5, 5)
    steepness = max(float(weights[0]), 1e-3)
    return round(1 / steepness, 6), round(-float(weights[1]) / steepness, 6)


def foreign_images(task: Task, indices: Ints) -> Tensor:
    """Images that do not hold as many objects as those of a task: single objects, and noise in turn.

    Of a task of single objects noise alone.
    """
    batch = task.batch(indices, single_objects=1.0)
    generator = torch.Generator().manual_seed(int(indices[0]))
    tone, strength = torch.rand(2, len(batch), 1, 1, 1, generator=generator)
    noise = (tone + strength * torch.randn(batch.images.shape, generator=generator)).clamp(0, 1)
    single = batch.counts.sum(1) < (task.answer_rule.objects or 0)
    single &= torch.arange(len(batch)) % 4 > 0
    return torch.where(single[:, None, None, None], batch.images, noise)


MISTRUSTED = 0.05
"""Share of a task's own images that are taken for foreign ones, at most."""
FOUND_OUT = 0.99
"""Share of foreign images that need not be exceeded."""


def fit_plausible(own: Tensor, foreign: Tensor, steps: int = 50) -> tuple[float, ...]:
    """Weights of evidence, and a constant, whose sum is below 0 for most foreign images and few of the own.

    own, foreign: [n, evidence]. A logistic regression in which both kinds weigh the same; where reconstructions are not
    known, none.
    """
    both = torch.cat([own, foreign]).double()
    if not len(own) or not both.isfinite().all():
        return ()
    middle, spread = both.mean(0), both.std(0).clamp(min=1e-6)
    inputs = torch.cat([(both - middle) / spread, torch.ones(len(both), 1)], 1)
    is_own = torch.arange(len(both)) < len(own)
    share = torch.where(is_own, 0.5 / len(own), 0.5 / len(foreign))[:, None] * len(both)
    weights, ridge = torch.zeros(inputs.shape[1], dtype=torch.float64), 0.1
    for _ in range(steps):
        chance = torch.sigmoid(inputs @ weights)
        slope = inputs.T @ (share[:, 0] * (is_own.double() - chance)) - ridge * weights
        bend = (inputs * share * (chance * (1 - chance))[:, None]).T @ inputs
        step = torch.linalg.solve(bend + ridge * torch.eye(len(weights), dtype=torch.float64), slope)
        weights = weights + step.clamp(-3, 3)
    each = weights[:-1] / spread
    constant = -torch.minimum(
        (own.double() @ each).quantile(MISTRUSTED), (foreign.double() @ each).quantile(FOUND_OUT)
    )
    return tuple(round(float(value), 6) for value in (*each, constant))


def halving_threshold(sure: Tensor, right: Tensor) -> float:
    """The lowest probability from which on answers are wrong at most half as often as all; sure and right: [n]."""
    order = sure.argsort(descending=True, stable=True)
    wrong = (1 - right[order]).cumsum(0)
    share = wrong / torch.arange(1, len(sure) + 1)
    fine = (share <= share[-1] / 2).nonzero().flatten()
    return float(int(1e4 * float(sure[order][fine[-1]])) / 1e4) if len(fine) else 1.0


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


def calibration_of(model: Any) -> Calibration | None:
    """How sure a model's answers are, if that is known."""
    return getattr(getattr(model, "info", None), "calibration", None)


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
            glimpses = trace.capsule_lengths.shape[1]
            digits, outputs = (0, 0) if trace.readout is None else trace.readout.shape[1:]
            result = ErrorCounter(
                task.class_names, glimpses, digits, outputs, calibration=calibration_of(model)
            )
        result.add(trace, batch, rule)
        if on_batch is not None:
            on_batch(chosen, batch, trace)
    if result is None:  # a process without images of its own
        config: NetworkConfig = model.config  # type: ignore[attr-defined]
        glimpses = interventions.get("glimpses") or config.glimpses
        return ErrorCounter(
            task.class_names, glimpses, config.readout_digits, config.readout_classes, calibration_of(model)
        )
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
    indices: Ints,
    batch: Batch,
    trace: Trace,
    task: Task,
    rule: AnswerRule,
    size: int,
    calibration: Calibration | None = None,
) -> Iterator[Trial]:
    """What happened with each image of a batch. size: filters along a side of the grid that reads a glimpse."""
    names, wrong = task.class_names, wrong_answers(trace, batch, rule).tolist()
    truths, scores = batch.names(names), trace.scores.tolist()
    found, sure = answers(trace, names, rule, calibration), answer_confidence(trace, rule, calibration)
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
            min((item.confidence for item in found[k]), default=0.0) if sure is None else sure[k],
            (took := trace.glimpses_of(k)),
            dict(zip(names, scores[k], strict=True)),
            tuple(map(tuple, looks[k][:took])) if looks else (),
            tuple((names[label], *box) for label, box in boxes if label >= 0),
        )
