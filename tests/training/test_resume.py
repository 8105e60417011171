"""No work is lost: a run that is stopped, however that happens, ends as if it had never been."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import (
    LONGER,
    TINY,
    finish,
    run,
    same_weights,
    start,
    tiny,
    wait_for_images,
    write_config,
)

import ocra
from ocra.cli.main import main
from ocra.errors import OcraError
from ocra.experiment import Experiment
from ocra.training.checkpoint import Checkpoints
from ocra.training.distributed import PeerLost
from ocra.training.logging import read_log
from ocra.training.trainer import Trainer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")

# The stages of LONGER, a few steps each.
SHORT = replace(
    LONGER,
    stages=tuple(
        replace(stage, images=32 * steps) for stage, steps in zip(LONGER.stages, (3, 5), strict=True)
    ),
    run=TINY.run,
)


def train(experiment: Experiment, folder: Path | str, processes: int = 1) -> dict:
    return ocra.train(experiment, folder, processes=processes, quiet=True)


def interrupt_at(patch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Press Ctrl-C as a method of the run is called for the nth time."""
    right, calls = getattr(Trainer, method), iter(range(1, 10_000))

    def interrupted(self: Trainer, *arguments: object, **options: object) -> object:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return right(self, *arguments, **options)

    patch.setattr(Trainer, method, interrupted)


def stopped_at(
    experiment: Experiment, folder: Path | str, method: str, call: int, processes: int = 1
) -> None:
    """Train, and be interrupted as a method of the run is called for the nth time; a step is still finished then."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, method, call)
        train(experiment, folder, processes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The short run through all stages, never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert [stage.steps for stage in SHORT.stages] == [3, 5]
    train(SHORT, folder)
    return folder


@pytest.mark.parametrize("step", range(2, 9))
def test_a_run_resumes_exactly_from_every_step_of_every_stage(
    step: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, at and after the border of two stages, of which the second scales the attention layers, once."""
    stopped_at(SHORT, tmp_path / "run", "step", step - 1)
    saved = Checkpoints(tmp_path / "run" / "checkpoints").load()
    assert saved is not None and saved.state["step"] == step and saved.state["stage"] == (step > 3)
    assert any(name.startswith("shampoo.") for name in saved.tensors) == (step > 3)
    begun: list[float] = []
    right = ocra.OCRA.begin_stage

    def counted(model: ocra.OCRA, attention_scale: float, read_window: float) -> None:
        begun.append(attention_scale)
        right(model, attention_scale, read_window)

    # The first call is that of the first stage, whose weights the checkpoint replaces.
    monkeypatch.setattr(ocra.OCRA, "begin_stage", counted)
    ocra.resume(tmp_path / "run", quiet=True)
    assert begun[1:] == ([0.5] if step <= 3 else [])
    assert same_weights(whole, tmp_path / "run")


def test_two_processes_resume_exactly_in_every_stage(tmp_path: Path) -> None:
    train(SHORT, tmp_path / "whole", 2)
    for step in (2, 3, 6):
        stopped_at(SHORT, tmp_path / f"{step}", "step", step - 1, processes=2)
        assert ocra.resume(tmp_path / f"{step}", quiet=True)["processes"] == 2
        assert same_weights(tmp_path / "whole", tmp_path / f"{step}")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_without_a_checkpoint_is_resumed_with_as_many_processes_to_the_same_end(
    processes: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, "__init__", 1)
        train(SHORT, tmp_path / "run", processes)
    assert (tmp_path / "run" / "config.json").exists() and not (tmp_path / "run" / "checkpoints").exists()
    monkeypatch.setattr("ocra.training.distributed.cores", lambda: 3)
    assert ocra.resume(tmp_path / "run", quiet=True)["processes"] == processes
    assert same_weights(whole, tmp_path / "run") == (processes == 1)


def test_a_start_that_was_killed_as_it_made_its_folder_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (".lock", ".config.json.k3.part.json", ".mine.part"):
        (folder / name).touch()
    with pytest.raises(OcraError, match="no run to resume"):
        ocra.resume(folder)
    train(tiny(images=32), folder)
    assert (folder / ".mine.part").exists() and not list(folder.glob(".config.json.*"))


