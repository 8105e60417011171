"""What the model is shown: a drawing, an uploaded image, a test image of a task, or a scene of the lab."""

from __future__ import annotations

import base64
import binascii
import random
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal, TypeVar

import numpy as np
from torch import Tensor

import ocra
from ocra.config import Preprocessing
from ocra.data import Task, TaskConfig, make_task, task_config, task_names, task_of_model
from ocra.data.corruptions import CORRUPTIONS, MOST
from ocra.data.digits import DIGIT_SIZE
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Invert, Placement, Prepared, prepare
from ocra.images.reading import UserImage, read_image
from ocra.lab.running import scenes_like
from ocra.lab.stimuli import Scenes
from ocra.model.network import Network

T = TypeVar("T")
Pick = Literal["this", "next", "any"]
"""The image of this number, the one after it, or any."""
MOST_DRAWING_BYTES = 2_000_000
MOST_NUMBER = 10_000_000
MOST_SEED = 1_000_000
MOST_CLUTTER = 30
MOST_OPEN = 40
"""Tasks that are kept open; each seed of one is a task of its own."""
PATIENCE = 0.3
"""Seconds that a visitor's action may wait for the images of a task."""
_PNG = "data:image/png;base64,"


@dataclass(frozen=True)
class Request:
    """A test image that a visitor asked for."""

    task: str
    number: float | None
    pick: Pick = "this"
    seed: float = 0
    of: str = field(default="", compare=False)
    """The model whose settings of the task are taken, if the task is its own."""


@dataclass(frozen=True)
class SceneRequest:
    """A scene of the lab that a visitor asked for: digits like those of a model's task, laid out by hand."""

    number: float | None
    """Of the trial: the same digits, whatever else is asked for."""
    overlap: float | None = None
    """Share of the smaller of two digits' boxes that the other one covers; None as it comes."""
    clutter: float | None = None
    """Number of clutter pieces; None as many as in the model's task."""
    contrast: float = 1.0
    noise: str = "gaussian"
    """A corruption of `ocra.data.corruptions`."""
    severity: float = 0.0
    """Of the noise; 0 for none."""
    pick: Pick = "this"
    seed: float = 0
    of: str = field(default="", compare=False)
    """The model whose scenes they are."""

    def scenes(self, base: Scenes) -> Scenes:
        """The lab's scenes that these are, from those like a model's task; numbers of the page are kept in range."""
        changes: dict[str, Any] = {"contrast": within(self.contrast, 0, 1, "contrast")}
        if self.overlap is not None and base.objects == 2:
            changes |= {"box_overlap": within(self.overlap, 0, 1, "overlap"), "reach": None}
        if self.clutter is not None:
            changes["clutter"] = int(within(self.clutter, 0, MOST_CLUTTER, "number of distractors"))
        if severity := within(self.severity, 0, MOST, "noise"):
            if self.noise not in CORRUPTIONS:
                raise OcraError(f"There is no noise of the kind '{self.noise}'.")
            changes |= {"corruption": self.noise, "severity": severity}
        return base.change(**changes)


def scene_like(model: Network) -> SceneRequest:
    """The first scene for a model, laid out as its task usually does; no overlap where it has not two digits."""
    try:
        base = scenes_like(model)
    except UsageError:
        return SceneRequest(0)
    apart = base.size >= 2 * DIGIT_SIZE  # where there is room for it, digits seldom overlap
    return SceneRequest(0, None if base.objects != 2 else 0.0 if apart else 0.7, base.clutter)


