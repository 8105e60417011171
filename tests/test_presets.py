"""The experiments of the paper, by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ocra.cli.main import main
from ocra.cli.presets import parameter_count
from ocra.data import ClutteredMNIST
from ocra.errors import UsageError
from ocra.experiment import Experiment
from ocra.presets import PRESETS, own_experiment, preset

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
    assert experiment.stages[0].reconstruction == weight
    assert experiment.loss.reconstruction_mask == mask
    assert experiment.model.clip_canvas == clip
    assert experiment.loss.normalise_scores == (experiment.task.name == "multimnist")


@pytest.mark.parametrize("name", PRESETS)
def test_the_papers_recipe_is_one_stage_of_plain_adam(name: str) -> None:
    experiment = preset(name, "paper")
    (stage,) = experiment.stages
    assert (stage.lr, stage.batch_size, stage.grad_clip, stage.beta2) == (1e-3, 128, 10, 0.999)
    assert stage.shampoo_lr == stage.ema_decay == stage.warmup_images == stage.single_objects == 0
    assert stage.over_count == stage.cross_entropy == stage.attention_supervision == stage.early_answers == 0
    assert stage.init_from is None and stage.select == 1 and experiment.init == "paper"
    assert stage.images >= 150e6
    task = experiment.task.to_dict()
    assert task["name"] != "svhn" or (task["extra"] and not task["augment"])


@pytest.mark.parametrize("name", PRESETS)
def test_our_recipe_ends_at_a_learning_rate_of_zero(name: str) -> None:
    last = preset(name).stages[-1]
    assert isinstance(last.lr, tuple) and last.lr[1] == 0
    assert last.shampoo_lr == 0 or (isinstance(last.shampoo_lr, tuple) and last.shampoo_lr[1] == 0)


def test_unknown_names_are_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="There is no preset 'multimnist-4'; choose one of multimnist-3"):
        preset("multimnist-4")
    with pytest.raises(UsageError, match="recipe"):
        preset("multimnist-3", "mine")  # type: ignore[arg-type]


def test_the_papers_figure_stays_with_the_papers_task_and_model() -> None:
    known = preset("multimnist-3")
    kept = replace(known, task=replace(known.task, root="here"), stages=known.stages[:1], seed=4)  # type: ignore[call-arg]
    assert own_experiment(kept) == kept
    drawn = own_experiment(replace(known, task=replace(known.task, digits="glyphs")))  # type: ignore[call-arg]
    once = own_experiment(replace(known, model=replace(known.model, glimpses=1)))
    for changed in (drawn, once):
        assert (changed.name, changed.description, changed.paper_error) == ("multimnist-3", "", "")
    other = own_experiment(replace(known, task=ClutteredMNIST.Config()))
    assert (other.name, other.paper_error) == ("multimnist-3-cluttered", "")


def test_a_preset_is_printed_as_the_experiment_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "svhn-12", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("parameters") == EXACT["svhn-12"]
    assert Experiment.from_dict(shown) == preset("svhn-12")


def test_presets_of_our_own_have_no_recipe_of_the_papers() -> None:
    assert preset("mnist-6").model.height == 28
    with pytest.raises(UsageError, match="not in the paper"):
        preset("mnist-6", "paper")
