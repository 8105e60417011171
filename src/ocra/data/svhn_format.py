"""Reading the Street View House Numbers, format 1: pictures with a MATLAB file of digit boxes.

An archive is a folder, a .tar or a .tar.gz that holds `train/1.png` … and `train/digitStruct.mat` (or `test`,
or `extra`).
"""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5r, h5s, h5t
from numpy.typing import NDArray

from ocra.data.locations import search_folders
from ocra.errors import OcraError

HOME = "http://ufldl.stanford.edu/housenumbers/"
STRUCTURE = "digitStruct.mat"
_ENDS = 1 << 20  # bytes at the beginning and the end of an archive by which it is known
_PNG_BEGINS, _PNG_ENDS = b"\x89PNG\r\n\x1a\n", b"IEND"
_FIELDS = (b"left", b"top", b"width", b"height", b"label")


@dataclass(frozen=True)
class HouseNumber:
    """One picture's digits from left to right."""

    file: str
    digits: tuple[int, ...]
    """0 … 9 each"""
    boxes: NDArray[np.float64]
    """[digits, 4]: left, top, width, height in the picture's pixels; may leave the picture"""


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

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        """(name, content) of every picture file, in the archive's order."""
        return self._contents(lambda name: name.endswith(".png"))

    def whole_pictures(self, structure: Path) -> set[str]:
        """Read the archive to its end: the names of the pictures that are whole. The file of boxes is kept."""
        names, boxes = set(), False
        for name, content in self._contents(lambda name: name == STRUCTURE or name.endswith(".png")):
            if name == STRUCTURE:
                structure.write_bytes(content)
                boxes = True
            elif content.startswith(_PNG_BEGINS) and _PNG_ENDS in content[-64:]:
                names.add(name)
        if not boxes:
            raise self._without_boxes()
        return names

    def copy_structure(self, target: Path) -> None:
        """Write the file of digit boxes to `target`; HDF5 cannot be read from a stream."""
        for _, content in self._contents(lambda name: name == STRUCTURE):
            target.write_bytes(content)
            return
        raise self._without_boxes()

    def _without_boxes(self) -> OcraError:
        return OcraError(f"{self.path} has no {STRUCTURE}, so it is not SVHN format 1 (full numbers).")

    def _contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        """(name, content) of the wanted files, in the archive's order.

        What goes wrong where these are used, such as a full disk, is not taken for a damaged archive.
        """
        with self._reading():
            for name, stream in self._members(wanted):
                yield name, stream.read()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns what a damaged archive makes the tar and gzip readers raise into one sentence."""
        try:
            yield
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise OcraError(f"{self.path} is broken ({error}). Get it again from {HOME}.") from error

    def _members(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        """(base name, open file) of the members whose base name is wanted."""
        if self.path.is_dir():
            for path in sorted(self.path.iterdir()):
                if path.is_file() and wanted(path.name):
                    with path.open("rb") as file:
                        yield path.name, file
            return
        with tarfile.open(self.path, "r|*") as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                # macOS adds "._1.png" companions to archives it writes.
                if member.isfile() and not name.startswith("._") and wanted(name):
                    yield name, tar.extractfile(member)


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
    """The names of the pictures in a digitStruct.mat, in its order."""
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
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
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
    """The fields [5, digits] of one picture. A single digit's are stored directly, several by reference."""
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
