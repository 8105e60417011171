"""A sheet of sample pictures with their classes written beneath."""

from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ocra.data.task import Batch

_CELL = 144
_GAP = 8
_TEXT = 15


def captions(batch: Batch, class_names: tuple[str, ...]) -> list[str]:
    """What is in each picture: its class names, each as often as it occurs; of a house number, the number."""
    between = "" if batch.sequence is not None else "  "
    return [between.join(names) for names in batch.names(class_names)]


def draw_grid(batch: Batch, class_names: tuple[str, ...], columns: int = 8) -> Image.Image:
    """The batch's pictures in rows of `columns`, enlarged, each with its classes beneath."""
    columns = min(columns, len(batch))
    rows = -(-len(batch) // columns)
    height, width = batch.images.shape[2:]
    scale = _CELL / max(height, width)
    cell = max(1, round(width * scale)), max(1, round(height * scale))
    line = _TEXT + 6
    step_x, step_y = cell[0] + _GAP, cell[1] + line + _GAP
    sheet = Image.new("RGB", (columns * step_x + _GAP, rows * step_y + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for position, (picture, caption) in enumerate(
        zip(batch.images, captions(batch, class_names), strict=True)
    ):
        x = _GAP + position % columns * step_x
        y = _GAP + position // columns * step_y
        sheet.paste(_to_picture(picture).resize(cell, Image.Resampling.NEAREST), (x, y))
        middle = (x + cell[0] // 2, y + cell[1] + line // 2)
        draw.text(middle, _shortened(caption, cell[0]), fill="black", font=_font(), anchor="mm")
    return sheet


def _to_picture(image: torch.Tensor) -> Image.Image:
    """An image [channels, height, width] in [0, 1] for Pillow."""
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(np.repeat(pixels, 3 // pixels.shape[2], axis=2))


def _shortened(text: str, width: int) -> str:
    """The text, cut with an ellipsis where it is wider than its picture."""
    while text and _font().getlength(text) > width:
        text = text.rstrip("…")[:-1] + "…" if len(text) > 2 else ""
    return text


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(
        str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), _TEXT
    )
