"""Varying stored images: random views, contrast and noise, a whole batch at a time."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from ocra.data.random import Bits, integers, random_bits, uniforms

VIEW_DRAWS = 6
LIGHT_DRAWS = 5
_NOISE_TILE = 256


@dataclass(frozen=True)
class View:
    """Where each new image looks in the old one: old = matrix · new + offset, the plain crop −1 … 1."""

    matrix: NDArray[np.float32]
    """[batch, 2, 2]"""
    offset: NDArray[np.float32]
    """[batch, 2]"""


def random_view(
    bits: Bits, zoom_around: tuple[float, float] = (1.06, 0.12), shift: float = 0.12, roam: float = 0.0
) -> View:
    """Small random changes of scale, proportion, place, rotation and slant, from VIEW_DRAWS draws each.

    zoom_around: the mean zoom and how far it may be from that; above 1 the image is made smaller. shift: how far it
    moves, in halves of the image; roam: also by this share of the room that a smaller image leaves.
    """
    chance = 2 * uniforms(bits) - 1
    # More often farther than nearer: the plain crop is tight, and what is cut off at the edge teaches nothing.
    zoom = zoom_around[0] + zoom_around[1] * chance[:, 0]
    moved = (shift + roam * np.maximum(zoom - 1, 0))[:, None] * chance[:, 4:6]
    width, height = zoom * np.exp(0.08 * chance[:, 1]), zoom * np.exp(-0.08 * chance[:, 1])
    angle, slant = 0.12 * chance[:, 2], 0.15 * chance[:, 3]
    cosine, sine = np.cos(angle), np.sin(angle)
    rows = [
        np.stack([width * cosine, width * (slant - sine)], 1),
        np.stack([height * sine, height * cosine], 1),
    ]
    return View(np.stack(rows, axis=1).astype(np.float32), moved.astype(np.float32))


def plain_view(count: int) -> View:
    """Views that change nothing."""
    return View(np.tile(np.eye(2, dtype=np.float32), (count, 1, 1)), np.zeros((count, 2), np.float32))


def view_within(frames: NDArray[np.float32], view: View, size: int) -> View:
    """The same views of a part of each image: frames [batch, 4] (x, y, width, height in pixels of the crop)."""
    half = frames[:, 2:] / np.float32(size)
    middle = (2 * frames[:, :2] + frames[:, 2:]) / np.float32(size) - 1
    return View(half[:, :, None] * view.matrix, half * view.offset + middle)


def look(images: Tensor, view: View, size: tuple[int, int], span: float) -> Tensor:
    """Views [batch, channels, *size] of images [batch, channels, h, w] that are `span` crops wide.

    Written out rather than through affine_grid, whose matrix product may round differently in a larger batch.
    """
    matrix, offset = (torch.from_numpy(part)[..., None, None] / span for part in (view.matrix, view.offset))
    down, across = ((2 * torch.arange(length) + 1) / length - 1 for length in size)
    x, y = across[None, None, :], down[None, :, None]
    rows = [matrix[:, row, 0] * x + matrix[:, row, 1] * y + offset[:, row] for row in range(2)]
    grid = torch.stack(rows, dim=-1)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def move_boxes(
    boxes: NDArray[np.float32], view: View, size: int | NDArray[np.float32]
) -> NDArray[np.float32]:
    """Boxes [batch, objects, 4] (x, y, width, height in pixels) as the views show them, upright.

    size: side of the image in pixels, or its width and height [2].
    """
    near, far = boxes[..., :2], boxes[..., :2] + boxes[..., 2:]
    corners = np.stack(
        [near, far, np.stack([near[..., 0], far[..., 1]], -1), np.stack([far[..., 0], near[..., 1]], -1)]
    )
    back = np.linalg.inv(view.matrix)[:, None]
    relative = corners * (2 / size) - 1 - view.offset[:, None]
    moved = ((back @ relative[..., None])[..., 0] + 1) * (size / 2)
    low, high = moved.min(axis=0), moved.max(axis=0)
    return np.concatenate([low, high - low], axis=-1).astype(np.float32)


def relight(images: Tensor, levels: NDArray[np.float32], bits: Bits, brightness_range: float = 0.3) -> Tensor:
    """Images [batch, channels, height, width] in [0, 1] with random contrast, brightness and noise.

    `levels` [batch, 2] are the tone of each image that contrast does not change, usually its mean, and the standard
    deviation of its values.
    """
    chance = uniforms(bits[:, :3]).astype(np.float32)
    contrast, brightness, noise = torch.from_numpy(chance).T[:, :, None, None, None]
    mean, spread = torch.from_numpy(levels).T[:, :, None, None, None]
    level = mean + brightness_range * (brightness - 0.5)
    images = (images - mean) * (0.5 + 0.8 * contrast) + level
    # In proportion to the image's own contrast, or faint numbers would drown.
    images += 0.25 * spread * noise * _noise(bits[:, 3:5], *images.shape[2:])
    return images.clamp_(0, 1)


def _noise(bits: Bits, height: int, width: int) -> Tensor:
    """Standard normal noise [batch, 1, height, width]: windows of one fixed sheet, for speed."""
    windows = sliding_window_view(_noise_sheet(height, width), (height, width))
    x, y = integers(bits, _NOISE_TILE).T
    return torch.from_numpy(windows[y, x])[:, None]


@lru_cache(maxsize=2)
def _noise_sheet(height: int, width: int) -> NDArray[np.float32]:
    """Normal numbers (by Box and Muller) for windows of height × width at 256 × 256 places."""
    rows, columns = _NOISE_TILE + height, _NOISE_TILE + width
    chance = uniforms(random_bits(0, "noise sheet", np.arange(rows * columns), 2))
    normal = np.sqrt(-2 * np.log1p(-chance[:, 0])) * np.cos(2 * np.pi * chance[:, 1])
    return normal.astype(np.float32).reshape(rows, columns)
