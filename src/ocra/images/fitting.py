"""From anybody's image to what a model was trained on, step by step, each step kept to be looked at.

What is done is the `Preprocessing` of the model's task. For handwriting: dark ink on paper is turned around, the
light evened out, the ink found and given the size that digits have in training, its strokes a width the model knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ocra.config import NetworkConfig, Preprocessing
from ocra.errors import OcraError
from ocra.images.handwriting import (
    even_light,
    find_ink,
    is_noise,
    largest_part,
    noise_level,
    stroke_width,
    thicken,
)
from ocra.images.reading import UserImage

Invert = Literal["auto", "yes", "no"]
Fit = Literal["auto", "content", "whole", "stretch"]
Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]
"""Left, top, right, bottom; the last two exclusive."""

GREY = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
"""Shares of red, green and blue in grey."""
STROKE_SHARE = 0.14
"""Width of a stroke as a share of the digit's height, as measured on MNIST."""
INK_MARGIN = 1 / 12
"""Share of the model's image that stays free on each side of the ink."""
# An image whose lightest and darkest places differ by less shows nothing.
LEAST_CONTRAST = 0.02
LEAST_SIDE = 64
"""Pixels from which on an image may be a photograph, with uneven light and noise."""
SHOWN_SIDE = 320
FINE = 8
"""Pixels along one of the model's in which strokes are measured and thickened."""


@dataclass(frozen=True)
class Step:
    """One step of the preparation, to be looked at."""

    name: str
    pixels: NDArray[np.uint8]
    """[rows, columns] or [rows, columns, 3]"""
    note: str = ""
    box: tuple[float, float, float, float] | None = None
    """Left, top, right, bottom of what was found, in pixels of `pixels`."""


@dataclass(frozen=True)
class Placement:
    """Where the model's pixels lie in the user's image: user = scale · model + offset.

    Both count from 0 at the centre of the top left pixel.
    """

    scale: tuple[float, float] = (1.0, 1.0)
    """Pixels of the user's image per pixel of the model, along x and y."""
    offset: tuple[float, float] = (0.0, 0.0)
    """Position of the model's first pixel in the user's image."""

    def to_source(self, x: float, y: float) -> tuple[float, float]:
        """A place in the user's image from one in the model's image."""
        return self.scale[0] * x + self.offset[0], self.scale[1] * y + self.offset[1]

    def to_model(self, x: float, y: float) -> tuple[float, float]:
        """A place in the model's image from one in the user's image."""
        return (x - self.offset[0]) / self.scale[0], (y - self.offset[1]) / self.scale[1]


@dataclass(frozen=True)
class Prepared:
    """An image made fit for a model."""

    image: Tensor
    """float32 [channels, height, width] in [0, 1]"""
    placement: Placement
    source: UserImage
    steps: tuple[Step, ...]
    blank: bool
    """Whether the image is one even tone, so that there is nothing to recognise."""


