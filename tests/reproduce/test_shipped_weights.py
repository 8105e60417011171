"""Every shipped weight works as it did when it was shipped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from ocra.data import TaskConfig
from ocra.evaluation import evaluate
from ocra.metrics import wilson_interval
from ocra.model import weights as pretrained
from ocra.model.weights import load, read_config, shipped, stored_as
from ocra.reproduce import groups
from ocra.reproduce.cards import model_card
from ocra.reproduce.lineage import shipped_result
from ocra.reproduce.results import read_results
from ocra.reproduce.shipping import CHECK, glyph_images

FOLDER = pretrained.SHIPPED
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SAMPLE = 300
names = pytest.mark.parametrize("name", shipped())


def test_the_main_network_of_every_task_is_shipped() -> None:
    assert {"multimnist-3", "multimnist-10", "cluttered-5", "svhn-12"} <= set(shipped())


@names
def test_scores_on_glyph_digits_are_those_recorded(name: str) -> None:
    model = load(name)
    recorded = torch.tensor(json.loads((FOLDER / name / CHECK).read_text("utf-8"))["scores"])
    with torch.no_grad():
        scores = model(glyph_images(model.config, model.info.task_name)).scores
    # Another release of the font renderer may move a pixel; another network moves far more than this.
    assert (scores - recorded).abs().mean() < 0.02


@names
def test_the_error_on_a_sample_of_real_data_is_that_of_the_card(name: str) -> None:
    model = load(name)
    kind = "svhn" if model.info.task_name == "svhn" else "mnist"
    if not os.environ.get("OCRA_DATA") or not (Path(os.environ["OCRA_DATA"]) / kind).is_dir():
        pytest.skip(f"the real data is needed: set OCRA_DATA to a folder that holds {kind}/")
    task = TaskConfig(name=model.info.task_name)
    error = evaluate(model, task, images=SAMPLE).exact_error
    low, high = wilson_interval(model.info.record["test"]["exact_error"] * SAMPLE, SAMPLE, z=3.5)
    assert low <= error <= high


@names
def test_weights_and_card_say_what_is_recorded(name: str) -> None:
    record, results = read_config(name)[1].record, read_results(RESULTS)
    result = shipped_result(name, results)
    assert result is not None and (result.preset, result.seed) == (name, record["training"]["seed"])
    assert result.best_images == record["training"]["images_seen"]
    test = groups.test_of(result)
    assert test is not None
    assert record["test"] == {key: test[key] for key in record["test"]}
    card = model_card(name, result, result.best_images, stored_as(FOLDER / name), results)
    assert (FOLDER / name / "README.md").read_text("utf-8") == card


@names
def test_there_is_a_card_with_figures_command_and_licence(name: str) -> None:
    card = (FOLDER / name / "README.md").read_text("utf-8")
    for part in ("## Recipe", "95 % interval", f"ocra evaluate {name}", "## What it is bad at", "## Licence"):
        assert part in card
    assert name != "svhn-12" or "non-commercial" in card
