"""Measures of similarity agree with their definitions, and formats can be read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ocra.cli.main import main
from ocra.errors import OcraError, UsageError
from ocra.lab.comparing import auc, bootstrap, compare, dtw, fixation_map, multimatch, nss, string_edit
from ocra.lab.formats import Fixations, read_fixations, to_json
from ocra.lab.human import read_attention_mnist

PATH = np.array([[2.0, 3.0], [10.0, 4.0], [15.0, 18.0]])


def test_a_map_is_a_density_with_its_peak_at_the_points():
    density = fixation_map(PATH[:1], 20, 30, sigma=1.5)
    assert density.shape == (20, 30) and density.sum() == pytest.approx(1)
    assert np.unravel_index(density.argmax(), density.shape) == (3, 2)


def test_nss_is_the_mean_of_the_standardised_map():
    density = np.arange(12.0).reshape(3, 4)
    points = np.array([[3.0, 2.0], [0.0, 0.0]])
    standard = (density - density.mean()) / density.std()
    assert nss(density, points) == pytest.approx((standard[2, 3] + standard[0, 0]) / 2)
    assert nss(np.ones((3, 4)), points) == 0


def test_auc_is_the_chance_to_be_higher_than_a_random_pixel():
    density = np.arange(100.0).reshape(10, 10)
    points = np.array([[5.0, 5.0], [9.0, 9.0]])
    pairs = [(value > other) + (value == other) / 2 for value in (55, 99) for other in range(100)]
    assert auc(density, points) == pytest.approx(np.mean(pairs))
    assert auc(np.ones((10, 10)), points) == 0.5


def test_time_warping_ignores_how_long_a_place_is_looked_at():
    assert dtw(PATH, PATH) == 0
    assert dtw(PATH, np.repeat(PATH, 2, axis=0)) == 0
    assert dtw(PATH, PATH + np.array([3, 4])) == pytest.approx(5)


def test_string_edit_counts_changed_cells():
    assert string_edit(PATH, PATH, 20, 20) == 1
    other = PATH.copy()
    other[1] = [10, 19]
    assert string_edit(PATH, other, 20, 20) == pytest.approx(2 / 3)
    assert string_edit(PATH, PATH[:2], 20, 20) == pytest.approx(2 / 3)


def test_multimatch_is_that_of_its_package():
    pytest.importorskip("multimatch_gaze")
    assert multimatch(PATH, PATH, 20, 20)["position"] == pytest.approx(1)


def test_a_bootstrap_interval_holds_the_mean_and_is_repeatable():
    values = [0.1, 0.5, 0.7, 0.9]
    mean, low, high = bootstrap(values)
    assert mean == pytest.approx(0.55) and 0.1 <= low < mean < high <= 0.9
    assert bootstrap(values) == (mean, low, high)


@pytest.fixture
def paths():
    return [Fixations("a.png", PATH, "p1", (0.1, 0.2, 0.3)), Fixations("b.png", PATH[:2] + 1, "p2")]


def test_coco_search_json_goes_both_ways(paths, tmp_path):
    (tmp_path / "paths.json").write_text(to_json(paths, 0.25), "utf-8")
    first, second = read_fixations(tmp_path / "paths.json")
    assert (first.image, first.subject) == ("a.png", "p1") and np.allclose(first.places, PATH)
    assert first.seconds == (0.1, 0.2, 0.3) and second.seconds == (0.25, 0.25)


def test_visions_json_names_images_by_its_keys(tmp_path):
    (tmp_path / "paths.json").write_text(
        json.dumps({"a.png": {"subject": "s1", "X": [1, 2], "Y": [3, 4], "T": [200, 300]}})
    )
    (found,) = read_fixations(tmp_path / "paths.json")
    assert found.image == "a.png" and found.places.tolist() == [[1, 3], [2, 4]]


def test_tables_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("image,step,x,y\na,1,1,2\na,2,3,4\nb,1,5,6\n")
    assert [path.places.tolist() for path in read_fixations(tmp_path / "a.csv")] == [
        [[1, 2], [3, 4]],
        [[5, 6]],
    ]
    (tmp_path / "a.tsv").write_text("start_x\tstart_y\tduration\n1\t2\t0.3\n")
    (found,) = read_fixations(tmp_path / "a.tsv")
    assert found.image == "a" and found.seconds == (0.3,)


@pytest.mark.parametrize("text", ["image,step\na,1\n", "image,x,y\na,one,2\n"])
def test_what_is_no_table_of_scanpaths_is_refused(tmp_path, text):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(OcraError, match="not a table of scanpaths"):
        read_fixations(tmp_path / "bad.csv")


def test_a_set_of_scanpaths_is_most_like_itself(paths):
    rows = {row["measure"]: row["mean"] for row in compare(paths, paths)}
    assert rows["DTW distance"] == 0 and rows["string edit"] == 1 and rows["NSS"] > 1 and rows["AUC"] > 0.9
    assert compare(paths, paths, skip=2)[0]["images"] == 1
    with pytest.raises(UsageError, match="no image in common"):
        compare(paths[:1], paths[1:])


def test_the_command_compares_two_files(paths, tmp_path, capsys):
    (tmp_path / "a.json").write_text(to_json(paths, 0.25), "utf-8")
    assert main(["lab", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert "string edit" in capsys.readouterr().out


def test_clicks_of_people_are_read_with_rows_as_x(tmp_path):
    step = {"x-coordinate": "12", "y-coordinate": "7", "Duration (seconds)": "", "Class": "8"}
    entry = {
        "Stimuli": "01_17308",
        "Label": "7",
        "Data": {"Glimpse_1": step, "Glimpse_2": {**step, "Class": "1_7"}},
    }
    (tmp_path / "mnist.json").write_text(json.dumps([entry]))
    (clicks,) = read_attention_mnist(tmp_path / "mnist.json")
    assert (
        clicks.digit == 17307
        and clicks.places.tolist() == [[7, 12], [7, 12]]
        and clicks.guesses == ("8", "1_7")
    )
    (tmp_path / "mnist.json").write_text("[1]")
    with pytest.raises(OcraError, match="of AttentionMNIST"):
        read_attention_mnist(tmp_path / "mnist.json")


def test_people_and_a_model_are_compared_on_the_same_digits(tmp_path, monkeypatch):
    from tiny import tiny_model

    from ocra.data.digits import glyph_digits
    from ocra.lab import human
    from ocra.model.weights import ModelInfo

    monkeypatch.setattr(human, "load_mnist", lambda train: glyph_digits("train" if train else "test"))
    model = tiny_model(height=28, width=28, glimpses=4)
    model.info = ModelInfo.from_dict(
        {"name": "tiny", "task": {"name": "mnist"}, "answer": {"objects": 1, "repeats": False}}, model.config
    )
    rng = np.random.default_rng(0)
    people = [
        human.Clicks(digit, label, rng.uniform(4, 24, (12, 2)), (str(label),) * 12)
        for digit, label in ((0, 0), (1, 1), (2, 2), (60_000, 0))
        for _ in range(3)
    ]
    found = human.compare_with_people(model, people)
    assert [row["accuracy"] for row in found.accuracy if row["who"] == "people"] == [1.0] * 12
    assert len([row for row in found.accuracy if row["who"] == "model"]) == 4
    assert {row["who"] for row in found.similarity} == {
        "model",
        "people",
        "people at another digit",
        "model at another digit",
    }
    found.save(tmp_path)
    assert (tmp_path / "attention-mnist.png").is_file() and (tmp_path / "similarity.csv").is_file()