def prepare(
    source: UserImage,
    config: NetworkConfig,
    preprocessing: Preprocessing,
    *,
    invert: Invert = "auto",
    fit: Fit = "auto",
) -> Prepared:
    """Make an image fit for a model of this config whose task prepares images in this way.

    invert: turn light and dark around; `auto` does so as the task does (handwriting: when the border is light).
    fit: `content` scales the ink to the size of training digits, `whole` shows all of the image with its proportions
    kept, `stretch` fills the model's image; `auto` takes what suits the task, and leaves an image that has the model's
    size already as it is, but for inverting it.
    """
    if invert not in ("auto", "yes", "no"):
        raise OcraError(f"invert must be auto, yes or no, not '{invert}'.")
    if fit not in ("auto", "content", "whole", "stretch"):
        raise OcraError(f"fit must be auto, content, whole or stretch, not '{fit}'.")
    as_it_is = fit == "auto" and (source.width, source.height) == (config.width, config.height)
    if fit == "auto":
        fit = "whole" if as_it_is else preprocessing.fit
    steps = [_step("as read", np.atleast_3d(source.pixels), f"{source.width} × {source.height} px")]
    own = source.pixels
    if preprocessing.ink == "contrast":
        own = contrast_with_border(own, config.channels)
        steps.append(_step("difference from the border's tone", np.atleast_3d(own)))
    pixels = _in_channels(own, config, steps)
    blank = float(np.ptp(pixels)) < LEAST_CONTRAST
    if preprocessing.ink == "handwriting" and fit == "content" and min(pixels.shape[:2]) >= LEAST_SIDE:
        blank = blank or _is_empty_sheet(pixels)
    reason = _reason_to_invert(pixels, preprocessing.ink, invert)
    if reason:
        pixels = 1 - pixels
        steps.append(_step("inverted", pixels, reason))
    if preprocessing.ink == "handwriting" and not blank and not as_it_is:
        pixels = _clean(pixels, steps, fit)
    box = find_ink(_difference_from_border(pixels)) if fit == "content" and not blank else None
    if box is not None:
        image, frame = _focus(pixels, box, preprocessing, config, steps)
    elif preprocessing.fit == "whole" and fit != "stretch":
        own = own * np.float32(source.white)
        image, frame = _as_in_folders(1 - own if reason else own, config)
    else:
        rows, columns = pixels.shape[:2]
        scales = columns / config.width, rows / config.height
        scales = scales if fit == "stretch" else (max(scales), max(scales))
        frame = Frame.centred(columns / 2, rows / 2, *scales, config)
        image = frame.view(pixels, border_tone(pixels))
    image = np.clip(image, 0, 1)
    steps.append(_step("what the model sees", image, f"{config.width} × {config.height} px"))
    tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
    return Prepared(tensor, frame.placement(source.reduction), source, tuple(steps), blank)


def _in_channels(pixels: Floats, config: NetworkConfig, steps: list[Step]) -> Floats:
    """The image in the channels of the model: [rows, columns, channels]."""
    pixels = np.atleast_3d(pixels)
    if config.channels == 3:
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    if pixels.shape[2] == 1:
        return pixels
    if (pixels[..., :2] == pixels[..., 1:]).all():  # the formula's weights sum to 0.9999; grey stays as it is
        return pixels[:, :, :1]
    pixels = (pixels @ GREY)[:, :, None]
    steps.append(_step("grey", pixels))
    return pixels


def _reason_to_invert(pixels: Floats, ink: str, invert: Invert) -> str:
    """Why light and dark are to be turned around; empty if they are not."""
    if ink == "contrast":  # which is the same either way
        return ""
    if invert == "yes":
        return "as asked"
    if invert == "no" or ink == "as-is":
        return ""
    if ink == "inverted":
        return "as in training"
    return "" if _is_dark_around(pixels) else "the border is light"


def border_ring(pixels: NDArray) -> NDArray:
    """The pixels along the border, [number, ...]."""
    width = max(1, round(0.03 * min(pixels.shape[:2])))
    inner = np.zeros(pixels.shape[:2], dtype=bool)
    inner[width:-width, width:-width] = True
    return pixels[~inner]


def border_tone(pixels: Floats) -> Floats:
    """The tone of the background, [channels]."""
    return np.median(border_ring(pixels), axis=0).astype(np.float32)


def contrast_with_border(pixels: Floats, channels: int) -> Floats:
    """How far each place of pixels [rows, columns] or [rows, columns, 3] is from the tone of the border, either way.

    For a grey image (one channel) it is the difference in that colour in which it is largest.
    """
    difference = np.abs(pixels - border_tone(pixels))
    return difference.max(axis=2) if channels == 1 and pixels.ndim == 3 else difference


