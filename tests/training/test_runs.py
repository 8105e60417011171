"""Whole runs, as small as they can be."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import TINY, losses, run, same_weights, tiny, write_config

import ocra
from ocra.cli.main import main
from ocra.data import ClutteredMNIST
from ocra.data.task import Batch
from ocra.errors import OcraError
from ocra.experiment import Experiment, Stage
from ocra.losses import LossConfig, Losses
from ocra.model.ocra import OCRA
from ocra.model.weights import content_hash
from ocra.training import trainer as loop
from ocra.training.init import build_model
from ocra.training.logging import read_log
from ocra.training.trainer import Trainer


def train(folder: Path, experiment: Experiment | None = None, **stage: Any) -> dict[str, Any]:
    return ocra.train(experiment or tiny(**stage), folder, processes=1, quiet=True)


@pytest.mark.slow
def test_a_tiny_model_learns_glyph_digits(tmp_path: Path) -> None:
    experiment = tiny(images=10_000, lr=(1e-2, 0.0), run={"validate_images": 500, "test_images": 500})
    assert train(tmp_path / "run", experiment)["test"]["last"]["exact_error"] < 0.2  # chance: 0.9
    model = OCRA.from_pretrained(tmp_path / "run" / "weights" / "best")
    assert ocra.evaluate(model, TINY.task, images=500).exact_error < 0.2


STAGES = (
    Stage(
        128, batch_size=32, lr=1e-3, shampoo_lr=0.0, glimpses=(1, 2), spread=(0.2, 1.0),
        attention_supervision=(2.0, 0.0),
    ),
    Stage(64, batch_size=16, lr=1e-3, shampoo_lr=0.0, reconstruction=5.0, select=2),
)  # fmt: skip


def test_a_run_goes_through_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glimpses, spreads, sizes = [], [], []
    forward, make = OCRA.forward, ClutteredMNIST.make

    def look(model: OCRA, *args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            assert model.defer_weight_gradients
            glimpses.append(options["glimpses"])
        return forward(model, *args, **options)

    def draw(task: ClutteredMNIST, indices: Any, **options: Any) -> Any:
        if task.split == "train":
            spreads.append(options["spread"])
            sizes.append(len(indices))
        else:
            assert options["spread"] == 1 and options["single_objects"] == 0
        return make(task, indices, **options)

    experiment = replace(TINY, stages=STAGES, run=replace(TINY.run, report_every_images=16))
    monkeypatch.setattr(OCRA, "forward", look)
    monkeypatch.setattr(ClutteredMNIST, "make", draw)
    train(tmp_path / "run", experiment)
    assert glimpses == [1, 1, 2, 2, 2, 2, 2, 2]
    assert len(spreads) == 9  # the first image is drawn to see whether it has boxes
    assert spreads[1:] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1])
    assert sizes[1:] == [32] * 8  # two candidates for each of 16 images in the second stage
    reports = [record for record in read_log(tmp_path / "run" / "log.jsonl") if "loss" in record]
    assert [record["stage"] for record in reports] == [1] * 4 + [2] * 4
    assert [record["images"] for record in reports] == [32, 64, 96, 128, 144, 160, 176, 192]
    for weight, (record, scale) in zip(
        [2, 1.5, 1, 0.5, 0, 0, 0, 0], zip(reports, [10] * 4 + [5] * 4, strict=True), strict=True
    ):
        parts = record["margin"] + scale * record["reconstruction"] + weight * record["attention_supervision"]
        assert record["loss"] == pytest.approx(parts, rel=1e-5)
        assert (record["attention_supervision"] > 0) == (weight > 0)


def test_the_hardest_candidates_are_those_of_the_highest_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Batch] = []
    right = Trainer.hardest

    def watch(self: Trainer, candidates: Batch, count: int, now: Any) -> torch.Tensor:
        drawn.append(candidates)
        chosen = right(self, candidates, count, now)
        with torch.no_grad():
            trace = self.model(candidates.images, glimpses=now.glimpses)
        each = loop.image_losses(trace, candidates, self.experiment.loss, now.weights.over_count)
        others = torch.ones(len(candidates), dtype=torch.bool)
        others[chosen] = False
        assert len(chosen) == count == 8 and len(candidates) == 24
        assert each[chosen].min() >= each[others].max() - 1e-5
        return chosen

    monkeypatch.setattr(Trainer, "hardest", watch)
    counting = replace(
        tiny(images=32, batch_size=8, select=3, over_count=2.0), loss=LossConfig(normalise_scores=False)
    )
    train(tmp_path / "run", counting)
    assert len(drawn) == 4
    assert not any(torch.equal(drawn[0].images, other.images) for other in drawn[1:])


def test_attention_supervision_needs_something_to_supervise(tmp_path: Path) -> None:
    experiment = tiny(attention_supervision=(1.0, 0.0))
    blind = replace(experiment, model=replace(experiment.model, attention=False))
    with pytest.raises(OcraError, match="no attention to supervise"):
        train(tmp_path / "run", blind)
    crowded = replace(experiment, task=ClutteredMNIST.Config(digits="glyphs", size=32, objects=6))
    with pytest.raises(OcraError, match="up to 5 objects"):
        train(tmp_path / "run", crowded)
    assert not (tmp_path / "run").exists()


def test_attention_may_be_left_out_of_the_learning(tmp_path: Path) -> None:
    experiment = tiny(attention_lr_mult=0.0, images=96)
    train(tmp_path / "run", experiment)
    start, end = build_model(experiment), OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert torch.allclose(start.read_attention.weight, end.read_attention.weight)
    assert torch.allclose(start.write_attention.bias, end.write_attention.bias)
    assert not torch.allclose(start.primary.weight, end.primary.weight)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


def test_a_run_leaves_everything_in_its_folder(finished: Path) -> None:
    files = {path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()}
    assert {"config.json", "log.jsonl", "summary.json", "checkpoints/000000001280.safetensors"} <= files
    assert not [file for file in files if ".part" in file]
    for which in ("best", "last"):
        model = OCRA.from_pretrained(finished / "weights" / which)
        assert model.config == TINY.model
        assert model.info.class_names == tuple("0123456789")
        assert model.info.task["name"] == "cluttered" and model.info.answer.objects == 1
        assert Experiment.from_dict(model.info.record["experiment"]) == TINY


def test_log_and_summary_have_all_figures(finished: Path) -> None:
    records = read_log(finished / "log.jsonl")
    reports = [record for record in records if "loss" in record]
    validations = [record for record in records if "validation_error" in record]
    assert [record["images"] for record in reports] == [320, 640, 960, 1280]
    assert [record["images"] for record in validations] == [640, 1280]
    assert all(0 <= record["silent_glimpses"] <= TINY.model.glimpses for record in validations)
    for record in reports:
        assert {
            "step", "images", "stage", "loss", *Losses._fields[1:], "error", "lr", "shampoo_lr",
            "images_per_second", "gradient_norm", "skipped",
        } == record.keys()  # fmt: skip
        assert record["step"] * 32 == record["images"] and 0 <= record["error"] <= 1
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["images"] == 1280 and summary["step"] == 40 and summary["seed"] == 0
    assert summary["config"] == json.loads((finished / "config.json").read_text())
    # The tests at the end count as well.
    assert summary["cpu_seconds"] > validations[-1]["cpu_seconds"] > validations[0]["cpu_seconds"] > 0
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
    changes = "--images 6.4e1 --model.glimpses 3 --seed 7 --stages.0.lr 2e-3 1e-3 --stages.0.spread 0.5 --init paper"
    assert main([*words, *changes.split(), "--run.test-images", "0", "--processes", "1"]) == 0
    experiment = Experiment.from_dict(json.loads((tmp_path / "other" / "config.json").read_text()))
    (stage,) = experiment.stages
    assert (stage.images, stage.lr, stage.spread) == (64, (2e-3, 1e-3), 0.5)
    assert (experiment.model.glimpses, experiment.seed, experiment.init) == (3, 7, "paper")
    assert json.loads((tmp_path / "other" / "summary.json").read_text())["test"] == {}
    assert capsys.readouterr().out == ""


def test_a_run_that_has_ended_is_not_resumed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "summary.json").read_bytes()
    assert main(["train", "--resume", str(finished)]) == 0
    assert "nothing to resume" in capsys.readouterr().out
    assert (finished / "summary.json").read_bytes() == before


def test_weights_to_fine_tune_are_known_by_their_content(tmp_path: Path, finished: Path) -> None:
    best = finished / "weights" / "best"
    train(tmp_path / "run", images=32, init_from=str(finished))
    (stage,) = json.loads((tmp_path / "run" / "config.json").read_text())["stages"]
    assert stage["init_from"] == f"{best}@{content_hash(best)}"
    model = build_model(tiny(init_from=stage["init_from"]))
    assert torch.equal(model.encoder.weight_hh, OCRA.from_pretrained(best).encoder.weight_hh)
    with pytest.raises(OcraError, match="others than those asked for"):
        train(tmp_path / "other", init_from=f"{best}@000000000000")
    assert not (tmp_path / "other").exists()


def test_shipped_weights_to_fine_tune_are_known_by_name_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", lambda self: {})
    with pytest.warns(UserWarning, match="start afresh"):
        train(tmp_path / "run", init_from="multimnist-3")
    (stage,) = json.loads((tmp_path / "run" / "config.json").read_text())["stages"]
    name, _, content = stage["init_from"].partition("@")
    assert name == "multimnist-3" and len(content) == 12 and int(content, 16)


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, tiny(seed=seed, images=96))
    assert same_weights(tmp_path / "a", tmp_path / "b")
    assert not same_weights(tmp_path / "a", tmp_path / "c")


def test_averaging_changes_what_is_saved_but_not_the_training(tmp_path: Path) -> None:
    for name, decay in (("on", 0.99), ("off", 0.0)):
        train(tmp_path / name, images=320, ema_decay=decay)
    assert not same_weights(tmp_path / "on", tmp_path / "off")
    assert losses(tmp_path / "on") == losses(tmp_path / "off") != []


def test_a_short_spell_of_bad_steps_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, steps={3, 4, 9})
    summary = train(tmp_path / "run", images=640)
    assert summary["skipped"] == 3 and summary["step"] == 20
    weights = OCRA.from_pretrained(tmp_path / "run" / "weights" / "last").state_dict()
    assert all(value.isfinite().all() for value in weights.values())


def test_divergence_ends_the_run_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, steps=set(range(5, 100)))
    with pytest.raises(OcraError, match=r"not finite in 10 steps in a row.*lower lr") as caught:
        train(tmp_path / "run")
    assert "resume" not in str(caught.value) and str(tmp_path) not in str(caught.value)


def test_weights_that_were_ruined_are_not_saved_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, count = Trainer.update, iter(range(1000))

    def ruinous(self: Trainer, *arguments: Any) -> None:
        right(self, *arguments)
        if next(count) == 5:
            self.flat.values.fill_(torch.inf)

    monkeypatch.setattr(Trainer, "update", ruinous)
    with pytest.raises(OcraError, match="The last good checkpoint is that of 160 images"):
        train(tmp_path / "run", tiny(run={"checkpoint_minutes": 1e-9}))
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


def no_data(folder: Path) -> Experiment:
    return replace(TINY, task=ClutteredMNIST.Config(size=32, objects=1, root=str(folder / "nowhere")))


@pytest.mark.parametrize(
    ("experiment", "options", "message"),
    [
        (TINY, {"processes": 500}, "500 processes cannot share a batch of 32"),
        (TINY, {"device": "tpu"}, "There is no device 'tpu'"),
        (TINY, {"track": "paper"}, "There is no tracker 'paper'"),
        (tiny(init_from="nowhere"), {}, "There are no weights 'nowhere'"),
        (no_data, {}, "MNIST was not found"),
        (replace(TINY, task=ClutteredMNIST.Config(digits="glyphs", size=40)), {}, "40 × 40, but the model takes"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_leaves_no_folder(
    tmp_path: Path, experiment: Any, options: dict[str, Any], message: str
) -> None:
    made = experiment(tmp_path) if callable(experiment) else experiment
    with pytest.raises(OcraError, match=message):
        ocra.train(made, tmp_path / "run", **{"processes": 1, "quiet": True, **options})
    assert not (tmp_path / "run").exists()


def test_output_that_cannot_be_written_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.warns(UserWarning, match="Nothing more can be shown .*; the run goes on"):
        summary = ocra.train(tiny(images=96), tmp_path / "run", processes=1)
    assert summary["images"] == 96


def test_weights_that_find_no_room_cost_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, calls = OCRA.save_pretrained, iter(range(100))

    def full_at_first(*arguments: Any, **options: Any) -> None:
        if next(calls) == 0:
            raise OSError(28, "No space left on device")
        right(*arguments, **options)

    monkeypatch.setattr(OCRA, "save_pretrained", full_at_first)
    summary = ocra.train(tiny(), tmp_path / "run", processes=1)
    assert "warning: The best weights could not be saved" in capsys.readouterr().out
    assert summary["best_images"] == summary["images"] == 1280
    assert (tmp_path / "run" / "weights" / "best" / "model.safetensors").is_file()


def test_a_folder_of_ones_own_is_trained_and_keeps_its_class_names(tmp_path: Path) -> None:
    from PIL import Image

    rows = ["file,labels,split"]
    for split in ("train", "validation", "test"):
        for k in range(6):
            Image.new("L", (30, 24), 40 + 180 * (k % 2)).save(tmp_path / f"{split}{k}.png")
            rows.append(f"{split}{k}.png,{('cat', 'dog')[k % 2]},{split}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    config = write_config(tmp_path / "tiny.json", tiny(images=64))
    words = ["train", "--config", str(config), "--task", "folder", "--task.root", str(tmp_path)]
    sizes = ["--task.height", "24", "--task.width", "30"]
    assert main([*words, *sizes, "--out", str(tmp_path / "run"), "--processes", "1", "--quiet"]) == 0
    model = OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert model.info.class_names == ("cat", "dog")
    assert model.config.classes == 2 and model.config.image_shape == (1, 24, 30)
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0


OWN = """
import numpy, torch, ocra

