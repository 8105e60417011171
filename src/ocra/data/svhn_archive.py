"""The Street View House Numbers, format 1: images with a MATLAB file of digit boxes, prepared once and kept.

An archive is a folder, a .tar or a .tar.gz that holds `train/1.png` … and `train/digitStruct.mat` (or `test`, or
`extra`). Its numbers are cropped, resized and kept in the cache folder, so that the next start takes a second.
"""

import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5r, h5s, h5t
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from PIL import Image

from ocra.data.task import NO_DIGIT
from ocra.errors import OcraError
from ocra.files import cache_folder, search_folders
from ocra.images.fitting import GREY

HOME = "http://ufldl.stanford.edu/housenumbers/"
STRUCTURE = "digitStruct.mat"
_ENDS = 1 << 20  # bytes at the beginning and the end of an archive by which it is known
_FIELDS = (b"left", b"top", b"width", b"height", b"label")

SIZE = 64
LONGEST = 5
WIDE_SIZE = 96
WIDE_SPAN = 1.4
"""The wide crop, from which training images are sampled, spans 1.4 times the crop in x and y."""

BEFORE, AFTER = 0.1, 1.2
_VERSION = 1
_UNFINISHED = ".preparing-"
_LONG = 24 * 3600  # seconds; no preparation takes that long
Rectangle = tuple[int, int, int, int]
"""left, top, right, bottom"""


@dataclass(frozen=True)
class HouseNumber:
    """One image's digits from left to right."""

    file: str
    digits: tuple[int, ...]
    """0 … 9 each"""
    boxes: NDArray[np.float64]
    """[digits, 4]: left, top, width, height in the image's pixels; may leave the image"""


@dataclass(frozen=True)
class Archive:
    """One part of the data set as it lies on the disk."""

    path: Path
    """a folder, or a .tar or .tar.gz file"""

    def stamp(self) -> str:
        """Changes when the archive does; a copy of it has the same. Of a folder only the file of boxes is looked at."""
        path = self.path / STRUCTURE if self.path.is_dir() else self.path
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_ENDS))
            file.seek(max(0, size - _ENDS))
            digest.update(file.read(_ENDS))
        return f"{size}-{digest.hexdigest()}"

    def copy_structure(self, target: Path) -> None:
        """Write the file of digit boxes to `target`; HDF5 cannot be read from a stream."""
        found = next(self.contents(STRUCTURE), None)
        if found is None:
            raise self.without_boxes()
        target.write_bytes(found[1])

    def without_boxes(self) -> OcraError:
        """What to say of an archive that has no file of digit boxes."""
        return OcraError(f"{self.path} has no {STRUCTURE}, so it is not SVHN format 1 (full numbers).")

    def contents(self, *endings: str) -> Iterator[tuple[str, bytes]]:
        """(base name, content) of the files whose names end so, in the archive's order."""
        try:
            if self.path.is_dir():
                for path in sorted(self.path.iterdir()):
                    if path.is_file() and path.name.endswith(endings):
                        yield path.name, path.read_bytes()
                return
            with tarfile.open(self.path, "r|*") as tar:
                for member in tar:
                    name = member.name.rsplit("/", 1)[-1]
                    # macOS adds "._1.png" companions to archives it writes.
                    if member.isfile() and not name.startswith("._") and name.endswith(endings):
                        yield name, tar.extractfile(member).read()  # type: ignore[union-attr]
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise OcraError(f"{self.path} is broken ({error}). Get it again from {HOME}.") from error


def find_archive(part: str, root: str | os.PathLike[str] | None = None) -> Archive:
    """The archive of a part (train, test or extra), from the first folder that has it."""
    folders = search_folders("svhn", root)
    for folder in folders:
        if (folder / part / STRUCTURE).is_file():
            return Archive(folder / part)
        for name in (f"{part}.tar.gz", f"{part}.tar"):
            if (folder / name).is_file():
                return Archive(folder / name)
    extra = " --extra" if part == "extra" else ""
    raise OcraError(
        f"SVHN's {part}.tar.gz was not found in {', '.join(map(str, folders))}. "
        f"Get it from {HOME} (format 1) and put it there, or run `ocra data fetch svhn{extra}`."
    )


def read_names(path: Path) -> list[str]:
    """The names of the images in a digitStruct.mat, in its order."""
    with _structure(path) as file:
        return [_text(file, name) for name in file["digitStruct/name"][:, 0]]


def read_structure(path: Path, rows: slice = slice(None)) -> Iterator[HouseNumber]:
    """The house numbers in a digitStruct.mat, in its order; all of them or those of some rows.

    This reads through h5py's low-level interface: the usual one takes four times as long for the million
    one-number data sets of which the file consists.
    """
    with _structure(path) as file:
        names, boxes = file["digitStruct/name"][rows, 0], file["digitStruct/bbox"][rows, 0]
        for name, box in zip(names, boxes, strict=True):
            yield _house_number(_text(file, name), _box_fields(file, box))