def _clean(pixels: Floats, steps: list[Step], fit: Fit) -> Floats:
    """Dark, even background and full contrast; what has that already stays as it is."""
    dark = _is_dark_around(pixels)
    if dark and fit == "content" and min(pixels.shape[:2]) >= LEAST_SIDE:
        pixels, uneven = even_light(pixels)
        if uneven:
            steps.append(_step("light evened out", pixels))
    ring = border_ring(pixels).mean(1)
    middle, white = float(np.median(ring)), float(np.percentile(pixels, 99.9))
    white = max(white, 0.6 * float(pixels.max()))  # sparse ink may be less than a thousandth of the image
    # A noisy border must not swallow the ink; a light one, kept by the user's wish, is no black.
    black = min(noise_level(ring), middle + 0.4 * max(white - middle, 0)) if dark else float(pixels.min())
    if black <= 0.02 and white >= 0.9:
        return pixels
    pixels = ((pixels - black) / max(white - black, 1e-6)).clip(0, 1).astype(np.float32)
    steps.append(_step("contrast stretched", pixels))
    return pixels


def _is_empty_sheet(pixels: Floats) -> bool:
    """Whether neither dark nor light ink stands out from an evenly lit background and its noise."""
    small = _reduced(pixels)[:, :, None]
    return all(is_noise(even_light(tones)[0][:, :, 0]) for tones in (small, 1 - small))


def _is_dark_around(pixels: Floats) -> bool:
    """Whether the border is nearer to the darkest tone of the image than to the lightest."""
    small = _reduced(pixels)
    return float(np.median(border_ring(pixels.mean(2)))) <= (float(small.min()) + float(small.max())) / 2


def _reduced(pixels: Floats) -> Floats:
    """Pixels [rows, columns, channels] as a grey image of up to 256 pixels along a side, which has less noise."""
    grey = pixels.mean(2)
    return np.asarray(Image.fromarray(grey).resize(_smaller(grey.shape, 256), Image.Resampling.BOX))


def _difference_from_border(pixels: Floats) -> Floats:
    """How much each place differs from the background, 0 to 1: [rows, columns]."""
    difference = np.abs(pixels - border_tone(pixels)).mean(2)
    return difference / max(float(difference.max()), LEAST_CONTRAST)


def _focus(
    pixels: Floats, box: Box, preprocessing: Preprocessing, config: NetworkConfig, steps: list[Step]
) -> tuple[Floats, Frame]:
    """Frame the ink at the size that digits have in training, and give its strokes the usual width."""
    left, top, right, bottom = box
    shown = steps[-1].pixels.shape[1] / pixels.shape[1]
    steps.append(_step("ink found", pixels, box=(left * shown, top * shown, right * shown, bottom * shown)))
    background = border_tone(pixels)
    alone = np.broadcast_to(background, pixels.shape).copy()
    alone[top:bottom, left:right] = pixels[top:bottom, left:right]
    if preprocessing.digits_apart:
        digit = largest_part(_difference_from_border(pixels)[top:bottom, left:right])
    else:  # of pairs in training this is 20.7 pixels on average; a lying stroke is no measure of height
        digit = min(bottom - top, 1.2 * (right - left)) / 1.035
    room = 1 - 2 * INK_MARGIN
    fits = max((right - left) / (room * config.width), (bottom - top) / (room * config.height))
    scale = max(digit / preprocessing.digit_height, fits)
    frame = Frame.centred((left + right) / 2, (top + bottom) / 2, scale, scale, config)
    fine = frame.finer(FINE).view(alone, background)
    stroke = STROKE_SHARE * digit / frame.scale_x * FINE
    missing = stroke - stroke_width(_difference_from_border(fine))
    if missing > 0.35 * stroke and _is_dark_around(fine):
        fine = thicken(fine, missing)
        steps.append(_step("strokes thickened", fine))
    coarse = fine.reshape(config.height, FINE, config.width, FINE, -1).mean((1, 3))
    return coarse / max(float(coarse.max()), LEAST_CONTRAST), frame


