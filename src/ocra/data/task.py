"""What every task is: a numbered, endless, repeatable source of images with their classes; and where to find one.

A task of one's own is a subclass of Task with class names, an image shape, a length and `make`. Give it a name with
`@register_task("name")`, or call it by its place, "package.module:Class".
"""

from __future__ import annotations

import dataclasses
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ocra.config import AnswerRule, Preprocessing, check_switches
from ocra.data.corruptions import USUAL_SEVERITY, check_corruption, corrupted
from ocra.data.random import Ints, permutation
from ocra.errors import OcraError, UsageError
from ocra.files import unknown_option

SPLITS = ("train", "validation", "test")
NO_DIGIT = 10
"""Stands in a sequence where a house number has no further digit."""


class Annotations(NamedTuple):
    """What an image is made of."""

    layers: Tensor
    """float32 [batch, objects, channels, height, width]: each object alone"""
    boxes: Tensor
    """int64 [batch, objects, 4]: x, y, width, height in pixels from 0; a box may leave the image"""
    classes: Tensor
    """int64 [batch, objects]: the class, −1 where there is no object"""


@dataclass(frozen=True)
class Batch:
    """Images and what is in them."""

    images: Tensor
    """float32 [batch, channels, height, width] in [0, 1]"""
    counts: Tensor
    """float32 [batch, classes]: how many objects of each class (SVHN: the 14 class targets)"""
    sequence: Tensor | None = None
    """int64 [batch, 5], SVHN only: the digits from left to right, 10 where there is none"""
    annotations: Annotations | None = None
    """each object alone, where it was asked for and is known"""

    def __len__(self) -> int:
        return len(self.images)

    def take(self, positions: Tensor) -> Batch:
        """The images at these positions [n] of the batch."""
        return self._each(lambda tensor: tensor[positions])

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        annotations = None if self.annotations is None else Annotations(*map(change, self.annotations))
        sequence = None if self.sequence is None else change(self.sequence)
        return Batch(change(self.images), change(self.counts), sequence, annotations)

    def names(self, class_names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The objects in each image, each as often as it occurs; of a house number the digits from the left."""
        if self.sequence is not None:
            return [tuple(str(digit) for digit in row if digit != NO_DIGIT) for row in self.sequence.tolist()]
        return [
            tuple(name for name, times in zip(class_names, row, strict=True) for _ in range(int(times)))
            for row in self.counts.tolist()
        ]


@dataclass(frozen=True)
class DataSource:
    """Where a task's images come from, as a model card says it."""

    splits: str = ""
    """What training, validation and test are made of."""
    licence: str = "other"
    """Name of the licence of weights trained on it, as model hubs know it."""
    terms: str = "The licence of the images applies; the program is under the MIT licence."
    on_hub: tuple[str, ...] = ()
    """Names of the data sets on the Hugging Face hub."""


@dataclass(frozen=True)
class TaskConfig:
    """The settings of a task. Each task has its own subclass, with its own fields only."""

    task: ClassVar[type[Task]]
    """The task these settings are of."""
    corruption: str | None = field(default=None, kw_only=True)
    """Damage to each image: gaussian, blur, contrast, brightness or another of `ocra.data.corruptions`."""
    severity: float | None = field(default=None, kw_only=True)
    """Of the corruption, from 0 (none) to 5; 3 if it is not given."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, list):  # JSON has no tuples, and lists cannot be hashed
                object.__setattr__(self, item.name, value := tuple(value))
            elif isinstance(value, os.PathLike):
                object.__setattr__(self, item.name, value := os.fspath(value))
            if item.type in (int, "int") and type(value) is not int:
                raise UsageError(f"task.{item.name} must be a whole number, not {value!r}.")
            try:
                hash(value)
            except TypeError:  # configs are compared and looked up
                raise UsageError(f"task.{item.name} cannot be {value!r}.") from None
            if item.type == "tuple[str, ...]" and not (
                isinstance(value, tuple) and all(isinstance(each, str) for each in value)
            ):
                raise UsageError(f"task.{item.name} must be a list of words, not {value!r}.")
        check_switches(self, "task")
        if self.corruption is not None:
            check_corruption(self.corruption, self.severity)
        elif self.severity is not None:
            raise UsageError(f"A severity of {self.severity} of what? Name a corruption too.")

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task.name

    @property
    def about(self) -> str:
        """The task's images in a sentence or two, with these settings."""
        return self.task.about.format(**self.to_dict())

    @property
    def source(self) -> DataSource:
        """Where the images come from."""
        return DataSource()

    def offline(self) -> TaskConfig | None:
        """The same task with images that need no data set, or None where there are none."""
        return None

    def fitted_to(self, image_shape: tuple[int, int, int]) -> TaskConfig:
        """The same task with images of this shape, where the task makes images of any."""
        return self

    def with_settings(self, **changes: Any) -> TaskConfig:
        """The same task with other settings; those that are None stay as they are."""
        changes = {name: value for name, value in changes.items() if value is not None}
        own = [field.name for field in dataclasses.fields(self)]
        if unknown := sorted(set(changes) - set(own)):
            raise UsageError(
                f"The task {self.name} has no setting '{unknown[0]}'; it has {', '.join(own) or 'none'}."
            )
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The name and all settings, ready for JSON; `task_config` takes it back."""
        return {"name": self.name, **dataclasses.asdict(self)}


class Task(Dataset[Any], ABC):
    """A split of a task under a seed. Image i is the same whatever batch, order or process makes it."""

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    """The settings; a task that has none need not name it."""
    name: ClassVar[str]
    """As registered, or else the place of the class, "package.module:Class"."""
    title: ClassVar[str] = ""
    """A few words for those who know nothing of data sets."""
    about: ClassVar[str] = ""
    """The images in a sentence or two, for a model card; {settings} are filled in."""
    limits: ClassVar[str] = "Images unlike those of its task are outside what it learnt."
    """What a network trained on the task cannot know."""
    scene: ClassVar[str] = ""
    """How digits lie in an image, as in "overlapping pairs of" digits; empty for what is not made of digits."""
    drawing_hint: ClassVar[str] = "Draw here"
    """What a visitor of the page is asked to draw."""
    pen_width: ClassVar[float] = 0.06
    """Width of the page's pen as a share of the image's side."""
    stored: ClassVar[bool] = False
    """Whether there is a last image: those beyond it are the same ones, varied."""
    private: ClassVar[bool] = False
    """Whether the images are one user's own, so that only networks trained on them are shown them."""
    sequence_length: ClassVar[int] = 0
    """Digits that are read out one after the other; 0 where the answer is a set of objects."""
    preprocessing: Preprocessing = Preprocessing()
    """How an image from elsewhere is made like those of the task."""

    class_names: tuple[str, ...] = ()
    image_shape: tuple[int, int, int]
    """channels, height, width"""
    answer_rule: AnswerRule = AnswerRule(None)
    """How scores become an answer."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if cls.Config is TaskConfig or "task" in vars(cls.Config):  # another's: settings know whose they are
            place = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            cls.Config = dataclass(frozen=True)(type("Config", (cls.Config,), place))
        cls.Config.task = cls

    def __init__(
        self, config: TaskConfig | None = None, split: str = "train", seed: int = 0, **settings: Any
    ) -> None:
        """From settings, from each one by name, or from both: MultiMNIST(split="test", max_shift=6)."""
        config = self.Config() if config is None else config
        if not isinstance(config, self.Config):
            raise UsageError(f"{type(self).__name__} takes a {self.Config.__name__}, not {config!r}.")
        if split not in SPLITS:
            raise UsageError(f"There is no split '{split}'; choose one of {', '.join(SPLITS)}.")
        if isinstance(seed, bool) or not 0 <= seed < 2**63:
            raise UsageError(f"The seed must be a whole number from 0 to 2**63 - 1, not {seed!r}.")
        self.config, self.split, self.seed = config.with_settings(**settings), split, seed
        self.open()

    def open(self) -> None:
        """Find the data and set what follows from the settings; the constructor's last step."""

    @abstractmethod
    def __len__(self) -> int:
        """Nominal number of images in the split."""

    @abstractmethod
    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        """The images of these indices; what `batch` calls once it has checked them.

        A task that has no annotations, cannot show single objects or places none ignores the options.
        """

    def batch(
        self,
        indices: Sequence[int] | NDArray[np.integer],
        *,
        annotations: bool = False,
        single_objects: float = 0.0,
        spread: float = 1.0,
    ) -> Batch:
        """The images with these numbers, as one batch.

        Numbers beyond len(task) go on: generated tasks with fresh images, stored ones (SVHN, own folders) with the
        stored image index % len(task) under a fresh augmentation. `single_objects` is the share of images, chosen
        by each image's own random stream, that show one object only (own folders choose among theirs that do).
        `spread` is the share of the room for their places, around the middle, that objects use (tasks that place
        digits; among clutter that part alone is shown, enlarged).
        """
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
            raise UsageError("A batch is asked for by a list of whole numbers, one per image.")
        if numbers.size and numbers.min() < 0:
            raise UsageError(f"An image's number starts at 0; {numbers.min()} is negative.")
        numbers = numbers.astype(np.int64)
        made = self.make(numbers, annotations=annotations, single_objects=single_objects, spread=spread)
        kind, severity = self.config.corruption, self.config.severity
        if kind is None:
            return made
        severity = USUAL_SEVERITY if severity is None else severity
        return dataclasses.replace(made, images=corrupted(made.images, kind, severity, self.seed, numbers))

    def enlarged_by(self, spread: float) -> float:
        """How much larger objects are shown at this spread than in the whole task."""
        return 1.0

    def sample(self, images: int | None = None) -> Ints:
        """The indices of so many images of the split, or of all: those that `ocra.evaluate(…, images=n)` scores.

        A fixed random sample without repetition, the same on every machine and for every model, and 1,000 are among
        the 2,000: not the first ones, because the first half of MNIST's test digits is harder than the second.
        """
        if images is None or images >= len(self):
            return np.arange(len(self))
        if images < 1:
            raise UsageError(f"A sample has at least 1 image, not {images}.")
        return permutation(0, "evaluation", len(self))[:images]

    def answer_rule_for(self, trained: AnswerRule | None) -> AnswerRule:
        """How the scores of a model that was trained with this rule (None: unknown) become answers here."""
        return self.answer_rule

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """(image [channels, height, width], counts [classes]), for a torch DataLoader."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of a {self.split} split of {len(self)}")
        batch = self.batch([index % len(self)])
        return batch.images[0], batch.counts[0]


def annotations_in_boxes(
    images: Tensor, boxes: NDArray[np.float32], classes: NDArray[np.int64]
) -> Annotations:
    """Objects known by their boxes [batch, objects, 4] and classes [batch, objects]: each is what lies in its box."""
    near = np.rint(boxes[..., :2]).astype(np.int64)
    far = np.maximum(np.rint(boxes[..., :2] + boxes[..., 2:]).astype(np.int64), near + 1)
    whole = np.concatenate([near, far - near], axis=2)
    whole[classes < 0] = 0
    down, across = (np.arange(length) for length in images.shape[2:])
    columns = (across >= near[..., :1]) & (across < far[..., :1])  # [batch, objects, width]
    rows = (down >= near[..., 1:]) & (down < far[..., 1:])  # [batch, objects, height]
    mask = rows[..., :, None] & columns[..., None, :] & (classes >= 0)[:, :, None, None]
    layers = images[:, None] * torch.from_numpy(mask)[:, :, None]
    return Annotations(layers, torch.from_numpy(whole), torch.from_numpy(classes))


_REGISTRY: dict[str, type[Task]] = {}
_TaskType = TypeVar("_TaskType", bound=type[Task])


def register_task(name: str) -> Callable[[_TaskType], _TaskType]:
    """A class decorator that gives a task its name: `--task NAME` and config files then know it."""

    def register(task: _TaskType) -> _TaskType:
        known = _REGISTRY.get(name, task)
        if (known.__module__, known.__qualname__) != (task.__module__, task.__qualname__):
            raise OcraError(f"There are two tasks named '{name}': {known.__module__} has one as well.")
        _REGISTRY[name] = task
        task.name = name
        return task

    return register


def task_names() -> list[str]:
    """The names of all tasks: those of this package, those registered, those of installed packages."""
    return list(dict.fromkeys([*_REGISTRY, *(entry.name for entry in entry_points(group="ocra.tasks"))]))


def get_task(name: str, *, imports: bool = True) -> type[Task]:
    """The task that was registered under this name, or the class at "package.module:Class".

    Packages offer theirs under the entry point group `ocra.tasks`. Modules are looked for in the working folder too;
    without `imports`, for a name that stood beside somebody's weights, only those that are imported already.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    offered = [entry.value for entry in entry_points(group="ocra.tasks", name=name)]
    place = offered[0] if offered else name
    module, _, attribute = place.partition(":")
    if not attribute:
        raise UsageError(
            f"There is no task '{name}'; choose {', '.join(task_names())}, or package.module:Class."
        )
    if not (imports or offered or module in sys.modules):
        raise UsageError(
            f"The task {name} is not imported because weights name it: if you trust it, name it yourself as the task."
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"The task {place} cannot be imported: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise UsageError(f"{place} is not a subclass of ocra.Task.")
    return found


def task_config(values: str | dict[str, Any], *, from_weights: bool = False) -> TaskConfig:
    """The settings of a task from its name, or from a dictionary with `name` as `TaskConfig.to_dict` makes it.

    Version 0.1 wrote the settings of all its tasks into one object: those of other tasks are left out. Others that
    the task does not have are refused. from_weights: the settings stood beside weights, which may be of a newer
    version (unknown settings are ignored) and of anybody (no module is imported for them).
    """
    if isinstance(values, str):
        return get_task(values).Config()
    if not isinstance(values, dict) or not isinstance(values.get("name", ""), str):
        raise OcraError(f"The settings of a task are a name, or an object with a name, not {values!r}.")
    # A config of version 0.1 that names no task is of the first one.
    kind = get_task(values.get("name") or next(iter(_REGISTRY)), imports=not from_weights).Config
    own = {field.name for field in dataclasses.fields(kind)}
    others = {field.name for task in _REGISTRY.values() for field in dataclasses.fields(task.Config)}
    if (unknown := set(values) - own - others - {"name"}) and not from_weights:
        raise unknown_option(min(unknown), own, "task.")
    return kind(**{name: value for name, value in values.items() if name in own})


def make_task(config: TaskConfig | str, split: str = "train", seed: int = 0) -> Task:
    """The task of these settings or of this name, one split of it, under a seed."""
    config = task_config(config) if isinstance(config, str) else config
    return config.task(config, split, seed)
