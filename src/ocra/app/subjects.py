"""What the network is shown: a drawing, an uploaded picture, or a test picture of a task."""

from __future__ import annotations

import base64
import binascii
import os
import random
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ocra.app.networks import Network
from ocra.config import Preprocessing
from ocra.data import Task, TaskConfig, get_task, make_task, task_config, task_names
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import Invert, Placement, Prepared, prepare
from ocra.images.reading import Picture, read_picture

MOST_UPLOAD_BYTES = 10_000_000
MOST_DRAWING_BYTES = 2_000_000
MOST_NUMBER = 10_000_000
_PNG = "data:image/png;base64,"


@dataclass(frozen=True)
class Subject:
    """A picture to look at."""

    title: str
    picture: Picture
    invert: Invert = "auto"
    exact: Tensor | None = None
    """float32 [channels, height, width]: the picture as the task made it, for models of its size"""
    truth: tuple[str, ...] = ()
    """What is in it, where that is known."""
    is_number: bool = False
    """Whether the truth is a number, to be read from left to right."""
    explain: bool = False
    """Whether to show how the picture was prepared."""
    note: str = ""
    """A sentence for the page."""

    def fits(self, network: Network) -> bool:
        """Whether a task made the picture in the very size and colours that the network takes."""
        return self.exact is not None and tuple(self.exact.shape) == network.config.image_shape

    def seen_by(self, network: Network) -> Prepared:
        """What a network gets; a task's picture, of which the truth is known, is resized and nothing else."""
        if self.exact is None:
            way = network.info.preprocessing or network.task.task.preprocessing
            return prepare(self.picture, network.config, way, invert=self.invert)
        if self.fits(network):
            return Prepared(self.exact, Placement(), self.picture, (), False)
        return prepare(self.picture, network.config, Preprocessing())


def from_drawing(data: object) -> Subject:
    """A drawing from the page's pad, a PNG as a data URL: white ink on black, as the models know it."""
    if not isinstance(data, str) or not data.startswith(_PNG) or len(data) > MOST_DRAWING_BYTES:
        raise OcraError("The drawing did not arrive as a picture; clear the pad and draw again.")
    try:
        content = base64.b64decode(data[len(_PNG) :], validate=True)
    except (binascii.Error, ValueError):
        raise OcraError("The drawing arrived damaged; clear the pad and draw again.") from None
    return Subject("Your drawing", read_picture(content, "The drawing"), invert="no")


def from_upload(path: str) -> Subject:
    """An uploaded file, named as the visitor named it."""
    name = os.path.basename(path)
    if os.path.getsize(path) > MOST_UPLOAD_BYTES:
        raise OcraError(f"{name} is larger than {MOST_UPLOAD_BYTES // 10**6} MB; make it smaller first.")
    return Subject(name, read_picture(path, name), explain=True)


def from_task(name: str, number: float | None, network: Network) -> Subject:
    """Test picture `number` of a task."""
    if name not in task_names():
        raise OcraError(f"There is no task '{name}'.")
    last = how_many(name, network) - 1
    if number is None or not 0 <= number <= last:
        raise OcraError(f"Choose a picture number from 0 to {last:,}.")
    index = int(number)
    task, note = _open(_config(name, network))
    batch = task.batch([index])
    image = batch.images[0]
    return Subject(
        f"Test picture {index:,}",
        _as_picture(image, f"Test picture {index}"),
        exact=image,
        truth=batch.names(task.class_names)[0],
        is_number=batch.sequence is not None,
        note=note,
    )


def how_many(name: str, network: Network) -> int:
    """How many test pictures a task has on the page."""
    return len(_open(_config(name, network))[0]) if get_task(name).stored else MOST_NUMBER + 1


def random_number(count: int) -> int:
    """The number of some test picture out of so many."""
    return random.randrange(min(count, 10_000))


_splits: dict[TaskConfig, Task] = {}


def takes_long(name: str, network: Network) -> bool:
    """Whether the first picture of a task needs an archive to be read."""
    return get_task(name).slow_to_open and _config(name, network) not in _splits


def _config(name: str, network: Network) -> TaskConfig:
    """The network's own task as it was trained on, or the usual one of that name."""
    return network.task if network.task.name == name else task_config(name)


def _test_split(config: TaskConfig) -> Task:
    if config not in _splits:
        _splits[config] = make_task(config, "test")
    return _splits[config]


def _open(config: TaskConfig) -> tuple[Task, str]:
    """The test split of a task; digits from fonts, and a sentence that says so, where MNIST is missing."""
    try:
        return _test_split(config), ""
    except UsageError:
        raise OcraError(
            "The folder this model was trained on is not on this machine; upload a picture instead."
        ) from None
    except OcraError:
        glyphs = config.offline()
        if glyphs is None or glyphs.to_dict()["digits"] == config.to_dict()["digits"]:
            raise
        note = (
            "MNIST is not on this machine, so these digits are drawn from fonts: see `ocra data fetch mnist`."
        )
        return _test_split(glyphs), note


def _as_picture(image: Tensor, name: str) -> Picture:
    """A task's image [channels, height, width] as a picture, for models of another size."""
    pixels = np.ascontiguousarray(image.numpy().transpose(1, 2, 0))
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return Picture(name, pixels, image.shape[2], image.shape[1])
