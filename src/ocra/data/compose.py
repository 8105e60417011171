"""Putting small pictures on a larger canvas, a whole batch at a time."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor


def blank(batch: int, height: int, width: int) -> NDArray[np.uint16]:
    """Empty canvases [batch, height, width]; 16 bits, so that sums of bytes are not cut before they are clipped."""
    return np.zeros((batch, height, width), dtype=np.uint16)


def paste(
    canvas: NDArray[np.uint16], patches: NDArray[np.uint8], x: NDArray[np.int64], y: NDArray[np.int64]
) -> None:
    """Add patch i [batch, h, w] to canvas i [batch, height, width] with its top-left corner at (x, y), in place.

    Writing through a view of all windows moves whole rows; index arrays of every pixel would cost several times more.
    """
    windows = sliding_window_view(canvas, patches.shape[1:], axis=(1, 2), writeable=True)  # type: ignore[call-overload]
    windows[np.arange(len(canvas)), y, x] += patches


def to_images(canvas: NDArray[np.uint16]) -> Tensor:
    """Canvases [..., height, width] as float32 in [0, 1], sums of ink clipped at 1."""
    return torch.from_numpy(np.multiply(np.minimum(canvas, 255), np.float32(1 / 255), dtype=np.float32))
