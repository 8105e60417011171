"""The command line: one screen of help, sentences for mistakes, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import ocra
from ocra.cli.main import COMMANDS, available, main, overview, whole_number
from ocra.config import ModelConfig
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
    assert all(name in out for name in available())


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
    assert done.returncode == 0 and done.stdout.strip() == overview().strip()


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
        (["train", "multimnist-3", "--training.batch", "-4"], 2, "training.batch must be a whole number"),
        (["train", "multimnist-3", "--training.beta2", "1.5"], 2, "training.beta2 must be at least 0"),
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
        (["train", "multimnist-3", "--training.images", "1e30"], 2, "below 2**63"),
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
    assert err.startswith("error: ") and sentence in err
    assert "Traceback" not in err


def test_options_that_do_not_exist_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = output(["train", "multimnist-3", "--training.epochs", "3"], capsys)
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
    assert experiment["parameters"] == 5_107_591 and experiment["training"]["images"] == 235_000_000
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


def test_evaluate_as_a_table_with_the_second_test_set(
    weights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = output(["evaluate", weights, "--images", "100", "--shift", "6"], capsys)
    assert code == 0
    assert "exact error" in out and "95 % interval" in out and "hardest pairs" in out


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
    assert "w[x] on 1 test images of folder" in out and "[/b]" in out


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


def test_evaluate_refuses_digits_where_there_are_none_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = output(["evaluate", "svhn-12", "--digits", "glyphs"], capsys)
    assert code == 2 and "svhn has no setting 'digits'" in err


def test_too_little_memory_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "show", "cluttered", "--digits", "glyphs", "--images", "1", "--size", "10000000"]
    code, _, err = output(words, capsys)
    assert code == 1 and "not enough memory" in err


def test_evaluate_refuses_a_task_that_does_not_fit(weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = output(["evaluate", weights, "--task", "cluttered", "--digits", "glyphs"], capsys)
    assert code == 2 and "makes images of 1 × 100 × 100, but the model takes 1 × 36 × 36" in err