class Bars(ocra.Task):
    class_names, image_shape = ("standing", "lying"), (1, 16, 16)
    answer_rule = ocra.AnswerRule(1)

    def __len__(self):
        return 1000

    def make(self, indices, **options):
        images, counts = torch.zeros(len(indices), 1, 16, 16), torch.zeros(len(indices), 2)
        for k, index in enumerate(indices):
            draw = numpy.random.default_rng([self.seed, *self.split.encode(), index])
            kind, place = draw.integers(2), draw.integers(4, 12)
            images[k, 0][(slice(None), place) if kind == 0 else (place,)] = 1
            counts[k, kind] = 1
        return ocra.Batch(images, counts)

if __name__ == "__main__":
    import json, sys
    experiment = ocra.Experiment.from_dict(json.load(open(sys.argv[1])))
    ocra.train(experiment, sys.argv[2], task=Bars, processes=int(sys.argv[3]))
"""


@pytest.fixture
def own_task(tmp_path: Path) -> tuple[Path, Path]:
    """A script with a task of one's own, in a folder that is nobody's working folder, and a config beside it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "bars_task.py").write_text(OWN)
    return tmp_path / "code" / "bars_task.py", write_config(tmp_path / "tiny.json", tiny(images=64))


def test_a_task_of_ones_own_is_trained_by_two_processes(
    own_task: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own_task[0].parent)
    from bars_task import Bars  # type: ignore[import-not-found]

    summary = ocra.train(tiny(images=64), tmp_path / "run", task=Bars, processes=2, quiet=True)
    assert summary["processes"] == 2 and summary["name"] == "tiny-Bars"
    model = OCRA.from_pretrained(tmp_path / "run" / "weights" / "last")
    assert model.info.class_names == ("standing", "lying") and model.config.image_shape == (1, 16, 16)
    assert model.info.task["name"] == "bars_task:Bars"


