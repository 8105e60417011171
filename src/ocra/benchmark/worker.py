"""One measuring process: python -m ocra.benchmark.worker JOB, where JOB is a `Job` as JSON.

Prints one JSON object: images, seconds, first_step_seconds, gemm_gflops, peak_memory_mb.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ocra.data import Batch, make_task
from ocra.losses import compute_losses
from ocra.model.ocra import OCRA
from ocra.presets import Experiment
from ocra.training.channel import Channel
from ocra.training.distributed import Group
from ocra.training.flat import FlatParameters

GEMM_SIZE = 1024
GEMM_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """What a worker measures, and its place among the others that run at the same time."""

    experiment: dict[str, Any]
    mode: str  # train or inference
    batch: int  # of this process
    threads: int
    plain: bool  # the paper's pseudocode in place of the model
    compile: bool
    seconds: float
    rank: int
    size: int
    store: str  # file through which the workers meet


def main() -> None:
    """Measure one job."""
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(job.threads)
    torch.set_flush_denormal(True)
    if job.size > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        dist.init_process_group("gloo", init_method=f"file://{job.store}", rank=job.rank, world_size=job.size)
    gemm_before = _gemm_gflops(job)
    step = _training_step(job) if job.mode == "train" else _inference_step(job)
    before = time.monotonic()
    step()
    first = time.monotonic() - before
    step()
    steps, seconds = _repeat(step, job)
    gemm_after = _gemm_gflops(job)  # the speed of a shared machine changes from minute to minute
    print(
        json.dumps(
            {
                "images": steps * job.batch,
                "seconds": seconds,
                "first_step_seconds": first,
                "gemm_gflops": (gemm_before + gemm_after) / 2,
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        ),
        flush=True,
    )
    with suppress(RuntimeError):  # a process that left first would break the last message to the others
        _meet(job)


def _gemm_gflops(job: Job) -> float:
    """What this process gets out of a square matrix product while the others do the same."""
    left, right = torch.randn(GEMM_SIZE, GEMM_SIZE), torch.randn(GEMM_SIZE, GEMM_SIZE)
    left @ right
    _meet(job)
    start, count = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < GEMM_SECONDS:
        left @ right
        count += 1
    return 2 * GEMM_SIZE**3 * count / elapsed / 1e9


def _forward(job: Job, experiment: Experiment, model: OCRA) -> Callable[[torch.Tensor], Any]:
    from ocra.model.reference import reference_pass

    attended = experiment.loss.needs_attended and job.mode == "train"
    if job.plain:
        return lambda images: reference_pass(model, images, attended=attended)
    model.defer_weight_gradients = True
    if job.compile:
        model.compile_step()
    return lambda images: model(images, attended=attended)


def _training_step(job: Job) -> Callable[[], None]:
    """A whole training step but for the data: forward, backward, the sum over the processes, Adam."""
    experiment = Experiment.from_dict(job.experiment)
    batch = sample_batch(experiment, job.batch)
    torch.manual_seed(0)
    model = OCRA(experiment.model)
    flat = FlatParameters(model)
    channel = Channel(Group(job.rank, job.size), flat.size)
    flat.send_gradients_to(channel.mine)
    optimiser = torch.optim.Adam([flat.values], fused=True)
    forward = _forward(job, experiment, model)

    def step() -> None:
        channel.mine.zero_()
        compute_losses(forward(batch.images), batch, experiment.loss).total.backward()
        gradient = channel.add_up()
        norm = float(gradient.norm())
        if norm > experiment.training.clip:
            gradient = torch.mul(gradient, experiment.training.clip / norm, out=channel.mine)
        flat.values.grad = gradient
        optimiser.step()

    return step


def _inference_step(job: Job) -> Callable[[], None]:
    experiment = Experiment.from_dict(job.experiment)
    images = sample_batch(experiment, job.batch).images
    torch.manual_seed(0)
    forward = _forward(job, experiment, OCRA(experiment.model).eval())

    def step() -> None:
        with torch.inference_mode():
            forward(images)

    return step


def sample_batch(experiment: Experiment, size: int) -> Batch:
    """Images of the task, made of glyph digits; noise stands in for photographs."""
    if config := experiment.task.offline():
        return make_task(config, "test").batch(list(range(size)))
    images = torch.rand(size, *experiment.model.image_shape, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(size, experiment.model.classes)
    counts[:, :2] = 1
    sequence = torch.full((size, experiment.model.readout_digits), experiment.model.readout_classes - 1)
    return Batch(images, counts, sequence if experiment.model.readout_digits else None)


def _repeat(step: Callable[[], None], job: Job) -> tuple[int, float]:
    """Repeat a step for the time asked for; processes that train together stop after the same step."""
    together = job.mode == "train" and job.size > 1
    _meet(job)
    start, count = time.monotonic(), 0
    while True:
        step()
        count += 1
        elapsed = time.monotonic() - start
        late = torch.tensor(float(elapsed > job.seconds))
        if together:
            dist.broadcast(late, 0)
        if late:
            return count, elapsed


def _meet(job: Job) -> None:
    if job.size > 1:
        dist.barrier()


if __name__ == "__main__":
    main()
