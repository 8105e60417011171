"""Cluttered MNIST: digits anywhere on a large canvas, among fragments of other digits."""

import os
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from ocra.data.compose import ComposedTask, blank, digit_parts, paste, places_within, reach_within, to_images
from ocra.data.digits import DIGIT_SIZE
from ocra.data.random import Bits, integers, random_bits, uniforms
from ocra.data.task import Annotations, Batch, count_classes
from ocra.errors import UsageError


class ClutteredMNIST(ComposedTask):
    """Two digits, wholly inside 100×100 pixels, classes may repeat, and six 8×8 fragments of random digits.

    Every digit of the split is the first digit of 3 pictures (162 k train, 18 k validation, 30 k test). Ink
    adds up and is clipped at 1. The parts of a sample are its digits; the fragments belong to no part. Below a
    spread of 1 the digits lie near the middle, and that part alone is shown, enlarged to the whole picture.
    """

    name = "cluttered"
    images_per_digit = 3

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        split: str = "train",
        digits: str = "mnist",
        size: int = 100,
        objects: int = 2,
        distractors: int = 6,
        distractor_size: int = 8,
        seed: int = 0,
        download: bool = False,
        parts: bool = False,
    ) -> None:
        if size < DIGIT_SIZE:
            raise UsageError(f"size is {size}; a picture must hold a digit of {DIGIT_SIZE} pixels.")
        if objects < 1 or distractors < 0 or objects + distractors > 250:
            raise UsageError(
                f"{objects} objects and {distractors} distractors: 1 to 250 objects in all, please."
            )
        if not 1 <= distractor_size <= DIGIT_SIZE:
            raise UsageError(
                f"distractor_size is {distractor_size}; it must be from 1 to {DIGIT_SIZE} pixels."
            )
        super().__init__(root, split, digits, seed, download, parts)
        self.image_shape = (1, size, size)
        self.size, self.objects = size, objects
        self.distractors, self.distractor_size = distractors, distractor_size

    def make_within(self, indices: NDArray[np.int64], parts: bool, single: float, spread: float) -> Batch:
        pool = self.pool
        stream = f"cluttered {self.split}"
        bits = random_bits(self.seed, stream, indices, 1 + 3 * self.objects)
        chosen = integers(bits[:, 1::3], len(pool))
        chosen[:, 0] = indices % len(pool)
        places = places_within(
            np.stack([bits[:, 2::3], bits[:, 3::3]], axis=2), self.size - DIGIT_SIZE, spread
        )
        classes = pool.labels[chosen]
        classes[uniforms(bits[:, 0]) < single, 1:] = -1

        canvas = blank(len(indices), self.size, self.size)
        layers = []
        for position in range(self.objects):
            patches = pool.images[chosen[:, position]]
            patches[classes[:, position] < 0] = 0
            x, y = places[:, position].T
            paste(canvas, patches, x, y)
            if parts:
                layers.append(blank(len(indices), self.size, self.size))
                paste(layers[-1], patches, x, y)
        self._add_clutter(canvas, random_bits(self.seed, stream + " clutter", indices, 5 * self.distractors))
        batch = Batch(
            images=to_images(canvas[:, None]),
            counts=count_classes(classes, len(self.class_names)),
            parts=digit_parts(np.stack(layers, axis=1), places, classes) if parts else None,
        )
        return batch if spread == 1 else self._enlarged(batch, spread)

    def _enlarged(self, batch: Batch, spread: float) -> Batch:
        """Show the middle, where the digits of this spread lie, as large as the whole picture."""
        start, last = reach_within(self.size - DIGIT_SIZE, spread)
        inside = slice(start, last + DIGIT_SIZE)

        def enlarge(pictures: Tensor) -> Tensor:
            return F.interpolate(pictures[..., inside, inside], size=(self.size, self.size), mode="bilinear")

        parts = batch.parts
        if parts is not None:
            shift = torch.tensor([start, start, 0, 0])
            boxes = ((parts.boxes - shift) * (self.size / (inside.stop - start))).round().long()
            boxes[parts.classes < 0] = 0
            parts = Annotations(enlarge(parts.layers[:, :, 0])[:, :, None], boxes, parts.classes)
        return replace(batch, images=enlarge(batch.images), parts=parts)

    def _add_clutter(self, canvas: NDArray[np.uint16], bits: Bits) -> None:
        """Add the fragments to canvases [batch, size, size], five draws [batch, 5 · distractors] for each."""
        extent = self.distractor_size
        fragments = sliding_window_view(self.pool.images, (extent, extent), axis=(1, 2))
        for draws in np.split(bits, self.distractors, axis=1) if self.distractors else []:
            digit = integers(draws[:, 0], len(self.pool))
            from_y, from_x = integers(draws[:, 1:3], DIGIT_SIZE - extent + 1).T
            to_x, to_y = integers(draws[:, 3:5], self.size - extent + 1).T
            paste(canvas, fragments[digit, from_y, from_x], to_x, to_y)
