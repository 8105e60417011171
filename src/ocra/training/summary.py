"""What is said about a run once it has ended, and about the weights it leaves."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import ocra
from ocra.data import Task
from ocra.metrics import ErrorCounter
from ocra.presets import Experiment


def summarise(
    experiment: Experiment, progress: dict[str, Any], tests: dict[str, ErrorCounter], commit: str | None
) -> dict[str, Any]:
    """The content of summary.json: what was trained, what came out, what it took."""
    return {
        "name": experiment.name,
        "seed": experiment.seed,
        **progress,
        "test": {which: result.figures() for which, result in tests.items()},
        "versions": versions(),
        "commit": commit,
        "config": experiment.to_dict(),
    }


def done(folder: Path, test: ErrorCounter | None) -> str:
    """The last words of a run."""
    where = f"{folder} holds weights/best, weights/last and summary.json."
    if test is None:
        return f"Done. {where}"
    figures = test.figures()
    low, high = figures["exact_error_interval"]
    error = f"exact error {figures['exact_error']:.2%} ({low:.2%} to {high:.2%})"
    return f"Done: {error} on {figures['n']:,} test images. {where}"


def weights_metadata(
    experiment: Experiment, task: Task, images: int, validation_error: float
) -> dict[str, Any]:
    """What config.json says besides the network, so that weights can be used without the run they came from."""
    return {
        "name": experiment.name,
        "task": experiment.task.to_dict(),
        "class_names": list(task.class_names),
        "answer": dataclasses.asdict(task.answer_rule),
        "loss": dataclasses.asdict(experiment.loss),
        "training": {
            **dataclasses.asdict(experiment.training),
            "seed": experiment.seed,
            "images_seen": images,
        },
        "validation_error": validation_error,
        "versions": versions(),
    }


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
    try:
        last = _git(package, "log", "-1", "--format=%H", "--", ".").stdout.strip()
        changed = bool(last) and _git(package, "diff", "--quiet", "HEAD", "--", ".").returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{last} with changes" if changed else last or None


def _git(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
