"""Single digits, 28×28, from which tasks compose their images: MNIST, or glyphs drawn from fonts."""

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor

from ocra.data.random import Ints, integers, permutation, random_bits, uniforms
from ocra.errors import OcraError
from ocra.files import search_folders

DIGIT_SIZE = 28
VALIDATION_DIGITS = 6_000

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The unpacked files and their checksums."""

ADVICE = "Delete it and run `ocra data fetch mnist`."

Digits = tuple[NDArray[np.uint8], Ints]
"""Images [digits, 28, 28] and labels [digits]."""

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


@dataclass(frozen=True, eq=False)
class DigitPool:
    """The digits of one split."""

    images: NDArray[np.uint8]
    """[digits, 28, 28], ink 255 on black 0"""
    labels: Ints
    """[digits], 0 … 9"""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def by_class(self) -> Ints:
        """Positions in the pool, all zeros first, then all ones, …"""
        return np.argsort(self.labels, kind="stable").astype(np.int64)

    @cached_property
    def class_starts(self) -> Ints:
        """[11] where each class starts in `by_class`, and the end."""
        return np.searchsorted(self.labels[self.by_class], np.arange(11)).astype(np.int64)


@lru_cache(maxsize=6)
def digit_pool(source: str, split: str, root: str | None = None, download: bool = False) -> DigitPool:
    """The digits of a split: train, validation and test never share one. Held once per process.

    MNIST: validation is 6,000 of the 60,000 training digits, by a fixed shuffle; train is the other 54,000.
    """
    if source == "glyphs":
        return DigitPool(*glyph_digits(split))
    images, labels = load_mnist(train=split != "test", root=root, download=download)
    if split == "test":
        return DigitPool(images, labels)
    shuffled = permutation(0, "mnist validation", len(labels))
    chosen = shuffled[:-VALIDATION_DIGITS] if split == "train" else shuffled[-VALIDATION_DIGITS:]
    return DigitPool(images[chosen], labels[chosen])


def find_mnist(root: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """The path of each of the four files, from the first folder that has all of them."""
    folders = search_folders("mnist", root)
    for folder in folders:
        found = {name: path for name in SHA256 if (path := file_in(folder, name))}
        if len(found) == len(SHA256):
            return found
    raise OcraError(
        f"MNIST was not found in {', '.join(map(str, folders))}. Run `ocra data fetch mnist`, set OCRA_DATA "
        "to a folder that holds mnist/, or draw digits from fonts instead (--digits glyphs)."
    )


def file_in(folder: Path, name: str) -> Path | None:
    """The file `name` in `folder`: plain, gzipped, or with a dot for the last hyphen as some mirrors have."""
    dotted = name.replace("-idx", ".idx")
    for candidate in (name, name + ".gz", dotted, dotted + ".gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None


def read_verified(path: Path, name: str) -> bytes:
    """The unpacked bytes of the MNIST file `name` kept at `path`; refused unless they are the original's."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise OcraError(f"{path} cannot be read ({error}). {ADVICE}") from error
    verify(content, name, str(path))
    return content


def verify(content: bytes, name: str, where: str) -> None:
    """Refuse unpacked bytes that are not those of the MNIST file `name`; `where` is said in the error."""
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise OcraError(
            f"{where} is not the original {name} (its SHA-256 differs: it is truncated or altered). {ADVICE}"
        )


@lru_cache(maxsize=4)
def _load(path: Path, name: str) -> NDArray[np.uint8]:
    """The values of a verified file, read once per process: IDX has four bytes and four for each axis before them."""
    content = read_verified(path, name)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])


def load_mnist(train: bool, root: str | os.PathLike[str] | None = None, download: bool = False) -> Digits:
    """The 60,000 training digits or the 10,000 test digits, in the files' order."""
    try:
        paths = find_mnist(root)
    except OcraError:
        if not download:
            raise
        from ocra.data.download import fetch_mnist  # which needs this module

        fetch_mnist(root)
        paths = find_mnist(root)
    images, labels = (_load(path, name) for name, path in paths.items() if name.startswith("train") == train)
    return images.reshape(-1, DIGIT_SIZE, DIGIT_SIZE), labels.astype(np.int64)


def glyph_digits(split: str) -> Digits:
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
