"""Runs and records for tests: tiny real runs on glyph digits, and records with made-up figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ocra.config import ModelConfig
from ocra.data import MultiMNIST
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.metrics import wilson_interval
from ocra.presets import preset
from ocra.reproduce.records import Cost, Record, portable, run_name

TINY = Experiment(
    name="tiny",
    model=ModelConfig(
        glimpses=2, glimpse_size=12, write_size=12, filters=4, hidden=32, primary_capsules=4, capsule_size=4
    ),
    task=MultiMNIST.Config(digits="glyphs"),
    stages=(Stage(images=320, batch_size=32, lr=(5e-3, 0.0), shampoo_lr=0.0, warmup_images=32),),
    run=RunConfig(
        report_every_images=64, validate_every_images=160, validate_images=64, test_images=64, compile=False
    ),
)  # fmt: skip


def tiny(seed: int = 0, images: int = 320, **run: Any) -> dict[str, Experiment]:
    """One tiny run under a seed, watched and saved in another way, by its name."""
    experiment = replace(TINY, seed=seed, run=replace(TINY.run, **run)).scaled(images)
    return {run_name(experiment): experiment}


def a_test(
    error: float, n: int = 10_000, task: str = "multimnist", max_shift: int | None = None, **others: Any
) -> dict[str, Any]:
    """An evaluation with a made-up error, of a model of three glimpses."""
    about = {"name": task} if max_shift is None else {"name": task, "max_shift": max_shift}
    interval = [round(x, 6) for x in wilson_interval(error * n, n)]
    return {
        "task": about, "split": "test", "seed": 0, "glimpses": 3, "n": n, "error": error,
        "interval": interval, "command": "ocra evaluate x", "object_error": error / 2, "reconstruction_mse": 0.02,
        **others,
    }  # fmt: skip


def made_up(
    kind: str, seed: int = 1, images: int = 3_000_000, error: float | None = 0.08, **others: Any
) -> Record:
    """A record of a preset with made-up figures."""
    experiment = replace(preset(kind), seed=seed).scaled(images)
    glimpses = experiment.model.glimpses
    tests = [] if error is None else [a_test(error, task=experiment.task.name, glimpses=glimpses)]
    record = Record(
        name=run_name(experiment), version="0.2", preset=kind, command=f"ocra train {kind}", init_from=None,
        commit="0123456789", seed=seed, date="2000-01-01", versions={"ocra": "0"}, machine=None,
        cost=Cost(images, images, images, 3600.0, 7200.0, 2),
        curve=[(images // 2, None, 0.12), (images, None, error or 0.5)], figures=tests, changes={},
        settings=portable(experiment.to_dict()),
    )  # fmt: skip
    return replace(record, **others)
