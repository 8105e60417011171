"""Checkpoints: everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ocra.errors import OcraError
from ocra.files import write_bytes_atomically

KEPT = 2
_SUFFIX = ".safetensors"


class Checkpoint(NamedTuple):
    """Named tensors and a JSON state, which says at least how many `images` were seen."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, named by the images seen; the two newest are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        found = [path for path in self.folder.glob(f"*{_SUFFIX}") if path.stem.isdigit()]
        return sorted(found, key=lambda path: int(path.stem), reverse=True)

    def go_back(self, images: int) -> int | None:
        """Drop the checkpoints from so many images on; the images of the newest one left, or None if none would be."""
        earlier = [path for path in self.paths() if int(path.stem) < images]
        if not earlier:
            return None
        for path in self.paths():
            if int(path.stem) >= images:
                path.unlink(missing_ok=True)
        return int(earlier[0].stem)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and drop the oldest, and any of more images, which was too broken to go on from.

        The file appears whole or not at all, and its content is on the disk before its name is.
        """
        whole = {name: value.detach().cpu().contiguous() for name, value in checkpoint.tensors.items()}
        metadata = {"state": json.dumps(checkpoint.state), "checksum": str(_checksum(whole))}
        path = self.folder / f"{checkpoint.state['images']:012d}{_SUFFIX}"
        try:
            write_bytes_atomically(path, save(whole, metadata))
            _flush_folder(self.folder)
        except OSError as error:
            kept = self.paths()
            last = f"the last good checkpoint is {kept[0]}" if kept else "there is no checkpoint yet"
            raise CheckpointError(
                f"A checkpoint could not be written to {path}: {error.strerror}; {last}."
            ) from None
        found = self.paths()
        newest = found.index(path)
        for other in (*found[:newest], *found[newest + KEPT :]):
            other.unlink(missing_ok=True)

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None if there is none at all."""
        paths = self.paths()
        for path in paths:
            try:
                return _read(path)
            except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
                warnings.warn(
                    f"The checkpoint {path} is broken ({error}); trying the one before.", stacklevel=2
                )
        if paths:
            raise OcraError(
                f"All checkpoints in {self.folder} are broken; the run has to start again elsewhere."
            )
        return None


class CheckpointError(OcraError):
    """A checkpoint could not be written; what was there before is intact."""


def _read(path: Path) -> Checkpoint:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if int(metadata["checksum"]) != _checksum(tensors):
        raise ValueError("its content does not match its checksum")
    return Checkpoint(tensors, json.loads(metadata["state"]))


def _checksum(tensors: dict[str, Tensor]) -> int:
    """CRC-32 over all tensors in the order of their names."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(tensors[name].numpy().reshape(-1).view("uint8").data, value)
    return value


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
