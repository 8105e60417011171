"""Twenty-one ways to make an image hard to see, each by severity: the kinds of MNIST-C, and what psychophysics uses.

MNIST-C (Mu and Gilmer 2019) fixes one severity for each of its fifteen corruptions on 28×28 pixels. These are our
own versions of the same kinds, for images of any size and severities from 0 (nothing) to 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ocra.data.random import integers, random_bits, uniforms
from ocra.errors import UsageError

Floats = NDArray[np.float64]
MOST = 5.0
USUAL_SEVERITY = 3.0


class Draws:
    """Random numbers of one trial: a pure function of (seed, trial, name), whatever else is drawn."""

    def __init__(self, seed: int, trial: int) -> None:
        self.seed, self.trial = seed, trial

    def uniform(self, name: str, *shape: int) -> Floats:
        """Real numbers in [0, 1), of any shape."""
        bits = random_bits(self.seed, f"lab {name}", np.array([self.trial]), math.prod(shape))
        return uniforms(bits)[0].reshape(shape)

    def number(self, name: str) -> float:
        """One real number in [0, 1)."""
        return float(self.uniform(name, 1)[0])

    def integer(self, name: str, limit: int) -> int:
        """A whole number from 0 to limit − 1."""
        return int(integers(random_bits(self.seed, f"lab {name}", np.array([self.trial]), 1), limit)[0, 0])

    def normal(self, name: str, *shape: int) -> Floats:
        """Standard normal numbers (Box and Muller)."""
        one, two = self.uniform(name, 2, *shape)
        return np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * two)


def check_corruption(kind: str | None, severity: float | None = None) -> None:
    """Refuse a corruption that there is not, or a severity out of range."""
    if kind is not None and not (isinstance(kind, str) and kind in CORRUPTIONS):
        raise UsageError(f"There is no corruption {kind!r}; choose one of {', '.join(CORRUPTIONS)}.")
    number = isinstance(severity, int | float) and not isinstance(severity, bool)
    if severity is not None and not (number and 0 <= severity <= MOST):
        raise UsageError(f"The severity of a corruption goes from 0 to {MOST:g}, not {severity!r}.")


def corrupt(image: Floats, kind: str, severity: float, draws: Draws) -> Floats:
    """An image [height, width] in [0, 1] with a corruption of a severity from 0 (none) to 5; the same shape."""
    check_corruption(kind, severity)
    if severity == 0:
        return image
    return CORRUPTIONS[kind](image, severity / MOST, draws).clip(0, 1)


def corrupted(images: Tensor, kind: str, severity: float, seed: int, indices: NDArray[np.integer]) -> Tensor:
    """Images [batch, channels, height, width] with a corruption, image i as its seed and index say."""
    changed = np.empty(images.shape, np.float32)
    for into, image, index in zip(changed, images.double().numpy(), indices.tolist(), strict=True):
        for channel, plane in enumerate(image):
            into[channel] = corrupt(plane, kind, severity, Draws(seed, index))
    return torch.from_numpy(changed)


def gaussian(image: Floats, amount: float, draws: Draws) -> Floats:
    """Each pixel gets noise of its own, standard deviation up to 0.5."""
    return image + 0.5 * amount * draws.normal("gaussian", *image.shape)


def shot_noise(image: Floats, amount: float, draws: Draws) -> Floats:
    """Few photons: each pixel is a Poisson count, 60 photons for white down to 3."""
    photons = 60 * (3 / 60) ** amount
    chance, mean = draws.uniform("shot", *image.shape), image * photons
    share = np.exp(-mean)  # of counts up to k
    below, count = share.copy(), np.zeros_like(image)
    for k in range(1, int(photons * 4) + 8):
        count += chance > below
        share = share * mean / k
        below = below + share
    return count / photons


def impulse_noise(image: Floats, amount: float, draws: Draws) -> Floats:
    """Salt and pepper: up to 40 % of the pixels are white or black."""
    chance = draws.uniform("impulse", *image.shape) / (0.4 * amount)
    return np.where(chance < 0.5, 0.0, np.where(chance < 1, 1.0, image))


def blur(image: Floats, amount: float, draws: Draws) -> Floats:
    """A Gaussian of a standard deviation up to 3 pixels."""
    return smoothed(image, 3 * amount)


def glass_blur(image: Floats, amount: float, draws: Draws) -> Floats:
    """Each pixel is taken from up to 4 pixels away, as behind frosted glass."""
    reach = 4 * amount
    rows, columns = np.indices(image.shape)
    jumps = np.rint((2 * draws.uniform("glass", 2, *image.shape) - 1) * reach).astype(int)
    moved = image[
        (rows + jumps[0]).clip(0, image.shape[0] - 1), (columns + jumps[1]).clip(0, image.shape[1] - 1)
    ]
    return smoothed(moved, 0.5)


def motion_blur(image: Floats, amount: float, draws: Draws) -> Floats:
    """The camera moved by up to 12 pixels in one direction."""
    angle, length = np.pi * draws.number("motion"), 12 * amount
    steps = np.linspace(-0.5, 0.5, 25) * length
    turned = [transformed(image, shift=(step * np.cos(angle), step * np.sin(angle))) for step in steps]
    return np.mean(turned, axis=0)


def shear(image: Floats, amount: float, draws: Draws) -> Floats:
    """Rows slide to one side by up to 0.8 of their height above the middle."""
    return transformed(image, shear=0.8 * amount * _sign(draws, "shear"))


def scale(image: Floats, amount: float, draws: Draws) -> Floats:
    """Down to half the size, about the middle of the image."""
    return transformed(image, scale=1 - 0.5 * amount)


def rotate(image: Floats, amount: float, draws: Draws) -> Floats:
    """By up to 60 degrees to one side."""
    return transformed(image, degrees=60 * amount * _sign(draws, "rotate"))


def brightness(image: Floats, amount: float, draws: Draws) -> Floats:
    """Everything lighter by up to 0.8."""
    return image + 0.8 * amount


def contrast(image: Floats, amount: float, draws: Draws) -> Floats:
    """Ink fainter, down to a twentieth."""
    return image * (1 - 0.95 * amount)


def translate(image: Floats, amount: float, draws: Draws) -> Floats:
    """By up to a quarter of the image's side in any direction; what leaves the image is lost."""
    angle, length = 2 * np.pi * draws.number("translate"), 0.25 * amount * max(image.shape)
    return transformed(image, shift=(length * np.cos(angle), length * np.sin(angle)))