def within(value: object, least: float, most: float, what: str) -> float:
    """A number as the page or an address sent it, checked."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not least <= number <= most:
        raise OcraError(f"The {what} must be a number from {least:g} to {most:,g}, not {value!r:.40}.")
    return number


@dataclass(frozen=True)
class Subject:
    """An image to look at."""

    title: str
    source: UserImage
    invert: Invert = "auto"
    exact: Tensor | None = None
    """float32 [channels, height, width]: the image as the task made it, for models of its size"""
    truth: tuple[str, ...] = ()
    """What is in it, where that is known."""
    is_number: bool = False
    """Whether the truth is a number, to be read from left to right."""
    explain: bool = False
    """Whether to show how the image was prepared."""
    note: str = ""
    """A sentence for the page."""
    origin: Request | SceneRequest | None = None
    """How to make it again; None for what the visitor has made."""
    code: str = ""
    """Python that makes it: a tensor [1, channels, height, width], or the name of a file."""

    def fits(self, model: Network) -> bool:
        """Whether a task made the image in the very size and colours that the model takes."""
        return self.exact is not None and tuple(self.exact.shape) == model.config.image_shape

    def seen_by(self, model: Network) -> Prepared:
        """What a model gets; a task's image, of which the truth is known, is resized and nothing else."""
        if self.exact is not None and self.fits(model):
            return Prepared(self.exact, Placement(), self.source, (), False)
        own = model.info.preprocessing or task_of(model).preprocessing
        preprocessing = own if self.exact is None else Preprocessing()
        return prepare(self.source, model.config, preprocessing, invert=self.invert)


def from_drawing(data: object) -> Subject:
    """A drawing from the page's pad, a PNG as a data URL: white ink on black, as the models know it."""
    if not isinstance(data, str) or not data.startswith(_PNG) or len(data) > MOST_DRAWING_BYTES:
        raise OcraError("The drawing did not arrive as an image; clear the pad and draw again.")
    try:
        content = base64.b64decode(data[len(_PNG) :], validate=True)
    except (binascii.Error, ValueError):
        raise OcraError("The drawing arrived damaged; clear the pad and draw again.") from None
    return Subject("Your drawing", read_image(content, "The drawing"), invert="no", code=repr("drawing.png"))


def from_upload(content: bytes, name: str) -> Subject:
    """An uploaded file, named as the visitor named it."""
    return Subject(name, read_image(content, name), explain=True, code=repr(name))


def task_of(model: Network) -> type[Task]:
    """The task a model was trained on, or the likely one where nothing was saved or somebody's module is named."""
    return _own_config(model).task


def _own_config(model: Network) -> TaskConfig:
    try:
        return task_of_model(model.info.task, model.config)
    except UsageError:  # the weights name a module, which is not imported for their sake
        return task_of_model({}, model.config)


def config_of(name: str, model: Network) -> TaskConfig:
    """The settings of a task: those the model was trained with if it is the model's own, else the usual ones."""
    own = _own_config(model)
    if name != own.name:
        if name not in task_names():
            raise OcraError(f"There is no task '{name}'.")
        return task_config(name)
    values = own.to_dict()
    if "root" in values and not (values["root"] and Path(values["root"]).is_dir()):
        values["root"] = None  # a folder of another machine
    return task_config(values | ({"download": False} if "download" in values else {}))


class Reading(OcraError):
    """The images of a task are still being read."""


