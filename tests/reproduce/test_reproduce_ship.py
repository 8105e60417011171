"""From a run to weights with a card; the figure of time to error."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fabricated import evaluation, made_up

from ocra.cli.reproduce import main
from ocra.config import ModelConfig
from ocra.data import TaskConfig
from ocra.errors import OcraError, UsageError
from ocra.model.weights import load
from ocra.reproduce.cards import model_card
from ocra.reproduce.lineage import lineage
from ocra.reproduce.results import Result, read_result, write_result
from ocra.reproduce.shipping import glimpse_counts, planned_tests, ship

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_command_scores_stores_records_and_describes(tiny_run: Path, tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "docs" / "results.md"
    script("ship").main(
        tiny_run,
        "tiny",
        images=64,
        curve_images=32,
        into=tmp_path / "shipped",
        results=results,
        out=out,
        threads=1,
    )
    folder = tmp_path / "shipped" / "tiny"
    model = load(folder)
    assert model.config.hidden == 32
    assert model.info.record["test"]["n"] == 64 and model.info.class_names == tuple("0123456789")
    assert (folder / "model.safetensors").stat().st_size < (
        tiny_run / "weights/best/model.safetensors"
    ).stat().st_size
    result = read_result(results / "tiny-320-seed0.json")
    tests = {(test["shift"], test["glimpses"], test["n"]) for test in result.evaluations}
    assert tests == {(4, 2, 64), (6, 2, 64), (4, 1, 32), (4, 2, 32), (4, 3, 32), (4, 4, 32)}
    card = (folder / "README.md").read_text("utf-8")
    assert "ocra evaluate tiny --task multimnist --images 64 --seed 0 --shift 4 --glimpses 2" in card
    assert (
        "drawn from fonts" in card
        and "MNIST's" not in card
        and "Digits it misses most" in card
        and "Pairs it gets wrong most" in card
    )
    assert len(json.loads((folder / "check.json").read_text())["scores"]) == 8
    assert "tiny-320-seed0" in out.read_text("utf-8")
    assert str(tmp_path) not in card + (folder / "config.json").read_text("utf-8")


def test_what_cannot_be_shipped_is_refused_at_once(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="small letters"):
        ship(tiny_run, "Bad Name", results=tmp_path)
    with pytest.raises(OcraError, match="after its first validation"):
        ship(tmp_path, "x", results=tmp_path)
    with pytest.raises(OcraError, match="another network than the preset multimnist-3"):
        ship(tiny_run, "multimnist-3", results=tmp_path)


def test_test_sets_are_those_of_the_task() -> None:
    model, task = ModelConfig(), TaskConfig()
    assert [test["shift"] for test in planned_tests(model, task, 10_000, 0)] == [6, None]
    assert planned_tests(model, task, 0, 0)[-1]["images"] is None
    house = TaskConfig(name="svhn")
    assert planned_tests(ModelConfig(glimpses=12), house, 10_000, 0) == [
        {"shift": None, "glimpses": 12, "images": None}
    ]
    once = ModelConfig(glimpses=1, recurrent=False)
    assert len(planned_tests(once, task, 10, 10)) == 2
    assert glimpse_counts(3) == [1, 2, 3, 4, 5]
    assert glimpse_counts(10) == [1, 2, 3, 4, 5, 7, 10, 12]
    own = [test for test in planned_tests(model, task, 10, 10) if test["glimpses"] == model.glimpses]
    assert [test["shift"] for test in own] == [6, None]  # not the same test twice


def test_cards_of_house_numbers_forbid_commercial_use() -> None:
    row = {"exact_error": 0.9, "digit_error": 0.3}
    lengths = {"4": {"n": 30, **row}, "5": {"n": 2, **row, "exact_error": 1.0}}
    test = evaluation(
        "svhn", 0.2, glimpses=12, lengths=lengths, classes={"7": 0.3}, confusions=[["7", "none", 0.1]]
    )
    card = model_card("svhn-12", made_up("svhn-12", evaluations=[test], start_from="first", notes="Note."))
    assert "from 4 to all over 200 k images" in card and "weights × 0 at the start" in card
    assert "non-commercial use only" in card and "true boxes" in card and "10.07 ± 0.53" in card
    assert "Numbers of 4 digits: 90.00 % of 30" in card and "7 not named (10.00 % of all 7)" in card
    assert "3 M images, 2.0 CPU hours in 1 run, and those of first, which are not recorded" in card


def named(name: str, preset: str = "multimnist-3", **others: Any) -> Result:
    """A made-up result under a name of its own."""
    return replace(made_up(preset, **others), name=name)


def test_a_card_counts_the_runs_that_its_run_went_on_from() -> None:
    first = named("first", images=2_000_000)
    second = named("second", images=600_000, start_from="first")
    other = named("other", images=500_000, start_from="second")
    result = named("third", "multimnist-10", images=1_000_000, start_from="second")
    card = model_card("multimnist-10", result, others=[other, first, second, result])
    assert "3.6 M images, 6.0 CPU hours in 3 runs |" in card and "of the next: `second`, `first`." in card


def test_a_card_tells_of_guidance_in_a_run_before() -> None:
    first = named("first", "cluttered-5")
    second = named("second", "multimnist-3", start_from="first")
    assert "where the objects are | yes, weight from 2 to none over" in model_card("x", first)
    assert "where the objects are | yes in first, weight from 2" in model_card("x", second, others=[first])
    assert "where the objects are | no |" in model_card("x", second)


def test_runs_that_went_on_from_each_other_are_counted_once() -> None:
    one, two = named("one", start_from="two"), named("two", start_from="one")
    assert [run.name for run in lineage(one, [one, two]).runs] == ["one", "two"]


def test_a_card_says_what_a_folder_was() -> None:
    result = made_up("multimnist-3")
    config = {**result.config, "task": {**result.config["task"], "name": "folder"}}
    card = model_card("mine", replace(result, config=config, evaluations=[]))
    assert "A folder of labelled pictures." in card and "licence of the pictures" in card
    assert "MNIST (" not in card


def test_a_card_is_written_from_a_recorded_result(tmp_path: Path) -> None:
    path = write_result(tmp_path, made_up("cluttered-7", error=None))
    main(["card", "cluttered-7", "--result", str(path), "--into", str(tmp_path / "card")])
    assert "Not tested yet" in (tmp_path / "card" / "README.md").read_text("utf-8")
    with pytest.raises(UsageError, match="--into"):
        main(["card", "no-such-weights", "--result", str(path)])
    with pytest.raises(UsageError, match="are those of the result multimnist-3-"):
        main(["card", "multimnist-3", "--result", str(path)])


def test_time_to_error_reads_a_run_or_a_result_and_draws(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time_to_error = script("time_to_error")
    time_to_error.main(tiny_run, out=tmp_path / "a.svg")
    assert "has not had 12.25% yet" in capsys.readouterr().out
    path = write_result(tmp_path, made_up("multimnist-3", images=1_000_000))
    time_to_error.main(path, out=tmp_path / "b.svg")
    said = capsys.readouterr().out
    assert "after 500,000 images and 3,600 CPU seconds (by the share of images" in said
    assert "2,700,000" in said and "validation 8.00%, test 8.00%" in said
    path = write_result(tmp_path, named("later", start_from="first"))
    time_to_error.main(path, out=tmp_path / "c.svg")
    said = capsys.readouterr().out
    assert "started from the weights first" in said and "2,700,000" not in said
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        time_to_error.main(path, out=tmp_path / "c.xyz")
    assert (tmp_path / "a.svg").is_file() and (tmp_path / "b.svg").is_file()
