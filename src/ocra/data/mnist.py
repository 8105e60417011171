"""MNIST from its four IDX files, gzipped or not, each checked before use."""

import gzip
import hashlib
import os
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocra.data.locations import cache_folder, search_folders
from ocra.errors import OcraError

SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The unpacked files and their checksums."""

ADVICE = "Delete it and run `ocra data fetch mnist`."

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images [digits, 28, 28] and labels [digits]."""


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


def parse_idx(content: bytes) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes: 00 00 08, number of axes, length of each (big-endian), data."""
    axes = content[3]
    if content[:3] != b"\x00\x00\x08":
        raise OcraError("This is not an IDX file of bytes: it does not start with 00 00 08.")
    shape = np.frombuffer(content, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape.astype(np.int64))


@lru_cache(maxsize=4)
def _load(paths: tuple[tuple[str, Path], ...]) -> tuple[NDArray[np.uint8], ...]:
    """The verified arrays of the files given as (name, path) pairs, read once per process."""
    return tuple(parse_idx(read_verified(path, name)) for name, path in paths)


def load_mnist(train: bool, root: str | os.PathLike[str] | None = None, download: bool = False) -> Digits:
    """The 60,000 training digits or the 10,000 test digits, in the files' order."""
    try:
        paths = find_mnist(root)
    except OcraError:
        if not download:
            raise
        from ocra.data.fetch import fetch_mnist

        fetch_mnist(cache_folder() / "mnist" if root is None else Path(root).expanduser())
        paths = find_mnist(root)
    prefix = "train" if train else "t10k"
    images, labels = _load(tuple((name, path) for name, path in paths.items() if name.startswith(prefix)))
    return images, labels.astype(np.int64)