@pytest.mark.slow
def test_runs_that_are_stopped_at_random_moments_end_as_if_they_had_not_been() -> None:
    """Three of the fifty stops of `make torture`, whose seed is told."""
    script = Path(__file__).parent / "torture.py"
    command = [sys.executable, str(script), "--kills", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code", "processes"), [(signal.SIGTERM, 143, 1), (signal.SIGINT, 130, 2)])
def test_a_signal_saves_first_and_the_run_goes_on_from_there(
    number: int, code: int, processes: int, config: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "run"
    process = start("train", "--config", config, "--out", folder, "--processes", processes)
    wait_for_images(process, folder, 32 * 30)
    process.send_signal(number)
    ended, out, err = finish(process)
    assert ended == code, err
    assert f"continue with: ocra train --resume {folder}" in out and "Traceback" not in err
    saved = Checkpoints(folder / "checkpoints").load()
    assert saved is not None and saved.state["images"] == read_log(folder / "log.jsonl")[-1]["images"]
    ended, _, err = run("train", "--resume", folder, "--quiet")
    assert ended == 0, err
    assert same_weights(request.getfixturevalue("undisturbed" if processes == 1 else "pair"), folder)


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_no_work(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", "--config", config, "--out", folder, "--processes", 1)
    wait_for_images(process, folder, 32 * 20)
    limit = 10**6  # room for weights, not for a checkpoint
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    code, out, err = finish(process)
    assert code == 1 and "Traceback" not in err
    assert "warning: A checkpoint could not be written" in out and "Training goes on" in out
    assert err.startswith("error: A checkpoint could not be written") and "File too large" in err
    assert "the last good checkpoint is" in err and not list(folder.rglob("*.part*"))
    code, _, err = run("train", "--resume", folder, "--quiet")
    assert code == 0, err
    assert same_weights(undisturbed, folder)


@pytest.mark.slow
def test_a_broken_newest_checkpoint_is_passed_over_and_only_one_process_writes_a_run(
    config: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    process = start("train", "--config", config, "--out", folder, "--processes", 1, "--quiet")
    wait_for_images(process, folder, 32 * 10)
    assert main(["train", "--resume", str(folder)]) == 1
    assert "Another process is training in" in capsys.readouterr().err
    wait_for_images(process, folder, 32 * 70)
    process.kill()
    finish(process)
    newest = Checkpoints(folder / "checkpoints").paths()[0]
    newest.write_bytes(newest.read_bytes()[:1000])
    code, _, err = run("train", "--resume", folder, "--quiet")
    assert code == 0 and f"warning: The checkpoint {newest} is broken" in err
    assert same_weights(undisturbed, folder)


def test_a_validation_that_was_not_made_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(images=640, run={"validate_every_images": 320, "checkpoint_minutes": 1e-9})
    train(experiment, tmp_path / "whole")
    right = Trainer.validate

    def lost(self: Trainer) -> None:
        if self.progress.images == 320:
            self.save()
            raise PeerLost("Another process of this run has ended.")
        right(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", lost)
        with pytest.raises(PeerLost, match=r"Saved at 320 images; continue with: ocra train --resume"):
            train(experiment, tmp_path / "stopped")
    ocra.resume(tmp_path / "stopped", quiet=True)
    curves = [
        [(record["images"], record["validation_error"]) for record in read_log(tmp_path / name / "log.jsonl")
         if "validation_error" in record]
        for name in ("whole", "stopped")
    ]  # fmt: skip
    assert curves[0] == curves[1] and len(curves[0]) == 2
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_whose_model_was_changed_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny(images=64), folder)
    (folder / "summary.json").unlink()
    write_config(folder / "config.json", replace(tiny(images=128), model=replace(TINY.model, hidden=32)))
    with pytest.raises(OcraError, match=r"does not fit its config\.json \(.* differs\)"):
        ocra.resume(folder, quiet=True)


@pytest.mark.slow
def test_a_compiled_run_is_resumed_exactly(tmp_path: Path) -> None:
    # Two glimpses, so that gradients are deferred; a selection, so that passes without gradients are compiled too.
    # Validation in between must not change which compiled code training goes on with.
    small = replace(TINY.model, filters=4, hidden=16, primary_capsules=4)
    experiment = tiny(images=32 * 12, select=2, run={"validate_every_images": 32 * 4, "compile": True})
    experiment = replace(experiment, model=small)
    train(experiment, tmp_path / "whole")
    stopped_at(experiment, tmp_path / "stopped", "step", 6)
    assert ocra.resume(tmp_path / "stopped", quiet=True)["step"] == 12
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_goes_on_from_anywhere_and_without_the_weights_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tiny(images=32, run={"validate_every_images": 32}), "first")
    experiment = tiny(images=320, init_from="first")
    train(experiment, "whole")
    stopped_at(experiment, "stopped", "step", 5)
    (tmp_path / "first").rename(tmp_path / "gone")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    leftover = tmp_path / "stopped" / "checkpoints" / ".000000000064.safetensors.x.part.safetensors"
    leftover.write_text("of a process that was killed while it wrote")
    ocra.resume(tmp_path / "stopped", quiet=True)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    assert not leftover.exists()


@pytest.mark.parametrize("moment", ["validate", "finish"])
def test_a_signal_at_the_end_of_a_run_is_not_swallowed(tmp_path: Path, moment: str) -> None:
    experiment = tiny(images=96)
    train(experiment, tmp_path / "whole")
    stopped_at(experiment, tmp_path / "stopped", moment, 1)
    assert not (tmp_path / "stopped" / "summary.json").exists()
    ocra.resume(tmp_path / "stopped", quiet=True)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
