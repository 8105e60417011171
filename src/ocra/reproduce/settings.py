"""When two runs are the same experiment, and what of an experiment may be told to others."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

from ocra.errors import OcraError
from ocra.model.weights import read_config
from ocra.presets import PRESETS, Experiment

# What is reported, saved and checked on the way does not change what is learnt.
_IMMATERIAL = {
    "name", "description", "paper_error", "seed", "task.root", "task.download",
    "training.report_every_images", "training.validate_every_images", "training.validate_images",
    "training.test_images",
    "training.checkpoint_minutes", "training.compile",
}  # fmt: skip


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a run without the folders of the machine it ran on."""
    config = copy.deepcopy(config)
    if config.get("task", {}).get("root"):
        config["task"]["root"] = None
    if config.get("training", {}).get("start_from"):
        config["training"]["start_from"] = source_name(config["training"]["start_from"])
    return config


def source_name(source: str) -> str:
    """Weights to start from, by their name alone: that of the run, if they are the best or last of a run."""
    parts = [part for part in Path(source).parts if part not in ("/", "..", ".")]
    while len(parts) > 1 and parts[-1] in ("best", "last", "weights"):
        parts.pop()
    return parts[-1] if parts else source


def recorded_source(source: str) -> str:
    """Weights to start from, by the result they are shipped with, so that it is known which of that name they were."""
    with suppress(OcraError):
        if isinstance(result := read_config(source)[1].record.get("result"), str):
            return result
    return source_name(source)


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """All that matters to what is learnt, as one flat dictionary, such as {"training.batch": 128, …}."""
    with suppress(OcraError):  # one written by another version is compared as it is
        config = Experiment.from_dict(config).to_dict()  # fills in options that did not exist then
    flat: dict[str, Any] = {}
    for name, value in portable(config).items():
        inner = value if isinstance(value, dict) else {"": value}
        for key, setting in inner.items():
            full = f"{name}.{key}" if key else name
            flat[full] = tuple(setting) if isinstance(setting, list) else setting
    return {name: value for name, value in flat.items() if name not in _IMMATERIAL}


def differences(config: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, each with its value here and there."""
    here, there = settings(config), settings(other)
    names = [*here, *(name for name in there if name not in here)]
    return {name: (here.get(name), there.get(name)) for name in names if here.get(name) != there.get(name)}


def is_of_preset(config: dict[str, Any]) -> bool:
    """Whether task and network are those of the preset an experiment is named after; its training may be another."""
    known = PRESETS.get(config.get("name", ""))
    if known is None:
        return False
    varied = ("task.augment", "task.extra")  # training pictures only
    changed = differences(config, known.to_dict())
    return not any(name.startswith(("task.", "model.")) and name not in varied for name in changed)


def first_difference(config: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first setting that differs, in words, or None if the experiments are the same."""
    if config.get("seed", 0) != other.get("seed", 0):
        return f"seed {config.get('seed', 0)}, not {other.get('seed', 0)}"
    for name, (here, there) in differences(config, other).items():
        return f"{name} {here}, not {there}"
    return None
