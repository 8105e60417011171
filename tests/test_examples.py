"""The examples run, are short, and say something; the tutorials run, and their notebooks show what they show."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tiny import ink_picture, tiny_weights

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
# Digits from fonts and small numbers, so that a tutorial runs in seconds without data.
SMALLER = {"DIGITS": '"glyphs"', "NUMBER": "12", "TRIALS": "3", "IMAGES": "40", "SEEN": "64"}
each_tutorial = pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example in an empty folder with one thread, and return what it prints."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run_example
    torch.set_num_threads(threads)


def test_there_are_seven_short_ones():
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 7 and max(lengths.values()) <= 42, lengths


def test_predict(run, tmp_path):
    ink_picture().save(tmp_path / "photo.png")
    said = run("predict.py", "photo.png", "--weights", tiny_weights(tmp_path / "weights"))
    assert "photo.png: " in said and "confidence" in said and "glimpse 3: x " in said
    assert (tmp_path / "look.png").stat().st_size > 10_000


def test_train_on_a_folder_of_ones_own(run, tmp_path):
    said = run("train_own_folder.py", "own", 64)
    assert "images wrong" in said and "missed" in said
    assert (tmp_path / "own/weights/best/model.safetensors").is_file()
    assert (tmp_path / "own-images/labels.csv").read_text().startswith("file,labels\n0.png,")


def test_scanpaths_to_a_table(run, tmp_path):
    weights = tiny_weights(tmp_path / "weights")
    said = run("scanpaths_to_table.py", "--weights", weights, "--digits", "glyphs", "--number", 5)
    assert said.count("mean window") == 3
    assert len((tmp_path / "scanpaths.csv").read_text("utf-8").splitlines()) == 1 + 5 * 3


def test_a_lesion_experiment(run, tmp_path):
    weights = tiny_weights(tmp_path / "weights")
    said = run("lesion_experiment.py", "--weights", weights, "--digits", "glyphs", "--number", 16)
    assert said.count("% wrong") == 6


def test_a_new_task(run, tmp_path):
    assert "of 1000 images wrong" in run("new_task.py", "strokes", 256)
    assert (tmp_path / "strokes/weights/best/model.safetensors").is_file()


def test_an_experiment_of_ones_own(run, tmp_path):
    said = run("own_experiment.py", "--weights", tiny_weights(tmp_path / "weights"), "--trials", 3)
    assert said.count("wrong") == 4
    assert (tmp_path / "upside-down/summary.csv").is_file()
    assert (tmp_path / "upside-down/upside-down.png").is_file()


def test_there_are_five_tutorials():
    assert len(TUTORIALS) == 5


@each_tutorial
def test_a_tutorial_runs(script, run, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = script.read_text("utf-8")
    for name, value in SMALLER.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.M)
    (tmp_path / script.name).write_text(text, "utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(tmp_path / script.name)


def cells(script):
    """The cells of a script in the percent format: whether each is text, and its lines."""
    for part in re.split(r"^# %%", script.read_text("utf-8"), flags=re.M)[1:]:
        kind, _, body = part.partition("\n")
        is_text = "[markdown]" in kind
        yield is_text, re.sub(r"^# ?", "", body, flags=re.M).strip() if is_text else body.strip()


@each_tutorial
def test_a_notebook_is_its_script_and_was_run_without_an_error_or_a_path_of_the_machine(script):
    notebook = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))
    said = [(cell["cell_type"] == "markdown", "".join(cell["source"]).strip()) for cell in notebook["cells"]]
    assert said == list(cells(script)), f"{script.stem} has changed: make notebooks"
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not re.search(r"/(home|root|tmp|work)/", json.dumps(notebook))
