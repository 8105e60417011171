"""The command line: one screen of help, sentences for mistakes, exit codes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import ocra
from ocra.cli.main import COMMANDS, OVERVIEW, columns, main, whole_number
from ocra.config import ModelConfig
from ocra.files import csv_cell
from ocra.model.interventions import lesion_of
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo


def output(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(words)
    except SystemExit as end:  # tyro ends the program for --help and for words it does not know
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_fits_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = output(["--help"], capsys)
    assert code == 0
    assert len(out.splitlines()) <= 24 and max(map(len, out.splitlines())) <= 80
    assert all(name in out for name in COMMANDS)


def test_help_needs_no_heavy_import() -> None:
    program = (
        "import sys; from ocra.cli.main import main; main(['--help']); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == "False"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(["--version"], capsys)[1] == f"ocra {ocra.__version__}\n"


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "ocra", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == OVERVIEW


def test_public_names_exist() -> None:
    assert all(getattr(ocra, name) is not None for name in ocra.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ocra.nothing


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = output([command, "--help"], capsys)
    assert code == 0
    assert "Example" in out and f"ocra {command}" in out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["dance"], 2, "There is no command 'dance'"),
        (["train"], 2, "Say what to train"),
        (["train", "mnist"], 2, "There is no preset 'mnist'"),
        (["train", "multimnist-3", "--model.glimpses", "0"], 2, "model.glimpses must be a whole number"),
        (
            ["train", "multimnist-3", "--stages.0.batch-size", "-4"],
            2,
            "stage.batch_size must be a whole number",
        ),
        (["train", "multimnist-3", "--stages.0.beta2", "1.5"], 2, "stage.beta2 must be a number"),
        (
            ["train", "multimnist-3", "--task.digits", "glyphs", "--model.height", "50"],
            2,
            "--model.height 50",
        ),
        (["train", "multimnist-3", "--config", "x.json"], 2, "either a preset or --config"),
        (["train", "--config", "x.json", "--recipe", "paper"], 2, "--recipe is for presets"),
        (["train", "multimnist-3", "--seed", "-1"], 2, "seed must be a whole number from 0"),
        (["train", "--config", "no-such.json"], 1, "no-such.json does not exist"),
        (["train", "--config", str(Path(__file__).parent)], 1, "Is a directory"),
        (["train", "--resume", "no-such-run"], 1, "no-such-run holds no run to resume"),
        (["train", "--seed", "3", "multimnist-3"], 2, "Write the preset first: ocra train multimnist-3"),
        (
            [
                "train",
                "multimnist-3",
                "--task.digits",
                "glyphs",
                "--model.readout-digits",
                "5",
                "--model.glimpses",
                "12",
            ],
            2,
            "--model.readout-digits 5 does not fit the task",
        ),
        (["evaluate", "multimnist-3", "--threads", "-1"], 2, "--threads must be at least 1"),
        (
            ["evaluate", "multimnist-3", "--digits", "glyphs", "--images", "8", "--glimpses", "0"],
            2,
            "from 1 to 1000",
        ),
        (
            ["evaluate", "multimnist-3", "--digits", "glyphs", "--seed", "-1"],
            2,
            "seed must be a whole number",
        ),
        (["train", "multimnist-3", "--images", "1e30"], 2, "below 2**63"),
        (["reproduce", "all", "--tables-only", "--results", "no-such"], 2, "no records in no-such"),
        (["demo", "--weights", "svhn-12"], 2, "The demo shows"),
        (["import-authors", __file__, "--preset", "multimnist-3", "--out", "x"], 1, "test_cli.py"),
        (["evaluate", "no-such-weights"], 1, "There are no weights 'no-such-weights'"),
        (["presets", "mnist"], 2, "There is no preset 'mnist'"),
    ],
)
def test_mistakes_get_a_sentence_and_an_exit_code(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    returned, _, err = output(words, capsys)
    assert returned == code
    assert err.lstrip().startswith("error: ") and sentence in err
    assert "Traceback" not in err


def test_options_that_do_not_exist_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = output(["train", "multimnist-3", "--stages.0.epochs", "3"], capsys)
    assert code == 2 and "epochs" in err
    code, _, err = output(["train", "--resume", "x", "--seed", "4"], capsys)
    assert code == 2 and "seed" in err


def test_whole_numbers_may_be_written_with_an_exponent() -> None:
    assert whole_number("3e6") == 3_000_000
    assert whole_number("1_000") == 1000
    for bad in ("3.5", "many", "inf", "nan"):
        with pytest.raises((ValueError, OverflowError)):
            whole_number(bad)


def test_presets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = output(["presets", "svhn-12", "--json", "--recipe", "paper"], capsys)
    experiment = json.loads(out)
    assert experiment["parameters"] == 5_107_591 and experiment["stages"][0]["images"] == 235_000_000
    _, out, _ = output(["presets", "multimnist-10"], capsys)
    assert "model.glimpses = 10" in out and "5.08 ± 0.17" in out


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """Untrained weights for MultiMNIST."""
    model = OCRA(ModelConfig(filters=4, hidden=16, primary_capsules=4))
    about = {"task": {"name": "multimnist", "digits": "glyphs"}}
    model.save_pretrained(tmp_path / "w", ModelInfo.from_dict(about, model.config))
    return str(tmp_path / "w")


def test_evaluate_as_json(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", weights, "--images", "3e2", "--seed", "5", "--glimpses", "2", "--json"]
    code, out, _ = output(words, capsys)
    result = json.loads(out)
    assert code == 0
    assert (result["task"], result["n"], result["seed"], result["glimpses"]) == ("multimnist", 300, 5, 2)
    low, high = result["exact_error_interval"]
    assert 0 <= low <= result["exact_error"] <= high <= 1
    assert {"object_error", "reconstruction_mse", "classes", "confusion", "pairs"} <= result.keys()
    assert sum(row["n"] for row in result["pairs"].values()) == 300


def test_evaluate_gives_the_same_figures_in_any_number_of_threads(
    weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = []
    for threads in ("1", "3"):
        _, out, _ = output(["evaluate", weights, "--images", "400", "--threads", threads, "--json"], capsys)
        figures.append(json.loads(out))
    assert figures[0]["confusion"] == figures[1]["confusion"]
    assert figures[0]["exact_error"] == figures[1]["exact_error"]


def test_settings_of_a_task_have_the_names_of_its_config(
    weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = output(["evaluate", weights, "--images", "100", "--max-shift", "6", "--json"], capsys)
    result = json.loads(out)
    assert code == 0 and (result["max_shift"], result["digits"]) == (6, "glyphs")
    code, _, err = output(["evaluate", weights, "--distractors", "6"], capsys)
    assert code == 2 and "multimnist has no setting 'distractors'" in err


def test_evaluate_for_people_says_the_same_as_for_programs(
    weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", weights, "--images", "100"]
    figures = json.loads(output([*words, "--json"], capsys)[1])
    code, out, _ = output(words, capsys)
    assert code == 0
    assert "exact error" in out and f"{figures['exact_error']:.2%}" in out and "hardest pairs" in out
    assert out.startswith(f"{weights} on 100 test images of multimnist")


def test_evaluate_writes_a_row_for_each_image(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "trials.csv"
    words = ["evaluate", weights, "--images", "200", "--out", str(table), "--json", "--threads", "2"]
    figures = json.loads(output(words, capsys)[1])
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert len(rows) == 200 == len({row["index"] for row in rows})
    assert 1 - sum(int(row["correct"]) for row in rows) / 200 == pytest.approx(figures["exact_error"])
    for row in rows:
        assert row["correct"] == str(int(sorted(row["truth"].split()) == sorted(row["answer"].split())))
        assert sorted(row["truth"].split()) == sorted((row["box_1_class"], row["box_2_class"]))
        assert row["glimpses"] == "3" and float(row["window_3_width"]) > 0


def test_interventions_are_options(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", weights, "--images", "50", "--json"]
    _, out, _ = output(
        [*words, "--lesion", "4", "encoder-memory", "--routings", "1", "--glimpses", "2"], capsys
    )
    result = json.loads(out)
    assert result["glimpses"] == 2 and result["classes"]["4"]["error"] == 1
    assert lesion_of(["4", "encoder-memory"]) == ocra.Lesion(capsules=(4,), encoder_memory=True)
    code, _, err = output([*words, "--lesion", "soul"], capsys)
    assert code == 2 and "not 'soul'" in err


def test_a_device_that_is_not_there_is_a_sentence(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.backends.mps.is_available():
        code, _, err = output(["evaluate", weights, "--device", "mps"], capsys)
        assert code == 2 and "no device 'mps'" in err
    assert output(["evaluate", weights, "--images", "8", "--device", "cpu"], capsys)[0] == 0


def test_evaluate_takes_a_folder_in_the_size_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ocra.OCRA(ocra.ModelConfig(height=50, width=40, classes=1, hidden=16, primary_capsules=4))
    model.save_pretrained(tmp_path / "w[x]", replace(model.info, class_names=("[/b]",)))
    Image.new("L", (60, 60), 200).save(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("file,labels,split\na.png,[/b],test")
    words = ["evaluate", str(tmp_path / "w[x]"), "--task", "folder", "--root", str(tmp_path)]
    code, out, err = output(words, capsys)
    assert code == 0, err
    assert f"{tmp_path}/w[x] on 1 test images of folder" in out and "[/b]" in out
    assert json.loads(output([*words, "--json"], capsys)[1])["classes"].keys() == {"[/b]"}


def test_foreign_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert columns([("a\x1b[31m", "1")], ("class\r", "n")) == "class  n\na[31m  1"
    code, _, err = output(["evaluate", str(tmp_path / "no\x1b]0;such")], capsys)
    assert code == 1 and "\x1b" not in err and "no]0;such" in err


def test_cells_that_a_spreadsheet_would_run_are_marked_as_text() -> None:
    risky = ("=1+1", "+1", "-1", "@x", "\tx", "\rx")
    assert [csv_cell(text) for text in (*risky, "a=1", "")] == [*(f"'{text}" for text in risky), "a=1", ""]


@pytest.mark.parametrize("task", ["multimnist", None, {"name": "multimnist", "digits": "glyphs", "newer": 1}])
@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_whatever_is_saved_of_a_task_is_understood(
    command: str,
    task: object,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocra.data.download.MNIST_MIRRORS", ())
    monkeypatch.setenv("PATH", "")
    model = ocra.OCRA(ocra.ModelConfig(hidden=16, primary_capsules=4, filters=4))
    model.save_pretrained(tmp_path / "weights")
    config = json.loads((tmp_path / "weights" / "config.json").read_text())
    (tmp_path / "weights" / "config.json").write_text(json.dumps({**config, "task": task}))
    words = [] if command == "demo" else ["--digits", "glyphs"]
    where = ["--weights"] if command == "demo" else []
    code, _, err = output([command, *where, str(tmp_path / "weights"), "--images", "8", *words], capsys)
    assert code == 0, err


def test_too_little_memory_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "cluttered", "--digits", "glyphs", "--images", "1", "--size", "10000000"]
    code, _, err = output(words, capsys)
    assert code == 1 and "not enough memory" in err


def test_evaluate_refuses_a_task_that_does_not_fit(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = output(["evaluate", weights, "--task", "cluttered", "--digits", "glyphs"], capsys)
    assert code == 2 and "makes images of 1 × 100 × 100, but the model takes 1 × 36 × 36" in err
