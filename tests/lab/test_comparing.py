"""Measures of similarity agree with their definitions, and formats can be read back."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from ocra.cli.main import main
from ocra.errors import OcraError, UsageError
from ocra.lab.comparing import (
    auc,
    bootstrap,
    compare,
    dtw,
    fixation_map,
    information_gain,
    multimatch,
    nss,
    string_edit,
)
from ocra.lab.formats import Fixations, read_fixations, write_fixations
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


def bump(x, y, sigma):
    """A hill [20, 30] on a little even ground that sums to 1."""
    rows, columns = np.mgrid[0:20, 0:30]
    density = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2)) + 0.001
    return density / density.sum()


FIXATED = np.array([[8.0, 6.0], [10.0, 7.0], [20.0, 15.0], [3.0, 12.0]])
# What pysaliency 0.2.22 (numpy 2.2.6) makes of the same map, baseline and fixations: SaliencyMapModel.NSS and .AUC
# (uniform non-fixations) and Model.information_gain, as in the test below. It needs torch, numba and setuptools < 81.
PYSALIENCY = {"NSS": 1.8102206885427439, "AUC": 0.7366666666666666, "gain": -0.6438351327574263}


def test_map_measures_are_those_of_pysaliency():
    density, baseline = bump(8, 6, 3.0), bump(14, 9, 8.0)
    assert nss(density, FIXATED) == pytest.approx(PYSALIENCY["NSS"], rel=1e-9)
    assert auc(density, FIXATED) == pytest.approx(PYSALIENCY["AUC"], abs=1 / density.size)
    assert information_gain(density, baseline, FIXATED) == pytest.approx(PYSALIENCY["gain"], rel=1e-9)


def test_pysaliency_still_says_so():
    pysaliency = pytest.importorskip("pysaliency")
    density, baseline = bump(8, 6, 3.0), bump(14, 9, 8.0)
    stimuli = pysaliency.Stimuli([np.zeros((20, 30), np.uint8)])
    fixations = pysaliency.Fixations.create_without_history(*FIXATED.astype(int).T, [0] * 4)

    class Map(pysaliency.SaliencyMapModel):
        def _saliency_map(self, stimulus):
            return density

    class Density(pysaliency.Model):
        def __init__(self, values):
            super().__init__()
            self.values = values

        def _log_density(self, stimulus):
            return np.log(self.values)

    gain = Density(density).information_gain(stimuli, fixations, baseline_model=Density(baseline))
    assert Map().NSS(stimuli, fixations) == pytest.approx(PYSALIENCY["NSS"])
    assert Map().AUC(stimuli, fixations, nonfixations="uniform") == pytest.approx(PYSALIENCY["AUC"])
    assert gain == pytest.approx(PYSALIENCY["gain"])


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
    gaze = pytest.importorskip("multimatch_gaze")
    assert multimatch(PATH, PATH, 20, 20)["position"] == pytest.approx(1)
    kind = [("start_x", "<f8"), ("start_y", "<f8"), ("duration", "<f8")]
    moved = PATH[::-1] + 1
    records = [np.array([(x, y, 0.25) for x, y in path], dtype=kind) for path in (PATH, moved)]
    theirs = gaze.docomparison(*records, screensize=[20, 20])[:4]
    assert list(multimatch(PATH, moved, 20, 20).values()) == pytest.approx(theirs)
    with pytest.raises(UsageError, match="three fixations"):
        multimatch(PATH[:2], PATH, 20, 20)


def test_a_bootstrap_interval_holds_the_mean_and_is_repeatable():
    values = [0.1, 0.5, 0.7, 0.9]
    mean, low, high = bootstrap(values)
    assert mean == pytest.approx(0.55) and 0.1 <= low < mean < high <= 0.9
    assert bootstrap(values) == (mean, low, high)


@pytest.fixture
def paths():
    return [Fixations("a.png", PATH, "p1", (0.1, 0.2, 0.3)), Fixations("b.png", PATH[:2] + 1, "p2")]


@pytest.mark.parametrize("ending", ["csv", "json", "npz", "hdf5", "h5"])
def test_scanpaths_come_back_from_every_format(paths, tmp_path, ending):
    (file,) = write_fixations(paths, tmp_path / f"paths.{ending}")
    for before, after in zip(paths, read_fixations(file), strict=True):
        assert (after.image, after.subject) == (before.image, before.subject)
        assert np.allclose(after.places, before.places)


def test_multimatch_tables_hold_a_path_each_and_come_back(paths, tmp_path):
    files = write_fixations(paths, tmp_path / "paths.tsv")
    assert [file.name for file in files] == ["paths-a.tsv", "paths-b.tsv"]
    (first,), (second,) = map(read_fixations, files)
    assert np.allclose(first.places, PATH) and first.seconds == (0.1, 0.2, 0.3)
    assert second.seconds == (0.25, 0.25)


def test_hdf5_is_laid_out_as_pysaliency_writes_its_scanpaths(paths, tmp_path):
    # As Scanpaths.to_hdf5 and read_hdf5 of pysaliency 0.3 have it (pysaliency/datasets/scanpaths.py).
    write_fixations(paths, tmp_path / "paths.hdf5")
    with h5py.File(tmp_path / "paths.hdf5") as data:
        assert (data.attrs["type"], data.attrs["version"]) == (b"Scanpaths", b"1.0")
        assert json.loads(data.attrs["attribute_mapping"]) == {"durations": "duration", "ts": "t"}
        assert data["lengths"][...].tolist() == [3, 2] and data["n"][...].tolist() == [0, 1]
        assert data["xs"].shape == data["ys"].shape == (2, 3) and np.isnan(data["xs"][1, 2])
        for group in ("scanpath_attributes", "fixation_attributes"):
            assert json.loads(data[group].attrs["__attributes__"]) == sorted(data[group])
        assert data["fixation_attributes/ts"][0].tolist() == pytest.approx([0, 0.1, 0.3])
        assert data["scanpath_attributes/subject"][...].tolist() == [0, 1]


def test_scanpaths_of_pysaliency_without_names_are_read(tmp_path):
    with h5py.File(tmp_path / "people.hdf5", "w") as file:
        file.attrs["type"] = np.bytes_(b"ScanpathFixations")
        data = file.create_group("scanpaths")
        data.attrs["type"] = np.bytes_(b"Scanpaths")
        for name, values in {"xs": [[1.0, 2], [5, np.nan]], "ys": [[3.0, 4], [6, np.nan]]}.items():
            data[name] = values
        data["n"], data["lengths"] = [7, 7], [2, 1]
        data.create_group("scanpath_attributes")["subject"] = [0, 4]
        data.create_group("fixation_attributes")["ts"] = np.zeros((2, 2))
    first, second = read_fixations(tmp_path / "people.hdf5")
    assert (first.image, first.subject, first.places.tolist()) == ("7", "0", [[1, 3], [2, 4]])
    assert (second.image, second.subject, second.places.tolist()) == ("7", "4", [[5, 6]])


def test_other_hdf5_files_are_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["xs"] = [1.0]
    with pytest.raises(OcraError, match="does not hold pysaliency's Scanpaths"):
        read_fixations(tmp_path / "other.h5")
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(OcraError, match="could not be read"):
        read_fixations(tmp_path / "text.h5")


def test_durations_go_into_json_as_milliseconds(paths, tmp_path):
    write_fixations(paths, tmp_path / "paths.json")
    first, second = json.loads((tmp_path / "paths.json").read_text("utf-8"))
    assert first["T"] == [100, 200, 300] and second["T"] == [250, 250] and second["length"] == 2


def test_the_command_converts_formats(paths, tmp_path, capsys):
    write_fixations(paths, tmp_path / "a.json")
    assert main(["scanpath", "convert", str(tmp_path / "a.json"), str(tmp_path / "b.npz")]) == 0
    with np.load(tmp_path / "b.npz") as data:
        assert data["subject_names"].tolist() == ["p1", "p2"] and data["ts"][0].tolist() == pytest.approx(
            [0, 0.1, 0.3]
        )
    assert "Saved 2 scanpaths" in capsys.readouterr().out


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


def found(rows, measure, who):
    return next(row["mean"] for row in rows if (row["measure"], row["who"]) == (measure, who))


def people(images=6, subjects=3, seed=0):
    """Scanpaths of subjects who look at the same places of an image, other ones in each."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(5, 45, (images, 4, 2))
    return [
        Fixations(f"{k}.png", places[k] + rng.normal(0, 1, (4, 2)), f"s{n}")
        for k in range(images)
        for n in range(subjects)
    ]