@contextmanager
def _structure(path: Path) -> Iterator[h5py.File]:
    """An open digitStruct.mat; what a damaged one makes HDF5 raise becomes one sentence."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (
        OSError,
        LookupError,
        ValueError,
        ArithmeticError,
        TypeError,
        AttributeError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise OcraError(f"{STRUCTURE} cannot be read as SVHN's file of digit boxes: {error}") from error


def _text(file: h5py.File, reference: Any) -> str:
    """A MATLAB string: numbers of letters."""
    return "".join(map(chr, file[reference][:, 0]))


def _house_number(file: str, fields: NDArray[np.float64]) -> HouseNumber:
    """From the fields [5, digits] left, top, width, height, label, in any order of the digits."""
    fields = fields[:, np.argsort(fields[0], kind="stable")]
    labels = fields[4].astype(int)
    if labels.min() < 0 or labels.max() > 10:
        raise OcraError(
            f"{STRUCTURE} gives {file} the labels {labels.tolist()}; they should be from 1 to 10."
        )
    return HouseNumber(file, tuple(int(label) % 10 for label in labels), fields[:4].T)


def _box_fields(file: Any, reference: Any) -> NDArray[np.float64]:
    """The fields [5, digits] of one image. A single digit's are stored directly, several by reference."""
    group = h5r.dereference(reference, file.id)
    columns = []
    for field in _FIELDS:
        data = h5d.open(group, field)
        if data.get_type().get_class() != h5t.REFERENCE:
            columns.append(_read(data, np.float64))
            continue
        references = _read(data, h5py.ref_dtype)
        columns.append(
            np.concatenate([_read(h5r.dereference(one, file.id), np.float64) for one in references])
        )
    return np.stack(columns)


def _read(data: Any, dtype: Any) -> NDArray[Any]:
    """The values of a low-level data set as one row."""
    values = np.empty(data.shape, dtype=dtype)
    data.read(h5s.ALL, h5s.ALL, values)
    return values.reshape(-1)


@dataclass(frozen=True, eq=False)
class PreparedNumbers:
    """A part of SVHN without numbers of more than five digits; the images stay on the disk until they are needed."""

    images: NDArray[np.uint8]
    """[numbers, channels, 64, 64], not inverted"""
    wide: NDArray[np.uint8] | None
    """[numbers, channels, 96, 96], the same with more around it (not for test)"""
    digits: NDArray[np.int64]
    """[numbers, 5], 10 where there is none"""
    boxes: NDArray[np.float32]
    """[numbers, 5, 4]: x, y, width, height in the 64×64 image"""
    levels: NDArray[np.float32]
    """[numbers, 2]: mean and standard deviation of each inverted image, whose values are 0 … 1"""

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
        for left in folder.parent.glob(f"{_UNFINISHED}*"):  # by a process that was killed
            if time.time() - left.stat().st_mtime > _LONG:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            _prepare(archive, made, channels, wide=part != "test")
            try:
                made.rename(folder)
            except OSError:  # where another process was quicker, its copy is as good
                if not folder.is_dir():
                    raise
    return _open(folder)


def _open(folder: Path) -> PreparedNumbers:
    wide = folder / "wide.npy"
    try:
        return PreparedNumbers(
            images=np.load(folder / "pictures.npy", mmap_mode="r"),
            wide=np.load(wide, mmap_mode="r") if wide.exists() else None,
            digits=np.load(folder / "digits.npy"),
            boxes=np.load(folder / "boxes.npy"),
            levels=np.load(folder / "levels.npy"),
        )
    except (OSError, ValueError, EOFError) as error:
        raise OcraError(f"The prepared data in {folder} is damaged ({error}). Delete that folder.") from error


