"""From a run to shipped weights with a card; and those that are shipped are what their cards say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fabricated import a_test, made_up

from ocra.config import ModelConfig
from ocra.data import task_config
from ocra.errors import OcraError, UsageError
from ocra.evaluation import evaluate
from ocra.metrics import wilson_interval
from ocra.model.weights import SHIPPED, load, read_config, shipped
from ocra.reproduce.cards import model_card
from ocra.reproduce.records import read_record, read_records, shipped_record
from ocra.reproduce.release import CHECK, generated, glyph_images, planned_tests, release

ROOT = Path(__file__).parents[2]
SAMPLE = 300
names = pytest.mark.parametrize("name", shipped())


def test_a_release_is_scored_stored_recorded_and_described(tiny_run: Path, tmp_path: Path) -> None:
    results, folder = tmp_path / "results", tmp_path / "shipped" / "tiny"
    release(
        tiny_run, "tiny", images=64, curve_images=32, damaged_images=4, into=folder.parent, results=results, threads=1,
        say=lambda text: None,
    )  # fmt: skip
    model = load(folder)
    assert model.info.calibration is not None
    assert model.config.hidden == 32 and model.info.class_names == tuple("0123456789")
    assert model.info.record["test"]["n"] == 64 and model.info.record["result"] == "tiny-320-seed0"
    trained = tiny_run / "weights/best/model.safetensors"
    assert (folder / "model.safetensors").stat().st_size < trained.stat().st_size  # float16
    record = read_record(results / "tiny-320-seed0.json")
    tests = {(test["glimpses"], test["n"]) for test in record.figures}
    assert tests == {(2, 64), (1, 32), (2, 32), (3, 32), (4, 32), (2, 4)}
    assert record.test is not None and record.test["n"] == 64 and "calibration" in record.test
    card = (folder / "README.md").read_text("utf-8")
    assert "--images 4 --corruption" in card and "| gaussian | " in card and "| 0.7 | " in card
    assert 'it answers "unsure"' in card
    assert "ocra evaluate tiny --images 64" in card and "drawn from fonts" in card and "MNIST's" not in card
    assert len(json.loads((folder / CHECK).read_text())["scores"]) == 8
    assert str(tmp_path) not in card + (folder / "config.json").read_text("utf-8")


def test_what_cannot_be_released_is_refused_at_once(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="small letters"):
        release(tiny_run, "Bad Name", results=tmp_path)
    with pytest.raises(OcraError, match="after its first validation"):
        release(tmp_path, "x", results=tmp_path)
    with pytest.raises(OcraError, match="another network than the preset multimnist-3"):
        release(tiny_run, "multimnist-3", results=tmp_path)


def test_test_sets_are_those_of_the_table() -> None:
    tests = planned_tests("multimnist-3", ModelConfig(), None, 10)
    assert [glimpses for _, glimpses, images in tests if images == 10] == [1, 2, 3, 4, 5]
    assert [changed for changed, _, images in tests if images is None] == [{"max_shift": 6}, {}]
    assert planned_tests("svhn-12", ModelConfig(glimpses=12), None, 0) == [({}, 12, None)]
    once = ModelConfig(glimpses=1, recurrent=False)
    assert len(planned_tests("x", once, 10, 10)) == 1
    assert len(planned_tests("x", ModelConfig(), 10, 10)) == 5  # not the same test twice


def test_cards_tell_licence_chain_supervision_and_weaknesses() -> None:
    row = {"exact_error": 0.9, "digit_error": 0.3}
    lengths = {"4": {"n": 30, **row}, "5": {"n": 2, **row, "exact_error": 1.0}}
    test = a_test(
        0.2, task="svhn", glimpses=12, lengths=lengths, classes={"7": 0.3}, confusions=[["7", "none", 0.1]]
    )
    first = made_up("svhn-12", name="first", init_from="lost")
    record = made_up("svhn-12", figures=[test], init_from="first", notes="Note.")
    card = model_card("svhn-12", record, [first, record])
    assert 'license: "other"' in card and "non-commercial use only" in card and "10.07 ± 0.53" in card
    assert "Numbers of 4 digits: 90.00 % of 30" in card and "7 not named (10.00 % of all 7)" in card
    assert "6 M images and 4.0 CPU hours in 2 runs and the unrecorded ones of lost" in card
    assert "attention was supervised" in card and "true boxes" in card
    mnist = model_card("multimnist-3", made_up("multimnist-3", figures=[]), [])
    assert 'license: "cc-by-sa-3.0"' in mnist and "Not tested yet" in mnist
    assert "attention was not supervised" in mnist


def test_everything_generated_is_what_the_records_say() -> None:
    for path, text in generated(ROOT).items():
        assert path.read_text("utf-8") == text, f"python benchmarks/release.py writes {path.name} anew"


def test_the_readme_has_the_blocks_it_should() -> None:
    pages = {"README.md": ("accuracy", "milestone"), "benchmarks/README.md": ("commands", "speed")}
    for page, blocks in pages.items():
        text = (ROOT / page).read_text("utf-8")
        assert all(text.count(f"<!-- end of {block} -->") == 1 for block in blocks)


@names
def test_the_licence_of_all_weights_is_named(name: str) -> None:
    page = Path(__file__).resolve().parents[2] / "LICENSES/weights.md"
    assert f"| `{name}` |" in page.read_text("utf-8")


def test_the_main_network_of_every_task_is_shipped() -> None:
    assert {"multimnist-3", "multimnist-10", "cluttered-5", "svhn-12"} <= set(shipped())


@names
def test_scores_on_glyph_digits_are_those_recorded(name: str) -> None:
    model = load(name)
    recorded = torch.tensor(json.loads((SHIPPED / name / CHECK).read_text("utf-8"))["scores"])
    with torch.no_grad():
        scores = model(glyph_images(model.config, task_config(model.info.task))).scores
    # Another release of the font renderer may move a pixel; another network moves far more than this.
    assert (scores - recorded).abs().mean() < 0.02


@names
def test_the_error_on_a_sample_of_real_data_is_that_of_the_card(
    name: str, require: Callable[..., None]
) -> None:
    model = load(name)
    require("svhn" if model.info.task_name == "svhn" else "mnist")
    task = task_config(model.info.task_name)
    error = evaluate(model, task, images=SAMPLE).exact_error
    record = shipped_record(name, read_records(ROOT / "benchmarks" / "results"))
    assert record is not None and record.test is not None
    low, high = wilson_interval(error * SAMPLE, SAMPLE, z=3.5)  # a sample may well have no error at all
    assert low <= record.test["error"] <= high


@names
def test_shipped_weights_say_what_is_recorded(name: str) -> None:
    told = read_config(name)[1].record
    record = shipped_record(name, read_records(ROOT / "benchmarks" / "results"))
    assert record is not None and record.test is not None and record.preset == name
    old = told.get("training", {})  # version 0.1
    assert record.seed == (old or told["experiment"])["seed"]
    assert record.cost.best_images == old.get("images_seen", told.get("images"))
    assert record.test["n"] == told["test"]["n"]
    assert record.test["error"] == told["test"]["exact_error" if old else "error"]


def test_no_script_needs_the_command_line() -> None:
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert "ocra.cli" not in path.read_text("utf-8"), path.name
