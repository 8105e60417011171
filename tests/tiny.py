"""Small models and pictures that the tests of pictures, predictions and figures share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ocra.config import ModelConfig
from ocra.data import MultiMNIST
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo

SMALL = {"hidden": 24, "primary_capsules": 6, "primary_size": 4, "capsule_size": 6, "filters": 4}


def tiny_model(seed: int = 0, **options: object) -> OCRA:
    """A small untrained model that looks around and is not undecided."""
    torch.manual_seed(seed)
    model = OCRA(ModelConfig(**{**SMALL, **options}))  # type: ignore[arg-type]
    with torch.no_grad():
        if model.config.attention:
            model.read_attention.weight.mul_(20)
            model.read_attention.bias.copy_(torch.tensor([0.1, -0.1, -0.5, -0.4]))
        if model.config.capsules:
            model.object_capsules.weight.mul_(40)
    return model.eval()


def tiny_weights(folder: Path, **options: object) -> Path:
    """Weights of a small untrained MultiMNIST model with glyph digits, saved in a folder."""
    task = MultiMNIST.Config(digits="glyphs")
    model = tiny_model(**options)
    about = {"name": "tiny", "task": task.to_dict()}
    model.save_pretrained(folder, ModelInfo.from_dict(about, model.config))
    return folder


def ink_picture(
    size: tuple[int, int] = (240, 180), text: str = "35", ink: int = 30, paper: int = 235
) -> Image.Image:
    """Dark digits on light paper."""
    image = Image.new("L", size, paper)
    font = ImageFont.load_default(size=90)
    ImageDraw.Draw(image).text((70, 40), text, fill=ink, font=font)
    return image


def dot_picture(size: tuple[int, int], at: tuple[int, int], radius: int = 3) -> Image.Image:
    """A light dot on black."""
    image = Image.new("L", size, 0)
    x, y = at
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return image


def centroid(values: np.ndarray) -> tuple[float, float]:
    """(x, y) of the centre of mass of [rows, columns]."""
    down, across = np.indices(values.shape)
    return float((across * values).sum() / values.sum()), float((down * values).sum() / values.sum())
