"""A teacher's finger: a loss that draws the windows to the objects for a while; not in the paper."""

from __future__ import annotations

from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from ocra.data.task import Annotations
from ocra.errors import OcraError
from ocra.model.trace import Windows

WHOLE = 0.92
"""Width of the first window, as a share of the image."""
CLOSE = 1.15
"""Width of a close look, as a share of the side of a square as large as the object's box."""
NEAR = 0.3
"""Distance, in sides of that square, up to which the pull grows; further off it is the same everywhere."""
WIDTH_WEIGHT = 0.3
MOST_OBJECTS = 5
"""Every order of the objects is compared with the windows, and 5! are enough."""


def guide_loss(
    windows: Windows, parts: Annotations, image: tuple[int, int], size: int, in_order_over: int = 0
) -> Tensor:
    """How far the read windows are from seeing the whole image first and then each object close by, a scalar.

    The glimpses after the first are shared out among the objects, in the order that costs least, so that the network
    finds its own. With `in_order_over` it is their own order, shared out over that many glimpses, of which there may
    be fewer yet. Glimpses of an object that is missing are free. image: height and width in pixels; size: filters
    along a side of a glimpse.
    """
    whole = _first_look(windows, image, size)
    if windows.stride.shape[1] == 1:
        return whole.mean()
    costs = _close_looks(windows, parts, size)
    _, later, objects = costs.shape
    planned = max(in_order_over - 1, later)
    turns = torch.arange(later) * objects // planned  # whose turn it is at each glimpse
    choices = [tuple(range(objects))] if in_order_over else list(permutations(range(objects)))
    orders = torch.tensor(choices)[:, turns]  # [orders, later]
    by_order = costs[:, torch.arange(later), orders].mean(2)  # [batch, orders]
    return (whole + by_order.amin(1)).mean()


def _first_look(windows: Windows, image: tuple[int, int], size: int) -> Tensor:
    """How far the first window is from the whole image: [batch]."""
    height, width = image
    extent = max(image)
    middle = windows.center.new_tensor([width - 1, height - 1]) / 2
    away = ((windows.center[:, 0] - middle) / extent).square().sum(1)
    return away + (windows.width(size)[:, 0] / (WHOLE * extent)).log().square()


def _close_looks(windows: Windows, parts: Annotations, size: int) -> Tensor:
    """How far each further window is from a close look at each object: [batch, glimpses - 1, objects]."""
    boxes = parts.boxes.to(windows.center.dtype)
    there = parts.classes >= 0
    middle = boxes[:, :, :2] + (boxes[:, :, 2:] - 1) / 2
    side = boxes[:, :, 2:].prod(2).sqrt().clamp(min=1)[:, None]  # [batch, 1, objects]
    way = (windows.center[:, 1:, None] - middle[:, None]) / side[..., None]
    away = F.smooth_l1_loss(way, torch.zeros_like(way), reduction="none", beta=NEAR).sum(3)
    zoom = (windows.width(size)[:, 1:, None] / (CLOSE * side)).log()
    return (away + WIDTH_WEIGHT * zoom.square()) * there[:, None]


def check_guidance(parts: Annotations | None, task: str) -> None:
    """Refuse a task that does not know where its objects are, or has too many of them."""
    if parts is None:
        raise OcraError(
            f"training.guide shows where objects are, which the task {task} does not know; set it to 0."
        )
    if (objects := parts.classes.shape[1]) > MOST_OBJECTS:
        raise OcraError(
            f"training.guide can show up to {MOST_OBJECTS} objects of an image, not {objects}; set it to 0."
        )
