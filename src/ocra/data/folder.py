"""Your own images: a folder with a labels.csv becomes a task."""

from __future__ import annotations

import csv
import os
import unicodedata
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocra.config import AnswerRule
from ocra.data.augment import LIGHT_DRAWS, VIEW_DRAWS, look, random_view, relight
from ocra.data.random import name_number, random_bits, uniforms
from ocra.data.task import SPLITS, Batch, Task, TaskConfig, register_task
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import fit_pixels
from ocra.images.reading import DEEP_WHITE, read_image

TABLE = "labels.csv"
_TEST, _VALIDATION = 0.1, 0.1
_SHOWN = 5
DARK = 0.1
"""A folder of 16-bit images none of which uses more of its range is worth a warning."""


@dataclass(frozen=True)
class Row:
    """One line of labels.csv."""

    line: int
    file: str
    labels: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class FolderConfig(TaskConfig):
    """The settings of a folder task."""

    root: str | None = None
    """The folder that holds labels.csv."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    height: int = 36
    """Height that images are resized and padded to."""
    width: int = 36
    """Width that images are resized and padded to."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes, in order. Default: every label in labels.csv, sorted."""
    augment: bool = True
    """Vary the training images (shift, scale, rotation, contrast, noise)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (1, 3) or min(self.height, self.width) < 1:
            shape = self.channels, self.height, self.width
            raise UsageError(f"The image shape is {shape}; it must be (1 or 3, height, width).")
        if self.class_names is not None:
            names = tuple(unicodedata.normalize("NFC", name) for name in self.class_names)
            object.__setattr__(self, "class_names", names)
            if len(set(names)) < len(names):
                raise UsageError(f"The classes {', '.join(names)} name one twice.")

    def fitted_to(self, image_shape: tuple[int, int, int]) -> FolderConfig:
        channels, height, width = image_shape
        return replace(self, channels=channels, height=height, width=width)


@register_task("folder")
class FolderTask(Task):
    """The images of a folder, with the labels its labels.csv gives them.

    labels.csv has the columns `file` and `labels` (separated by spaces; a label given twice counts twice) and
    may have a column `split` (train, validation or test). Without it a hash of the file's name puts 80 % into
    train, 10 % into validation and 10 % into test, so a file stays in its split when others are added.
    Images are resized, padded with black and held in memory as bytes. Those for training are varied (`augment`).
    It is not known what is where in an image, so there are no annotations.
    """

    Config = FolderConfig
    config: FolderConfig
    title = "The model's own folder"
    about = "A folder of labelled images."
    limits = "Images unlike those of its folder are outside what it learnt."
    stored = True
    private = True

    def __init__(
        self, config: FolderConfig | None = None, split: str = "train", seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(config, split, seed, **settings)
        config = self.config
        if config.root is None:
            raise UsageError("A folder task needs its folder (root): the one that holds labels.csv.")
        self.root = Path(config.root).expanduser()
        self.image_shape = (config.channels, config.height, config.width)
        self.augment = config.augment and split == "train"
        class_names = config.class_names
        rows = read_table(self.root, class_names)
        self.class_names = class_names or tuple(sorted({label for row in rows for label in row.labels}))
        numbers = {len(row.labels) for row in rows}
        repeats = any(len(set(row.labels)) < len(row.labels) for row in rows)
        self.answer_rule = AnswerRule(numbers.pop() if len(numbers) == 1 else None, repeats)
        self.files = tuple(row.file for row in rows if row.split == split)
        if not self.files:
            raise OcraError(
                f"No image of {self.root / TABLE} is in the {split} split. Add more images, or a column "
                f"'split' that says train, validation or test."
            )
        chosen = [row for row in rows if row.split == split]
        self._images = _load_images(self.root, chosen, self.image_shape)
        self._counts = _count_labels(chosen, self.class_names)
        self._levels = np.array([(p.mean() / 255, p.std() / 255) for p in self._images], dtype=np.float32)
        if split == "train":
            _warn_of_unseen(self.root / TABLE, self.class_names, self._counts)

    def __len__(self) -> int:
        return len(self.files)

    def answer_rule_for(self, trained: AnswerRule | None) -> AnswerRule:
        """As trained: how many objects an image has stands in its labels only, and they are what is asked for."""
        return trained or self.answer_rule

    def make(
        self, indices: NDArray[np.int64], *, annotations: bool, single_objects: float, spread: float
    ) -> Batch:
        rows = indices % len(self)
        images = torch.from_numpy(self._images[rows].astype(np.float32) / 255)
        if self.augment:
            bits = random_bits(self.seed, f"folder {self.split}", indices, VIEW_DRAWS + LIGHT_DRAWS)
            images = look(images, random_view(bits[:, :VIEW_DRAWS]), self.image_shape[1:], span=1.0)
            images = relight(images, self._levels[rows], bits[:, VIEW_DRAWS:])
        return Batch(images=images, counts=torch.from_numpy(self._counts[rows]))


def read_table(root: Path, class_names: tuple[str, ...] | None = None) -> list[Row]:
    """The rows of a folder's labels.csv. Bad ones are refused, each named with its line."""
    path = root / TABLE
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = [column.strip().lower() for column in next(lines, [])]
            if header not in (["file", "labels"], ["file", "labels", "split"]):
                raise OcraError(
                    f"{path} line 1 must be `file,labels` or `file,labels,split`, not `{','.join(header)}`."
                )
            table = [(lines.line_num, [cell.strip() for cell in cells]) for cells in lines if any(cells)]
    except FileNotFoundError as error:
        if not root.is_dir():
            raise OcraError(f"The folder {root} does not exist.") from error
        raise OcraError(f"{root} has no {TABLE}: a table with the columns file,labels.") from error
    except UnicodeDecodeError:
        raise OcraError(f"{path} is not in UTF-8; save it as a CSV table in UTF-8.") from None
    except (OSError, csv.Error) as error:
        raise OcraError(f"{path} cannot be read as a table in UTF-8: {error}.") from error
    rows, faults, seen = [], [], dict[str, int]()
    for line, cells in table:
        fault = _fault(root, cells, len(header), class_names, seen)
        if fault:
            faults.append(f"line {line}: {fault}")
            continue
        name = os.path.normpath(cells[0])  # ./1.png is 1.png, and must not be in two splits
        seen[name] = line
        split = cells[2].lower() if len(header) == 3 else _split_of(name)
        rows.append(Row(line, cells[0], _labels(cells[1]), split))
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise OcraError(f"{path} has bad rows. " + "; ".join(faults[:_SHOWN] + more) + ".")
    if not rows:
        raise OcraError(f"{path} lists no images.")
    return rows


