"""The parts a run is made of: initialisation, checkpoints, logs, signals, folders, groups."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import TINY, tiny

from ocra.errors import OcraError, UsageError
from ocra.model.ocra import OCRA
from ocra.training import checkpoint as checkpoints
from ocra.training import distributed, logging
from ocra.training.checkpoint import Checkpoint, CheckpointError, Checkpoints, fresh_path, new_run, old_run
from ocra.training.distributed import StopSignals, choose_device, choose_processes
from ocra.training.init import build_model
from ocra.training.logging import JsonLines, Lines, Logger, Reporter, read_log


def test_our_start_or_the_papers() -> None:
    ours, papers = (build_model(dataclasses.replace(TINY, init=init)) for init in ("ours", "paper"))
    assert ours.object_capsules.weight.std().item() == pytest.approx(0.1, rel=0.1)
    assert papers.object_capsules.weight.std().item() == pytest.approx(0.01, rel=0.1)
    gate = ours.encoder.weight_hh[:64]
    assert torch.allclose(gate @ gate.T, torch.eye(64), atol=1e-5)
    assert torch.allclose(ours.encoder.bias_ih[64:128], papers.encoder.bias_ih[64:128] + 1)


def test_windows_may_start_narrower_or_all_in_one_place() -> None:
    images = torch.rand(4, *TINY.model.image_shape)
    free, narrow, still = (
        build_model(tiny(**options))(images, record=True)
        for options in ({}, {"read_window": 0.5}, {"attention_scale": 0.0})
    )
    assert torch.allclose(narrow.read_windows.stride[:, 0], 0.5 * free.read_windows.stride[:, 0])
    for windows in (still.read_windows, still.write_windows):
        assert (windows.center == windows.center[:1, :1]).all()
        assert (windows.stride == windows.stride[:1, :1]).all()
    assert torch.equal(free.read_windows.center[:, 0], still.read_windows.center[:, 0])
    assert not torch.equal(free.read_windows.center[:, 1], still.read_windows.center[:, 1])


def test_the_start_depends_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(1)
    one = build_model(tiny(seed=3)).state_dict()
    torch.manual_seed(2)
    other, third = build_model(tiny(seed=3)).state_dict(), build_model(tiny(seed=4)).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["primary.weight"], third["primary.weight"])


def test_training_may_start_from_other_weights_and_says_what_does_not_fit(tmp_path: Path) -> None:
    given = build_model(tiny(seed=9))
    given.save_pretrained(tmp_path)
    model = build_model(tiny(init_from=str(tmp_path)))
    assert torch.equal(model.encoder.weight_hh, given.encoder.weight_hh)
    OCRA(dataclasses.replace(TINY.model, classes=TINY.model.classes + 1)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"object_capsules.weight.*start afresh"):
        build_model(tiny(init_from=str(tmp_path)))


def test_a_wider_model_goes_on_with_what_a_smaller_one_does(tmp_path: Path) -> None:
    given = OCRA(TINY.model)
    given.save_pretrained(tmp_path)
    wide = dataclasses.replace(
        TINY.model,
        filters=2 * TINY.model.filters,
        classes=TINY.model.classes + 3,
        background_capsules=1,
        routings=1,
    )
    experiment = tiny(init_from=str(tmp_path))
    model = build_model(dataclasses.replace(experiment, model=wide))
    images = torch.rand(4, *TINY.model.image_shape)
    ours, theirs = model.step(images, None, 1), given.step(images, None, 1)
    assert torch.allclose(ours.state.encoder, theirs.state.encoder, atol=1e-6)
    # One routing: each capsule is the mean of its votes, over more capsules a smaller one.
    shrunk = (ours.lengths / (1 - ours.lengths))[:, : TINY.model.classes]
    full = theirs.lengths / (1 - theirs.lengths)
    ratio = given.config.object_capsules / model.config.object_capsules
    assert torch.allclose(shrunk, full * ratio**2, rtol=1e-3)


def checkpoint(images: int) -> Checkpoint:
    return Checkpoint({"a": torch.full((1000,), float(images))}, {"images": images})


def test_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    for name in ("²³", "best", "-5", "1_000"):  # no numbers of images
        (tmp_path / f"{name}.safetensors").touch()
    for images in (100, 200, 1000):
        store.save(checkpoint(images))
    assert [int(path.stem) for path in store.paths()] == [1000, 200]
    loaded = store.load()
    assert loaded is not None and loaded.state["images"] == 1000 and (loaded.tensors["a"] == 1000).all()


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(bytes(content))


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_metadata(path: Path) -> None:
    save_file({"a": torch.ones(3)}, path)


def damage_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_empty, damage_metadata, damage_pipe])
def test_a_broken_newest_checkpoint_falls_back_with_a_warning(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(100))
    store.save(checkpoint(200))
    damage(store.paths()[0])
    with pytest.warns(UserWarning, match="is broken"):
        loaded = store.load()
    assert loaded is not None and loaded.state["images"] == 100
    store.save(checkpoint(150))
    assert [int(path.stem) for path in store.paths()] == [150, 100]  # a broken one takes nobody's place
    for path in store.paths():
        damage(path)
    with pytest.warns(UserWarning), pytest.raises(OcraError, match="All checkpoints"):
        store.load()


def test_a_full_disk_leaves_the_last_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(100))

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_bytes_atomically", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; the last good checkpoint is .*100"):
        store.save(checkpoint(200))
    loaded = store.load()
    assert loaded is not None and loaded.state["images"] == 100


def test_a_log_goes_on_where_the_checkpoint_is(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.start(0, 30)
    for images in (10, 20, 30):
        log.write({"images": images})
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(f'7\\n{"[" * 100_000}\\n{{"images": {"1" * 6000}}}\\n{{"images": 4')
    log.start(20, 30)
    log.close()
    assert [record["images"] for record in read_log(tmp_path / "log.jsonl")] == [10, 20]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it: a program that a shell started in the background ignores it from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_first_signal_is_remembered_and_a_second_acts() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.caught == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit) as end, StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        signals.leave()
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_used_folder_is_refused_with_a_hint(tmp_path: Path) -> None:
    with new_run(tmp_path / "run", TINY, 1):
        pass
    with pytest.raises(OcraError, match="holds another run; continue that one with 'ocra train --resume"):
        new_run(tmp_path / "run", TINY, 1).__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(OcraError, match="is a file"):
        new_run(tmp_path / "file", TINY, 1).__enter__()


def test_two_runs_cannot_hold_one_folder(tmp_path: Path) -> None:
    with new_run(tmp_path / "run", TINY, 1):
        for again in (new_run(tmp_path / "run", TINY, 1), old_run(tmp_path / "run")):
            with pytest.raises(OcraError, match="Another process is training"), again:
                pass


def test_a_summary_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with new_run(tmp_path / "run", TINY, 1) as folder:
        assert folder.summary() is None
        (folder.path / "summary.json").write_text("[]")
        with pytest.raises(OcraError, match="holds no summary of a run"):
            folder.summary()
        (folder.path / "summary.json").write_text("{")
        with pytest.raises(OcraError, match=r"summary\.json is not valid JSON"):
            folder.summary()


def test_a_run_without_a_name_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fresh_path("tiny") == Path("runs/tiny")
    fresh_path("tiny").mkdir(parents=True)
    assert fresh_path("tiny") == Path("runs/tiny-2")


def test_processes_and_devices_that_cannot_be() -> None:
    cpu = torch.device("cpu")
    assert choose_processes(0, cpu, 16) == 1
    assert choose_processes(3, cpu, 16) == 3
    with pytest.raises(UsageError, match="cannot share a batch of 4"):
        choose_processes(5, cpu, 4)
    with pytest.raises(UsageError, match="at least 1"):
        choose_processes(-1, cpu, 4)
    with pytest.raises(UsageError, match="no device 'tpu'"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA GPU"):
            choose_device("cuda")


def test_tensorboard_writes_events_or_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no tracker 'paper'"):
        Reporter(tmp_path, track="paper")
    events: list[tuple] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            events.append(("folder", folder, purge_step))

        def add_scalar(self, *arguments: object) -> None:
            events.append(arguments)

        def close(self) -> None:
            events.append(("closed",))

    class Module:
        SummaryWriter = Writer

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Module)
    tracker = logging.TensorBoard(tmp_path)
    tracker.write({"step": 1, "images": 64, "loss": 0.5})
    tracker.close()
    assert events == [("folder", str(tmp_path), 64), ("loss", 0.5, 64), ("closed",)]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OcraError, match=r"pip install 'ocra-vision\[track\]'"):
        Reporter(tmp_path, track="tensorboard")


def test_a_report_holds_the_means_since_the_last_one(tmp_path: Path) -> None:
    records: list[dict] = []

    class Own(Logger):
        def write(self, record: dict) -> None:
            records.append(record)

    reporter = Reporter(None)
    reporter.loggers.append(Own())
    reporter.start(0, 96)
    for seen, loss in ((32, 1.0), (64, 3.0)):
        reporter.add(32, seen, {"loss": loss})
    reporter.report({"images": 64, "stage": 1}, skipped=1)
    reporter.add(32, 96, {"loss": 5.0})
    reporter.report({"images": 96, "stage": 2})
    assert [record["loss"] for record in records] == [2.0, 5.0]
    assert [record["stage"] for record in records] == [1, 2] and records[0]["skipped"] == 1
    assert records[0]["images_per_second"] > 0


def test_silent_glimpses_are_told_with_a_validation(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.start(0, 1280)
    for silent in (0, 3):
        lines.write({"images": 640, "stage": 1, "validation_error": 0.25, "silent_glimpses": silent})
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("validation error 25.00%")
    assert second.endswith("validation error 25.00%, glimpses that say nothing: 3")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_shared_memory_of_dead_processes_is_cleared_and_that_of_others_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "SHARED_MEMORY", tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = {f"ocra-{os.getpid()}-abc", "ocra-notes", "ocra-x-y", "other-99999999-abc"}
    for name in (*kept, f"ocra-{ended.pid}-abc"):
        (tmp_path / name).touch()
    name = distributed._reserve(4096)
    assert name is not None and Path(name).stat().st_size == 4096
    assert {path.name for path in tmp_path.iterdir()} == kept | {Path(name).name}


def test_a_run_names_the_commit_of_the_whole_package_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ocra"
    file = package / "training" / "logging.py"
    file.parent.mkdir(parents=True)
    shutil.copy(logging.__file__, file)
    monkeypatch.setattr(logging, "__file__", str(file))

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "the loop")
    (package / "model.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "the model, outside the folder of the loop")
    assert logging.commit() == git("rev-parse", "HEAD")
    (package / "model.py").write_text("x = 2\n")
    assert logging.commit() == git("rev-parse", "HEAD") + " with changes"
    monkeypatch.setattr(logging, "__file__", str(tmp_path.parent / "elsewhere" / "training" / "logging.py"))
    assert logging.commit() is None