def fit_pixels(pixels: NDArray[np.float32], image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """An image as uint8 [channels, height, width]: as large as fits, proportions kept, black around it.

    `pixels` are [rows, columns, 3], or [rows, columns] for grey, in [0, 1].
    """
    channels, height, width = image_shape
    mode = "L" if channels == 1 else "RGB"
    image = Image.fromarray((pixels * 255).round().clip(0, 255).astype(np.uint8)).convert(mode)
    left, top, *size = _placed(pixels, height, width)
    canvas = Image.new(mode, (width, height))
    canvas.paste(image.resize((size[0], size[1]), Image.Resampling.LANCZOS), (left, top))
    return np.asarray(canvas).reshape(height, width, channels).transpose(2, 0, 1).copy()


def _placed(pixels: Floats, height: int, width: int) -> Box:
    """Left, top, width and height of pixels [rows, columns, ...] in the middle of a canvas, as large as fits."""
    rows, columns = pixels.shape[:2]
    scale = min(width / columns, height / rows)
    across, down = max(1, round(columns * scale)), max(1, round(rows * scale))
    return (width - across) // 2, (height - down) // 2, across, down


def _as_in_folders(pixels: Floats, config: NetworkConfig) -> tuple[Floats, Frame]:
    """The very same pixels that a folder task makes of an image in training."""
    left, top, width, height = _placed(pixels, config.height, config.width)
    scale_x, scale_y = pixels.shape[1] / width, pixels.shape[0] / height
    image = fit_pixels(pixels, config.image_shape).transpose(1, 2, 0).astype(np.float32) / 255
    return image, Frame(-left * scale_x, -top * scale_y, scale_x, scale_y, config.width, config.height)


@dataclass(frozen=True)
class Frame:
    """The part of an image that the model's image shows: first corner, pixels per model pixel, and size."""

    left: float
    top: float
    scale_x: float
    scale_y: float
    width: int
    height: int

    @classmethod
    def centred(cls, x: float, y: float, scale_x: float, scale_y: float, config: NetworkConfig) -> Frame:
        """A frame with this place in its middle."""
        left, top = x - scale_x * config.width / 2, y - scale_y * config.height / 2
        return cls(left, top, scale_x, scale_y, config.width, config.height)

    def finer(self, times: int) -> Frame:
        """The same part in more pixels."""
        scale_x, scale_y = self.scale_x / times, self.scale_y / times
        return Frame(self.left, self.top, scale_x, scale_y, self.width * times, self.height * times)

    def view(self, pixels: Floats, padding: Floats) -> Floats:
        """The frame's part of pixels [rows, columns, channels] in the frame's size, padding around."""
        down = _weights(self.top, self.scale_y, self.height, pixels.shape[0])
        across = _weights(self.left, self.scale_x, self.width, pixels.shape[1])
        narrow = np.tensordot(pixels - padding, across, axes=(1, 1))  # [rows, channels, width]
        return np.tensordot(down, narrow, axes=(1, 0)).transpose(0, 2, 1) + padding

    def placement(self, reduction: int) -> Placement:
        """Where the model's pixels lie in an image of which `pixels` is a reduced copy."""
        first_x, first_y = self.left + self.scale_x / 2, self.top + self.scale_y / 2
        return Placement(
            (self.scale_x * reduction, self.scale_y * reduction),
            (first_x * reduction - 0.5, first_y * reduction - 0.5),
        )


def _weights(start: float, scale: float, size: int, length: int) -> Floats:
    """How much each of `length` pixels gives to each of `size` others: [size, length].

    Larger ones average the area they cover, smaller ones are interpolated.
    """
    pixels = np.arange(length)
    if scale >= 1:
        edges = start + scale * np.arange(size + 1)
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        return (overlap.clip(0) / scale).astype(np.float32)
    centres = start + scale * (np.arange(size) + 0.5) - 0.5
    return (1 - np.abs(pixels - centres[:, None])).clip(0).astype(np.float32)


def _smaller(shape: tuple[int, ...], longest: int) -> tuple[int, int]:
    """(width, height) of an image of this shape with no side longer than `longest`."""
    share = min(1.0, longest / max(shape[:2]))
    return max(1, round(shape[1] * share)), max(1, round(shape[0] * share))


def _step(
    name: str, pixels: Floats, note: str = "", box: tuple[float, float, float, float] | None = None
) -> Step:
    values = (pixels.clip(0, 1) * 255).round().astype(np.uint8)
    image = Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    small = image.resize(_smaller(values.shape, SHOWN_SIDE), Image.Resampling.BOX)
    return Step(name, np.asarray(small), note, box)
