"""The parts a run is made of: flat parameters, initialisation, checkpoints, logs, signals, groups."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ocra.training.flat import FlatParameters
from ocra.training.folder import fresh_path, new_run
from ocra.training.initialise import build_model
from ocra.training.parts import slower
from ocra.training.signals import StopSignals
from safetensors.torch import save_file
from tiny_runs import TINY, tiny

from ocra.errors import OcraError, UsageError
from ocra.model.ocra import OCRA
from ocra.training import checkpoint as checkpoints
from ocra.training import summary
from ocra.training.checkpoint import Checkpoint, CheckpointError, Checkpoints
from ocra.training.distributed import choose_device, choose_processes
from ocra.training.logging import Log, choose_tracker, describe, figures, read_log


def test_flat_parameters_leave_the_model_as_it_was() -> None:
    model, images = OCRA(TINY.model), torch.rand(4, *TINY.model.image_shape)
    before = model(images).scores
    flat = FlatParameters(model)
    assert torch.equal(model(images).scores, before)
    flat.values.data.zero_()
    assert all(not value.any() for value in model.parameters())


def test_gradients_arrive_in_one_tensor() -> None:
    model, images = OCRA(TINY.model), torch.rand(4, *TINY.model.image_shape)
    model(images).canvas.sum().backward()
    expected = {
        name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
    }
    flat = FlatParameters(model)
    gradient = torch.zeros(flat.size)
    flat.send_gradients_to(gradient)
    model(images).canvas.sum().backward()
    views = flat.unflatten(gradient)
    assert all(torch.equal(views[name], value) for name, value in expected.items())
    assert torch.allclose(gradient.norm(), torch.stack([v.norm() for v in expected.values()]).norm())


def test_holding_other_weights_ends_with_the_old_ones() -> None:
    model = OCRA(TINY.model)
    flat = FlatParameters(model)
    before = flat.values.detach().clone()
    with pytest.raises(KeyError), flat.holding(torch.zeros(flat.size)):
        assert not model.primary.weight.any()
        raise KeyError
    assert torch.equal(flat.values.data, before)


def test_the_recipe_decides_how_weights_start() -> None:
    model = build_model(tiny(capsule_init=0.5, forget_bias=1.0, orthogonal=True))
    plain = build_model(tiny(capsule_init=0.01, forget_bias=0.0, orthogonal=False))
    assert model.object_capsules.weight.std().item() == pytest.approx(0.5, rel=0.1)
    assert plain.object_capsules.weight.std().item() == pytest.approx(0.01, rel=0.1)
    gate = model.encoder.weight_hh[:64]
    assert torch.allclose(gate @ gate.T, torch.eye(64), atol=1e-5)
    assert torch.allclose(model.encoder.bias_ih[64:128], plain.encoder.bias_ih[64:128] + 1)


def test_windows_may_start_narrower() -> None:
    images = torch.rand(2, *TINY.model.image_shape)
    wide = build_model(tiny())(images, record=True)
    narrow = build_model(tiny(read_window=0.5, write_window=0.25))(images, record=True)
    assert torch.allclose(narrow.read_windows.stride[:, 0], 0.5 * wide.read_windows.stride[:, 0])
    ratio = narrow.write_windows.stride[:, 0] / wide.write_windows.stride[:, 0]
    assert torch.allclose(ratio, torch.full((2,), 0.25), rtol=0.05)


def test_windows_may_start_all_in_one_place() -> None:
    images = torch.rand(4, 1, 32, 32)
    free, still = (build_model(tiny(attention_init=scale))(images, record=True) for scale in (1.0, 0.0))
    for windows in (still.read_windows, still.write_windows):
        assert (windows.center == windows.center[:1, :1]).all() and (
            windows.stride == windows.stride[:1, :1]
        ).all()
    assert torch.equal(free.read_windows.center[:, 0], still.read_windows.center[:, 0])
    assert not torch.equal(free.read_windows.center[:, 1], still.read_windows.center[:, 1])


def test_background_capsules_may_start_longer() -> None:
    model = dataclasses.replace(TINY.model, background_capsules=2)
    plain, longer = (
        build_model(dataclasses.replace(tiny(background_scale=scale), model=model)).object_capsules.weight
        for scale in (1.0, 3.0)
    )
    assert torch.equal(longer[:10], plain[:10])
    assert torch.equal(longer[10:], 3 * plain[10:]) and len(longer) == 12


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0, 2.0])
def test_a_part_may_learn_at_a_rate_of_its_own(rate: float) -> None:
    part, rest = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.Adam([part, rest], lr=0.5)
    part.grad, rest.grad = torch.ones(3), torch.ones(3)
    with slower([part], rate):
        optimiser.step()
    assert torch.allclose(1 - part, rate * (1 - rest))
    assert torch.allclose(rest, torch.full((3,), 0.5))


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
    model = build_model(tiny(start_from=str(tmp_path)))
    assert torch.equal(model.encoder.weight_hh, given.encoder.weight_hh)
    OCRA(dataclasses.replace(TINY.model, classes=TINY.model.classes + 1)).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"object_capsules.weight.*start afresh"):
        build_model(tiny(start_from=str(tmp_path)))


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
    experiment = tiny(start_from=str(tmp_path))
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


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_empty, damage_metadata])
def test_a_broken_newest_checkpoint_falls_back_with_a_warning(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
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
    log = Log(tmp_path / "log.jsonl")
    for images in (10, 20, 30):
        log.write({"images": images})
    log.close()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"images": 4')
    Log(tmp_path / "log.jsonl", resume_at=20).close()
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
    with new_run(tmp_path / "run", TINY):
        pass
    with pytest.raises(OcraError, match="holds another run; continue that one with 'ocra train --resume"):
        new_run(tmp_path / "run", TINY).__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(OcraError, match="is a file"):
        new_run(tmp_path / "file", TINY).__enter__()


def test_two_runs_cannot_hold_one_folder(tmp_path: Path) -> None:
    with (
        new_run(tmp_path / "run", TINY),
        pytest.raises(OcraError, match="Another process is training"),
        new_run(tmp_path / "run", TINY),
    ):
        pass


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
        choose_tracker("paper", tmp_path)
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

    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", Module)
    tracker = choose_tracker("tensorboard", tmp_path)
    tracker.write({"step": 1, "images": 64, "loss": 0.5})
    tracker.close()
    assert events == [("folder", str(tmp_path / "tensorboard"), 64), ("loss", 0.5, 64), ("closed",)]
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(OcraError, match=r"pip install 'ocra-vision\[track\]'"):
        choose_tracker("tensorboard", tmp_path)


def test_log_lines_are_json(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl")
    log.write({"images": 1, "loss": 0.1})
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text()) == {"images": 1, "loss": 0.1}


def test_silent_glimpses_are_told_with_a_validation() -> None:
    record = {"images": 640, "validation_error": 0.25, "silent_glimpses": 0}
    assert describe(record, 1280).endswith("validation error 25.00%")
    record["silent_glimpses"] = 3
    for shown in (describe(record, 1280), figures(record)["validation"]):
        assert shown.endswith("validation error 25.00%, glimpses that say nothing: 3")


def test_a_run_names_the_commit_of_the_whole_package_and_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ocra"
    file = package / "training" / "summary.py"
    file.parent.mkdir(parents=True)
    shutil.copy(summary.__file__, file)
    monkeypatch.setattr(summary, "__file__", str(file))

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
    assert summary.commit() == git("rev-parse", "HEAD")
    (package / "model.py").write_text("x = 2\n")
    assert summary.commit() == git("rev-parse", "HEAD") + " with changes"
    monkeypatch.setattr(summary, "__file__", str(tmp_path.parent / "elsewhere" / "training" / "summary.py"))
    assert summary.commit() is None
