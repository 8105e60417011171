"""What a run tells: log.jsonl, lines or a live display for the person watching, TensorBoard, its provenance."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import torch

import ocra
from ocra.errors import OcraError, UsageError
from ocra.files import write_text_atomically

Record = dict[str, Any]


class Logger:
    """One place where a run is reported. A logger of one's own overrides what it needs."""

    def start(self, seen: int, total: int) -> None:
        """Begin, at `seen` of `total` images."""

    def write(self, record: Record) -> None:
        """Take a line of the log: step, images, stage and the figures since the last line."""

    def advance(self, seen: int) -> None:
        """Another step is made."""

    def say(self, text: str) -> None:
        """Show a sentence."""

    def close(self) -> None:
        """End."""


class JsonLines(Logger):
    """A file of JSON lines, one for each record, in the order of the images seen."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, seen: int, total: int) -> None:
        kept = [record for record in read_log(self._path) if record["images"] <= seen]  # the rest is repeated
        write_text_atomically(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk costs the line, not the run
            warnings.warn(f"A line of {self._path} could not be written: {error.strerror}.", stacklevel=2)

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self._file.close()


def read_log(path: Path) -> list[Record]:
    """All whole lines of a log; a line that was cut off by a crash is left out."""
    records = []
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("images"), int):
            records.append(record)
    return records


class Lines(Logger):
    """One line for each record, for files and pipes."""

    def start(self, seen: int, total: int) -> None:
        self._total = total

    def write(self, record: Record) -> None:
        parts = [f"{record['images']:>11,} / {self._total:,} images", f"stage {record['stage']}"]
        if "loss" in record:
            parts.append(f"loss {record['loss']:.4f}  error {record['error']:.2%}  lr {record['lr']:.2e}")
            parts.append(
                f"gradient {record['gradient_norm']:.2f}  {record['images_per_second']:.0f} images/s"
            )
        if "validation_error" in record:
            parts.append(_validation(record))
        self.say("  ".join(parts))

    def say(self, text: str) -> None:
        try:
            print(text, flush=True)
        except OSError as error:  # a full disk, a pipe whose reader has gone: no reason to end a run
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            warnings.warn(f"Nothing more can be shown ({error.strerror}); the run goes on.", stacklevel=2)


class Live(Logger):
    """A progress bar with the newest figures, for terminals."""

    def start(self, seen: int, total: int) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.completed:,.0f} images"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            speed_estimate_period=120,
        )
        self._figures: dict[str, str] = {}
        self._progress.start()
        self._bar = self._progress.add_task("", total=total, completed=seen, figures="starting")

    def write(self, record: Record) -> None:
        self._figures["stage"] = f"stage {record['stage']}"
        if "loss" in record:
            self._figures["loss"] = f"loss {record['loss']:.4f}"
            self._figures["speed"] = f"{record['images_per_second']:.0f} images/s"
        if "validation_error" in record:
            self._figures["validation"] = _validation(record)
        self.advance(record["images"])

    def advance(self, seen: int) -> None:
        shown = " · ".join(self._figures.values()) or "first step"
        self._progress.update(self._bar, completed=seen, figures=shown)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        with suppress(AttributeError):  # never started
            self._progress.stop()


def _validation(record: Record) -> str:
    silent = record.get("silent_glimpses")
    warning = f", glimpses that say nothing: {silent}" if silent else ""
    return f"validation error {record['validation_error']:.2%}{warning}"


class TensorBoard(Logger):
    """Writes event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise OcraError(
                "--track tensorboard needs TensorBoard; run: pip install 'ocra-vision[track]'."
            ) from None
        self._make_writer, self._folder = SummaryWriter, folder
        self._writer: Any = None

    def write(self, record: Record) -> None:
        if self._writer is None:  # only now, so that a run that is refused leaves nothing behind
            # Points beyond this one are of a run that was killed and is repeated from its checkpoint.
            self._writer = self._make_writer(str(self._folder), purge_step=record["images"])
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("step", "images"):
                self._writer.add_scalar(name, value, record["images"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def check_tracker(track: str | None) -> None:
    """Refuse the name of a tracking program that there is not."""
    if track not in (None, "tensorboard"):
        raise UsageError(f"There is no tracker '{track}'; choose tensorboard.")


class Reporter:
    """Takes the figures of single steps and gives all loggers their means. Helping processes have no loggers."""

    def __init__(self, folder: Path | None, quiet: bool = False, track: str | None = None) -> None:
        self.loggers: list[Logger] = []
        check_tracker(track)
        if folder is not None:
            self.loggers.append(JsonLines(folder / "log.jsonl"))
            if not quiet:
                self.loggers.append(Live() if sys.stdout.isatty() else Lines())
            if track == "tensorboard":
                self.loggers.append(TensorBoard(folder / "tensorboard"))
        self._forget()

    def _forget(self) -> None:
        self._sums: dict[str, float] = {}
        self._steps, self._images, self._since = 0, 0, time.monotonic()

    def start(self, seen: int, total: int) -> None:
        """Begin a run, or go on with one, at `seen` of `total` images."""
        for logger in self.loggers:
            logger.start(seen, total)
        self._forget()

    def add(self, images: int, seen: int, figures: dict[str, float]) -> None:
        """Take the figures of a step over `images` images that ends at `seen`."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
        self._images += images
        for logger in self.loggers:
            logger.advance(seen)

    def report(self, where: Record, **others: float) -> None:
        """Write the means of the steps since the last report."""
        means = {name: value / max(1, self._steps) for name, value in self._sums.items()}
        speed = self._images / (time.monotonic() - self._since)
        self.write({**where, **means, **others, "images_per_second": round(speed, 1)})
        self._forget()

    def write(self, record: Record) -> None:
        """Send one record everywhere."""
        for logger in self.loggers:
            logger.write(record)

    def say(self, text: str) -> None:
        """Show a sentence to the person watching."""
        for logger in self.loggers:
            logger.say(text)

    def pause(self, seconds: float) -> None:
        """Do not count this time as training time (validation, checkpoints)."""
        self._since += seconds

    def close(self) -> None:
        """End."""
        for logger in self.loggers:
            logger.close()


class Timer:
    """Seconds spent in the parts of a step, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """Begin a step."""
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the last call to this part."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def versions() -> dict[str, str]:
    """Versions of what took part."""
    return {
        "ocra": ocra.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def commit() -> str | None:
    """The commit of the source this program runs from, if it runs from a repository, and whether that was changed."""
    package = str(Path(__file__).parent.parent)

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", package, *arguments], capture_output=True, text=True, timeout=10)

    try:
        last = git("log", "-1", "--format=%H", "--", ".").stdout.strip()
        changed = bool(last) and git("diff", "--quiet", "HEAD", "--", ".").returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{last} with changes" if changed else last or None
