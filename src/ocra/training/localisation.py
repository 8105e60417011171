"""Where objects are, found with class labels alone: a network that knows small images is slid over large ones."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.data.task import Annotations, Batch, Task
from ocra.errors import OcraError
from ocra.losses import check_attention_supervision
from ocra.model.weights import load

STEP = 6
"""Pixels between neighbouring crops, in the frame of the small images."""
MOST_CROPS = 40
"""Crops of an image that are looked at: those that hold most."""
CROPS_AT_ONCE = 512
"""One size, so that the network is compiled once."""
OTHERS = 0.5
"""How much the scores of all other classes speak against a place."""
SURE = 0.3
"""A place that scores less is not one to look at."""
SOFTNESS = 0.1
"""Neighbouring places that score so much less still count for much: the object lies between them."""
EVERY = 2
"""Of so many images one is searched: that is enough to learn where to look, and spares half of the time."""


class Localiser:
    """Weights that recognise an object in a small image at the first glimpse, used to find objects in a large one.

    An object of a class that is known to be there is where a crop looks most like that class, and least like all
    others (multiple-instance learning). So no boxes are needed to teach where to look.
    """

    def __init__(
        self, source: str, task: Task, device: str | torch.device = "cpu", compiled: bool = False
    ) -> None:
        self.network = load(source).eval().requires_grad_(False).to(device)
        info, small = self.network.info, self.network.config
        if info is None or info.class_names != tuple(task.class_names) or task.sequence_length:
            raise OcraError(
                f"{source} cannot find the objects of the task {task.name}: its classes are others."
            )
        if small.height != small.width or small.height >= min(task.image_shape[1:]):
            raise OcraError(
                f"{source} takes images of {small.height}×{small.width} pixels; to be slid over those of "
                f"{task.image_shape[1]}×{task.image_shape[2]} they have to be square and smaller."
            )
        self.task_name = task.name
        if compiled:
            self.network.compile_step()

    @torch.no_grad()
    def annotated(self, batch: Batch, enlarged: float = 1.0) -> Batch:
        """The batch with the boxes that were found; objects that were not, and images not searched, have class −1.

        enlarged: how much larger objects are than those the network knows.
        """
        images, counts = batch.images[::EVERY], batch.counts[::EVERY]
        side = self.network.config.height
        if enlarged > 1:
            size = [max(side, round(length / enlarged)) for length in images.shape[2:]]
            images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        crops, places = crops_that_hold_most(images, side)
        scores = self.first_glimpses(crops.flatten(0, 1)).unflatten(0, places.shape[:2])
        centers, classes = find_objects(scores, places, counts, side / 2)
        boxes = torch.cat([centers - (side - 1) / 2, torch.full_like(centers, side)], 2) * enlarged
        boxes[classes < 0] = 0

        shape = len(batch), classes.shape[1]
        all_boxes = torch.zeros(*shape, 4, dtype=torch.int64, device=boxes.device)
        all_classes = torch.full(shape, -1, device=boxes.device)
        all_boxes[::EVERY], all_classes[::EVERY] = boxes.round().long(), classes
        found = Annotations(batch.images[:, None][:, :0], all_boxes, all_classes)  # no layers are known
        check_attention_supervision(found, self.task_name)
        return replace(batch, annotations=found)

    def first_glimpses(self, crops: Tensor) -> Tensor:
        """Scores [n, classes] of small images [n, channels, side, side] after one glimpse."""
        missing = -len(crops) % CROPS_AT_ONCE
        padded = F.pad(crops, (0, 0, 0, 0, 0, 0, 0, missing))
        scores = [self.network.answer(part, 1).scores for part in padded.split(CROPS_AT_ONCE)]
        return torch.cat(scores)[: len(crops)]


def crops_that_hold_most(images: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Up to `MOST_CROPS` crops [batch, n, channels, side, side] of images, and their middles (x, y) [batch, n, 2].

    Those of the largest difference from the tone of the image, which is that of its background.
    """
    tone = images.flatten(2).median(2).values[..., None, None]
    held = (images - tone).abs().sum(1, keepdim=True)
    for window in ((side, 1), (1, side)):
        held = F.avg_pool2d(held, window, stride=1)  # [batch, 1, rows, columns]
    down, across = (_steps(length) for length in held.shape[2:])
    rows, columns = (grid.flatten() for grid in torch.meshgrid(down, across, indexing="ij"))
    most = held[:, 0, rows, columns].topk(min(MOST_CROPS, len(rows))).indices.cpu()  # [batch, n]
    windows = images.unfold(2, side, 1).unfold(3, side, 1)  # [batch, channels, rows, columns, side, side]
    crops = windows[torch.arange(len(images))[:, None], :, rows[most], columns[most]]
    middles = torch.stack([columns[most], rows[most]], 2) + (side - 1) / 2
    return crops, middles.to(images.device)


def _steps(positions: int) -> Tensor:
    """Evenly spaced positions from the first to the last, at most STEP apart."""
    number = math.ceil((positions - 1) / STEP) + 1
    return torch.linspace(0, positions - 1, number).round().long()


def find_objects(scores: Tensor, places: Tensor, counts: Tensor, near: float) -> tuple[Tensor, Tensor]:
    """Where the objects that are known to be there look most like their classes; there is a place for one at least.

    scores: [batch, n, classes] at places (x, y) [batch, n, 2]; counts [batch, classes]. Two of a class lie more than
    `near` apart. Gives middles [batch, objects, 2] and classes [batch, objects], −1 where none was found.
    """
    evidence = (1 + OTHERS) * scores - OTHERS * scores.sum(2, keepdim=True)  # [batch, n, classes]
    known = counts.long()
    image = torch.arange(len(known), device=scores.device)
    centers, classes = [], []
    for _ in range(max(1, int(known.sum(1).max()))):
        label = known.argmax(1)  # any that is left
        there = known[image, label] > 0
        at_places = evidence[image, :, label]  # [batch, n]
        best, at = at_places.max(1)
        close = (places - places[image, at][:, None]).norm(dim=2) <= near
        shares = (at_places / SOFTNESS).masked_fill(~close, -math.inf).softmax(1)
        centers.append((shares[..., None] * places).sum(1))
        classes.append(torch.where(there & (best > SURE), label, -1))
        # Another object of the class is elsewhere.
        evidence[image, :, label] = at_places.masked_fill(close & there[:, None], -1e3)
        known[image, label] -= there.long()
    return torch.stack(centers, 1), torch.stack(classes, 1)