def stripe(image: Floats, amount: float, draws: Draws) -> Floats:
    """A stripe down the middle, up to 60 % of the width, in which light and dark change places."""
    width = image.shape[1]
    half = round(0.3 * amount * width)
    turned = image.copy()
    inside = slice(width // 2 - half, width // 2 + half)
    turned[:, inside] = 1 - turned[:, inside]
    return turned


def fog(image: Floats, amount: float, draws: Draws) -> Floats:
    """Uneven light in front of everything, of up to 0.9, with less contrast behind it."""
    haze, weight = np.zeros_like(image), 0.0
    for octave in range(2, 6):
        coarse = torch.from_numpy(draws.uniform(f"fog {octave}", 1, 1, 2**octave, 2**octave))
        fine = F.interpolate(coarse, size=image.shape, mode="bilinear", align_corners=True)[0, 0].numpy()
        haze, weight = haze + fine / 2**octave, weight + 1 / 2**octave
    haze = haze / weight
    haze = (haze - haze.min()) / max(float(np.ptp(haze)), 1e-9)
    return image * (1 - 0.5 * amount) + 0.9 * amount * haze


def spatter(image: Floats, amount: float, draws: Draws) -> Floats:
    """Blobs of grey, on up to 30 % of the image."""
    field = smoothed(draws.normal("spatter", *image.shape), 1.2)
    return np.where(field > np.quantile(field, 1 - 0.3 * amount), 0.6, image)


def dotted_line(image: Floats, amount: float, draws: Draws) -> Floats:
    """Up to five dotted lines across the image."""
    ends = draws.uniform("dotted", 5, 2)
    return np.maximum(image, _lines(image.shape, ends[: math.ceil(5 * amount)], dotted=True))


def zigzag(image: Floats, amount: float, draws: Draws) -> Floats:
    """Up to five zigzag lines across the image."""
    ends = draws.uniform("zigzag", 5, 2)
    return np.maximum(image, _lines(image.shape, ends[: math.ceil(5 * amount)], dotted=False))


def canny_edges(image: Floats, amount: float, draws: Draws) -> Floats:
    """Outlines in place of strokes: at full severity nothing else is left."""
    smooth = smoothed(image, 1.0)
    down, across = np.gradient(smooth)
    strength = np.hypot(down, across)
    # An edge is where the slope is steepest along its own direction.
    sector = np.rint(np.arctan2(down, across) / (np.pi / 4)).astype(int) % 4
    padded, edge = np.pad(strength, 1), np.zeros(image.shape, dtype=bool)
    height, width = image.shape
    for k, (dy, dx) in enumerate([(0, 1), (1, 1), (1, 0), (1, -1)]):
        ahead = padded[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        behind = padded[1 - dy : 1 - dy + height, 1 - dx : 1 - dx + width]
        edge |= (sector == k) & (strength >= ahead) & (strength > behind)
    outline = (edge & (strength > 0.08)).astype(float)
    return (1 - amount) * image + amount * outline


def pixelation(image: Floats, amount: float, draws: Draws) -> Floats:
    """Coarser pixels, up to 7 pixels wide, each the mean of what it covers."""
    height, width = (max(2, round(side / (1 + 6 * amount))) for side in image.shape)
    means = F.adaptive_avg_pool2d(torch.from_numpy(image)[None, None], (height, width))
    return F.interpolate(means, size=image.shape, mode="nearest")[0, 0].numpy()


def occluders(image: Floats, amount: float, draws: Draws) -> Floats:
    """Black squares, a sixth of the image wide, up to ten of them."""
    side = max(1, round(max(image.shape) / 6))
    covered = image.copy()
    places = draws.uniform("occluders", 10, 2)[: math.ceil(10 * amount)]
    for down, across in (places * (np.array(image.shape) - side)).astype(int):
        covered[down : down + side, across : across + side] = 0
    return covered


Corruption = Callable[[Floats, float, Draws], Floats]
MNIST_C: dict[str, Corruption] = {
    function.__name__.replace("_", "-"): function
    for function in (
        shot_noise, impulse_noise, glass_blur, motion_blur, shear, scale, rotate, brightness, translate, stripe, fog,
        spatter, dotted_line, zigzag, canny_edges,
    )
}  # fmt: skip
"""The fifteen kinds of MNIST-C."""
CORRUPTIONS: dict[str, Corruption] = {
    **MNIST_C,
    "gaussian": gaussian,
    "blur": blur,
    "contrast": contrast,
    "pixelation": pixelation,
    "occluders": occluders,
    "salt-and-pepper": impulse_noise,
}


def smoothed(image: Floats, sigma: float) -> Floats:
    """Blurred by a Gaussian, the edge going on beyond the image."""
    if sigma <= 0:
        return image
    reach = max(1, math.ceil(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        padded = np.pad(image, [(reach, reach) if a == axis else (0, 0) for a in (0, 1)], mode="edge")
        image = np.apply_along_axis(np.convolve, axis, padded, weights, mode="valid")
    return image


def transformed(
    image: Floats,
    *,
    degrees: float = 0.0,
    scale: float = 1.0,
    shear: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    size: tuple[int, int] | None = None,
) -> Floats:
    """Turned clockwise, scaled and sheared about the middle, then shifted by (x, y); black comes in from outside.

    size: height and width of what comes out, about the same middle; that of the image if not given.
    """
    height, width = size or image.shape
    turn = np.deg2rad(degrees)
    forth = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    back = np.linalg.inv(forth @ np.array([[1, shear], [0, 1]]))
    down, across = np.indices((height, width)).astype(float)
    places = np.stack([across - (width - 1) / 2 - shift[0], down - (height - 1) / 2 - shift[1]], axis=-1)
    x, y = np.moveaxis(places @ back.T, -1, 0)
    # grid_sample with align_corners counts from −1 at the centre of the first pixel to 1 at that of the last.
    grid = np.stack([2 * x / (image.shape[1] - 1), 2 * y / (image.shape[0] - 1)], axis=-1)
    sampled = F.grid_sample(
        torch.from_numpy(image)[None, None], torch.from_numpy(grid)[None], align_corners=True
    )
    return sampled[0, 0].numpy()


def _sign(draws: Draws, name: str) -> float:
    return 1.0 if draws.number(name) < 0.5 else -1.0


def _lines(shape: tuple[int, ...], ends: Floats, dotted: bool) -> Floats:
    """White lines from the left edge to the right one; ends [lines, 2] are their heights, from 0 to 1."""
    height, width = shape
    drawing = Image.new("L", (width, height))
    pen = ImageDraw.Draw(drawing)
    for left, right in ends * (height - 1):
        xs = np.linspace(0, width - 1, 13)
        ys = np.linspace(left, right, 13)
        if dotted:
            for x, y in zip(np.linspace(0, width - 1, 19), np.linspace(left, right, 19), strict=True):
                pen.point((round(x), round(y)), fill=255)
        else:
            ys[1::2] += height / 18
            ys[2::2] -= height / 18
            pen.line([(float(x), float(y)) for x, y in zip(xs, ys, strict=True)], fill=255)
    return np.asarray(drawing, dtype=float) / 255
