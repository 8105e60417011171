"""SVHN prepared once: cropped to the number, resized, and kept, so that the next start takes a second."""

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ocra.data.locations import cache_folder
from ocra.data.svhn_format import Archive, HouseNumber, find_archive, read_structure
from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError
from ocra.files import write_json_atomically

SIZE = 64
LONGEST = 5
WIDE_SIZE = 96
WIDE_SPAN = 1.4
"""The wide crop, from which training pictures are sampled, spans 1.4 times the crop in x and y."""

BEFORE, AFTER = 0.1, 1.2
_GREY = np.array([0.2989, 0.5870, 0.1140], dtype=np.float32)
_VERSION = 1
_UNFINISHED = ".preparing-"
_LONG = 24 * 3600  # seconds; no preparation takes that long
Rectangle = tuple[int, int, int, int]
"""left, top, right, bottom"""


@dataclass(frozen=True, eq=False)
class PreparedNumbers:
    """A part of SVHN, ready for use; the pictures stay on the disk until they are looked at."""

    pictures: NDArray[np.uint8]
    """[numbers, channels, 64, 64], not inverted"""
    wide: NDArray[np.uint8] | None
    """[numbers, channels, 96, 96], the same with more around it (not for test)"""
    digits: NDArray[np.int64]
    """[numbers, 5], 10 where there is none"""
    boxes: NDArray[np.float32]
    """[numbers, 5, 4]: x, y, width, height in the 64×64 picture"""
    levels: NDArray[np.float32]
    """[numbers, 2]: mean and standard deviation of each inverted picture, whose values are 0 … 1"""
    left_out: int
    """how many numbers have more than five digits and are not here"""

    def __len__(self) -> int:
        return len(self.digits)


