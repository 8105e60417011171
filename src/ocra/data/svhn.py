"""SVHN: whole house numbers of one to five digits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.config import AnswerRule, Preprocessing
from ocra.data.augment import (
    LIGHT_DRAWS,
    VIEW_DRAWS,
    look,
    move_boxes,
    plain_view,
    random_view,
    relight,
    view_within,
)
from ocra.data.random import Bits, Ints, integers, permutation, random_bits, uniforms
from ocra.data.svhn_archive import AFTER, BEFORE, LONGEST, SIZE, WIDE_SPAN, PreparedNumbers, prepared_numbers
from ocra.data.task import (
    NO_DIGIT,
    Batch,
    DataSource,
    Task,
    TaskConfig,
    annotations_in_boxes,
    register_task,
)
from ocra.errors import UsageError

VALIDATION_NUMBERS = 3_000
SINGLE_DRAWS = 2


@dataclass(frozen=True)
class SVHNConfig(TaskConfig):
    """The settings of the house numbers."""

    root: str | None = None
    """Folder with the archives. Default: $OCRA_DATA, then the cache folder."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    augment: bool = True
    """Vary the training images (shift, scale, rotation, contrast, noise)."""
    extra: bool = False
    """Train on the 'extra' archive as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels not in (1, 3):
            raise UsageError(f"channels is {self.channels}; SVHN comes in grey (1) or colour (3).")

    @property
    def source(self) -> DataSource:
        return DataSource(
            f"Trained on the train set{' and the extra set' if self.extra else ' only'}; a part of it serves "
            "validation, and the official test set gives the figures below.",
            "other",
            "**For non-commercial use only**, as the data set is: Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, "
            "A. Y. Ng, *Reading Digits in Natural Images with Unsupervised Feature Learning*, 2011. The program is "
            "under the MIT licence.",
            ("ufldl-stanford/svhn",),
        )


@register_task("svhn")
class SVHN(Task):
    """House numbers cropped to their digits, 64×64, inverted; labels as in the paper.

    Validation is 3,000 numbers held out of the official train set, test the official test set. Training images are
    varied (`augment`): an image's number picks the variation. An image that is to show a single object is cut down
    to one of the number's digits. The crop uses the true digit boxes, for test images too: figures on it do not
    include finding the number.
    """

    Config = SVHNConfig
    config: SVHNConfig
    title = "House numbers"
    about = (
        "Street View House Numbers, format 1: numbers of one to five digits, cropped by the true boxes of their "
        "digits (at test time too), grey, inverted, 64×64 pixels. Training images are varied: shift, scale, "
        "rotation, contrast, noise, margin of the crop."
    )
    limits = "It expects a crop close around the number: it does not find a number in a street scene."
    drawing_hint = "Draw a number"
    pen_width = 0.09
    stored = True
    sequence_length = LONGEST
    preprocessing = Preprocessing("stretch", "inverted")
    class_names = (*"0123456789", "<5", "<4", "<3", "<2")
    answer_rule = AnswerRule(None, repeats=False)
    """A digit is present or absent; how often it occurs only the sequence tells."""

    def open(self) -> None:
        self.augment = self.config.augment and self.split == "train"
        self.image_shape = (self.config.channels, SIZE, SIZE)
        self._rows = self._choose_rows([len(numbers) for numbers in self.numbers])

    @property
    def numbers(self) -> list[PreparedNumbers]:
        """The prepared archives; looked up, not kept, so that a copy sent to a worker process is small."""
        parts = ["test"] if self.split == "test" else ["train"]
        parts += ["extra"] if self.config.extra and self.split == "train" else []
        return [prepared_numbers(part, self.config.root, self.config.channels) for part in parts]

    def _choose_rows(self, lengths: list[int]) -> Ints:
        """The rows of this split, in its order, counted through all archives; the same under every seed."""
        if self.split == "test":
            return np.arange(lengths[0])
        shuffled = permutation(0, "svhn validation", lengths[0])
        held_out = min(VALIDATION_NUMBERS, lengths[0] // 10)
        if self.split == "validation":
            return shuffled[len(shuffled) - held_out :]
        rows = np.concatenate([shuffled[: len(shuffled) - held_out], np.arange(lengths[0], sum(lengths))])
        return rows[permutation(0, "svhn order", len(rows))]

    def __len__(self) -> int:
        return len(self._rows)

    def make(self, indices: Ints, *, annotations: bool, single_objects: float, spread: float) -> Batch:
        rows = self._rows[indices % len(self)]
        digits, boxes = self._gather("digits", rows), self._gather("boxes", rows)
        bits = random_bits(self.seed, f"svhn {self.split}", indices, VIEW_DRAWS + LIGHT_DRAWS + SINGLE_DRAWS)
        view = random_view(bits[:, :VIEW_DRAWS]) if self.augment else plain_view(len(rows))
        alone = uniforms(bits[:, -1]) < single_objects
        if alone.any():
            digits, boxes, frames = cut_to_one_digit(digits, boxes, alone, bits[:, -2])
            view = view_within(frames, view, SIZE)
        if self.augment:
            views = look(_inverted(self._gather("wide", rows)), view, (SIZE, SIZE), WIDE_SPAN)
            light = bits[:, VIEW_DRAWS : VIEW_DRAWS + LIGHT_DRAWS]
            images = relight(views, self._gather("levels", rows), light)
        else:
            images = _inverted(self._gather("images", rows))
            if alone.any():
                close = look(images, view, (SIZE, SIZE), 1)
                images[torch.from_numpy(alone)] = close[torch.from_numpy(alone)]
        if annotations:
            moved = (alone | self.augment)[:, None, None]
            boxes = np.where(moved, move_boxes(boxes, view, SIZE), boxes)
        return Batch(
            images=images,
            counts=class_targets(digits),
            sequence=torch.from_numpy(digits),
            annotations=annotations_in_boxes(images, boxes, np.where(digits == NO_DIGIT, -1, digits))
            if annotations
            else None,
        )

    def _gather(self, field: str, rows: Ints) -> NDArray:
        """The rows of a field, from whichever archive has each."""
        archives = [getattr(numbers, field) for numbers in self.numbers]
        gathered = np.empty((len(rows), *archives[0].shape[1:]), archives[0].dtype)
        for archive, end in zip(archives, np.cumsum([len(archive) for archive in archives]), strict=True):
            here = (rows >= end - len(archive)) & (rows < end)
            gathered[here] = archive[rows[here] - end]  # counted from the archive's end
        return gathered


def cut_to_one_digit(
    digits: Ints, boxes: NDArray[np.float32], alone: NDArray[np.bool_], bits: Bits
) -> tuple[Ints, NDArray[np.float32], NDArray[np.float32]]:
    """Cut a number down to one of its digits where `alone` [batch] says so.

    Returns digits [batch, 5], boxes [batch, 5, 4] and frames [batch, 4]: what is to be seen of each crop, the
    digit with the margin that a number of one digit has, or all of it.
    """
    which = integers(bits, (digits != NO_DIGIT).sum(axis=1))
    chosen = np.arange(len(digits)), which
    box = boxes[chosen]
    frames = np.concatenate([box[:, :2] - BEFORE * box[:, 2:], (BEFORE + AFTER) * box[:, 2:]], axis=1)
    one, its_box = np.full_like(digits, NO_DIGIT), np.zeros_like(boxes)
    one[:, 0], its_box[:, 0] = digits[chosen], box
    whole = np.array([0, 0, SIZE, SIZE], dtype=np.float32)
    return (
        np.where(alone[:, None], one, digits),
        np.where(alone[:, None, None], its_box, boxes),
        np.where(alone[:, None], frames, whole).astype(np.float32),
    )


def _inverted(images: NDArray[np.uint8]) -> Tensor:
    """(255 − v) / 255, float32."""
    return torch.from_numpy(np.multiply(255 - images, np.float32(1 / 255), dtype=np.float32))


def class_targets(digits: Ints) -> Tensor:
    """The 14 targets [batch, 14] of digits [batch, 5] (10 = none).

    Digits 0–9 are present or absent, not counted; then: fewer than 5 digits, fewer than 4, 3, 2.
    """
    present = (digits[:, :, None] == np.arange(10)).any(axis=1)
    length = (digits != NO_DIGIT).sum(axis=1, keepdims=True)
    shorter = length < np.arange(LONGEST, 1, -1)
    return torch.from_numpy(np.concatenate([present, shorter], axis=1).astype(np.float32))
