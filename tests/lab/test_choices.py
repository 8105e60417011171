"""Two models' errors become trials for people, and their choices a table."""

from __future__ import annotations

import csv
import json

import pytest
from PIL import Image
from tiny import tiny_model

from ocra.cli.main import main
from ocra.errors import OcraError, UsageError
from ocra.lab.choices import find_choices, page, save_choices, score_choices
from ocra.model.weights import ModelInfo, save

TASK = {"name": "multimnist", "digits": "glyphs", "max_shift": 4}


def untrained(name, seed, **config):
    model = tiny_model(seed=seed, glimpses=2, **config)
    model.info = ModelInfo.from_dict(
        {"name": name, "task": TASK, "answer": {"objects": 2, "repeats": False}}, model.config
    )
    return model


@pytest.fixture(scope="module")
def models():
    return [untrained("one", 0), untrained("two", 1)]


@pytest.fixture(scope="module")
def found(models):
    return find_choices(models, trials=8, images=200)


def test_both_answers_are_wrong_and_differ(found):
    assert len(found) == 8
    for choice in found:
        assert len({choice.row["truth"], choice.row["left"], choice.row["right"]}) == 3
        assert {choice.row["left_model"], choice.row["right_model"]} == {"one", "two"}


def test_each_model_stands_on_either_side(models):
    rows = [choice.row for choice in find_choices(models, trials=30, images=400)]
    assert {row["left_model"] for row in rows} == {"one", "two"}


def test_the_same_seed_gives_the_same_trials(models, found):
    assert find_choices(models, trials=8, images=200) == found
    assert find_choices(models, trials=8, images=200, seed=1) != found


def test_three_models_are_compared_in_pairs(models):
    rows = [choice.row for choice in find_choices([*models, untrained("three", 2)], trials=60, images=200)]
    assert len({frozenset((row["left_model"], row["right_model"])) for row in rows}) == 3


def test_images_tables_and_page_are_written(found, tmp_path):
    assert save_choices(found, tmp_path).read_text("utf-8") == page(found)
    with open(tmp_path / "trials.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["left"] for row in rows] == [choice.row["left"] for choice in found]
    for row, variables in zip(rows, json.loads((tmp_path / "jspsych.json").read_text("utf-8")), strict=True):
        assert variables["stimulus"] == row["image"] and variables["choices"] == [row["left"], row["right"]]
        with Image.open(tmp_path / row["image"]) as image:
            assert image.size == (36, 36)


def test_the_page_needs_no_network_and_does_not_say_the_truth(found):
    text = page(found)
    assert "http" not in text and text.count("data:image/png;base64,") == len(found) and "truth" not in text


def test_choices_are_counted_for_each_model(tmp_path):
    header = "trial,order,side,answer,chosen_model,other_model,milliseconds\n"
    (tmp_path / "a.csv").write_text(header + "1,1,left,3 5,one,two,900\n2,2,right,1 2,one,two,800\n")
    (tmp_path / "b.csv").write_text(header + "1,1,right,0 5,two,one,700\n")
    one, two = score_choices([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert (one["model"], one["chosen"], one["trials"]) == ("one", 2, 3)
    assert two["share"] == pytest.approx(1 / 3) and one["low"] < one["share"] < one["high"]
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    for wrong in ("bad.csv", "missing.csv"):
        with pytest.raises(OcraError):
            score_choices([tmp_path / wrong])


def test_what_cannot_be_compared_is_refused(models):
    with pytest.raises(UsageError, match="two or more"):
        find_choices(models[:1])
    with pytest.raises(UsageError, match="same images"):
        find_choices([models[0], untrained("wide", 0, height=64, width=64)])
    with pytest.raises(OcraError, match="different answers"):
        find_choices([models[0], models[0]], images=20)


def test_the_command_writes_the_experiment(models, tmp_path, capsys):
    for number, model in enumerate(models):
        save(model, tmp_path / str(number))
    folders = [str(tmp_path / "0"), str(tmp_path / "1")]
    assert main(["lab", "errors", *folders, "--trials", "3", "--out", str(tmp_path / "out")]) == 0
    assert "3 trials" in capsys.readouterr().out and (tmp_path / "out" / "experiment.html").is_file()
