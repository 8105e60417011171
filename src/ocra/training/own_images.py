"""Training on a user's own images: a recipe chosen from what is in their folder, a summary before, a report after.

    ocra.train_folder("my-images")

Nothing has to be set; `folder_experiment` returns the recipe as an `Experiment`, to be changed at will.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.baselines import SmallCNNConfig
from ocra.config import AnswerRule, ModelConfig
from ocra.data.folder import FolderTask, count_labels, names_of, open_images, rule_of
from ocra.data.labels import HUB, LabelledImage, read_labels
from ocra.data.random import permutation
from ocra.data.task import SPLITS, make_task
from ocra.errors import OcraError
from ocra.evaluation import Evaluation, evaluate
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.files import cores
from ocra.images.fitting import border_ring
from ocra.losses import MOST_OBJECTS, LossConfig, compute_losses
from ocra.training.checkpoint import fresh_path
from ocra.training.init import build_model
from ocra.training.run import train
from ocra.training.schedule import moment

LARGEST_SIDE = 128
"""Larger images are scaled down to this many pixels."""
SMALLEST_SIDE = 16
LOOKED_AT = 400
"""Images that are opened to learn the size and whether there is colour."""
GREY_ENOUGH = 0.02
"""Difference between the channels of an image, as a mean over its pixels, up to which it counts as grey."""
EVEN_BORDER = 0.25
"""An image has a background if the tones along its border differ by less than this share of what differs most."""
LARGEST_LOOK = 256
"""Of larger images only every second, third … pixel is looked at to learn about tones."""
TELLING_TONE = 0.1
"""Share of the variance of objects' tones that their classes may explain before the tone counts as theirs."""
COMPOSED = 0.5
"""Share of the images that are put together of images of one object, where that can be done."""
MOST_GLIMPSES = 10
PATIENCE = 8
"""Validations, of twenty, without a lower error that end a run."""
FEW_IMAGES = 20
"""A class with fewer objects in training, or fewer images to validate or test with, is worth a warning."""


@dataclass(frozen=True)
class FolderSummary:
    """What is in a folder, and what is made of it."""

    root: str
    images: dict[str, int]
    """Images in each split."""
    classes: dict[str, int]
    """Objects of each class in the training images."""
    objects: dict[int, int]
    """Images by the number of objects in them."""
    answer: AnswerRule
    smallest: tuple[int, int]
    """Width and height of the smallest image that was looked at, in pixels."""
    largest: tuple[int, int]
    image_shape: tuple[int, int, int]
    """Channels, height and width that the network sees."""
    colour: bool
    """Whether any image has colour."""
    contrast: bool
    """Whether images are shown as the difference from their background, see `tone_is_free`."""
    background: bool
    """Whether images have a background, from which objects can be told."""
    boxes: bool
    """Whether it is known where the objects are."""
    single: int
    """Training images with one object."""
    most_of_a_class: int
    """The most objects of one class in an image."""

    @property
    def most_objects(self) -> int:
        """The most objects in an image."""
        return max(self.objects)

    @property
    def shows_places(self) -> bool:
        """Whether the network can be shown where to look."""
        return self.boxes and 0 < self.most_objects <= MOST_OBJECTS

    def __str__(self) -> str:
        channels, height, width = self.image_shape
        found = " × ".join(map(str, self.smallest))
        if self.smallest != self.largest:
            found += f" to {' × '.join(map(str, self.largest))}"
        seen = "kept" if self.smallest == self.largest == (width, height) else f"seen at {width} × {height}"
        names = list(self.classes.items())
        shown = ", ".join(f"{name} {number:,}" for name, number in names[:12])
        if len(names) > 12:
            shown += f" and {len(names) - 12} more"
        lines = {
            "images": ", ".join(f"{self.images[split]:,} {split}" for split in SPLITS),
            "classes": f"{len(names)}, with objects in training: {shown}",
            "objects": ", ".join(
                f"{number} in {n:,} images" for number, n in sorted(self.objects.items())[:12]
            ),
            "size": f"{found} pixels, {seen}; {_colours(self.colour, channels == 3, self.contrast)}",
        }
        if self.shows_places:
            lines["places"] = "known from boxes: shown to the network at first"
        return "\n".join([f"Images of {self.root}", *(f"  {name:9}{text}" for name, text in lines.items())])


