"""Runs side by side on a local Ray of two workers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fabricated import tiny_job

from ocra.errors import OcraError, UsageError
from ocra.reproduce.results import read_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_an_address_nobody_answers_at_is_told_at_once() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ocra-vision[ray]'")
    from ocra.reproduce.cluster import join

    with pytest.raises(OcraError, match=r"no Ray cluster at 127\.0\.0\.1:1:"):
        join("127.0.0.1:1")
    with pytest.raises(UsageError, match="--ray takes auto or an address"):
        join("somewhere")


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ocra-vision[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80_000_000,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


def holder_of(lock: Path) -> int | None:
    """The process that holds the lock of a run."""
    if not lock.is_file():
        return None
    inode = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].split(":")[-1] == inode:
            return int(fields[4])
    return None


def kill_once_it_has_saved(folder: Path, killed: list[int]) -> None:
    """Kill the worker of a run, without warning, when it has a checkpoint of something learnt."""
    end = time.monotonic() + 100
    while time.monotonic() < end and not killed:
        holder = holder_of(folder / ".lock")
        saved = [int(path.stem) for path in (folder / "checkpoints").glob("0*.safetensors")]
        if holder is not None and any(saved):
            os.kill(holder, signal.SIGKILL)
            killed.append(holder)
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="needs /proc/locks to find the worker of a run")
def test_all_runs_end_even_if_a_worker_is_killed(two_workers: Any, tmp_path: Path) -> None:
    from ocra.reproduce.cluster import run_side_by_side

    jobs = [
        tiny_job(1, images=320),
        tiny_job(2, images=4_800, checkpoint_minutes=1e-3, validate_every_images=10**9),
    ]
    killed: list[int] = []
    killer = threading.Thread(target=kill_once_it_has_saved, args=(tmp_path / "runs" / jobs[1].name, killed))
    killer.start()
    said: list[str] = []
    run_side_by_side(jobs, tmp_path / "runs", tmp_path / "results", say=said.append)
    killer.join()
    assert len(killed) == 1
    results = read_results(tmp_path / "results")
    assert [result.name for result in results] == sorted(job.name for job in jobs)
    assert all(result.ended and result.evaluations and result.processes == 1 for result in results)
    assert "2 runs on 2 cores" in said[0]


def test_a_run_that_cannot_be_made_is_told_and_the_others_end(two_workers: Any, tmp_path: Path) -> None:
    from ocra.reproduce.cluster import run_side_by_side

    jobs = [tiny_job(1, images=64), tiny_job(2, images=64)]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / jobs[0].name).write_text("in the way")
    with pytest.raises(OcraError, match=rf"1 of 2 runs did not end: {jobs[0].name}: .* is a file"):
        run_side_by_side(jobs, tmp_path / "runs", tmp_path / "results", say=lambda text: None)
    assert [result.name for result in read_results(tmp_path / "results")] == [jobs[1].name]
