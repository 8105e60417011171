"""Whole runs, as small as they can be."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ocra.training.folder import read_spec
from ocra.training.initialise import build_model
from tiny_runs import run, same_weights, tiny, write_config

import ocra
from ocra.cli.main import main
from ocra.data import ClutteredMNIST
from ocra.errors import OcraError
from ocra.losses import Losses
from ocra.model.ocra import OCRA
from ocra.training import trainer as loop
from ocra.training.logging import read_log


def train(folder: Path, experiment: Any = None, **training: Any) -> dict[str, Any]:
    return ocra.train(experiment or tiny(**training), folder, processes=1, quiet=True)


@pytest.mark.slow
def test_a_tiny_model_learns_glyph_digits(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", images=10_000, learning_rate=1e-2, validate_images=500, test_images=500)
    assert summary["test"]["last"]["exact_error"] < 0.2  # chance: 0.9
    model = ocra.OCRA.from_pretrained(tmp_path / "run" / "weights" / "best")
    assert ocra.evaluate(model, tiny().task, images=500).exact_error < 0.2


def test_a_run_is_resumed_with_as_many_processes_from_the_very_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Run, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run")
    monkeypatch.undo()
    assert ocra.resume(tmp_path / "run", quiet=True)["processes"] == 1


def test_attention_may_be_left_out_of_the_learning(tmp_path: Path) -> None:
    experiment = tiny(attention_rate=0.0, images=320)
    train(tmp_path / "run", experiment)
    start, end = build_model(experiment), ocra.OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert torch.allclose(start.read_attention.weight, end.read_attention.weight)
    assert torch.allclose(start.write_attention.bias, end.write_attention.bias)
    assert not torch.allclose(start.primary.weight, end.primary.weight)


def test_a_run_may_begin_with_few_glimpses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    forward = ocra.OCRA.forward

    def spy(model: ocra.OCRA, *args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            seen.append(options["glimpses"])
            assert model.defer_weight_gradients
        return forward(model, *args, **options)

    monkeypatch.setattr(ocra.OCRA, "forward", spy)
    train(tmp_path / "run", few_glimpses=1, few_until_images=192, images=320)
    assert seen == [1] * 6 + [2] * 4


def test_a_run_may_begin_with_digits_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    make = ClutteredMNIST.make

    def spy(task: ClutteredMNIST, indices: Any, *, spread: float, **options: Any) -> Any:
        if task.split == "train":
            seen.append(spread)
        else:
            assert spread == 1
        return make(task, indices, spread=spread, **options)

    monkeypatch.setattr(ClutteredMNIST, "make", spy)
    train(tmp_path / "run", spread=0.2, spread_until_images=128, images=224)
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])


def test_a_run_may_begin_with_being_shown_where_to_look(tmp_path: Path) -> None:
    train(tmp_path / "run", guide=2.0, guide_until_images=640)
    reports = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    pulls = [record["guide_loss"] for record in reports]
    assert min(pulls[:2]) > 0 and pulls[2:] == [0, 0]
    parts = reports[0]["margin_loss"] + tiny().loss.reconstruction_weight * reports[0]["reconstruction_loss"]
    assert reports[0]["loss"] > parts + pulls[0]  # the weight is between 2 and 1 in the first report


def test_nobody_can_be_shown_what_is_not_known(tmp_path: Path) -> None:
    experiment = tiny(guide=1.0, guide_until_images=640)
    blind = replace(experiment, model=replace(experiment.model, attention=False))
    with pytest.raises(OcraError, match=r"training.guide .* no glimpses"):
        train(tmp_path / "run", blind)
    crowded = replace(experiment, task=replace(experiment.task, objects=6))
    with pytest.raises(OcraError, match="up to 5 objects"):
        train(tmp_path / "run", crowded)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


def test_a_run_leaves_everything_in_its_folder(finished: Path) -> None:
    files = {path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()}
    assert {"config.json", "log.jsonl", "summary.json", "checkpoints/000000001280.safetensors"} <= files
    for which in ("best", "last"):
        model = OCRA.from_pretrained(finished / "weights" / which)
        assert model.config == tiny().model
        assert model.info.class_names == tuple("0123456789")
        assert model.info.task_name == "cluttered" and model.info.answer.objects == 1
    assert not [file for file in files if ".part" in file]


def test_log_lines_have_all_figures(finished: Path) -> None:
    records = read_log(finished / "log.jsonl")
    reports = [record for record in records if "loss" in record]
    validations = [record for record in records if "validation_error" in record]
    assert [record["images"] for record in reports] == [320, 640, 960, 1280]
    assert [record["images"] for record in validations] == [640, 1280]
    assert all(0 <= record["silent_glimpses"] <= tiny().model.glimpses for record in validations)
    for record in reports:
        assert {
            "step", "images", "loss", "margin_loss", "reconstruction_loss", "readout_loss", "share_loss", "guide_loss",
            "error", "learning_rate", "images_per_second", "gradient_norm", "skipped",
        } == record.keys()  # fmt: skip
        assert record["step"] * 32 == record["images"] and 0 <= record["error"] <= 1


def test_the_summary_has_all_figures(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["images"] == 1280 and summary["step"] == 40 and summary["seed"] == 0
    assert summary["config"] == json.loads((finished / "config.json").read_text())
    assert summary["seconds"] > 0
    validated = [
        record["cpu_seconds"] for record in read_log(finished / "log.jsonl") if "cpu_seconds" in record
    ]
    assert summary["cpu_seconds"] > validated[-1] > validated[0] > 0  # the tests at the end count as well
    assert {"ocra", "torch", "python"} <= summary["versions"].keys() and "commit" in summary
    for which in ("best", "last"):
        figures = summary["test"][which]
        low, high = figures["exact_error_interval"]
        assert figures["n"] == 100 and low <= figures["exact_error"] <= high


def test_a_run_can_be_trained_again_from_its_config_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--config", str(finished / "config.json"), "--out", str(tmp_path / "again")]
    assert main([*words, "--processes", "1"]) == 0
    assert same_weights(finished, tmp_path / "again")
    shown = capsys.readouterr().out
    assert "640 / 1,280 images" in shown and "validation error" in shown and "Done" in shown


def test_every_setting_can_be_changed_on_the_command_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--config", str(finished / "config.json"), "--out", str(tmp_path / "other"), "--quiet"]
    changes = ["--training.images", "6.4e1", "--model.glimpses", "3", "--seed", "7", "--loss.margin", "0.2"]
    assert main([*words, *changes, "--processes", "1"]) == 0
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    assert config["training"]["images"] == 64 and config["model"]["glimpses"] == 3
    assert config["seed"] == 7 and config["loss"]["margin"] == 0.2
    assert capsys.readouterr().out == ""


def test_a_run_that_has_ended_is_not_resumed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "summary.json").read_bytes()
    assert main(["train", "--resume", str(finished)]) == 0
    assert "nothing to resume" in capsys.readouterr().out
    assert (finished / "summary.json").read_bytes() == before


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, seed=seed, images=96)
    assert same_weights(tmp_path / "a", tmp_path / "b")
    assert not same_weights(tmp_path / "a", tmp_path / "c")


def test_averaging_changes_what_is_saved_but_not_the_training(tmp_path: Path) -> None:
    train(tmp_path / "on", images=160)
    train(tmp_path / "off", images=160, average=0.0)
    assert not same_weights(tmp_path / "on", tmp_path / "off")
    losses = [
        [record.get("loss") for record in read_log(tmp_path / name / "log.jsonl")] for name in ("on", "off")
    ]
    assert losses[0] == losses[1]


def test_training_stops_when_validation_gets_no_better(tmp_path: Path) -> None:
    summary = train(tmp_path / "run", images=6400, validate_every_images=32, learning_rate=1e-9, patience=3)
    assert summary["images"] == 4 * 32 and summary["best_images"] == 32


def test_a_short_spell_of_bad_steps_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, steps={3, 4, 9})
    summary = train(tmp_path / "run", images=640)
    assert summary["skipped"] == 3 and summary["step"] == 20
    weights = ocra.OCRA.from_pretrained(tmp_path / "run" / "weights" / "last").state_dict()
    assert all(value.isfinite().all() for value in weights.values())


def test_divergence_stops_the_run_with_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, steps=set(range(5, 100)))
    with pytest.raises(
        OcraError, match=r"not finite in 10 steps in a row.*lower --training.learning-rate"
    ) as caught:
        train(tmp_path / "run")
    assert "resume" not in str(caught.value) and str(tmp_path) not in str(caught.value)
    checkpoint = loop.RunFolder(tmp_path / "run").checkpoints.load()
    assert checkpoint is not None and checkpoint.state["images"] == 32 * 14
    assert all(value.isfinite().all() for value in checkpoint.tensors.values())


def test_weights_that_were_ruined_are_not_saved_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, count = loop.Run.update, iter(range(1000))

    def ruinous(self: loop.Run, *arguments: Any) -> float:
        rate = right(self, *arguments)
        if next(count) == 5:
            self.state.parameters.values.data.fill_(torch.inf)
        return rate

    monkeypatch.setattr(loop.Run, "update", ruinous)
    with pytest.raises(OcraError, match="The last good weights are saved at 160 images"):
        train(tmp_path / "run", checkpoint_minutes=1e-9)
    checkpoint = loop.RunFolder(tmp_path / "run").checkpoints.load()
    assert checkpoint is not None and checkpoint.state["images"] == 160
    assert all(value.isfinite().all() for value in checkpoint.tensors.values())


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Make the loss of some steps NaN."""
    right, count = loop.compute_losses, iter(range(10_000))

    def spoiled(*arguments: Any) -> Losses:
        losses = right(*arguments)
        return losses._replace(total=losses.total * torch.nan) if next(count) in steps else losses

    monkeypatch.setattr(loop, "compute_losses", spoiled)


