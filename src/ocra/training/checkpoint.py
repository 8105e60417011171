"""The folder of a run: config.json, log.jsonl, checkpoints/, weights/, summary.json."""

from __future__ import annotations

import json
import os
import stat
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ocra.errors import OcraError
from ocra.experiment import Experiment
from ocra.files import read_json, write_bytes_atomically, write_json_atomically, write_text_atomically

KEPT = 2
PROCESSES = ".processes"
"""File in the folder of a run: how many processes it began with, until its first checkpoint says so."""
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
        found = [
            path for path in self.folder.glob(f"*{_SUFFIX}") if path.stem.isascii() and path.stem.isdigit()
        ]
        return sorted(found, key=lambda path: int(path.stem), reverse=True)

    def newest(self) -> int | None:
        """The images of the newest checkpoint."""
        paths = self.paths()
        return int(paths[0].stem) if paths else None

    def drop_from(self, images: int) -> int | None:
        """Drop the checkpoints from so many images on; the images of the newest one left, if any is."""
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
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise ValueError("it is no ordinary file")
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


class RunFolder:
    """One run on disk; open it with `new_run` or `old_run`, which keep other processes out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.log = path / "log.jsonl"

    @property
    def processes(self) -> int:
        """How many processes the run began with; 0 where that was not written down."""
        try:
            return max(0, int((self.path / PROCESSES).read_text("ascii")))
        except (OSError, ValueError):
            return 0

    def weights(self, which: str) -> Path:
        """The folder of the 'best' or the 'last' weights."""
        return self.path / "weights" / which

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended, else None."""
        path = self.path / "summary.json"
        summary = read_json(path) if path.is_file() else None
        if not isinstance(summary, dict | None):
            raise OcraError(f"{path} holds no summary of a run; remove it to resume the run.")
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Mark the run as ended."""
        write_json_atomically(self.path / "summary.json", summary)


@contextmanager
def new_run(path: Path, experiment: Experiment, processes: int) -> Iterator[RunFolder]:
    """Make a folder for a run and hold its lock; a folder that holds a run already is refused.

    The config is written last, for with it there is a run that can be resumed, to the last bit from its beginning.
    """
    if path.exists() and not path.is_dir():
        raise OcraError(f"{path} is a file; give --out the name of a folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OcraError(f"The folder {path} could not be made: {error.strerror}.") from None
    with _lock(path):
        if any((path / name).exists() for name in ("config.json", "log.jsonl", "checkpoints")):
            raise OcraError(
                f"{path} holds another run; continue that one with 'ocra train --resume {path}', "
                "or choose another --out."
            )
        for name in ("config.json", PROCESSES):  # the folder may be the user's own, with files of all kinds
            _clear_leftovers(path.glob(f".{name}.*.part*"))
        write_text_atomically(path / PROCESSES, f"{processes}\n")
        write_json_atomically(path / "config.json", experiment.to_dict())
        yield RunFolder(path)


@contextmanager
def old_run(path: Path) -> Iterator[tuple[RunFolder, Experiment]]:
    """Open the folder of a run that was stopped and hold its lock."""
    if not (path / "config.json").is_file():
        raise OcraError(f"{path} holds no run to resume: there is no config.json in it.")
    with _lock(path):
        _clear_leftovers(path.rglob(".*.part*"))
        yield RunFolder(path), read_experiment(path / "config.json")


def _clear_leftovers(paths: Iterable[Path]) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for leftover in paths:
        leftover.unlink(missing_ok=True)


def read_experiment(path: Path) -> Experiment:
    """An experiment from the config.json of a run."""
    values = read_json(path)
    try:
        return Experiment.from_dict(values)
    except OcraError as error:
        raise OcraError(f"{path} holds no experiment that can be run. {error}") from None


def fresh_path(name: str) -> Path:
    """A folder below runs/ that is not there yet: runs/name, runs/name-2, …"""
    path, number = Path("runs") / name, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the run for this process; the system frees it however the process ends."""
    try:
        file = (folder / ".lock").open("a")
    except OSError as error:
        raise OcraError(f"{folder} cannot be written to: {error.strerror}.") from None
    with file:
        try:
            _lock_file(file.fileno())
        except OSError:
            raise OcraError(
                f"Another process is training in {folder}; two cannot write to one run."
            ) from None
        yield


def _lock_file(handle: int) -> None:
    """Lock an open file without waiting, or raise OSError."""
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
