"""Varying images a whole batch at a time: random views, contrast and noise; and nuisance, for digits that are drawn."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from ocra.data.random import Bits, integers, random_bits, uniforms

Floats = NDArray[np.float32]
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


KINDS = ("contrast", "pedestal", "noise", "blur", "zoom", "pen")
"""What nuisance changes; in an image under nuisance each of them with a chance of a half."""
BLUR_PASSES = 3
"""Of the taps (a, 1 − 2a, a) along each axis: a blur of variance 2a a pass, up to a standard deviation of 1.2."""


@dataclass(frozen=True)
class Nuisance:
    """What does not change which digits an image shows; 1 or 0 where it is as it was."""

    contrast: Floats
    """[batch] 0.3 … 1: ink, relative to what is left above the pedestal"""
    pedestal: Floats
    """[batch] 0 … 0.3: grey of the background"""
    noise: Floats
    """[batch] 0 … 0.15: standard deviation of Gaussian noise, relative to the contrast"""
    blur: Floats
    """[batch] 0 … 1.2: standard deviation of the blur in pixels"""
    zoom: Floats
    """[batch, objects] 0.8 … 1.2: size of each digit"""
    pen: Floats
    """[batch, objects] −0.5 … 0.8: thinner or thicker strokes, see `change_pen`"""
    places: Bits
    """[batch, 2] where the noise is taken from"""


def random_nuisance(
    seed: int, stream: str, indices: NDArray[np.integer], objects: int, share: float
) -> Nuisance:
    """Nuisance for a share of the images."""
    bits = random_bits(seed, f"{stream} nuisance", indices, 7 + len(KINDS) + 2 * objects)
    chance = uniforms(bits).astype(np.float32)
    under = chance[:, :1] < share
    on = dict(zip(KINDS, (under & (chance[:, 1 : 1 + len(KINDS)] < 0.5)).T, strict=True))
    contrast, pedestal, noise, blur = chance[:, 7:11].T
    zoom, pen = chance[:, 13::2], chance[:, 14::2]
    none, as_it_is = np.float32(0), np.float32(1)
    return Nuisance(
        np.where(on["contrast"], 0.3 + 0.7 * contrast, as_it_is),
        np.where(on["pedestal"], 0.3 * pedestal, none),
        np.where(on["noise"], 0.15 * noise, none),
        np.where(on["blur"], 1.2 * blur, none),
        np.where(on["zoom"][:, None], 0.8 + 0.4 * zoom, as_it_is),
        np.where(on["pen"][:, None], 1.3 * pen - 0.5, none),
        bits[:, 11:13],
    )


def change_pen(digits: Tensor, pen: Floats) -> Tensor:
    """Digits [n, 28, 28] of thicker strokes by pen [n]: at 1 a pixel is the brightest of its 3×3, at −1 the darkest."""
    size = torch.from_numpy(pen)[:, None, None]
    wide = F.max_pool2d(digits[:, None], 3, 1, 1)[:, 0]
    thin = -F.max_pool2d(-digits[:, None], 3, 1, 1)[:, 0]
    return digits + size.clamp(min=0) * (wide - digits) + (-size).clamp(min=0) * (thin - digits)


def place_digits(digits: Tensor, corners: NDArray[np.number], sizes: NDArray[np.number], side: int) -> Tensor:
    """Digits [n, h, h], each scaled to its size [n] with its corner (x, y) at corners [n, 2]: [n, side, side]."""
    from_corner = torch.arange(side) + 0.5 - torch.from_numpy(corners.astype(np.float32))[..., None]
    at = 2 * from_corner / torch.from_numpy(sizes.astype(np.float32))[:, None, None] - 1  # [n, 2, side]
    across, down = at[:, 0, None].expand(-1, side, -1), at[:, 1, :, None].expand(-1, -1, side)
    return F.grid_sample(digits[:, None], torch.stack([across, down], dim=-1), align_corners=False)[:, 0]


def degrade(images: Tensor, nuisance: Nuisance) -> Tensor:
    """Images [batch, 1, height, width] of bright ink on black, blurred, fainter, on a pedestal, in noise."""
    contrast, pedestal, noise, blur = (
        torch.from_numpy(part)[:, None, None, None]
        for part in (nuisance.contrast, nuisance.pedestal, nuisance.noise, nuisance.blur)
    )
    images = images.clone()
    if (chosen := nuisance.blur > 0).any():
        images[chosen] = _blurred(images[chosen], blur[chosen])
    images *= contrast * (1 - pedestal)
    images += pedestal
    if (chosen := nuisance.noise > 0).any():
        images[chosen] += (contrast * noise)[chosen] * _noise(nuisance.places[chosen], *images.shape[2:])
    return images.clamp_(0, 1)


def _blurred(images: Tensor, deviation: Tensor) -> Tensor:
    """Images blurred by a standard deviation [batch, 1, 1, 1] of up to 1.2 pixels each; their edges go on outside."""
    weight = deviation.square() / (2 * BLUR_PASSES)
    for _ in range(BLUR_PASSES):
        wide = F.pad(images, (1, 1, 0, 0), mode="replicate")
        images = images + weight * (wide[..., :-2] + wide[..., 2:] - 2 * images)
        high = F.pad(images, (0, 0, 1, 1), mode="replicate")
        images = images + weight * (high[..., :-2, :] + high[..., 2:, :] - 2 * images)
    return images
