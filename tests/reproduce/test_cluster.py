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
from fabricated import tiny

from ocra.errors import OcraError, UsageError
from ocra.reproduce.records import read_records

pytestmark = [pytest.mark.needs("ray"), pytest.mark.slow, pytest.mark.timeout(180)]


def test_an_address_nobody_answers_at_is_told_at_once() -> None:
    from ocra.reproduce.runner import join

    with pytest.raises(OcraError, match=r"no Ray cluster at 127\.0\.0\.1:1:"):
        join("127.0.0.1:1")
    with pytest.raises(UsageError, match="--ray takes auto or an address"):
        join("somewhere")


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    import ray

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


@pytest.mark.needs("locks")
def test_all_runs_end_even_if_a_worker_is_killed(two_workers: Any, tmp_path: Path) -> None:
    from ocra.reproduce.runner import run_side_by_side

    slow = tiny(2, images=4_800, checkpoint_minutes=1e-3, validate_every_images=10**9)
    runs = {**tiny(1, images=320), **slow}
    killed: list[int] = []
    killer = threading.Thread(
        target=kill_once_it_has_saved, args=(tmp_path / "runs" / next(iter(slow)), killed)
    )
    killer.start()
    said: list[str] = []
    run_side_by_side(runs, tmp_path / "runs", tmp_path / "results", say=said.append)
    killer.join()
    assert len(killed) == 1
    records = read_records(tmp_path / "results")
    assert [record.name for record in records] == sorted(runs)
    assert all(run.status == "finished" and run.test and run.cost.processes == 1 for run in records)
    assert "2 runs on 2 cores" in said[0]


def test_a_run_that_cannot_be_made_is_told_and_the_others_end(two_workers: Any, tmp_path: Path) -> None:
    from ocra.reproduce.runner import run_side_by_side

    runs = {**tiny(1, images=64), **tiny(2, images=64)}
    blocked, other = runs
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / blocked).write_text("in the way")
    with pytest.raises(OcraError, match=rf"1 of 2 runs did not end: {blocked}: .* is a file"):
        run_side_by_side(runs, tmp_path / "runs", tmp_path / "results", say=lambda text: None)
    assert [record.name for record in read_records(tmp_path / "results")] == [other]
