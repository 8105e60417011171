"""The experiments of the paper, by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ocra.cli.presets import parameter_count
from ocra.data import ClutteredMNIST, FolderTask, MultiMNIST, make_task
from ocra.errors import OcraError, UsageError
from ocra.presets import PRESETS, Experiment, fit_to_task, preset

EXACT = {
    "multimnist-3": 3_877_356,
    "multimnist-10": 3_877_356,
    "multimnist-3-one-routing": 3_877_356,
    "cluttered-5": 3_915_244,
    "cluttered-7": 3_915_244,
    "svhn-12": 5_107_591,
}


def test_every_row_of_the_papers_tables_has_a_preset() -> None:
    assert set(PRESETS) == {
        *EXACT,
        "multimnist-recurrent-3",
        "multimnist-feedforward",
        "multimnist-3-no-capsules",
        "cluttered-5-no-capsules",
    }


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_parameter_counts_are_those_of_the_authors_program(name: str, count: int) -> None:
    assert parameter_count(preset(name).model) == count


def test_ablations_without_glimpses_differ_by_the_hidden_to_hidden_weights() -> None:
    recurrent = parameter_count(preset("multimnist-recurrent-3").model)
    feedforward = parameter_count(preset("multimnist-feedforward").model)
    assert recurrent - feedforward == 2 * (4 * 512 * 512 + 4 * 512)


@pytest.mark.parametrize(
    ("name", "weight", "mask", "clip"),
    [
        ("multimnist-3", 3, "none", True),
        ("multimnist-10", 10, "none", True),
        ("cluttered-5", 175, "authors", False),
        ("cluttered-7", 200, "authors", False),
        ("svhn-12", 200, "none", True),
    ],
)
def test_hyperparameters_of_the_papers_table(name: str, weight: float, mask: str, clip: bool) -> None:
    experiment = preset(name, "paper")
    assert experiment.loss.reconstruction_weight == weight
    assert experiment.loss.excess_weight == experiment.loss.share_weight == 0
    assert experiment.loss.reconstruction_mask == mask
    assert experiment.model.clip_canvas == clip
    assert experiment.loss.normalise_scores == (experiment.task.name == "multimnist")


@pytest.mark.parametrize("name", PRESETS)
def test_the_papers_recipe(name: str) -> None:
    training = preset(name, "paper").training
    assert training.guide == 0 and training.reconstruction_end == 1 and training.start_from is None
    assert (training.learning_rate, training.schedule, training.batch, training.clip) == (
        1e-3,
        "constant",
        128,
        10,
    )
    assert training.capsule_init == 0.01 and training.average == 0
    assert training.images >= 150e6
    task = preset(name, "paper").task
    assert task.name != "svhn" or (task.extra and not task.augment)


@pytest.mark.parametrize("name", PRESETS)
def test_an_experiment_survives_being_written_as_json(name: str) -> None:
    experiment = replace(preset(name), seed=3, task=FolderTask.Config(class_names=("a", "b")))
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_unknown_names_are_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="There is no preset 'multimnist-4'; choose one of multimnist-3"):
        preset("multimnist-4")
    with pytest.raises(UsageError, match="recipe"):
        preset("multimnist-3", "mine")  # type: ignore[arg-type]
    with pytest.raises(OcraError, match=r"training\.epochs"):
        Experiment.from_dict({"training": {"epochs": 3}})
    with pytest.raises(OcraError, match="an object for model"):
        Experiment.from_dict({"model": 7})


def test_a_model_is_fitted_to_another_task() -> None:
    task = ClutteredMNIST.Config(digits="glyphs", size=48)
    experiment = fit_to_task(replace(preset("multimnist-3"), task=task))
    assert (experiment.name, experiment.description, experiment.paper_error) == (
        "multimnist-3-cluttered",
        "",
        "",
    )
    assert experiment.model.image_shape == (1, 48, 48)
    assert not experiment.loss.normalise_scores


def test_a_fitted_model_for_house_numbers_reads_no_sequence_elsewhere() -> None:
    experiment = fit_to_task(replace(preset("svhn-12"), task=MultiMNIST.Config(digits="glyphs")))
    assert experiment.model.classes == 10 and experiment.model.readout_digits == 0


def test_the_papers_figure_stays_with_the_papers_task(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_digits = make_task(MultiMNIST.Config(digits="glyphs"), "train")
    monkeypatch.setattr("ocra.data.make_task", lambda *_: drawn_digits)  # where MNIST is not at hand
    own = fit_to_task(preset("multimnist-3"))
    assert own == preset("multimnist-3")
    drawn = fit_to_task(replace(own, task=replace(own.task, digits="glyphs")))
    assert (drawn.name, drawn.paper_error) == ("multimnist-3", "")
    once = fit_to_task(replace(own, model=replace(own.model, glimpses=1)))
    assert (once.name, once.description, once.paper_error) == ("multimnist-3", "", "")
