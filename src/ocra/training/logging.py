"""What a run tells: log.jsonl, lines or a live display for the person watching, TensorBoard."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ocra.errors import OcraError, UsageError
from ocra.files import write_text_atomically


class Log:
    """A file of JSON lines, one for each report, in the order of the images seen."""

    def __init__(self, path: Path, resume_at: int | None = None) -> None:
        """Append to the log at `path`; what an earlier process wrote beyond `resume_at` images is dropped."""
        if resume_at is not None:
            kept = [record for record in read_log(path) if record["images"] <= resume_at]
            write_text_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Add a line. A full disk costs the line, not the run."""
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError as error:
            warnings.warn(
                f"A line of {self._file.name} could not be written: {error.strerror}.", stacklevel=2
            )

    def close(self) -> None:
        """End; what a full disk refused is given up."""
        with suppress(OSError):
            self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log; a line that was cut off by a crash is left out."""
    records = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


class Display:
    """Shows a run to a person: plain lines here, nothing or a live bar in the subclasses."""

    def start(self, seen: int, total: int) -> None:
        """Begin, at `seen` of `total` images."""

    def advance(self, seen: int, record: dict[str, Any] | None = None) -> None:
        """Another step; with a record where the log has a new line."""

    def say(self, text: str) -> None:
        """Show a sentence."""

    def stop(self) -> None:
        """End."""


class Lines(Display):
    """One line for each report, for files and pipes."""

    def start(self, seen: int, total: int) -> None:
        self._total = total

    def advance(self, seen: int, record: dict[str, Any] | None = None) -> None:
        if record is not None:
            self.say(describe(record, self._total))

    def say(self, text: str) -> None:
        try:
            print(text, flush=True)
        except OSError as error:  # a full disk, a pipe whose reader has gone: no reason to end a run
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            warnings.warn(f"Nothing more can be shown ({error.strerror}); the run goes on.", stacklevel=2)


class Live(Display):
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

    def advance(self, seen: int, record: dict[str, Any] | None = None) -> None:
        if record is not None:
            self._figures.update(figures(record))
        shown = " · ".join(self._figures.values()) or "first step"
        self._progress.update(self._bar, completed=seen, figures=shown)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self._progress.stop()


def choose_display(quiet: bool) -> Display:
    """Nothing if quiet, a live bar on a terminal, else lines."""
    if quiet:
        return Display()
    return Live() if sys.stdout.isatty() else Lines()


def figures(record: dict[str, Any]) -> dict[str, str]:
    """The figures of a log line that a person wants to see, in a few words each."""
    shown = {}
    if "loss" in record:
        shown["loss"] = f"loss {record['loss']:.4f}"
        shown["speed"] = f"{record['images_per_second']:.0f} images/s"
    if "validation_error" in record:
        shown["validation"] = _validation(record)
    return shown


def describe(record: dict[str, Any], total: int) -> str:
    """A log line in words."""
    parts = [f"{record['images']:>11,} / {total:,} images"]
    if "loss" in record:
        parts.append(
            f"loss {record['loss']:.4f}  error {record['error']:.2%}  lr {record['learning_rate']:.2e}"
        )
        parts.append(f"gradient {record['gradient_norm']:.2f}  {record['images_per_second']:.0f} images/s")
    if "validation_error" in record:
        parts.append(_validation(record))
    return "  ".join(parts)


def _validation(record: dict[str, Any]) -> str:
    silent = record.get("silent_glimpses")
    warning = f", glimpses that say nothing: {silent}" if silent else ""
    return f"validation error {record['validation_error']:.2%}{warning}"


class Tracker:
    """Sends the figures of the log to a tracking program; this one sends them nowhere."""

    def write(self, record: dict[str, Any]) -> None:
        """Send one log line."""

    def close(self) -> None:
        """End."""


class TensorBoard(Tracker):
    """Writes event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise OcraError(
                "--track tensorboard needs TensorBoard; run: pip install 'ocra-vision[track]'."
            ) from None
        self._make_writer = partial(SummaryWriter, str(folder))
        self._writer: Any = None

    def write(self, record: dict[str, Any]) -> None:
        if self._writer is None:  # only now, so that a run that is refused leaves nothing behind
            # Points beyond this one are of a run that was killed and is repeated from its checkpoint.
            self._writer = self._make_writer(purge_step=record["images"])
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("step", "images"):
                self._writer.add_scalar(name, value, record["images"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def choose_tracker(name: str | None, folder: Path) -> Tracker:
    """The tracker of this name."""
    if name is None:
        return Tracker()
    if name == "tensorboard":
        return TensorBoard(folder / "tensorboard")
    raise UsageError(f"There is no tracker '{name}'; choose tensorboard.")


class Reporter:
    """Gathers the figures of single steps and tells log, display and tracker their means. Other ranks are silent."""

    def __init__(self, folder: Path | None, quiet: bool = True, track: str | None = None) -> None:
        self._folder = folder
        self.display = choose_display(quiet) if folder is not None else Display()
        self._tracker = choose_tracker(track, folder) if folder is not None else Tracker()
        self._log: Log | None = None
        self._forget()

    def start(self, seen: int, total: int) -> None:
        """Begin a run, or go on with one at `seen` of `total` images."""
        if self._folder is not None:
            self._log = Log(self._folder / "log.jsonl", seen)
        self.display.start(seen, total)
        self._forget()

    def _forget(self) -> None:
        self._sums: dict[str, float] = {}
        self._steps, self._images, self._since = 0, 0, time.monotonic()

    def add(self, images: int, seen: int, figures: dict[str, float]) -> None:
        """Count a step over `images` images that ends at `seen`."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
        self._images += images
        self.display.advance(seen)

    def report(self, step: int, seen: int, **others: float) -> None:
        """Write the means since the last report."""
        means = {name: value / max(1, self._steps) for name, value in self._sums.items()}
        speed = self._images / (time.monotonic() - self._since)
        self.write({"step": step, "images": seen, **means, **others, "images_per_second": round(speed, 1)})
        self._forget()

    def write(self, record: dict[str, Any]) -> None:
        """Send one record everywhere."""
        if self._log is not None:
            self._log.write(record)
        self._tracker.write(record)
        self.display.advance(record["images"], record)

    def say(self, text: str) -> None:
        """Show a sentence to the person watching."""
        self.display.say(text)

    def pause(self, seconds: float) -> None:
        """Do not count this time as training time (validation, checkpoints)."""
        self._since += seconds

    def stop(self) -> None:
        """End."""
        if self._log is not None:
            self._log.close()
        self._tracker.close()
        self.display.stop()
