"""Several processes train as one does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import LONGER, finish, losses, run, same_weights, start, wait_for_images

import ocra
from ocra.training import distributed
from ocra.training.distributed import HELPER

TORCHRUN = ("--standalone", "--nproc-per-node", 2, "-m", "ocra")

# Without selection, for each process selects from its own share of the candidates.
ALIKE = replace(LONGER, stages=(LONGER.stages[0], replace(LONGER.stages[1], select=1))).scaled(32 * 16)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run through both stages by one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    ocra.train(ALIKE, folder, processes=1, quiet=True)
    return folder


@pytest.mark.parametrize(("processes", "shared"), [(2, True), (3, False)])
def test_several_processes_train_as_one_also_unevenly_and_without_shared_memory(
    processes: int, shared: bool, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shared:
        monkeypatch.setattr(distributed, "SHARED_MEMORY", tmp_path / "nowhere")
    summary = ocra.train(ALIKE, tmp_path / "run", processes=processes, quiet=True)
    assert summary["processes"] == processes and summary["test"]["last"]["n"] == 100
    # Up to the order of floating-point sums, which counts for more with every step.
    assert (
        losses(tmp_path / "run") == pytest.approx(losses(alone), rel=1e-3)
        and len(losses(alone)) == ALIKE.images // 32
    )


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX processes")
def test_a_helping_process_ends_with_the_one_that_started_it() -> None:
    """Also before the two have met, when nothing else would tell it."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # takes the call and never answers
        port = nobody.getsockname()[1]
        script = (
            "import os, subprocess, sys\n"
            f"command = [sys.executable, '-c', {HELPER!r}, 'cpu', str(os.getpid())]\n"
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
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_process_that_dies_ends_the_run_with_a_sentence_and_it_resumes_exactly(
    config: Path, pair: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start("train", "--config", config, "--out", folder, "--processes", 2)
    wait_for_images(process, folder, 32 * 20)
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    (worker,) = map(int, listed.stdout.split())
    os.kill(worker, signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1 and "Traceback" not in err
    assert "Another process of this run has ended" in err and f"ocra train --resume {folder}" in err
    assert not list(Path("/dev/shm").glob(f"ocra-{process.pid}-*"))
    code, _, err = run("train", "--resume", folder, "--quiet")
    assert code == 0 and not err
    assert json.loads((folder / "summary.json").read_text())["processes"] == 2
    assert same_weights(pair, folder)
