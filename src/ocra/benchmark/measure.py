"""Run the measuring processes side by side and put their figures together."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ocra.benchmark.operations import multiply_adds
from ocra.benchmark.worker import Job
from ocra.data import make_task, task_config, task_names
from ocra.errors import OcraError, UsageError
from ocra.machine import cores
from ocra.presets import Experiment, preset

MAIN_PRESETS = ("multimnist-3", "multimnist-10", "cluttered-5", "svhn-12")
MODES = ("train", "inference")
PLAIN_SECONDS = 4.0  # the baseline needs no compiler and varies little


@dataclass(frozen=True)
class Row:
    """One line of the benchmark."""

    preset: str
    mode: str
    batch: int
    """Images in one step, over all processes together."""
    processes: int
    images_per_second: float
    share_of_peak: float
    """Of the matrix-product speed of as many processes at the same time."""
    times_plain: float | None
    """Against the paper's pseudocode written plainly: one process, a thread for each core, the same batch."""
    peak_memory_mb: float
    """Of the largest process."""
    first_step_seconds: float
    """Compilation, or its cached result, and one step."""
    gemm_gflops: float


def measure_all(
    presets: Sequence[str] = MAIN_PRESETS,
    modes: Sequence[str] = MODES,
    *,
    seconds: float = 10.0,
    batch: int = 128,
    processes: int = 0,
    compile: bool = True,
    plain: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure presets in modes; with `plain` also against the pseudocode."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds must be a number above 0, not {seconds:g}.")
    if processes < 0:
        raise UsageError(f"--processes must be at least 1, or 0 for one on each core, not {processes}.")
    if batch < 1:
        raise UsageError(f"--batch must be at least 1, not {batch}.")
    # Left to us, as many as can share the batch equally.
    count = processes or max(n for n in range(1, cores() + 1) if batch % n == 0)
    if batch < count:
        raise UsageError(
            f"{count} processes cannot share a batch of {batch} images; use --processes {batch}."
        )
    if batch % count:
        nearest = batch // count * count
        raise UsageError(
            f"{count} processes cannot share a batch of {batch} images equally; use --batch {nearest}."
        )
    specs = [preset(name) for name in presets]  # all names are checked before anything is measured
    rows = []
    for experiment in specs:
        for mode in modes:
            progress(f"{experiment.name}, {mode}")
            rows.append(measure(experiment, mode, batch, count, seconds, compile=compile, plain=plain))
    return rows


def measure(
    experiment: Experiment,
    mode: str,
    batch: int,
    processes: int,
    seconds: float,
    *,
    compile: bool,
    plain: bool,
) -> Row:
    """Measure one preset in one mode."""
    job = Job(
        experiment.to_dict(),
        mode,
        batch // processes,
        1,
        False,
        compile,
        seconds,
        rank=0,
        size=processes,
        store="",
    )
    results = run_jobs([replace(job, rank=rank) for rank in range(processes)])
    speed = sum(result["images"] / result["seconds"] for result in results)
    gemm = sum(result["gemm_gflops"] for result in results)
    passes = 3 if mode == "train" else 1
    ratio = None
    if plain:
        baseline = replace(
            job,
            batch=batch,
            threads=cores(),
            plain=True,
            compile=False,
            size=1,
            seconds=min(seconds, PLAIN_SECONDS),
        )
        (result,) = run_jobs([baseline])
        ratio = speed * result["seconds"] / result["images"]
    return Row(
        preset=experiment.name,
        mode=mode,
        batch=batch,
        processes=processes,
        images_per_second=speed,
        share_of_peak=2 * multiply_adds(experiment.model) * passes * speed / (gemm * 1e9),
        times_plain=ratio,
        peak_memory_mb=max(result["peak_memory_mb"] for result in results),
        first_step_seconds=max(result["first_step_seconds"] for result in results),
        gemm_gflops=gemm,
    )


def run_jobs(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Run jobs at the same time, one process each."""
    with tempfile.TemporaryDirectory() as folder, _started(folder, jobs) as workers:
        results = []
        for worker in workers:
            output, errors = worker.communicate()
            if worker.returncode:
                reason = (errors.strip().splitlines() or ["no message"])[-1]
                raise OcraError(f"A measuring process failed: {reason}")
            results.append(json.loads(output.splitlines()[-1]))
        return results


@contextmanager
def _started(folder: str, jobs: Sequence[Job]) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of the jobs; whatever happens, none of them outlives the block."""
    store = str(Path(folder) / "store")
    command = [sys.executable, "-m", "ocra.benchmark.worker"]
    workers = [
        subprocess.Popen(
            [*command, json.dumps(asdict(replace(job, store=store)))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job in jobs
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def measure_data(seconds: float = 1.0, batch: int = 128) -> dict[str, float]:
    """Images per second that one core makes of each generated task, from glyph digits."""
    speeds: dict[str, float] = {}
    for name in task_names():
        if (config := task_config(name).offline()) is None:
            continue
        task = make_task(config, "train")
        task.batch(np.arange(batch))
        start, count = time.process_time(), 0
        while (elapsed := time.process_time() - start) < seconds:
            task.batch(np.arange(count, count + batch))
            count += batch
        speeds[name] = count / elapsed
    return speeds


def measure_scaling(seconds: float = 2.0) -> dict[str, list[tuple[int, float]]]:
    """Milliseconds of a training step, uncompiled on one thread, against glimpses, batch and image area."""
    base = preset("multimnist-3")
    cluttered = preset("cluttered-5")

    def step_time(experiment: Experiment, batch: int) -> float:
        job = Job(experiment.to_dict(), "train", batch, 1, False, False, seconds, rank=0, size=1, store="")
        (result,) = run_jobs([job])
        return 1000 * result["seconds"] / (result["images"] / batch)

    def looking(glimpses: int) -> Experiment:
        return replace(base, model=replace(base.model, glimpses=glimpses))

    def sized(side: int) -> Experiment:
        return replace(
            cluttered,
            model=replace(cluttered.model, height=side, width=side),
            task=cluttered.task.with_settings(size=side),
        )

    return {
        "glimpses": [(n, step_time(looking(n), 64)) for n in (2, 4, 8)],
        "batch": [(n, step_time(base, n)) for n in (32, 64, 128)],
        "pixels": [(side * side, step_time(sized(side), 32)) for side in (50, 100, 150)],
    }
