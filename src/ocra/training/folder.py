"""The folder of one run: config.json, log.jsonl, checkpoints/, weights/, summary.json."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ocra.errors import OcraError
from ocra.files import read_json, write_json_atomically
from ocra.presets import Experiment
from ocra.training.checkpoint import Checkpoints


class RunFolder:
    """One run on disk; open it with `new_run` or `old_run`, which keep other processes out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.log = path / "log.jsonl"

    def weights(self, which: str) -> Path:
        """The folder of the 'best' or the 'last' weights."""
        return self.path / "weights" / which

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended, else None."""
        path = self.path / "summary.json"
        return read_json(path) if path.is_file() else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Mark the run as ended."""
        write_json_atomically(self.path / "summary.json", summary)


@contextmanager
def new_run(path: Path, experiment: Experiment) -> Iterator[RunFolder]:
    """Make a folder for a run and hold its lock; a folder that holds a run already is refused."""
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
        write_json_atomically(path / "config.json", experiment.to_dict())
        yield RunFolder(path)


@contextmanager
def old_run(path: Path) -> Iterator[tuple[RunFolder, Experiment]]:
    """Open the folder of a run that was stopped and hold its lock."""
    if not (path / "config.json").is_file():
        raise OcraError(f"{path} holds no run to resume: there is no config.json in it.")
    with _lock(path):
        for leftover in path.rglob(".*.part*"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        yield RunFolder(path), read_spec(path / "config.json")


def read_spec(path: Path) -> Experiment:
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