class TestImages:
    """Test images of tasks, and scenes. What they are made of is opened once, in a thread, as it may take minutes."""

    __test__ = False  # for pytest: not a test

    def __init__(self) -> None:
        self._opened: dict[Hashable, tuple[float, Future[Any]]] = {}
        self._lock = Lock()

    def open(self, key: Hashable, title: str, make: Callable[[], T], patience: float = PATIENCE) -> T:
        """What `make` makes, once for each key; raises Reading, for the page, if that takes longer."""
        with self._lock:
            started, made = self._opened.pop(key, (0.0, None))
            if made is None or (made.done() and made.exception()):  # what was missing may be there by now
                started, made = time.monotonic(), Future()
                Thread(target=_fulfil, args=(made, make), daemon=True).start()
            self._opened[key] = started, made  # the last one used is the last to be forgotten
            if len(self._opened) > MOST_OPEN:
                del self._opened[next(iter(self._opened))]
        if not wait([made], patience).done:
            seconds = time.monotonic() - started
            raise Reading(
                f"{title}: reading the data, {seconds:.0f} s so far. This is needed once; "
                "until then you can look at something else."
            )
        return made.result()

    def take(
        self, asked: Request | SceneRequest, model: Network, patience: float = PATIENCE
    ) -> tuple[Subject, int]:
        """The image that was asked for, and its number."""
        seed = int(within(asked.seed, 0, MOST_SEED, "seed"))
        if isinstance(asked, SceneRequest):
            return self._scene(asked, model, seed, patience)
        config = config_of(asked.task, model)
        title = config.task.title or config.name
        task, note = self.open((config, seed), title, lambda: _open(config, seed), patience)
        count = len(task) if task.stored else MOST_NUMBER + 1
        index = _number(asked, count)
        batch = task.batch([index])
        subject = Subject(
            f"Test image {index:,}" + f", seed {seed}" * (seed > 0),
            _source(batch.images[0]),
            exact=batch.images[0],
            truth=batch.names(task.class_names)[0],
            is_number=batch.sequence is not None,
            note=note,
            origin=replace(asked, number=index, pick="this", seed=seed),
            code=f"{_code(task)}.batch([{index}]).images",
        )
        return subject, index

    def _scene(self, asked: SceneRequest, model: Network, seed: int, patience: float) -> tuple[Subject, int]:
        """A scene of the lab, of digits from fonts where MNIST is not here."""
        base = scenes_like(model)
        source, note = self.open(base.source, "Scenes of digits", lambda: _digits(base), patience)
        scenes = asked.scenes(replace(base, source=source))
        trial = _number(asked, MOST_NUMBER + 1)
        shown = scenes.make([trial], seed)
        (row,), image = shown.rows, shown.images[0]
        measured = f", overlap {row['box_overlap']:.2f}" if scenes.objects == 2 else ""
        settings = _settings(scenes, Scenes())
        subject = Subject(
            f"Scene {trial:,}{measured}",
            _source(image),
            exact=image,
            truth=tuple(row["truth"].split()),
            note=note,
            origin=replace(asked, number=trial, pick="this", seed=seed),
            code=f"ocra.lab.Scenes({settings}).make([{trial}], seed={seed}).images",
        )
        return subject, trial


def _number(asked: Request | SceneRequest, count: int) -> int:
    """Which of so many images is meant."""
    if asked.pick == "any":
        return random.randrange(min(count, 10_000))
    if asked.pick == "next" and asked.number is None:
        return 1 % count
    number = int(within(asked.number, 0, count - 1, "number of the image"))
    return (number + 1) % count if asked.pick == "next" else number


def _source(image: Tensor) -> UserImage:
    """An image [channels, height, width] as if a user had brought it."""
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return UserImage("The image", pixels, image.shape[2], image.shape[1])


def _settings(config: Any, usual: Any) -> str:
    """Python arguments for the fields of a config that are not the usual ones."""
    values = [(item.name, getattr(config, item.name), getattr(usual, item.name)) for item in fields(config)]
    return ", ".join(f"{name}={value!r}" for name, value, known in values if value != known)


def _code(task: Task) -> str:
    """Python that makes a task."""
    rest = f'split="{task.split}"' + f", seed={task.seed}" * (task.seed > 0)
    own = type(task).__name__
    if getattr(ocra, own, None) is type(task):
        settings = _settings(task.config, type(task.config)())
        return f"ocra.{own}({', '.join(filter(None, [rest, settings]))})"
    return f"ocra.make_task(ocra.task_config({task.config.to_dict()!r}), {rest})"


def _fulfil(made: Future[T], make: Callable[[], T]) -> None:
    try:
        made.set_result(make())
    except BaseException as error:
        made.set_exception(error)


NOT_HERE = "The data set is not on this machine, so these digits are drawn from fonts: see `ocra data fetch`."


def _open(config: TaskConfig, seed: int = 0) -> tuple[Task, str]:
    """The test split; where its data is missing one that needs none, and a sentence that says so."""
    if config.task.private and not config.to_dict().get("root"):
        raise OcraError("The folder this model was trained on is not here; upload an image instead.")
    try:
        return make_task(config, "test", seed), ""
    except OcraError:
        offline = config.offline()
        if offline is None or offline == config:
            raise
        return make_task(offline, "test", seed), NOT_HERE


def _digits(scenes: Scenes) -> tuple[Literal["mnist", "glyphs"], str]:
    """The digits that scenes can be made of on this machine, read, and a sentence about them."""
    try:
        scenes.change(objects=1).make([0])
        return scenes.source, ""
    except OcraError:
        scenes.change(objects=1, source="glyphs").make([0])
        return "glyphs", NOT_HERE
