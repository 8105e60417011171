"""A network and a task so small that whole runs fit into a test: one glyph digit on 32×32 pixels."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from ocra.config import ModelConfig
from ocra.data import ClutteredMNIST
from ocra.files import write_json_atomically
from ocra.losses import LossConfig
from ocra.presets import Experiment
from ocra.training.config import TrainingConfig
from ocra.training.logging import read_log

TINY = Experiment(
    name="tiny",
    model=ModelConfig(
        height=32, width=32, glimpses=2, glimpse_size=12, write_size=12, filters=8, hidden=64,
        primary_capsules=8, capsule_size=8,
    ),
    task=ClutteredMNIST.Config(digits="glyphs", size=32, objects=1, distractors=0),
    loss=LossConfig(10.0, normalise_scores=False),
    training=TrainingConfig(
        images=1280, batch=32, warmup_images=320, single_until_images=0, average=0.99, report_every_images=320,
        validate_every_images=640, validate_images=100, test_images=100, compile=False,
    ),
)  # fmt: skip


def tiny(seed: int = 0, **training: Any) -> Experiment:
    """The tiny experiment with other settings of training."""
    return replace(TINY, seed=seed, training=replace(TINY.training, **training))


# Long enough to be disturbed, with a checkpoint every few steps, so that it can be caught between any two; and with
# everything that has a memory or changes on the way.
LONGER = tiny(
    images=32 * 160, checkpoint_minutes=1e-3, report_every_images=32, validate_every_images=640, whitening=0.01,
    guide=0.5, guide_until_images=32 * 100, reconstruction_end=0.5,
)  # fmt: skip


def write_config(path: Path, experiment: Experiment) -> Path:
    """Save an experiment where `ocra train --config` finds it."""
    write_json_atomically(path, experiment.to_dict())
    return path


def start(*words: object, module: str = "ocra", **options: Any) -> subprocess.Popen[str]:
    """Start the program in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def finish(process: subprocess.Popen[str], timeout: float = 250) -> tuple[int, str, str]:
    """Wait for a process: exit code, output, errors."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def run(*words: object, **options: Any) -> tuple[int, str, str]:
    """Run the program to its end."""
    return finish(start(*words, **options))


def wait_for_images(process: subprocess.Popen[str], folder: Path, images: int) -> None:
    """Wait until a run has seen this many images, or has ended."""
    for _ in range(6000):
        records = read_log(folder / "log.jsonl")
        if process.poll() is not None or (records and records[-1]["images"] >= images):
            return
        time.sleep(0.02)
    raise AssertionError("the run does not start")


def losses(folder: Path) -> list[float]:
    """The loss of each report of a run."""
    return [record["loss"] for record in read_log(folder / "log.jsonl") if "loss" in record]


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs left the same last weights, bit for bit."""
    first, second = (load_file(folder / "weights" / "last" / "model.safetensors") for folder in (one, other))
    return first.keys() == second.keys() and all(bool((first[name] == second[name]).all()) for name in first)