def test_missing_data_is_said_before_a_folder_is_made(tmp_path: Path) -> None:
    experiment = replace(tiny(), task=replace(tiny().task, digits="mnist", root=str(tmp_path / "nowhere")))
    with pytest.raises(OcraError, match="MNIST was not found"):
        train(tmp_path / "run", experiment)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"processes": 500}, "500 processes cannot share a batch of 32"),
        ({}, {"device": "tpu"}, "There is no device 'tpu'"),
        ({"start_from": "nowhere"}, {}, "There are no weights 'nowhere'"),
    ],
)
def test_a_run_that_cannot_be_leaves_no_folder(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OcraError, match=message):
        ocra.train(tiny(**settings), tmp_path / "run", **{"processes": 1, "quiet": True, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"needs an object for the whole, not \[\]"),
        ('{"training": {"start_from": 3}}', "training.start_from must be the name of weights, not 3"),
        ('{"seed": 99999999999999999999999}', "seed must be a whole number from 0"),
        ('{"name": 3}', "name must be a word"),
        ('{"name": "../out"}', "name must be a word"),
        ('{"training": {"compile": "false"}}', "training.compile must be true or false, not 'false'"),
        ('{"model": {"attention": "no"}}', "model.attention must be true or false"),
        ('{"loss": {"normalise_scores": 1}}', "loss.normalise_scores must be true or false"),
        ('{"task": {"name": "svhn", "augment": "off"}}', "task.augment must be true or false"),
    ],
)
def test_a_config_that_cannot_be_is_refused_with_a_sentence(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(OcraError, match=message):
        read_spec(tmp_path / "config.json")


def test_output_that_cannot_be_written_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.warns(UserWarning, match="Nothing more can be shown .*; the run goes on"):
        summary = ocra.train(tiny(images=320), tmp_path / "run", processes=1)
    assert summary["images"] == 320


def test_a_task_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    experiment = replace(tiny(), task=replace(tiny().task, size=40))
    with pytest.raises(OcraError, match="makes images of 1 × 40 × 40, but the model takes 1 × 32 × 32"):
        train(tmp_path / "run", experiment)
    train(tmp_path / "run", ocra.fit_to_task(replace(experiment, training=tiny(images=32).training)))


def write_own_folder(root: Path) -> Path:
    """Pictures of bright and dark squares, labelled."""
    from PIL import Image

    root.mkdir()
    rows = ["file,labels,split"]
    for split in ("train", "validation", "test"):
        for k in range(6):
            label = ("cat", "dog")[k % 2]
            Image.new("L", (30, 24), 40 + 180 * (k % 2)).save(root / f"{split}{k}.png")
            rows.append(f"{split}{k}.png,{label},{split}")
    (root / "labels.csv").write_text("\n".join(rows))
    return root


def test_a_folder_of_ones_own_is_trained_and_keeps_its_class_names(tmp_path: Path) -> None:
    root = write_own_folder(tmp_path / "pictures")
    config = write_config(tmp_path / "tiny.json", tiny(images=64))
    words = ["train", "--config", str(config), "--task", "folder", "--task.root", str(root)]
    sizes = ["--task.height", "24", "--task.width", "30"]
    assert main([*words, *sizes, "--out", str(tmp_path / "run"), "--processes", "1", "--quiet"]) == 0
    model = OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert model.info.class_names == ("cat", "dog")
    assert model.config.classes == 2 and model.config.image_shape == (1, 24, 30)
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0


def test_bfloat16_trains_or_is_refused_in_a_sentence(tmp_path: Path) -> None:
    # In a process of its own: a CPU that promises instructions it lacks would take the tests with it.
    config = write_config(tmp_path / "tiny.json", tiny(images=64, precision="bf16"))
    code, _, err = run("train", "--config", config, "--out", tmp_path / "run", "--processes", 1)
    if code == 1:
        assert "bfloat16 does not work on this cpu; use --training.precision fp32" in err
        assert not (tmp_path / "run").exists()
        pytest.skip("needs a processor with working bfloat16")
    assert code == 0


def test_a_tracker_that_is_not_installed_is_said_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OcraError, match=r"pip install 'ocra-vision\[track\]'"):
        ocra.train(tiny(), tmp_path / "run", processes=1, track="tensorboard")
    assert not (tmp_path / "run").exists()
