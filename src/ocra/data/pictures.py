"""Pictures of any size made to fit a model."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def fit_pixels(pixels: NDArray[np.float32], image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A picture as uint8 [channels, height, width]: as large as fits, proportions kept, black around it.

    `pixels` are [rows, columns, 3], or [rows, columns] for grey, in [0, 1].
    """
    channels, height, width = image_shape
    mode = "L" if channels == 1 else "RGB"
    picture = Image.fromarray((pixels * 255).round().clip(0, 255).astype(np.uint8)).convert(mode)
    scale = min(width / picture.width, height / picture.height)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    canvas = Image.new(mode, (width, height))
    resized = picture.resize(size, Image.Resampling.LANCZOS)
    canvas.paste(resized, ((width - size[0]) // 2, (height - size[1]) // 2))
    return np.asarray(canvas).reshape(height, width, channels).transpose(2, 0, 1).copy()
