"""What the model is shown: a drawing, an uploaded image, or a test image of a task."""

from __future__ import annotations

import base64
import binascii
import random
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Literal

import numpy as np
from torch import Tensor

from ocra.config import Preprocessing
from ocra.data import Task, TaskConfig, make_task, task_config, task_names, task_of_model
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Invert, Placement, Prepared, prepare
from ocra.images.reading import UserImage, read_image
from ocra.model.ocra import OCRA

MOST_DRAWING_BYTES = 2_000_000
MOST_NUMBER = 10_000_000
PATIENCE = 0.3
"""Seconds that a visitor's action may wait for the images of a task."""
_PNG = "data:image/png;base64,"


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

    def fits(self, model: OCRA) -> bool:
        """Whether a task made the image in the very size and colours that the model takes."""
        return self.exact is not None and tuple(self.exact.shape) == model.config.image_shape

    def seen_by(self, model: OCRA) -> Prepared:
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
    return Subject("Your drawing", read_image(content, "The drawing"), invert="no")


def from_upload(content: bytes, name: str) -> Subject:
    """An uploaded file, named as the visitor named it."""
    return Subject(name, read_image(content, name), explain=True)


def task_of(model: OCRA) -> type[Task]:
    """The task a model was trained on, or the likely one where nothing was saved or somebody's module is named."""
    return _own_config(model).task


def _own_config(model: OCRA) -> TaskConfig:
    try:
        return task_of_model(model.info.task, model.config)
    except UsageError:  # the weights name a module, which is not imported for their sake
        return task_of_model({}, model.config)


def config_of(name: str, model: OCRA) -> TaskConfig:
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


@dataclass(frozen=True)
class Request:
    """A test image that a visitor asked for."""

    task: str
    number: float | None
    pick: Literal["this", "next", "any"] = "this"
    """That of this number, the one after it, or any."""


class Reading(OcraError):
    """The images of a task are still being read."""


class TestImages:
    """The test images of tasks. Each task is opened once, in a thread of its own, as reading may take minutes."""

    __test__ = False  # for pytest: not a test

    def __init__(self) -> None:
        self._opened: dict[TaskConfig, tuple[float, Future[tuple[Task, str]]]] = {}
        self._lock = Lock()

    def open(self, config: TaskConfig, patience: float = PATIENCE) -> tuple[Task, str]:
        """The test split and a sentence about it; raises Reading, for the page, if that takes longer."""
        with self._lock:
            started, split = self._opened.get(config, (0.0, None))
            if split is None or (split.done() and split.exception()):  # what was missing may be there by now
                started, split = time.monotonic(), Future()
                self._opened[config] = started, split
                Thread(target=_fulfil, args=(split, config), daemon=True).start()
        if not wait([split], patience).done:
            title, seconds = config.task.title or config.name, time.monotonic() - started
            raise Reading(
                f"{title}: reading the data, {seconds:.0f} s so far. This is needed once; "
                "until then you can look at something else."
            )
        return split.result()

    def take(self, asked: Request, model: OCRA, patience: float = PATIENCE) -> tuple[Subject, int]:
        """The image that was asked for, and its number."""
        task, note = self.open(config_of(asked.task, model), patience)
        count = len(task) if task.stored else MOST_NUMBER + 1
        number = asked.number
        if asked.pick == "any":
            number = random.randrange(min(count, 10_000))
        elif asked.pick == "next":
            number = (int(number or 0) + 1) % count
        if number is None or not 0 <= number < count:
            raise OcraError(f"Choose an image number from 0 to {count - 1:,}.")
        index = int(number)
        batch = task.batch([index])
        image, title = batch.images[0], f"Test image {index:,}"
        pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        source = UserImage(title, pixels, image.shape[2], image.shape[1])
        truth = batch.names(task.class_names)[0]
        is_number = batch.sequence is not None
        return Subject(title, source, exact=image, truth=truth, is_number=is_number, note=note), index


def _fulfil(split: Future[tuple[Task, str]], config: TaskConfig) -> None:
    try:
        split.set_result(_open(config))
    except BaseException as error:
        split.set_exception(error)


def _open(config: TaskConfig) -> tuple[Task, str]:
    """The test split; where its data is missing one that needs none, and a sentence that says so."""
    if config.task.private and not config.to_dict().get("root"):
        raise OcraError("The folder this model was trained on is not here; upload an image instead.")
    try:
        return make_task(config, "test"), ""
    except OcraError:
        offline = config.offline()
        if offline is None or offline == config:
            raise
        note = "The data set is not on this machine, so these digits are drawn from fonts: see `ocra data fetch`."
        return make_task(offline, "test"), note