def _colours(colour: bool, kept: bool, contrast: bool) -> str:
    """Whether the images have colour and how they are seen."""
    seen = "as the difference from the tone of their border" if contrast else ""
    if colour != kept:
        seen = f"in {'colour' if kept else 'grey'}{', ' * bool(seen)}{seen}"
    return ("colour" if colour else "grey") + (f", seen {seen}" if seen else "")


@dataclass(frozen=True)
class OwnResult:
    """What came of training on a folder: the run's summary, and how the best weights do on the test images."""

    weights: Path
    """The folder of the best weights: `ocra predict IMAGE --weights …`."""
    summary: dict[str, Any]
    """What summary.json of the run holds."""
    test: Evaluation
    cnn: Evaluation | None = None
    """How a plain small CNN does that was trained on the same images for the same CPU time, if one was."""

    def __str__(self) -> str:
        lines = [report(self.test), f"Weights: {self.weights}"]
        if self.cnn is not None:
            error, (low, high) = self.cnn.exact_error, self.cnn.figures["exact_error_interval"]
            lines.insert(
                1,
                f"  a plain small CNN, given the same CPU time  {error:.1%} wrong ({low:.1%} to {high:.1%})",
            )
        return "\n".join(lines)


def train_folder(
    root: str | Path,
    out: str | Path | None = None,
    *,
    experiment: Experiment | None = None,
    seed: int = 0,
    images: int | None = None,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
    compare: bool = True,
    **settings: Any,
) -> OwnResult:
    """Train on a folder of labelled images (see `ocra.data.labels` for the formats) and score on those held out.

        result = ocra.train_folder("my-images", channels=1)
        result.test.exact_error, result.weights

    experiment: another recipe than `folder_experiment` would choose, as that function returns it.
    seed, images, settings: as for that function; processes, device, quiet, track: as for `ocra.train`.
    compare: train a plain small CNN for the same CPU time too, into the folder `cnn` of the run, so that it is known
    what the glimpses buy. It takes as long again.
    """
    if experiment is not None:
        task = experiment.task.to_dict()
        settings = {name: task[name] for name in ("channels", "height", "width", "class_names", "contrast")}
    summary = summarise_folder(root, **settings)
    chosen = experiment or folder_experiment(summary, seed=seed, images=images, **settings)
    if not quiet:
        print(summary)
        print(_plan(chosen, processes, compare), flush=True)
    warn_of_trouble(summary)
    folder = fresh_path(chosen.name) if out is None else Path(out)
    how: dict[str, Any] = {"processes": processes, "device": device, "quiet": quiet, "track": track}
    run = train(chosen, folder, **how)
    weights = folder / "weights" / "best"
    result = OwnResult(weights, run, evaluate(weights))
    if compare:
        if not quiet:
            print("A plain small CNN, to compare with:", flush=True)
        train(cnn_experiment(chosen, summary, run["cpu_seconds"]), folder / "cnn", **how)
        result = replace(result, cnn=evaluate(folder / "cnn" / "weights" / "best"))
    if not quiet:
        print(result, flush=True)
    return result


def summarise_folder(root: str | Path, **settings: Any) -> FolderSummary:
    """Look at a folder: its labels whole, and the size and colour of some of its images.

    settings: of the folder task; a given height, width, number of channels or `contrast` is taken as it is.
    """
    labelled = read_labels(root, settings.get("class_names"))
    rule, names = rule_of(labelled), settings.get("class_names") or names_of(labelled)
    if len({tuple(sorted(image.labels)) for image in labelled}) == 1:
        what = " ".join(labelled[0].labels) or "none"
        raise OcraError(
            f"All images of {root} have the same labels ({what}), so there is nothing to tell apart. Add images of "
            "another class, or some that show nothing (no labels)."
        )
    sizes, colour, background, free = _look_at(Path(root).expanduser(), labelled, names)
    contrast = free if settings.get("contrast") is None else settings["contrast"]
    scale = min(1.0, LARGEST_SIDE / max(max(size) for size in sizes))
    width, height = (max(SMALLEST_SIDE, round(scale * max(side))) for side in zip(*sizes, strict=True))
    shape = (
        settings.get("channels") or (3 if colour and not contrast else 1),
        settings.get("height") or height,
        settings.get("width") or width,
    )
    trained = [image.labels for image in labelled if image.split == "train"]
    in_training = Counter(label for labels in trained for label in labels)
    splits = Counter(image.split for image in labelled)
    return FolderSummary(
        root=str(root),
        images={split: splits[split] for split in SPLITS},
        classes={name: in_training[name] for name in names},
        objects=dict(Counter(len(image.labels) for image in labelled)),
        answer=rule,
        smallest=min(sizes, key=lambda size: size[0] * size[1]),
        largest=max(sizes, key=lambda size: size[0] * size[1]),
        image_shape=shape,
        colour=colour,
        contrast=contrast,
        background=background,
        boxes=all(image.boxes is not None for image in labelled),
        single=sum(len(labels) == 1 for labels in trained),
        most_of_a_class=max((labels.count(label) for labels in trained for label in labels), default=1),
    )