def _prepare(archive: Archive, folder: Path, channels: int, wide: bool) -> None:
    """Write the arrays of PreparedNumbers to an empty folder."""
    structure = folder / "structure.part"
    archive.copy_structure(structure)
    numbers = [number for number in read_structure(structure) if len(number.digits) <= LONGEST]
    structure.unlink()
    rows = {number.file: row for row, number in enumerate(numbers)}
    count = len(numbers)
    if not count:
        raise OcraError(f"{archive.path} has no number of one to {LONGEST} digits.")
    digits = np.full((count, LONGEST), NO_DIGIT, dtype=np.int64)
    boxes = np.zeros((count, LONGEST, 4), dtype=np.float32)
    levels = np.zeros((count, 2), dtype=np.float32)
    _check_room(folder, count * channels * (SIZE**2 + (WIDE_SIZE**2 if wide else 0)))
    images = open_memmap(folder / "pictures.npy", "w+", np.uint8, (count, channels, SIZE, SIZE))
    widths = (count, channels, WIDE_SIZE, WIDE_SIZE)
    around = open_memmap(folder / "wide.npy", "w+", np.uint8, widths) if wide else None
    missing = set(rows)
    for name, content in archive.contents(".png"):
        if name not in rows:
            continue
        row, number = rows[name], numbers[rows[name]]
        image = _open_image(content, f"{archive.path}: {name}")
        crop = crop_rectangle(number, image.width, image.height)
        images[row] = _resized(image, crop, SIZE, channels)
        levels[row] = 1 - images[row].mean() / 255, images[row].std() / 255
        if around is not None:
            around[row] = _resized(image, _widened(crop), WIDE_SIZE, channels)
        digits[row, : len(number.digits)] = number.digits
        boxes[row, : len(number.digits)] = boxes_in_crop(number.boxes, crop)
        missing.discard(name)
    if missing:
        raise OcraError(f"{archive.path} lacks {len(missing)} of its images, such as {min(missing)}.")
    np.save(folder / "digits.npy", digits)
    np.save(folder / "boxes.npy", boxes)
    np.save(folder / "levels.npy", levels)


def _check_room(folder: Path, size: int) -> None:
    """Refuse a disk that is too full: the arrays are written through memory, where that cannot be told any more."""
    free = shutil.disk_usage(folder).free
    if free < 1.1 * size:
        raise OcraError(
            f"{folder.parent.parent} has room for {free / 1e6:,.0f} MB, but SVHN needs {1.1 * size / 1e6:,.0f} MB "
            "there. Make room, or set OCRA_CACHE to a folder on another disk."
        )


def _open_image(content: bytes, where: str) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=["PNG"]).convert("RGB")
    except Exception as error:  # whatever broken or huge images make the decoder raise
        raise OcraError(f"{where} cannot be read as an image: {error}") from error


def crop_rectangle(number: HouseNumber, width: int, height: int) -> Rectangle:
    """What is cut out of a width × height image: the union of the digit boxes with a margin.

    From 0.1 of the union's width before its left edge to 1.2 of it after; likewise from top to bottom. Cut at
    the image's right and bottom, but not at its left and top, where the crop is padded with black.
    """
    near = number.boxes[:, :2].min(axis=0)
    extent = (number.boxes[:, :2] + number.boxes[:, 2:]).max(axis=0) - near
    left, top = np.floor(near - BEFORE * extent).astype(int).tolist()
    right, bottom = np.minimum(np.ceil(near + AFTER * extent), (width, height)).astype(int).tolist()
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _widened(crop: Rectangle) -> Rectangle:
    """The rectangle of WIDE_SPAN times the size about the same centre."""
    left, top, right, bottom = crop
    more_x, more_y = (right - left) * (WIDE_SPAN - 1) / 2, (bottom - top) * (WIDE_SPAN - 1) / 2
    return round(left - more_x), round(top - more_y), round(right + more_x), round(bottom + more_y)


def boxes_in_crop(boxes: NDArray[np.float64], crop: Rectangle) -> NDArray[np.float64]:
    """Boxes [digits, 4] of the image's frame in the frame of the crop resized to 64×64."""
    left, top, right, bottom = crop
    scale = np.array([SIZE / (right - left), SIZE / (bottom - top)])
    return np.concatenate([(boxes[:, :2] - [left, top]) * scale, boxes[:, 2:] * scale], axis=1)


def _resized(image: Image.Image, crop: Rectangle, size: int, channels: int) -> NDArray[np.uint8]:
    """The crop at size × size, uint8 [channels, size, size]; grey is 0.2989 R + 0.5870 G + 0.1140 B.

    Left of and above the image there is black; right of and below it, where only a wide crop reaches, the
    image's edge goes on.
    """
    left, top, right, bottom = crop
    inside = image.crop((left, top, min(right, image.width), min(bottom, image.height)))
    beyond = (max(0, right - image.width), max(0, bottom - image.height))
    pixels = np.asarray(inside)
    if any(beyond):
        pixels = np.pad(pixels, ((0, beyond[1]), (0, beyond[0]), (0, 0)), mode="edge")
    resized = Image.fromarray(pixels).resize((size, size), Image.Resampling.LANCZOS)
    colours = np.asarray(resized, dtype=np.float32)
    if channels == 1:
        return np.rint(colours @ GREY).clip(0, 255).astype(np.uint8)[None]
    return colours.astype(np.uint8).transpose(2, 0, 1)