def _fault(
    root: Path, cells: list[str], columns: int, class_names: tuple[str, ...] | None, seen: dict[str, int]
) -> str | None:
    """What is wrong with a row, if anything."""
    if len(cells) != columns:
        return f"{len(cells)} cells instead of {columns}"
    file, labels = cells[:2]
    if not file:
        return "no file"
    if (name := os.path.normpath(file)) in seen:
        return f"'{file}' is on line {seen[name]} already"
    if not os.path.isfile(root / file):
        return f"there is no file '{file}'"
    if not labels:
        return f"no labels for '{file}'"
    if class_names and (unknown := [label for label in _labels(labels) if label not in class_names]):
        return f"'{unknown[0]}' is not one of the classes {', '.join(class_names)}"
    if not class_names and ("," in labels or ";" in labels):
        return f"labels are separated by spaces, not as in '{labels}'"
    if columns == 3 and cells[2].lower() not in SPLITS:
        return f"'{cells[2]}' is not a split ({', '.join(SPLITS)})"
    return None


def _labels(cell: str) -> tuple[str, ...]:
    """The labels of a cell; an é is the same however it was typed."""
    return tuple(unicodedata.normalize("NFC", cell).split())


def _split_of(file: str) -> str:
    """The split of a file by a hash of its name, whatever else is in the table."""
    chance = float(uniforms(random_bits(0, "folder split", np.array([name_number(file)]), 1))[0, 0])
    if chance < _TEST:
        return "test"
    return "validation" if chance < _TEST + _VALIDATION else "train"


def _load_images(root: Path, rows: list[Row], image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The rows' images, uint8 [rows, channels, height, width]."""
    images = np.empty((len(rows), *image_shape), dtype=np.uint8)
    lightest = 0.0
    for position, row in enumerate(rows):
        try:
            image = read_image(root / row.file)
        except OcraError as error:
            raise OcraError(f"{root / TABLE} line {row.line}: {error}") from error
        lightest = max(lightest, image.white)
        images[position] = fit_pixels(image.pixels * np.float32(image.white), image_shape)
    if lightest < DARK:
        warnings.warn(
            f"The 16-bit images of {root} hold no value above {round(lightest * DEEP_WHITE)} of {DEEP_WHITE}, so "
            "they are nearly black; scale them all by one factor to the full range.",
            stacklevel=2,
        )
    return images


def _warn_of_unseen(table: Path, class_names: tuple[str, ...], counts: NDArray[np.float32]) -> None:
    """Say which classes no training image shows: they cannot be learned."""
    unseen = [name for name, count in zip(class_names, counts.sum(axis=0), strict=True) if not count]
    if unseen:
        warnings.warn(f"{table}: no training image shows {', '.join(unseen)}.", stacklevel=3)


def _count_labels(rows: list[Row], class_names: tuple[str, ...]) -> NDArray[np.float32]:
    """How often each class is named, [rows, classes]."""
    counts = [Counter(row.labels) for row in rows]
    return np.array([[count[name] for name in class_names] for count in counts], dtype=np.float32)
