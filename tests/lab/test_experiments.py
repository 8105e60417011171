"""Every experiment runs from stimuli to page; tables add up; a class of one's own is an experiment too."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from tiny import tiny_model

import ocra.lab
from ocra.config import AnswerRule
from ocra.errors import UsageError
from ocra.lab import EXPERIMENTS, Condition, LabExperiment
from ocra.lab.running import decision_glimpses, draw, interval, scenes_like
from ocra.model.interventions import Lesion
from ocra.model.weights import ModelInfo

TASK = {"name": "multimnist", "digits": "glyphs", "max_shift": 4}
CLUTTERED = {"name": "cluttered", "digits": "glyphs", "size": 64, "distractors": 2}


@pytest.fixture(scope="module")
def small():
    model = tiny_model(glimpses=2)
    model.info = ModelInfo.from_dict(
        {"name": "small", "task": TASK, "answer": {"objects": 2, "repeats": False}}, model.config
    )
    return model


@pytest.fixture(scope="module")
def wide():
    model = tiny_model(glimpses=2, height=64, width=64, background_capsules=1)
    model.info = ModelInfo.from_dict(
        {"name": "wide", "task": CLUTTERED, "answer": {"objects": 2}}, model.config
    )
    return model


@pytest.fixture(scope="module")
def comparer():
    model = tiny_model(glimpses=2, height=64, width=64, classes=4)
    info = {"name": "comparer", "task": {"name": "same-different", "families": ["blobs", "stars"]}}
    model.info = ModelInfo.from_dict({**info, "answer": {"objects": 3, "repeats": False}}, model.config)
    return model


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_from_stimuli_to_page(name, small, wide, comparer):
    model = wide if EXPERIMENTS[name].smallest > 36 else small
    model = comparer if name == "same-different" else model
    outcome = ocra.lab.run(name, model, trials=2)
    assert {"truth", "answer", "error", "decision", "scanpath"} <= set(outcome.trials[0])
    for row in outcome.summary:
        assert row["n"] >= 1 and (row["low"] <= row["mean"] <= row["high"] or math.isinf(row["high"]))
    assert EXPERIMENTS[name].question in outcome.page
    assert len(draw(outcome).axes) == len({row["measure"] for row in outcome.summary})


def test_shape_families_are_told_apart_by_whether_training_had_them(comparer, small):
    outcome = ocra.lab.run("same-different", comparer, trials=4)
    series = {row["x"]: row["series"] for row in outcome.trials}
    assert series["blobs"] == series["stars"] == "trained" and series["polygons"] == "held out"
    assert {row["families"] for row in outcome.trials if row["x"] == "blobs"} == {"blobs"}
    for row in outcome.trials:
        relation = row["truth"].split()[2]
        said = {"same", "different"} & set(row["answer"].split())
        assert row["accuracy"] == (said == {relation}) and row["accuracy"] + row["error"] >= 1
    with pytest.raises(UsageError, match="not trained to tell same from different"):
        ocra.lab.run("same-different", small, trials=1)


def test_tables_figure_and_page_are_written(small, tmp_path):
    outcome = ocra.lab.run(Contrast(), small, trials=2, out=tmp_path)
    with open(tmp_path / "trials.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["truth"] for row in rows] == [row["truth"] for row in outcome.trials]
    names = {file.name for file in tmp_path.iterdir()}
    figures = {"contrast.png", "contrast.svg", "contrast.pdf"}
    assert names == {"trials.csv", "summary.csv", "page.md", *figures}


class Contrast(LabExperiment):
    name, question, axis = "contrast", "Is faint ink missed?", "contrast"

    def conditions(self, base, model):
        return [Condition(c, base.change(contrast=c)) for c in (0.3, 1.0)]


def test_models_side_by_side_see_the_same_scenes(small):
    outcome = ocra.lab.run(Contrast(), [small, small], trials=3, seed=4)
    assert {row["model"] for row in outcome.trials} == {"small", "small (2)"}
    first, second = (
        [row["digits"] for row in outcome.trials if row["model"] == name] for name in ("small", "small (2)")
    )
    assert first == second
    assert outcome.mean("small", 0.3) == outcome.mean("small (2)", 0.3)


def test_interventions_hold_for_all_conditions(small):
    outcome = ocra.lab.run(Contrast(), small, trials=2, glimpses=1)
    assert {row["glimpses"] for row in outcome.trials} == {1}


def test_several_values_of_an_intervention_are_run_side_by_side(small):
    outcome = ocra.lab.run(Contrast(), small, trials=2, glimpses=[1, 2], routings=3)
    made = {row["model"]: row["glimpses"] for row in outcome.trials}
    assert made == {"small · glimpses 1": 1, "small · glimpses 2": 2}


def test_rows_of_the_summary_go_along_the_axis(small):
    places = [row["x"] for row in ocra.lab.run("overlap", small, trials=3).summary]
    assert places == sorted(places)


def test_what_was_found_beside_the_conditions_stands_after_them_by_name(small):
    places = [row["x"] for row in ocra.lab.run("order", small, trials=20).summary]
    conditions = [place for place in places if not place.startswith("a ")]
    assert places == conditions + sorted(set(places) - set(conditions))


def test_a_figure_of_one_model_names_it_and_a_legend_of_several_names_each_once(small):
    one = draw(ocra.lab.run(Contrast(), small, trials=2))
    assert any("small" in text.get_text() for text in one.texts) and not one.legends
    several = draw(ocra.lab.run("glimpse-budget", [small, small], trials=2))
    names = [text.get_text() for text in several.legends[0].get_texts()]
    assert names == ["small", "small (2)", "fixed", "adaptive"]


def test_shares_are_drawn_in_per_cent_and_glimpses_are_not(small):
    labels = [axes.get_ylabel() for axes in draw(ocra.lab.run("reaction-time", small, trials=2)).axes]
    assert labels == ["glimpses to decision", "exact error, %"]


def test_a_lesion_has_the_intact_model_beside_it(small):
    outcome = ocra.lab.run(Contrast(), small, trials=2, lesion=[None, Lesion(decoder_memory=True)])
    names = list(dict.fromkeys(row["model"] for row in outcome.trials))
    assert names == ["small · lesion as trained", "small · lesion decoder-memory"]


def test_a_cue_puts_the_first_window_where_it_says(small):
    outcome = ocra.lab.run(Contrast(), small, trials=2, cue=[None, (22.0, 10.0)])
    first = {row["model"]: row["scanpath"].split()[0] for row in outcome.trials}
    assert first["small · cue (22.0, 10.0)"] == "22.0,10.0" != first["small · cue as trained"]
    with pytest.raises(UsageError, match="no window to cue"):
        ocra.lab.run(Contrast(), blind(), trials=1, cue=(1.0, 1.0))


def blind():
    model = tiny_model(attention=False, glimpses=2)
    info = {"name": "blind", "task": TASK, "answer": {"objects": 2, "repeats": False}}
    model.info = ModelInfo.from_dict(info, model.config)
    return model


def test_an_experiment_can_be_named_by_its_class():
    assert ocra.lab.experiments.find_experiment("ocra.lab.experiments:Overlap").name == "overlap"
    for name in ("nonsense", "no.module:Class", "ocra.lab.stimuli:Scenes"):
        with pytest.raises(UsageError):
            ocra.lab.experiments.find_experiment(name)


def test_experiments_that_need_room_refuse_small_images(small):
    with pytest.raises(UsageError, match="needs images of 64 pixels"):
        ocra.lab.run("crowding", small, trials=1)


def test_scenes_are_like_those_of_the_models_task(small, wide):
    assert scenes_like(small).relation == "different" and scenes_like(small).size == 36
    assert scenes_like(wide).relation == "any" and scenes_like(wide).clutter == 2
    with pytest.raises(UsageError, match="known number"):
        scenes_like(tiny_model(readout_digits=2, readout_skip=0, readout_span=1))


def test_the_glimpse_of_decision_is_where_an_adaptive_pass_stops(small):
    images = torch.rand(30, 1, 36, 36)
    with torch.no_grad():
        fixed, free = small(images, glimpses=5), small(images, glimpses=5, until=0.02)
    assert decision_glimpses(fixed, AnswerRule(2, repeats=False), 0.02) == free.taken.tolist()


def test_intervals_hold_the_mean():
    assert interval([0, 1, 1, 1])[0] == 0.75 and 0 < interval([0, 0])[2] < 1
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert mean == 2 and low < 2 < high


def test_intervals_of_shares_stay_between_0_and_1():
    mean, low, high = interval([0.5, 1.0, 1.0])
    assert low < mean < high == 1
