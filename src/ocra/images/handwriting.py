"""Handwriting in a photograph: even light, where the ink is, how wide its strokes are.

Ink is light on dark here.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]

INK = 0.35
"""A pixel lighter than this is ink, once the contrast is stretched."""
BLOCKS = 16
UNEVEN = 0.04
FAINTEST = 0.03
"""What stands out less than this from its background is no ink."""
SIGMAS, NOISY_PEAK = 7.0, 0.5
"""Nor is what stands out by fewer standard deviations of the noise; noise never stands out by more than the second."""
SPECK = 0.005
"""Share of all ink that may lie apart from the rest and be taken for dirt."""
GAP = 0.04
"""Distance, as a share of the image's side, across which ink still belongs together."""
CELLS = 96
"""Cells along the longer side of the grid on which connected ink is sought."""
SMALLEST_SHARE = 1 / 24
"""Ink smaller than this share of the image's side is taken for a speck, and the whole image is shown."""


def even_light(pixels: Floats) -> tuple[Floats, bool]:
    """Take a smooth background away from pixels [rows, columns, channels]; also whether there was one.

    The background of a place is the darkest block around it: blocks are far larger than strokes.
    """
    rows, columns = pixels.shape[:2]
    grey = pixels.mean(2)
    down, across = (np.linspace(0, side, BLOCKS + 1).astype(int) for side in (rows, columns))
    strips = [grey[top:bottom] for top, bottom in pairwise(down)]
    parts = list(pairwise(across))
    blocks = [[np.percentile(strip[:, left:right], 25) for left, right in parts] for strip in strips]
    padded = np.pad(np.array(blocks, dtype=np.float32), 2, mode="edge")
    lowest = sliding_window_view(padded, (5, 5)).min((2, 3))
    if float(np.ptp(lowest)) < UNEVEN:
        return pixels, False
    smooth = sliding_window_view(np.pad(lowest, 1, mode="edge"), (3, 3)).mean((2, 3))
    whole = Image.fromarray(smooth.astype(np.float32)).resize((columns, rows), Image.Resampling.BICUBIC)
    return (pixels - np.asarray(whole)[:, :, None]).clip(0, 1).astype(np.float32), True


def noise_level(border: NDArray) -> float:
    """The lightest tone that is still background, from the tones along the border."""
    middle, noise = _background(border)
    return middle + 3 * noise


def is_noise(grey: Floats) -> bool:
    """Whether nothing in grey [rows, columns] stands out from its background: a photograph of an empty sheet."""
    middle, noise = _background(grey)
    peak = float(grey.max()) - middle
    return peak < FAINTEST or (peak < NOISY_PEAK and peak < SIGMAS * noise)


def _background(tones: NDArray) -> tuple[float, float]:
    """Tone of the background and standard deviation of its noise, whatever a minority of the tones are."""
    middle = float(np.median(tones))
    return middle, 1.4826 * float(np.median(np.abs(tones - middle)))


def find_ink(grey: Floats) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom (exclusive) of the ink in grey [rows, columns]; None if there is hardly any.

    Specks apart from the rest do not count.
    """
    ink = grey > INK
    rows, columns = ink.shape
    left, right = _extent(ink.sum(0))
    top, bottom = _extent(ink[:, left:right].sum(1))
    within = (np.arange(columns) >= left) & (np.arange(columns) < right)
    left, right = _extent(np.where(within, ink[top:bottom].sum(0), 0))
    if max(right - left, bottom - top) < max(4, SMALLEST_SHARE * max(rows, columns)):
        return None
    return left, top, right, bottom


def _extent(profile: NDArray) -> tuple[int, int]:
    """First and last + 1 position of what belongs together in a profile of ink along one axis."""
    total = profile.sum()
    if total == 0:
        return 0, 0
    share = np.cumsum(profile) / total
    first = int(np.searchsorted(share, SPECK, side="right"))
    last = int(np.searchsorted(share, 1 - SPECK, side="left"))
    reach = max(1, round(GAP * len(profile)))
    filled = np.flatnonzero(profile)
    for position in filled[filled < first][::-1].tolist():
        first = position if first - position <= reach else first
    for position in filled[filled > last].tolist():
        last = position if position - last <= reach else last
    return first, last + 1


def largest_part(grey: Floats) -> float:
    """The longer side, in pixels, of the largest connected piece of ink in grey [rows, columns]."""
    cell = max(1, math.ceil(max(grey.shape) / CELLS))
    rows, columns = (-(-side // cell) for side in grey.shape)
    padded = np.pad(grey > INK, ((0, rows * cell - grey.shape[0]), (0, columns * cell - grey.shape[1])))
    ink = np.pad(padded.reshape(rows, cell, columns, cell).any((1, 3)), 1)
    names = np.where(ink, np.arange(1, ink.size + 1).reshape(ink.shape), 0)
    while True:  # neighbours take the higher name until each piece has one name
        around = sliding_window_view(np.pad(names, 1), (3, 3)).max((2, 3))
        spread = np.where(ink, around, 0)
        if (spread == names).all():
            break
        names = spread
    pieces, sizes = np.unique(names[ink], return_counts=True)
    if not len(pieces):
        return float(max(grey.shape))
    down, across = np.nonzero(names == pieces[sizes.argmax()])
    return float(max(np.ptp(down), np.ptp(across)) + 1) * cell


def stroke_width(grey: Floats) -> float:
    """Mean width of the strokes in pixels: twice the area of the ink over the length of its outline."""
    ink = np.pad(grey > INK, 1)
    area = int(ink.sum())
    steps = int((ink[1:] != ink[:-1]).sum()) + int((ink[:, 1:] != ink[:, :-1]).sum())
    # Counting pixel edges makes an outline of any direction longer by 4/π on average.
    return 2 * area / (steps * math.pi / 4) if steps else 0.0


def thicken(pixels: Floats, by: float) -> Floats:
    """Strokes wider by so many pixels: each pixel takes the lightest tone around it, in an octagon."""
    for step in range(max(1, round(by / 2))):
        rows, columns = pixels.shape[:2]
        padded = np.pad(pixels, ((1, 1), (1, 1), (0, 0)))
        around = [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
        if step % 2:  # crosses and squares in turn give octagons
            around += [(0, 0), (0, 2), (2, 0), (2, 2)]
        pixels = np.max([padded[y : y + rows, x : x + columns] for y, x in around], axis=0)
    return pixels
