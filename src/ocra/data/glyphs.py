"""Digits drawn from fonts with random warps: no download, for tests and machines without a network."""

from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from ocra.data.random import integers, random_bits, uniforms

GLYPHS_PER_SPLIT = 2_000
FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Italic.ttf",
    "STIXGeneral.ttf",
)
"""Fonts that come with matplotlib."""

_STENCIL = 96
_INK_HEIGHT = 60


def glyph_digits(split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [2000, 28, 28] and labels [2000] of a split; each split has warps, and so digits, of its own."""
    numbers = np.arange(GLYPHS_PER_SPLIT)
    labels = numbers % 10
    bits = random_bits(0, f"glyphs {split}", numbers, 12)
    fonts = integers(bits[:, 0], len(FONTS))
    chances = torch.from_numpy(uniforms(bits[:, 1:]).astype(np.float32))
    with torch.inference_mode():
        images = _warp(_stencils()[torch.from_numpy(fonts * 10 + labels)], chances)
    return (images * 255).round().to(torch.uint8).numpy(), labels


@lru_cache(maxsize=1)
def _stencils() -> Tensor:
    """Blurred outlines [fonts · 10, 96, 96] of every digit in every font, in [0, 1], ink 60 pixels high.

    The blur turns the outline into a slope, so that cutting it at another level gives another stroke width.
    """
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    outlines = []
    for font_name in FONTS:
        font = ImageFont.truetype(str(folder / font_name), size=80)
        for digit in "0123456789":
            left, top, right, bottom = font.getbbox(digit)
            ink = Image.new("L", (int(right - left), int(bottom - top)))
            ImageDraw.Draw(ink).text((-left, -top), digit, font=font, fill=255)
            width = max(12, round(ink.width * _INK_HEIGHT / ink.height))
            ink = ink.resize((width, _INK_HEIGHT), Image.Resampling.LANCZOS)
            stencil = Image.new("L", (_STENCIL, _STENCIL))
            stencil.paste(ink, ((_STENCIL - width) // 2, (_STENCIL - _INK_HEIGHT) // 2))
            outlines.append(np.asarray(stencil.filter(ImageFilter.GaussianBlur(3)), dtype=np.float32) / 255)
    return torch.from_numpy(np.stack(outlines))


def _warp(stencils: Tensor, chances: Tensor) -> Tensor:
    """Digits [batch, 28, 28] from stencils [batch, 96, 96], each bent by chances [batch, 11] in [0, 1)."""
    signed = 2 * chances - 1
    # Coordinates run from −1 to 1 over the 28 pixels; at scale 1 the ink is 20 pixels high, as in MNIST.
    per_pixel = (_INK_HEIGHT / _STENCIL) / (20 / 28)
    angle, shear = 0.2 * signed[:, 0], 0.25 * signed[:, 1]
    width, height = per_pixel * (1.05 + 0.2 * signed[:, 2]), per_pixel * (1.05 + 0.1 * signed[:, 3])
    rows = [
        torch.stack([width * angle.cos(), width * (shear - angle.sin()), 0.08 * signed[:, 4]], dim=1),
        torch.stack([height * angle.sin(), height * angle.cos(), 0.08 * signed[:, 5]], dim=1),
    ]
    # Twice the resolution, averaged at the end, gives the soft edges of a scanned digit.
    grid = F.affine_grid(torch.stack(rows, dim=1), [len(stencils), 1, 56, 56], align_corners=False)
    phase = torch.pi * signed[:, None, None, 6:8]
    bend = 0.06 * signed[:, None, None, 8:10]
    grid = grid + bend * torch.sin(3 * grid.flip(-1) + phase)
    slope = F.grid_sample(stencils[:, None], grid, align_corners=False)[:, 0]
    level = (0.2 + 0.2 * chances[:, 10])[:, None, None]
    return F.avg_pool2d(((slope - level) / 0.1 + 0.5).clamp(0, 1), 2)