class _Looks(NamedTuple):
    """What some of the images of a folder look like."""

    sizes: list[tuple[int, int]]
    """Width and height of each."""
    colour: bool
    """Whether any of them has colour."""
    background: bool
    """Whether there is one, of much the same tone all around."""
    tone_is_free: bool


def _look_at(root: Path, labelled: list[LabelledImage], names: tuple[str, ...]) -> _Looks:
    """Open some of the images."""
    sizes, colour, tones, unevenness = [], False, [], []
    chosen = [labelled[position] for position in permutation(0, "looked at", len(labelled))[:LOOKED_AT]]
    for image in open_images(root, chosen):
        sizes.append((image.width, image.height))
        every = -(-max(image.pixels.shape) // LARGEST_LOOK)
        pixels = np.atleast_3d(image.pixels)[::every, ::every]
        colour = colour or bool(np.ptp(pixels, axis=2).mean() > GREY_ENOUGH)
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
        ring = border_ring(pixels)
        difference = pixels - np.median(ring, axis=0)
        # Which way objects differ from the background, in each colour: from -1, darker, to 1, lighter.
        tones.append(difference.sum((0, 1)) / np.maximum(np.abs(difference).sum((0, 1)), 1e-6))
        most = max(float(np.percentile(np.abs(difference).max(2), 99)), 1e-6)
        unevenness.append(float(np.median(np.abs(ring - np.median(ring, axis=0)))) / most)
    counts = count_labels(chosen, names)
    shown = counts.sum(1) > 0
    even = bool(shown.any()) and float(np.median(np.array(unevenness)[shown])) < EVEN_BORDER
    return _Looks(sizes, colour, even, even and tone_is_free(np.array(tones)[shown], counts[shown]))


def tone_is_free(tones: NDArray[np.floating], counts: NDArray[np.floating]) -> bool:
    """Whether the classes of the objects [images, classes] say nothing about their tones [images, 3].

    Then light or dark, red or green is nothing to learn from, and it is better not shown. Judged by the share of the
    variance that a linear regression explains beyond what it would by chance; too few images cannot tell.
    """
    images, classes = counts.shape
    spare = images - classes
    if spare < classes + 10:
        return False
    shares = counts / counts.sum(1, keepdims=True)  # of which the last follows from the others
    inputs = np.concatenate([np.ones((images, 1)), shares[:, :-1]], axis=1)
    left = tones - inputs @ np.linalg.lstsq(inputs, tones, rcond=None)[0]
    explained = tones.var(0) - left.var(0) * (images - 1) / spare
    return bool((explained / np.maximum(tones.var(0), 0.01)).max() < TELLING_TONE)


def folder_experiment(
    folder: str | Path | FolderSummary, *, seed: int = 0, images: int | None = None, **settings: Any
) -> Experiment:
    """The recipe for a folder, chosen from what is in it.

    images: how many to train on, counted with repetition; by default what the size of the folder asks for.
    settings: of the folder task, such as channels=1, height=64, width=64, augment=False or flip=True.
    """
    summary = folder if isinstance(folder, FolderSummary) else summarise_folder(folder, **settings)
    channels, height, width = summary.image_shape
    most = summary.most_objects
    chosen = {"compose": COMPOSED if summary.background and summary.single and most > 1 else 0.0}
    settings = {**chosen, **settings, "contrast": summary.contrast}
    task = FolderTask.Config(root=summary.root, **settings).fitted_to(summary.image_shape)
    # What there is to learn: each class in the company of others.
    seen = images or 60_000 + 10_000 * min(len(summary.classes) * most, 30) + 20 * summary.images["train"]
    stage = Stage(
        seen,
        warmup_images=min(3_200, seen // 10),
        ema_decay=0.998,
        reconstruction=(10.0, 1.0),
        cross_entropy=0.5,
        over_count=1.0,
        attention_supervision=(1.0, 0.0) if summary.shows_places else 0.0,
        # What a class looks like is learnt sooner from single objects; one class alone would only learn to say "one".
        single_objects=(0.8, 0.0) if most > 1 < len(summary.classes) and summary.single else 0.0,
    )
    name = Path(summary.root.removeprefix(HUB)).expanduser().resolve().name.strip(".") or "folder"
    return Experiment(
        name=name,
        description="A folder of one's own",
        seed=seed,
        model=ModelConfig(
            channels=channels,
            height=height,
            width=width,
            classes=len(summary.classes),
            glimpses=min(max(most + 1, 3), MOST_GLIMPSES),
            glimpse_size=24,
            hidden=256,
        ),
        task=task,
        # Scores are rounded to counts, so each has to be near its count from both sides.
        loss=LossConfig(normalise_scores=False, over_count_from=0.1),
        stages=(stage,),
        run=RunConfig(
            report_every_images=max(64, seen // 40),
            validate_every_images=max(64, seen // 20),
            patience=PATIENCE,
            precision="auto",
        ),
    )


def cnn_experiment(own: Experiment, summary: FolderSummary, cpu_seconds: float) -> Experiment:
    """A plain small CNN on the same images as an experiment, for so many CPU seconds."""
    channels, height, width = own.model.image_shape
    large = min(height, width) >= 96
    depth = min(5 if large else 4, min(height, width).bit_length() - 3)
    model = SmallCNNConfig(
        channels, height, width, own.model.classes, most=summary.most_of_a_class, objects=summary.answer.objects or 0,
        widths=((24, 32, 64, 128, 256) if large else (32, 48, 96, 192))[:depth], stride=2 if large else 1,
    )  # fmt: skip
    stage = Stage(lr=(4e-3, 0.0), shampoo_lr=0.0, beta2=0.999, ema_decay=0.998, reconstruction=0.0)
    cnn = replace(own, name=f"{own.name}-cnn", description="A plain small CNN", model=model, stages=(stage,))
    images = max(stage.batch_size, round(cpu_seconds / seconds_per_image(cnn)))
    often = {"report_every_images": max(64, images // 40), "validate_every_images": max(64, images // 20)}
    return replace(
        cnn,
        stages=(replace(stage, images=images, warmup_images=min(3_200, images // 10)),),
        run=replace(own.run, **often, precision="fp32", compile=False),
    )


def _plan(experiment: Experiment, processes: int, compare: bool) -> str:
    """What training will do, and about how long that will take here."""
    model, task = experiment.model, make_task(experiment.task, "train")
    minutes = experiment.images * seconds_per_image(experiment) / (processes or cores()) / 60
    augmented = "each time varied anew" if getattr(experiment.task, "augment", False) else "as they are"
    times = experiment.images / len(task)
    often = f"each about {times:.0f} times" if times >= 1.5 else "each about once"
    composed = getattr(task, "compose", 0.0)
    lines = [
        f"{experiment.images:,} images: {often}, {augmented}",
        *([f"{composed:.0%} of them put together of images of one object"] if composed else []),
        f"{model.glimpses} glimpses of {model.glimpse_size} × {model.glimpse_size} pixels at each",
        *(_told(number, stage) for number, stage in enumerate(experiment.stages, 1)),
        f"about {_minutes(minutes)} on this machine"
        + ", then at most as long again for a plain CNN to compare with (--no-compare: none)" * compare,
    ]
    return "\n".join(f"  {'' if number else 'plan':9}{line}" for number, line in enumerate(lines))


def _told(number: int, stage: Stage) -> str:
    """A stage of the plan in a line."""
    parts = [f"stage {number}: {stage.images:,} images"]
    if stage.single_objects not in (0, (0, 0)):
        parts.append("those of one object more often at first")
    if stage.attention_supervision not in (0, (0, 0)):
        parts.append("shown where the objects are")
    return ", ".join(parts)


def _minutes(minutes: float) -> str:
    return "a minute" if minutes < 1.5 else f"{minutes:.0f} minutes"


def seconds_per_image(experiment: Experiment) -> float:
    """CPU seconds that training takes for one image, measured on a few steps of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = build_model(experiment, fine_tune=False)
        model.defer_weight_gradients = True
        now = moment(experiment.stages, 0, experiment.model.glimpses)
        batch = make_task(experiment.task, "train").batch(range(64))
        weights = now.weights._replace(attention_supervision=0.0)
        taken = []
        for _ in range(3):
            started = time.process_time()
            if model.losses is None:
                trace = model(batch.images, attended=experiment.loss.needs_attended)
                loss = compute_losses(trace, batch, experiment.loss, weights).total
            else:
                loss = model.losses(model(batch.images), batch, weights)[0]
            loss.backward()
            taken.append(time.process_time() - started)
        return min(taken) / len(batch)
    finally:
        torch.set_num_threads(threads)


def warn_of_trouble(summary: FolderSummary) -> None:
    """Say in a sentence each what will keep a network from learning this folder well."""
    rare = [name for name, number in summary.classes.items() if number < FEW_IMAGES]
    if rare:
        names = ", ".join(rare[:5]) + (f" and {len(rare) - 5} more" if len(rare) > 5 else "")
        warnings.warn(
            f"Training has fewer than {FEW_IMAGES} objects of {names}; more images would help most.",
            stacklevel=3,
        )
    if held := [split for split in ("validation", "test") if summary.images[split] < FEW_IMAGES]:
        numbers = " and ".join(f"{summary.images[split]} for {split}" for split in held)
        warnings.warn(f"There are only {numbers}: an error on so few images says little.", stacklevel=3)
    if summary.most_objects >= MOST_GLIMPSES and summary.answer.repeats:
        warnings.warn(
            f"Some images show {summary.most_objects} objects; the network counts up to about {MOST_GLIMPSES - 1}.",
            stacklevel=3,
        )
    copies = copies_across_splits(summary)
    if copies:
        warnings.warn(
            f"{copies} validation or test images are the same as training images, pixel by pixel: their error says "
            "nothing about new images.",
            stacklevel=3,
        )


def copies_across_splits(summary: FolderSummary) -> int:
    """How many validation and test images are also training images, pixel by pixel."""
    config = FolderTask.Config(
        root=summary.root, class_names=tuple(summary.classes), augment=False, contrast=summary.contrast
    )
    known: set[bytes] = set()
    copies = 0
    for split in SPLITS:
        task = make_task(config.fitted_to(summary.image_shape), split)
        batch = task.batch(range(len(task)))
        shown = batch.images[batch.counts.sum(1) > 0]  # what shows nothing may well look the same
        pixels = [image.numpy().tobytes() for image in shown]
        copies += sum(image in known for image in pixels)
        known.update(pixels if split == "train" else ())
    return copies


def report(test: Evaluation) -> str:
    """How the network does on the images that were held out, in a few lines."""
    figures, details = test.figures, test.details
    low, high = figures["exact_error_interval"]
    lines = [
        f"Test: {figures['exact_error']:.1%} of {figures['n']:,} images wrong ({low:.1%} to {high:.1%})",
        f"  objects  {figures['misses']:,} of {figures['objects']:,} missed, {figures['false_alarms']:,} named that "
        f"are not there; precision {figures['precision']:.1%}, recall {figures['recall']:.1%}"
        + (f", d′ {figures['d_prime']:.2f}" if "d_prime" in figures else ""),
    ]
    if by_number := details.get("objects_in_image"):
        parts = [f"{number}: {row['exact_error']:.1%} of {row['n']:,}" for number, row in by_number.items()]
        lines.append(f"  wrong by number of objects  {', '.join(parts)}")
    if mistaken := _confusions(details["confusion"]):
        lines.append(f"  most mistaken  {', '.join(mistaken)}")
    return "\n".join(lines)


def _confusions(confusion: dict[str, Any], most: int = 5) -> list[str]:
    """The most frequent mistakes: what was there, what was said, how often."""
    pairs = [
        (number, true, answered)
        for true, row in zip(confusion["true"], confusion["counts"], strict=True)
        for answered, number in zip(confusion["answered"], row, strict=True)
        if true != answered and round(number)
    ]
    return [
        f"{true} → {answered} {number:.0f}×" for number, true, answered in sorted(pairs, reverse=True)[:most]
    ]
