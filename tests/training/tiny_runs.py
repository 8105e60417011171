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
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.files import write_json_atomically
from ocra.losses import LossConfig
from ocra.training.logging import read_log

TINY = Experiment(
    name="tiny",
    model=ModelConfig(
        height=32, width=32, glimpses=2, glimpse_size=12, write_size=12, filters=8, hidden=64,
        primary_capsules=8, capsule_size=8,
    ),
    task=ClutteredMNIST.Config(digits="glyphs", size=32, objects=1, distractors=0),
    loss=LossConfig(normalise_scores=False),
    stages=(
        Stage(1280, batch_size=32, lr=(5e-3, 0.0), shampoo_lr=0.0, warmup_images=128, ema_decay=0.99),
    ),
    run=RunConfig(
        report_every_images=320, validate_every_images=640, validate_images=100, test_images=100, compile=False
    ),
)  # fmt: skip


def tiny(seed: int = 0, run: dict[str, Any] | None = None, **stage: Any) -> Experiment:
    """The tiny experiment with another stage of training, and other settings of the run."""
    return replace(
        TINY, seed=seed, stages=(replace(TINY.stages[0], **stage),), run=replace(TINY.run, **(run or {}))
    )


# Long enough to be disturbed, with a checkpoint every few steps, so that it can be caught between any two; in two
# stages, with everything that has a memory or changes on the way.
LONGER = replace(
    TINY,
    stages=(
        Stage(
            32 * 60, batch_size=32, lr=5e-3, shampoo_lr=0.0, ema_decay=0.99, attention_supervision=(0.5, 0.2),
            spread=(0.5, 1.0), glimpses=(1, 2), detach_windows=True,
        ),
        Stage(
            32 * 100, batch_size=32, lr=(5e-3, 0.0), shampoo_lr=(0.01, 0.0), ema_decay=0.99, reconstruction=(10.0, 5.0),
            attention_supervision=(0.2, 0.0), attention_teacher="mnist-6-early", select=2, attention_scale=0.5,
        ),
    ),
    run=replace(TINY.run, checkpoint_minutes=1e-3, report_every_images=32),
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
