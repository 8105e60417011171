"""Runs and results for tests: tiny real runs on glyph digits, and results with made-up figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ocra.config import ModelConfig
from ocra.data import TaskConfig
from ocra.losses import LossConfig
from ocra.metrics import wilson_interval
from ocra.presets import Experiment, preset
from ocra.reproduce.plan import Job, job_name, scaled
from ocra.reproduce.results import Result
from ocra.training.config import TrainingConfig

TINY = Experiment(
    name="tiny",
    model=ModelConfig(
        glimpses=2, glimpse_size=12, write_size=12, filters=4, hidden=32, primary_capsules=4, capsule_size=4
    ),
    task=TaskConfig(name="multimnist", digits="glyphs"),
    loss=LossConfig(),
    training=TrainingConfig(
        images=320, batch=32, warmup_images=32, single_until_images=0, report_every_images=64,
        validate_every_images=160, validate_images=64, test_images=64, compile=False,
    ),
)  # fmt: skip


def tiny_job(seed: int = 0, **training: Any) -> Job:
    """One tiny run under a seed, with other settings of training."""
    experiment = replace(TINY, seed=seed, training=replace(TINY.training, **training))
    return Job(job_name(experiment), experiment)


def evaluation(task: str, error: float, n: int = 10_000, **others: Any) -> dict[str, Any]:
    """A test with a made-up error."""
    about = {"task": task, "split": "test", "shift": 4 if task == "multimnist" else None, "seed": 0}
    interval = [round(x, 6) for x in wilson_interval(error * n, n)]
    figures = {"n": n, "exact_error": error, "exact_error_interval": interval, "object_error": error / 2}
    return {**about, **figures, "reconstruction_mse": 0.02, "command": "ocra evaluate x", **others}


def made_up(
    name: str, seed: int = 1, images: int = 3_000_000, error: float | None = 0.08, **others: Any
) -> Result:
    """A result of a preset with made-up figures."""
    experiment = scaled(replace(preset(name), seed=seed), images)
    tests = (
        [] if error is None else [evaluation(experiment.task.name, error, glimpses=experiment.model.glimpses)]
    )
    result = Result(
        preset=name, seed=seed, config=experiment.to_dict(), images=images, best_images=images, cpu_seconds=7200.0,
        seconds=3600.0, processes=2, date="2000-01-01", versions={"ocra": "0"}, commit="0123456789",
        validation=[[images // 2, 0.12], [images, error or 0.5]], evaluations=tests, name=job_name(experiment),
    )  # fmt: skip
    return replace(result, **others)
