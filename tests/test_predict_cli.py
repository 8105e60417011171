"""ocra predict, as a person or a program uses it."""

import io
import json

import pytest
from PIL import Image
from tiny import ink_picture, tiny_weights

from ocra.cli.main import run
from ocra.errors import OcraError, UsageError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with weights, a good image and a bad one."""
    tiny_weights(tmp_path / "weights")
    ink_picture().save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_is_one_line_for_each_image_with_agreed_names(folder, capsys):
    run("predict", ["good.png", "--weights", "weights", "--json"])
    (line,) = lines(capsys)
    assert list(line) == [
        "file",
        "answer",
        "confidence",
        "calibrated",
        "note",
        "objects",
        "scores",
        "glimpses",
    ]
    assert line["file"] == "good.png"
    assert (
        all(set(found) == {"label", "score", "confidence"} for found in line["objects"])
        and len(line["objects"]) == 2
    )
    assert list(line["scores"]) == list("0123456789")
    assert [set(glimpse) for glimpse in line["glimpses"]] == [{"x", "y", "width", "winner"}] * 3


def test_other_images_are_still_recognised_after_a_bad_one(folder, capsys):
    with pytest.raises(OcraError, match=r"2 of 4 images"):
        run("predict", ["missing.png", "good.png", "bad.png", "good.png", "--weights", "weights", "--json"])
    found = lines(capsys)
    assert [line["file"] for line in found] == ["missing.png", "good.png", "bad.png", "good.png"]
    assert ["error" in line for line in found] == [True, False, True, False]
    assert "missing.png" in found[0]["error"] and set(found[0]) == {"file", "error"}


def test_people_get_a_line_with_objects_and_confidence(folder, capsys):
    run("predict", ["good.png", "--weights", "weights", "--explain"])
    said = capsys.readouterr().out
    assert said.startswith("good.png: ") and "confidence" in said
    assert "inverted (the border is light)" in said


def test_folders_and_patterns_are_taken(folder, capsys):
    (folder / "more").mkdir()
    ink_picture().save(folder / "more/a.png")
    ink_picture().save(folder / "more/b.jpg")
    run("predict", ["more", "more/*.jpg", "--weights", "weights", "--json"])
    assert [line["file"] for line in lines(capsys)] == ["more/a.png", "more/b.jpg", "more/b.jpg"]


def test_standard_input_is_read(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((folder / "good.png").read_bytes())))
    run("predict", ["-", "--weights", "weights", "--json"])
    (line,) = lines(capsys)
    assert line["file"] == "-" and line["objects"]


def test_figures_are_saved_under_the_names_of_the_images(folder, capsys):
    (folder / "other").mkdir()
    ink_picture().save(folder / "other/good.png")
    run("predict", ["good.png", "other/good.png", "--weights", "weights", "--save", "out"])
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["good-2-look.png", "good-2-steps.png", "good-look.png", "good-steps.png"]
    for name in names:
        assert min(Image.open(folder / "out" / name).size) > 300


def test_figures_never_replace_images_or_each_other(folder, capsys):
    (folder / "own").mkdir()
    for name in ("a", "a-look", "a-steps"):
        ink_picture().save(folder / f"own/{name}.png")
    before = {path: path.read_bytes() for path in (folder / "own").iterdir()}
    run("predict", ["own", "--weights", "weights", "--save", "own"])
    assert all(path.read_bytes() == content for path, content in before.items())
    made = {path.name for path in (folder / "own").iterdir()} - {path.name for path in before}
    assert made == {
        f"{name}-{kind}.png" for name in ("a-2", "a-look", "a-steps") for kind in ("look", "steps")
    }


@pytest.mark.parametrize("save", ["out", "."])
def test_figures_of_an_earlier_run_are_no_images(folder, capsys, save):
    (folder / "bad.png").unlink()
    for _ in range(2):
        run("predict", [".", "--weights", "weights", "--save", save, "--json"])
    assert [line["file"] for line in lines(capsys)] == ["good.png"] * 2
    assert sorted(path.name for path in (folder / save).glob("*-*.png")) == [
        "good-look.png",
        "good-steps.png",
    ]
    run(
        "predict", [f"{save}/good-look.png", "--weights", "weights", "--save", save, "--json"]
    )  # named, so it is meant
    assert [line["file"] for line in lines(capsys)] == [f"{save}/good-look.png"]


def test_names_with_dollars_are_drawn(folder, capsys):
    ink_picture().save(folder / "from $5_ to $^6.png")
    run("predict", ["from $5_ to $^6.png", "--weights", "weights", "--save", "out"])
    assert (folder / "out/from $5_ to $^6-look.png").is_file()


def test_a_blank_image_shows_nothing(folder, capsys):
    Image.new("L", (60, 60), 255).save("blank.png")
    run("predict", ["blank.png", "--weights", "weights"])
    assert capsys.readouterr().out == "blank.png: nothing\n"
    run("predict", ["blank.png", "--weights", "weights", "--json"])
    (line,) = lines(capsys)
    assert line["answer"] == "nothing" and line["objects"] == []


def test_no_image_and_no_weights_are_said(folder):
    with pytest.raises(UsageError, match="at least one image"):
        run("predict", ["--weights", "weights"])
    with pytest.raises(OcraError, match="nowhere"):
        run("predict", ["good.png", "--weights", "nowhere"])
