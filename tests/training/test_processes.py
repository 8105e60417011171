"""Several processes train as one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import LONGER, finish, losses, run, same_weights, start, wait_for_images

import ocra
from ocra.training import channel

TORCHRUN = ("--standalone", "--nproc-per-node", 2, "-m", "ocra")


def assert_alike(one: Path, other: Path, processes: int) -> None:
    """Two runs learn alike, up to the order of floating-point sums, which grows with the steps."""
    assert losses(one)[:40] == pytest.approx(losses(other)[:40], rel=1e-3)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    assert summaries[0]["processes"] == processes
    assert [summary["test"]["last"]["n"] for summary in summaries] == [100, 100]


def test_two_processes_train_as_one(undisturbed: Path, pair: Path) -> None:
    assert_alike(pair, undisturbed, 2)


@pytest.mark.slow
def test_processes_without_shared_memory_that_share_a_batch_unevenly(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "SHARED_MEMORY", tmp_path / "nowhere")
    ocra.train(LONGER, tmp_path / "run", processes=3, quiet=True)
    assert_alike(tmp_path / "run", undisturbed, 3)


@pytest.mark.needs("posix")
def test_a_helping_process_ends_with_the_one_that_started_it() -> None:
    """Also before the two have met, when nothing else would tell it."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # takes the call and never answers
        port = nobody.getsockname()[1]
        script = (
            "import os, subprocess, sys\n"
            "command = [sys.executable, '-m', 'ocra.training.worker', 'cpu', str(os.getpid())]\n"
            f"environment = {{**os.environ, 'OCRA_JOIN': '1:2:{port}'}}\n"
            "silent = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
            "print(subprocess.Popen(command, env=environment, **silent).pid)\n"
        )
        started = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        helper = int(started.stdout)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and _is_running(helper):
            time.sleep(0.1)
        assert not _is_running(helper)


def _is_running(process: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.mark.slow
def test_two_processes_under_torchrun(config: Path, pair: Path, tmp_path: Path) -> None:
    words = (*TORCHRUN, "train", "--config", config, "--out", tmp_path / "run")
    code, out, err = run(*words, module="torch.distributed.run")
    assert code == 0, err
    assert out.count("Done") == 1
    assert same_weights(pair, tmp_path / "run")
    words = (*TORCHRUN, "train", "--resume", tmp_path / "run")  # as a cluster's scripts do until it has ended
    code, out, err = run(*words, module="torch.distributed.run")
    assert code == 0, err
    assert out.count("nothing to resume") == 1


@pytest.mark.slow
@pytest.mark.needs("posix")
def test_a_process_that_dies_ends_the_run_and_its_work_is_saved(
    config: Path, pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(
        "train", "--config", config, "--out", folder, "--processes", 2, "--training.checkpoint-minutes", 60
    )
    wait_for_images(process, folder, 32 * 20)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    (worker,) = map(int, listed.stdout.split())
    os.kill(worker, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1 and "Traceback" not in err
    assert "Another process of this run has ended" in err and f"ocra train --resume {folder}" in err
    newest, first = sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True)
    assert int(newest.stem) >= 32 * 20 and int(first.stem) == 0
    code, _, err = run("train", "--resume", folder, "--quiet")
    assert code == 0, err
    assert same_weights(pair, folder)
