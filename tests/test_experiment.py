"""An experiment is data: it is checked, written, scaled and fitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ocra.data import ClutteredMNIST, FolderTask, MultiMNIST, task_config
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.losses import LossConfig
from ocra.presets import PRESETS, preset
from ocra.training.checkpoint import read_experiment

TWO = Experiment(stages=(Stage(1000, batch_size=64, warmup_images=100), Stage(3000, batch_size=64)))


@pytest.mark.parametrize("name", PRESETS)
def test_an_experiment_survives_being_written_as_json(name: str) -> None:
    experiment = replace(preset(name), seed=3, task=FolderTask.Config(class_names=("a", "b")))
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_images_are_counted_in_whole_batches() -> None:
    assert [stage.steps for stage in TWO.stages] == [16, 47]
    assert TWO.images == 63 * 64


@pytest.mark.parametrize("name", ["multimnist-3", "multimnist-10", "cluttered-5", "svhn-12"])
def test_scaled_to_its_own_length_a_preset_is_what_it_was(name: str) -> None:
    experiment = preset(name)
    assert experiment.scaled(sum(stage.images for stage in experiment.stages)) == experiment


def test_a_scaled_experiment_keeps_its_first_stages_as_far_as_there_is_room() -> None:
    longer, shorter, least = TWO.scaled(40_000), TWO.scaled(400), TWO.scaled(1)
    assert [stage.images for stage in longer.stages] == [1_000, 39_000]
    assert [stage.images for stage in shorter.stages] == [120, 280]
    assert [each.stages[0].warmup_images for each in (longer, shorter)] == [100, 40]
    assert [stage.images for stage in least.stages] == [1, 1]


def test_a_fitted_experiment_has_the_shape_and_the_classes_of_its_task() -> None:
    experiment = replace(
        preset("multimnist-3"), task=ClutteredMNIST.Config(digits="glyphs", size=48)
    ).fitted()
    assert experiment.model.image_shape == (1, 48, 48)
    assert not experiment.loss.normalise_scores  # a class may be there twice
    house = replace(preset("svhn-12"), task=MultiMNIST.Config(digits="glyphs")).fitted()
    assert house.model.classes == 10 and house.model.readout_digits == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"images": 0},
        {"images": 1.5},
        {"batch_size": True},
        {"warmup_images": -1},
        {"lr": "fast"},
        {"lr": float("nan")},
        {"lr": (1e-3, 0.0, 0.0)},
        {"shampoo_lr": (-0.1, 0.0)},
        {"reconstruction": float("inf")},
        {"spread": 1.1},
        {"single_objects": (0.0, 2.0)},
        {"schedule": "constant"},
        {"ema_decay": 1.0},
        {"beta2": -0.1},
        {"grad_clip": 0.0},
        {"attention_lr_mult": -0.1},
        {"attention_scale": float("inf")},
        {"read_window": 0.0},
        {"glimpses": 0},
        {"glimpses": (1, 2.5)},
        {"glimpses": (1, 2, 3)},
        {"glimpses": "all"},
        {"select": 0},
        {"init_from": 3},
    ],
)
def test_a_stage_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(OcraError, match=f"stage.{next(iter(bad))}"):
        Stage(**bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"stages": ()}, "at least one stage"),
        ({"stages": (Stage(), Stage(init_from="multimnist-3"))}, "Only the first stage"),
        ({"seed": -1}, "seed must be"),
        ({"init": "zero"}, "init must be"),
        ({"name": ".."}, "name must be"),
    ],
)
def test_an_experiment_that_cannot_be_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(OcraError, match=message):
        Experiment(**bad)


def test_a_penalty_of_zero_asks_for_nothing() -> None:
    for weight in (0.0, (0.0, 0.0)):
        Experiment(stages=(Stage(over_count=weight),))
    Experiment(loss=LossConfig(normalise_scores=False), stages=(Stage(over_count=(0.5, 0.0)),))


@pytest.mark.parametrize("bad", [{"precision": "fp16"}, {"checkpoint_minutes": 0.0}, {"validate_images": 0}])
def test_a_way_to_run_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(OcraError, match=f"run.{next(iter(bad))}"):
        RunConfig(**bad)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"an object with names and values, not \[\]"),
        ('{"stages": {"images": 3}}', "stages must be a list"),
        ('{"stages": [7]}', r"an object for stages\.0, not 7"),
        ('{"stages": [{"epochs": 3}]}', r"no option stages\.0\.epochs"),
        ('{"stages": [{"init_from": 3}]}', r"stage\.init_from must be the name of weights, not 3"),
        ('{"stages": [{"lr": [[1], 2]}]}', r"stage\.lr must be a number"),
        ('{"model": 7}', "an object for model"),
        ('{"seed": 99999999999999999999999}', "seed must be a whole number from 0"),
        ('{"name": 3}', "name must be a word"),
        ('{"name": "../out"}', "name must be a word"),
        ('{"run": {"compile": "false"}}', r"run\.compile must be true or false, not 'false'"),
        ('{"model": {"attention": "no"}}', r"model\.attention must be true or false"),
        ('{"loss": {"normalise_scores": 1}}', r"loss\.normalise_scores must be true or false"),
        ('{"task": {"name": "svhn", "augment": "off"}}', r"task\.augment must be true or false"),
        ('{"training": {"images": 3}}', r"of version 0\.1, which had 'training'.*Finish that run with ocra 0\.1"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        (f'{{"seed": {"9" * 6000}}}', "too long a number"),
        ('{"seed": 1e999}', "seed must be"),
        ('{"seed": NaN}', "seed must be"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_is_refused_with_a_sentence(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(OcraError, match=message):
        read_experiment(tmp_path / "config.json")


def test_settings_are_checked_once_they_fit_the_task() -> None:
    asked = Experiment(stages=(Stage(over_count=0.5),))
    with pytest.raises(UsageError, match="over-count penalty needs scores that count"):
        asked.check()
    counted = replace(asked, task=task_config({"name": "cluttered", "digits": "glyphs"})).fitted()
    assert counted.check() is counted
