"""No work is lost: a run that is stopped, however that happens, ends as if it had never been."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import finish, losses, run, same_weights, start, tiny, wait_for_images, write_config

import ocra
from ocra.cli.main import main
from ocra.errors import OcraError
from ocra.training.checkpoint import Checkpoints
from ocra.training.distributed import PeerLost
from ocra.training.logging import read_log
from ocra.training.trainer import Run

pytestmark = pytest.mark.needs("posix")


@pytest.mark.slow
def test_kill_9_at_random_moments_changes_nothing(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    folder, chance = tmp_path / "run", random.Random(time.time_ns())
    process = start("train", "--config", config, "--out", folder, "--processes", 1, "--quiet")
    for attempt in range(3):
        wait_for_images(process, folder, 32 * (45 * attempt + chance.randint(5, 40)))
        time.sleep(0.05 * chance.random())
        process.kill()
        finish(process)
        process = start("train", "--resume", folder, "--quiet")
    code, _, err = finish(process)
    assert code == 0, err
    assert same_weights(undisturbed, folder)
    assert losses(folder) == losses(undisturbed)
    tests = [json.loads((each / "summary.json").read_text())["test"] for each in (folder, undisturbed)]
    assert tests[0] == tests[1]


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
    wait_for_images(process, folder, 32 * 60)
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
    experiment = tiny(validate_every_images=320)
    ocra.train(experiment, tmp_path / "whole", processes=1, quiet=True)

    def lost(self: Run, *_: object) -> None:
        raise PeerLost("Another process of this run has ended.")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "score", lost)
        with pytest.raises(PeerLost, match=r"Saved at 320 images; continue with: ocra train --resume"):
            ocra.train(experiment, tmp_path / "stopped", processes=1, quiet=True)
    ocra.resume(tmp_path / "stopped", quiet=True)
    curves = [
        [(record["images"], record["validation_error"]) for record in read_log(tmp_path / name / "log.jsonl")
         if "validation_error" in record]
        for name in ("whole", "stopped")
    ]  # fmt: skip
    assert curves[0] == curves[1] and len(curves[0]) == 4
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_whose_files_were_changed_is_refused_with_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ocra.train(tiny(images=64), folder, processes=1, quiet=True)
    (folder / "summary.json").write_text("{")
    with pytest.raises(OcraError, match=r"summary\.json is not valid JSON"):
        ocra.resume(folder, quiet=True)
    (folder / "summary.json").unlink()
    write_config(folder / "config.json", replace(tiny(images=128), model=replace(tiny().model, hidden=32)))
    with pytest.raises(OcraError, match=r"does not fit the model of its config\.json \(.* differs\)"):
        ocra.resume(folder, quiet=True)


@pytest.mark.slow
def test_a_compiled_run_is_resumed_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two glimpses, so that gradients are gathered. Validation in between must not change which compiled code
    # training goes on with.
    small = replace(tiny().model, glimpses=2, filters=4, hidden=16, primary_capsules=4)
    experiment = replace(tiny(images=32 * 12, validate_every_images=32 * 4, compile=True), model=small)
    ocra.train(experiment, tmp_path / "whole", processes=1, quiet=True)
    step = Run.step

    def interrupted(self: Run, stop: bool) -> bool:
        if self.progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, stop)

    monkeypatch.setattr(Run, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ocra.train(experiment, tmp_path / "stopped", processes=1, quiet=True)
    monkeypatch.undo()
    assert ocra.resume(tmp_path / "stopped", quiet=True)["step"] == 12
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_goes_on_from_anywhere_and_without_the_weights_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ocra.train(tiny(images=32, validate_every_images=32), "first", processes=1, quiet=True)
    experiment = tiny(images=320, start_from="first")
    ocra.train(experiment, "whole", processes=1, quiet=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, "step", 5)
        ocra.train(experiment, "stopped", processes=1, quiet=True)
    stopped = tmp_path / "stopped"
    assert json.loads((stopped / "config.json").read_text())["training"]["start_from"] == str(
        tmp_path / "first"
    )
    (tmp_path / "first").rename(tmp_path / "gone")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    leftover = stopped / "checkpoints" / ".000000000064.safetensors.x.part.safetensors"
    leftover.write_text("of a process that was killed while it wrote")
    ocra.resume(stopped, quiet=True)
    assert same_weights(tmp_path / "whole", stopped)
    assert not leftover.exists()


@pytest.mark.parametrize("moment", ["validate", "test"])
def test_a_signal_at_the_end_of_a_run_is_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    experiment = tiny(images=320)
    ocra.train(experiment, tmp_path / "whole", processes=1, quiet=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, moment, 1)
        ocra.train(experiment, tmp_path / "stopped", processes=1, quiet=True)
    assert not (tmp_path / "stopped" / "summary.json").exists()
    ocra.resume(tmp_path / "stopped", quiet=True)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


def interrupt_at(patch: pytest.MonkeyPatch, method: str, call: int) -> None:
    """Press Ctrl-C as a method of the run is called for the nth time."""
    right, calls = getattr(Run, method), iter(range(1, 10_000))

    def interrupted(self: Run, *arguments: object, **options: object) -> object:
        if next(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return right(self, *arguments, **options)

    patch.setattr(Run, method, interrupted)


def test_weights_that_find_no_room_cost_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, calls = ocra.OCRA.save_pretrained, iter(range(100))

    def full_at_first(*arguments: object, **options: object) -> None:
        if next(calls) == 0:
            raise OSError(28, "No space left on device")
        right(*arguments, **options)

    monkeypatch.setattr(ocra.OCRA, "save_pretrained", full_at_first)
    summary = ocra.train(tiny(), tmp_path / "run", processes=1)
    assert "warning: The best weights could not be saved" in capsys.readouterr().out
    assert summary["best_images"] == summary["images"] == 1280
    assert (tmp_path / "run" / "weights" / "best" / "model.safetensors").is_file()
