"""Scanpaths as tables, in pixels of the user's picture."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import centroid, dot_picture, tiny_model, tiny_weights

import ocra
from ocra.cli.main import run
from ocra.errors import OcraError, UsageError
from ocra.lab.scanpaths import Scanpath, save_scanpaths, to_csv
from ocra.model.trace import Windows
from ocra.prediction import decode, prepare_image


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("fit", ["content", "whole"])
def test_a_look_at_a_dot_is_written_where_the_dot_is_in_the_users_picture(tmp_path, fit):
    at = (241, 66)
    dot_picture((320, 200), at, radius=10).save(tmp_path / "dot.png")
    model = tiny_model(glimpses=2)
    prepared = prepare_image(model, tmp_path / "dot.png", fit=fit)
    x, y = centroid(prepared.image[0].numpy())
    windows = Windows(torch.tensor([[x, y]] * 2), torch.tensor([0.5, 1.0]), torch.tensor([0.5, 0.5]))
    trace = model(prepared.image[None], record=True, windows=windows)
    assert trace.glimpses[0, 0, 0, 8:10, 8:10].min() > 0.5  # the glimpse does show the dot
    (said,) = decode(trace, model.config, model.info, [prepared.placement])
    first, second = rows_of(to_csv([Scanpath("dot.png", said.glimpses, tuple("0123456789"))]))
    assert (float(first["x"]), float(first["y"])) == pytest.approx(at, abs=2)
    scale = prepared.placement.scale[0]
    assert float(second["width"]) == pytest.approx(17 * scale, rel=1e-3)
    assert float(first["stride"]) == pytest.approx(0.5 * scale, rel=1e-3)
    assert float(first["sigma"]) == pytest.approx(0.5 * scale, rel=1e-3)


@pytest.fixture
def weights(tmp_path):
    return str(tiny_weights(tmp_path / "weights"))


def task_arguments(weights, out, number=3):
    return ["--weights", weights, "--task", "multimnist", "--number", str(number), "--out", str(out)]


def test_the_table_has_a_row_for_each_glimpse(weights, tmp_path, capsys):
    run("scanpath", task_arguments(weights, tmp_path / "paths.csv"))
    rows = rows_of((tmp_path / "paths.csv").read_text("utf-8"))
    names = ["image", "step", "x", "y", "stride", "sigma", "width", "winner", "length"]
    assert list(rows[0]) == names + [f"length_{k}" for k in range(10)]
    assert [row["step"] for row in rows] == ["1", "2", "3"] * 3
    assert rows[0]["image"] == "multimnist test 0" and rows[-1]["image"] == "multimnist test 2"
    for row in rows:
        assert row["length"] == row[f"length_{row['winner']}"]
    assert "Saved 3 scanpaths of 3 glimpses" in capsys.readouterr().out


def test_multimatch_gets_a_file_for_each_scanpath(weights, tmp_path):
    run("scanpath", [*task_arguments(weights, tmp_path / "paths.tsv"), "--duration", "0.3"])
    files = sorted(tmp_path.glob("paths*.tsv"))
    assert len(files) == 3
    table = np.genfromtxt(files[0], delimiter="\t", names=True)
    assert table.dtype.names == ("start_x", "start_y", "duration")
    assert table["duration"] == pytest.approx([0.3] * 3)


def test_one_scanpath_for_multimatch_gets_the_name_that_was_asked_for(weights, tmp_path):
    run("scanpath", task_arguments(weights, tmp_path / "paths.tsv", number=1))
    assert [file.name for file in tmp_path.glob("*.tsv")] == ["paths.tsv"]


def test_pysaliency_gets_the_arrays_it_asks_for(weights, tmp_path):
    run("scanpath", task_arguments(weights, tmp_path / "paths.npz"))
    with np.load(tmp_path / "paths.npz") as data:
        assert set(data) == {"xs", "ys", "ts", "ns", "subjects", "files", "images"}
        assert data["xs"].shape == data["ys"].shape == data["ts"].shape == (3, 3)
        assert data["ts"][1].tolist() == [0, 0.25, 0.5]
        assert data["ns"].tolist() == [0, 1, 2] and data["subjects"].tolist() == [0, 0, 0]
        assert data["files"][2] == "multimnist test 2"
        images = ocra.MultiMNIST(split="test", digits="glyphs").batch(range(3)).images
        assert np.array_equal(data["images"], (images[:, 0] * 255).round().byte().numpy())


def test_pictures_of_ones_own_are_named_not_copied(weights, tmp_path):
    dot_picture((100, 80), (30, 30), 10).save(tmp_path / "dot.png")
    run("scanpath", [str(tmp_path / "dot.png"), "--weights", weights, "--out", str(tmp_path / "paths.npz")])
    with np.load(tmp_path / "paths.npz") as data:
        assert "images" not in data and data["files"].tolist() == [str(tmp_path / "dot.png")]


def test_the_three_tables_agree(weights, tmp_path):
    model = tiny_model()
    trace = model(torch.rand(2, 1, 36, 36), record=True)
    said = decode(trace, model.config, model.info)
    paths = [
        Scanpath(name, item.glimpses, tuple("0123456789")) for name, item in zip("ab", said, strict=True)
    ]
    save_scanpaths(paths, tmp_path / "p.npz")
    xs = [float(row["x"]) for row in rows_of(to_csv(paths))]
    assert np.load(tmp_path / "p.npz")["xs"].ravel() == pytest.approx(xs, abs=1e-4)
    (tsv,) = save_scanpaths(paths[1:], tmp_path / "p.tsv")
    lines = tsv.read_text("utf-8").splitlines()[1:]
    assert [float(line.split("\t")[0]) for line in lines] == pytest.approx(xs[3:])
    assert xs == pytest.approx(trace.read_windows.center[..., 0].flatten().tolist(), abs=1e-4)


def test_a_broken_picture_does_not_stop_the_others(weights, tmp_path, capsys):
    dot_picture((100, 80), (30, 30), 10).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no picture")
    Image.new("L", (60, 60), 255).save(tmp_path / "blank.png")
    out = tmp_path / "paths.csv"
    names = [str(tmp_path / f"{name}.png") for name in ("bad", "blank", "good")]
    with pytest.raises(OcraError, match="1 of 3 images"):
        run("scanpath", [*names, "--weights", weights, "--out", str(out)])
    readable = {str(tmp_path / f"{name}.png") for name in ("blank", "good")}
    assert {row["image"] for row in rows_of(out.read_text("utf-8"))} == readable
    assert "bad.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--out", "x.txt"], ["a.png", "--task", "multimnist"], ["--number", "0"], ["--duration", "-1"]],
)
def test_impossible_wishes_are_refused(arguments, weights):
    with pytest.raises(UsageError):
        run("scanpath", [*arguments, "--weights", weights])


def test_the_library_does_what_the_command_does(weights, tmp_path):
    run("scanpath", task_arguments(weights, tmp_path / "a.csv"))
    task = ocra.MultiMNIST(split="test", digits="glyphs")
    paths = ocra.scanpath(weights, task, tmp_path / "b.csv", number=3)
    assert len(paths) == 3 and (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_a_lesion_changes_the_path(weights):
    task = ocra.MultiMNIST(split="test", digits="glyphs")
    intact, lesioned = (
        ocra.scanpath(weights, task, number=1, lesion=lesion)[0].glimpses
        for lesion in (None, ocra.Lesion(decoder_memory=True))
    )
    assert intact[0].x == lesioned[0].x and intact[2].x != lesioned[2].x


def test_file_names_are_no_formulas(weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dot_picture((100, 80), (30, 30), 10).save("=cmd.png")
    ocra.scanpath(weights, "=cmd.png", "paths.csv")
    assert rows_of((tmp_path / "paths.csv").read_text("utf-8"))[0]["image"] == "'=cmd.png"


def test_no_scanpaths_make_an_empty_file(tmp_path):
    save_scanpaths([], tmp_path / "none.npz")
    with np.load(tmp_path / "none.npz", allow_pickle=False) as data:
        assert len(data["files"]) == 0