@lru_cache(maxsize=4)
def prepared_numbers(part: str, root: str | None = None, channels: int = 1) -> PreparedNumbers:
    """The part train, test or extra; prepared and kept in the cache folder if it is not there yet."""
    archive = find_archive(part, root)
    recipe = f"{_VERSION} {archive.stamp()} {channels} {SIZE} {WIDE_SIZE} {WIDE_SPAN} {BEFORE} {AFTER}"
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_folder() / "svhn" / f"{part}-{key}"
    if not folder.is_dir():
        print(
            f"Preparing SVHN {part} from {archive.path} (only the first time) …", file=sys.stderr, flush=True
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            _prepare(archive, made, channels, wide=part != "test")
            _move_into_place(made, folder)
    return _open(folder)


def _sweep(folder: Path) -> None:
    """Delete what a process that was killed while it prepared has left behind."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - path.stat().st_mtime > _LONG:
            shutil.rmtree(path, ignore_errors=True)


def _move_into_place(made: Path, folder: Path) -> None:
    """Rename the finished folder; where another process was quicker, its copy is as good."""
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(made)


def _open(folder: Path) -> PreparedNumbers:
    wide = folder / "wide.npy"
    try:
        return PreparedNumbers(
            pictures=np.load(folder / "pictures.npy", mmap_mode="r"),
            wide=np.load(wide, mmap_mode="r") if wide.exists() else None,
            digits=np.load(folder / "digits.npy"),
            boxes=np.load(folder / "boxes.npy"),
            levels=np.load(folder / "levels.npy"),
            left_out=json.loads((folder / "about.json").read_text())["left_out"],
        )
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise OcraError(f"The prepared data in {folder} is damaged ({error}). Delete that folder.") from error


def _prepare(archive: Archive, folder: Path, channels: int, wide: bool) -> None:
    """Write the arrays of PreparedNumbers to an empty folder, and about.json."""
    structure = folder / "structure.part"
    archive.copy_structure(structure)
    everything = list(read_structure(structure))
    structure.unlink()
    numbers = [number for number in everything if len(number.digits) <= LONGEST]
    rows = {number.file: row for row, number in enumerate(numbers)}
    count = len(numbers)
    if not count:
        raise OcraError(f"{archive.path} has no number of one to {LONGEST} digits.")
    digits = np.full((count, LONGEST), NO_DIGIT, dtype=np.int64)
    boxes = np.zeros((count, LONGEST, 4), dtype=np.float32)
    levels = np.zeros((count, 2), dtype=np.float32)
    _check_room(folder, count * channels * (SIZE**2 + (WIDE_SIZE**2 if wide else 0)))
    pictures = open_memmap(folder / "pictures.npy", "w+", np.uint8, (count, channels, SIZE, SIZE))
    widths = (count, channels, WIDE_SIZE, WIDE_SIZE)
    around = open_memmap(folder / "wide.npy", "w+", np.uint8, widths) if wide else None
    missing = set(rows)
    for name, content in archive.pictures():
        if name not in rows:
            continue
        row, number = rows[name], numbers[rows[name]]
        picture = _open_picture(content, f"{archive.path}: {name}")
        crop = crop_rectangle(number, picture.width, picture.height)
        pictures[row] = _resized(picture, crop, SIZE, channels)
        levels[row] = 1 - pictures[row].mean() / 255, pictures[row].std() / 255
        if around is not None:
            around[row] = _resized(picture, _widened(crop), WIDE_SIZE, channels)
        digits[row, : len(number.digits)] = number.digits
        boxes[row, : len(number.digits)] = boxes_in_crop(number.boxes, crop)
        missing.discard(name)
    if missing:
        raise OcraError(f"{archive.path} lacks {len(missing)} of its pictures, such as {min(missing)}.")
    np.save(folder / "digits.npy", digits)
    np.save(folder / "boxes.npy", boxes)
    np.save(folder / "levels.npy", levels)
    write_json_atomically(folder / "about.json", {"numbers": count, "left_out": len(everything) - count})


def _check_room(folder: Path, size: int) -> None:
    """Refuse a disk that is too full: the arrays are written through memory, where that cannot be told any more."""
    free = shutil.disk_usage(folder).free
    if free < 1.1 * size:
        raise OcraError(
            f"{folder.parent.parent} has room for {free / 1e6:,.0f} MB, but SVHN needs {1.1 * size / 1e6:,.0f} MB "
            "there. Make room, or set OCRA_CACHE to a folder on another disk."
        )


def _open_picture(content: bytes, where: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content)).convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise OcraError(f"{where} cannot be read as a picture: {error}") from error


def crop_rectangle(number: HouseNumber, width: int, height: int) -> Rectangle:
    """What is cut out of a width × height picture: the union of the digit boxes with a margin.

    From 0.1 of the union's width before its left edge to 1.2 of it after; likewise from top to bottom. Cut at
    the picture's right and bottom, but not at its left and top, where the crop is padded with black.
    """
    left, top = number.boxes[:, :2].min(axis=0)
    right, bottom = (number.boxes[:, :2] + number.boxes[:, 2:]).max(axis=0)
    first_x, first_y = (
        int(np.floor(start - BEFORE * extent))
        for start, extent in ((left, right - left), (top, bottom - top))
    )
    last_x = min(width, int(np.ceil(left + AFTER * (right - left))))
    last_y = min(height, int(np.ceil(top + AFTER * (bottom - top))))
    return first_x, first_y, max(last_x, first_x + 1), max(last_y, first_y + 1)


def _widened(crop: Rectangle) -> Rectangle:
    """The rectangle of WIDE_SPAN times the size about the same centre."""
    left, top, right, bottom = crop
    more_x, more_y = (right - left) * (WIDE_SPAN - 1) / 2, (bottom - top) * (WIDE_SPAN - 1) / 2
    return round(left - more_x), round(top - more_y), round(right + more_x), round(bottom + more_y)


def boxes_in_crop(boxes: NDArray[np.float64], crop: Rectangle) -> NDArray[np.float64]:
    """Boxes [digits, 4] of the picture's frame in the frame of the crop resized to 64×64."""
    left, top, right, bottom = crop
    scale = np.array([SIZE / (right - left), SIZE / (bottom - top)])
    return np.concatenate([(boxes[:, :2] - [left, top]) * scale, boxes[:, 2:] * scale], axis=1)


def _resized(picture: Image.Image, crop: Rectangle, size: int, channels: int) -> NDArray[np.uint8]:
    """The crop at size × size, uint8 [channels, size, size]; grey is 0.2989 R + 0.5870 G + 0.1140 B.

    Left of and above the picture there is black; right of and below it, where only a wide crop reaches, the
    picture's edge goes on.
    """
    left, top, right, bottom = crop
    inside = picture.crop((left, top, min(right, picture.width), min(bottom, picture.height)))
    beyond = (max(0, right - picture.width), max(0, bottom - picture.height))
    pixels = np.asarray(inside)
    if any(beyond):
        pixels = np.pad(pixels, ((0, beyond[1]), (0, beyond[0]), (0, 0)), mode="edge")
    resized = Image.fromarray(pixels).resize((size, size), Image.Resampling.LANCZOS)
    colours = np.asarray(resized, dtype=np.float32)
    if channels == 1:
        return np.rint(colours @ _GREY).clip(0, 255).astype(np.uint8)[None]
    return colours.astype(np.uint8).transpose(2, 0, 1)