def test_the_command_line_finds_a_task_of_ones_own_in_the_working_folder(
    own_task: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ("train", "--config", own_task[1], "--task", "bars_task:Bars", "--out", tmp_path / "run")
    code, _, err = run(*words, "--processes", 2, "--quiet", cwd=own_task[0].parent)
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "summary.json").read_text())["config"]
    assert config["task"]["name"] == "bars_task:Bars"


def test_a_task_that_is_defined_in_a_script_trains_in_one_process(
    own_task: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpy

    script, config = map(str, own_task)
    monkeypatch.setattr(sys, "argv", [script, config, str(tmp_path / "run"), "2"])
    with pytest.raises(OcraError, match="defined in a script trains in one process"):
        runpy.run_path(script, run_name="__main__")
    assert not (tmp_path / "run").exists()
    code, _, err = run(config, tmp_path / "run", 0, module="bars_task", cwd=own_task[0].parent)
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["processes"] == 1


def test_bfloat16_trains_or_is_refused_in_a_sentence(tmp_path: Path) -> None:
    # In a process of its own: a CPU that promises instructions it lacks would take the tests with it.
    config = write_config(tmp_path / "tiny.json", tiny(images=64, run={"precision": "bf16"}))
    code, _, err = run("train", "--config", config, "--out", tmp_path / "run", "--processes", 1)
    if code == 1:
        assert "bfloat16 does not work on this cpu; use --run.precision fp32" in err
        assert not (tmp_path / "run").exists()
        pytest.skip("bfloat16 does not work on this CPU (and training said so)")
    assert code == 0


def validated_as(monkeypatch: pytest.MonkeyPatch, errors: list[float]) -> None:
    """Let the validations of a run, of a hundred images each, find these errors."""
    found = iter(errors)
    monkeypatch.setattr(
        Trainer,
        "score",
        lambda *_: SimpleNamespace(exact_error=next(found), object_error=0.0, silent_glimpses=0.0),
    )


def test_a_run_ends_when_validation_finds_nothing_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated_as(monkeypatch, [0.5, 0.6, 0.4, 0.7, 0.6])
    short = {"validate_every_images": 32, "patience": 2, "test_images": 0}
    summary = train(tmp_path / "run", tiny(images=320, run=short))
    assert summary["images"] == 32 * 5 and summary["best_images"] == 32 * 3


def test_later_weights_are_kept_unless_earlier_ones_were_clearly_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated_as(
        monkeypatch, [0.10, 0.12, 0.14]
    )  # the standard error of 10 % on a hundred images is 3 points
    summary = train(tmp_path / "run", tiny(images=96, run={"validate_every_images": 32, "test_images": 0}))
    assert summary["best_images"] == 64 and summary["best_error"] == 0.10