def test_a_set_of_scanpaths_is_most_like_itself(paths):
    rows = compare({"same": paths}, paths)
    assert found(rows, "DTW distance", "same") == 0 and found(rows, "string edit", "same") == 1
    assert found(rows, "NSS", "same") > 1 and found(rows, "AUC", "same") > 0.9
    assert compare({"same": paths}, paths, skip=2)[0]["images"] == 1
    with pytest.raises(UsageError, match="no image in common"):
        compare({"other": paths[:1]}, paths[1:])


def test_people_who_agree_lie_between_ceiling_and_baseline():
    reference = people()
    model = {"expert": people(subjects=1, seed=0), "stranger": people(subjects=1, seed=1)}
    rows = compare(model, reference, size=(50, 50))
    for measure, better in (("NSS", 1), ("information gain", 1), ("string edit", 1), ("DTW distance", -1)):
        ceiling, baseline = (better * found(rows, measure, who) for who in ("ceiling", "baseline"))
        assert better * found(rows, measure, "expert") > (ceiling + baseline) / 2 > baseline
        assert better * found(rows, measure, "stranger") < (ceiling + baseline) / 2


def test_information_gain_over_habit_is_nothing_where_all_images_are_alike():
    one = people(images=1, subjects=4)
    reference = [Fixations(f"{k}.png", path.places, path.subject) for k in range(5) for path in one]
    assert found(compare({"m": reference}, reference), "information gain", "m") == pytest.approx(0, abs=1e-6)


def test_the_command_compares_two_files_and_people(tmp_path, capsys):
    write_fixations(people(subjects=1), tmp_path / "a.csv")
    write_fixations(people(subjects=1, seed=1), tmp_path / "b.npz")
    write_fixations(people(), tmp_path / "people.json")
    files = [str(tmp_path / name) for name in ("a.csv", "b.npz", "people.json")]
    assert main(["scanpath", "compare", *files[:2], "--human", files[2], "--size", "50", "50"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("string edit", "information gain", "ceiling", "baseline", " b "))
    assert main(["scanpath", "compare", files[0], files[2], "--skip", "1"]) == 0


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
        "ceiling",
        "baseline",
        "model at another digit",
    }
    found.save(tmp_path)
    assert (tmp_path / "attention-mnist.png").is_file() and (tmp_path / "similarity.csv").is_file()
