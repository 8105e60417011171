"""How fast the trainer's own step and inference are on this machine, beside what its matrix products could do."""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from ocra.config import ModelConfig, NetworkConfig
from ocra.data.task import Batch, Task, TaskConfig, annotations_in_boxes, make_task
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.files import cores
from ocra.losses import LossWeights, compute_losses
from ocra.model.kernels import float32_by_onednn
from ocra.model.reference import reference_pass
from ocra.presets import preset
from ocra.training.distributed import Group, joined
from ocra.training.logging import Reporter
from ocra.training.optim import ROOT_EVERY
from ocra.training.run import choose_precision
from ocra.training.trainer import Trainer

MAIN_PRESETS = ("multimnist-3", "multimnist-10", "cluttered-5", "svhn-12")
MODES = ("train", "inference")
FORMULA = "share of peak = 2 · multiply-adds · (3 if training else 1) · images/s / GEMM FLOP/s in the same precision"
PLAIN_SECONDS = 4.0  # the baseline needs no compiler and varies little
ROUNDS = 5
"""The matrix product is timed this often between the steps: the speed of a shared machine changes by the minute."""
GEMM_SIZE, GEMM_SECONDS = 1024, 0.4
WORKER = "from ocra.benchmark import work; work()"


@dataclass(frozen=True)
class Row:
    """One line of the benchmark."""

    preset: str
    mode: str
    precision: str
    batch_size: int
    """Images in one step, over all processes together."""
    processes: int
    images_per_second: float
    share_of_peak: float
    """Of the speed of matrix products of the same precision in as many processes, timed between the steps, by the
    library that makes those of the step."""
    times_plain: float | None
    """Against the paper's pseudocode written plainly: one process, a thread for each core, the same batch."""
    peak_memory_mb: float
    """Of the largest process."""
    first_step_seconds: float
    """Compilation, or its cached result, and one step."""
    gemm_gflops: float
    """Of these products, all processes together."""
    parts: dict[str, float] = field(default_factory=dict)
    """Share of the training step that each of its parts takes."""


@dataclass(frozen=True)
class Job:
    """What a measuring process does, and its place among the others that run at the same time."""

    experiment: dict[str, Any]
    mode: str
    batch_size: int  # over all processes together
    seconds: float
    plain: bool = False  # the paper's pseudocode in place of the model
    threads: int = 1
    rank: int = 0
    size: int = 1
    store: str = ""  # file through which the processes meet


def measure_all(
    presets: Sequence[str] = MAIN_PRESETS,
    modes: Sequence[str] = MODES,
    *,
    seconds: float = 10.0,
    batch_size: int = 128,
    processes: int = 0,
    precision: str = "fp32",
    compile: bool = True,
    plain: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Measure presets in modes; with `plain` also against the pseudocode.

    precision: fp32, bf16, auto (bf16 where it is faster, as in a run) or both (fp32, then bf16 where it is faster).
    """
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds must be a number above 0, not {seconds:g}.")
    if processes < 0:
        raise UsageError(f"--processes must be at least 1, or 0 for one on each core, not {processes}.")
    if batch_size < 1:
        raise UsageError(f"--batch-size must be at least 1, not {batch_size}.")
    # Left to us, as many as can share the batch equally.
    count = processes or max(n for n in range(1, cores() + 1) if batch_size % n == 0)
    if batch_size % count:
        raise UsageError(f"{count} processes cannot share a batch of {batch_size} images equally.")
    experiments = [preset(name) for name in presets]  # all names are checked before anything is measured
    rows = []
    for experiment in experiments:
        supported = experiment.model.network.supports_bf16
        wanted = ("fp32", "auto") if precision == "both" else (precision,)
        chosen = dict.fromkeys(choose_precision(each, "cpu", supported) for each in wanted)
        for mode in modes:
            progress(f"{experiment.name}, {mode}")
            # The pseudocode is OCRA's.
            compared = plain and isinstance(experiment.model, ModelConfig)
            baseline = plain_speed(experiment, mode, batch_size, seconds) if compared else None
            for each in chosen:
                run = replace(experiment.run, precision=each, compile=compile)
                rows.append(measure(replace(experiment, run=run), mode, batch_size, count, seconds, baseline))
    return rows


def plain_speed(experiment: Experiment, mode: str, batch_size: int, seconds: float) -> float:
    """Images per second of the paper's pseudocode written plainly: one process, a thread for each core."""
    settings = offline(experiment, batch_size).to_dict()
    job = Job(settings, mode, batch_size, min(seconds, PLAIN_SECONDS), plain=True, threads=cores())
    (result,) = run_jobs([job])
    return float(result["images"] / result["seconds"])


def measure(
    experiment: Experiment,
    mode: str,
    batch_size: int,
    processes: int,
    seconds: float,
    baseline: float | None,
) -> Row:
    """Measure one experiment in one mode; baseline: images per second of the pseudocode."""
    job = Job(offline(experiment, batch_size).to_dict(), mode, batch_size, seconds, size=processes)
    results = run_jobs([replace(job, rank=rank) for rank in range(processes)])
    speed = sum(result["images"] / result["seconds"] for result in results)
    gemm = sum(result["gemm_gflops"] for result in results)
    operations = multiply_adds(experiment.model) * (3 if mode == "train" else 1)
    return Row(
        preset=experiment.name,
        mode=mode,
        precision=experiment.run.precision,
        batch_size=batch_size,
        processes=processes,
        images_per_second=speed,
        share_of_peak=2 * operations * speed / (gemm * 1e9),
        times_plain=None if baseline is None else speed / baseline,
        peak_memory_mb=max(result["peak_memory_mb"] for result in results),
        first_step_seconds=max(result["first_step_seconds"] for result in results),
        gemm_gflops=gemm,
        parts=results[0]["parts"],
    )


def offline(experiment: Experiment, batch_size: int) -> Experiment:
    """The main stage of an experiment on images that need no data set: glyph digits, or noise for photographs."""
    model = experiment.model
    noise = Noise.Config(model.image_shape, model.classes, model.readout_digits, model.readout_classes)
    stage = experiment.stages[-1]
    stage = replace(
        stage,
        images=10**9,
        batch_size=batch_size,
        init_from=None,
        attention_teacher=None,
        select=1,
        glimpses=None,
    )
    return replace(experiment, task=experiment.task.offline() or noise, stages=(stage,))


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
    store, pipe = str(Path(folder) / "store"), subprocess.PIPE
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(asdict(replace(job, store=store)))],
            stdout=pipe, stderr=pipe, text=True,
        )
        for job in jobs
    ]  # fmt: skip
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def work() -> None:
    """One measuring process: measures the job that is its argument, as JSON, and prints what it found."""
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(job.threads)
    torch.set_flush_denormal(True)
    if job.size == 1:
        print(json.dumps(_measured(job, Group())), flush=True)
        return
    place = {"init_method": f"file://{job.store}", "rank": job.rank, "world_size": job.size}
    with joined(torch.device("cpu"), **place) as group:
        print(json.dumps(_measured(job, group)), flush=True)
        with suppress(OcraError):  # a process that left first would break the last message to the others
            group.barrier()


def _measured(job: Job, group: Group) -> dict[str, Any]:
    """What this process of a job finds."""
    with float32_by_onednn() if job.mode == "train" and not job.plain else nullcontext():  # as a run does
        return _timed(job, group)


def _timed(job: Job, group: Group) -> dict[str, Any]:
    """How long the first step, further steps and matrix products between them take."""
    step, parts = _step(job, group)
    before = time.monotonic()
    step()
    first = time.monotonic() - before
    step()
    parts.clear()
    durations: list[float] = []
    speeds = [_gemm_gflops(job, group)]
    for _ in range(ROUNDS):
        durations += _repeat(step, job, group)
        speeds.append(_gemm_gflops(job, group))
    return {
        "images": len(durations) * job.batch_size // job.size,
        "seconds": sum(durations),
        "median_step_seconds": statistics.median(durations),
        "first_step_seconds": first,
        "gemm_gflops": statistics.median(speeds),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parts": {name: round(value / sum(parts.values()), 4) for name, value in parts.items()},
    }


def _gemm_gflops(job: Job, group: Group) -> float:
    """What this process gets out of a square matrix product while the others do the same."""
    low = job.experiment["run"]["precision"] == "bf16" and not job.plain
    left, right = torch.randn(2, GEMM_SIZE, GEMM_SIZE).to(torch.bfloat16 if low else torch.float32)
    left @ right
    group.barrier()
    start, count = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < GEMM_SECONDS:
        left @ right
        count += 1
    return 2 * GEMM_SIZE**3 * count / elapsed / 1e9


def _step(job: Job, group: Group) -> tuple[Callable[[], object], dict[str, float]]:
    """What is repeated: the trainer's own step, a pass without gradients, or the pseudocode's; and its parts' times."""
    experiment = Experiment.from_dict(job.experiment)
    if job.mode == "train" and not job.plain:
        trainer = Trainer(experiment, group, None, Reporter(None))
        if shampoo := trainer.optimisers.named.get("shampoo"):
            for state in shampoo.state.values():  # as in the length of a run: the first steps make more roots
                state["step"].fill_(ROOT_EVERY)
        return trainer.step, trainer.timer.seconds
    batch = make_task(experiment.task, "train").batch(np.arange(job.batch_size // job.size))
    torch.manual_seed(0)
    model = experiment.model.network(experiment.model)
    if job.mode == "inference":
        model.eval()
        if experiment.run.precision == "bf16" and not job.plain:
            model.use_bf16()
        if experiment.run.compile and not job.plain:
            model.compile_step()
        return torch.inference_mode()(
            lambda: reference_pass(model, batch.images) if job.plain else model(batch.images)
        ), {}
    optimiser = torch.optim.Adam(model.parameters())

    def plain_step() -> None:
        optimiser.zero_grad()
        trace = reference_pass(model, batch.images, attended=experiment.loss.needs_attended)
        compute_losses(trace, batch, experiment.loss, LossWeights()).total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimiser.step()

    return plain_step, {}


def _repeat(step: Callable[[], object], job: Job, group: Group) -> list[float]:
    """Seconds of each step of one round; processes that train together stop after the same step."""
    group.barrier()
    durations: list[float] = []
    while True:
        start = time.monotonic()
        step()
        durations.append(time.monotonic() - start)
        late = torch.tensor([float(sum(durations) > job.seconds / ROUNDS)])
        if group.broadcast(late) if job.mode == "train" else late:
            return durations


@dataclass(frozen=True)
class NoiseConfig(TaskConfig):
    """Noise in the shape of a model's images."""

    shape: tuple[int, int, int] = (1, 36, 36)
    classes: int = 10
    digits: int = 0
    digit_classes: int = 11


class Noise(Task):
    """Stands in for photographs where only the time counts."""

    Config = NoiseConfig
    config: NoiseConfig

    def __init__(self, config: TaskConfig | None = None, split: str = "train", seed: int = 0) -> None:
        super().__init__(config, split, seed)
        self.image_shape = self.config.shape
        self.class_names = tuple(str(number) for number in range(self.config.classes))
        self.sequence_length = self.config.digits  # type: ignore[misc]

    def __len__(self) -> int:
        return 1_000

    def make(self, indices: NDArray[np.int64], *, annotations: bool, **_: Any) -> Batch:
        """The same noise whatever the indices are, with an object in the middle for each digit."""
        noise = torch.Generator().manual_seed(0)
        images = torch.rand(len(indices), *self.image_shape, generator=noise)
        counts = torch.zeros(len(indices), self.config.classes)
        counts[:, :2] = 1
        digits = self.config.digits
        height, width = self.image_shape[1:]
        middle = np.array([width / 4, height / 4, width / 2, height / 2], np.float32)
        objects = np.zeros((len(indices), max(1, digits)), np.int64)
        return Batch(
            images,
            counts,
            torch.full((len(indices), digits), self.config.digit_classes - 1) if digits else None,
            annotations_in_boxes(images, np.tile(middle, (*objects.shape, 1)), objects)
            if annotations
            else None,
        )


def measure_data(seconds: float = 1.0, batch_size: int = 128) -> dict[str, float]:
    """Images per second that one core makes of the tasks that need no data set, from glyph digits."""
    speeds: dict[str, float] = {}
    for name in MAIN_PRESETS:
        config = preset(name).task.offline()
        if config is None or config.name in speeds:
            continue
        task = make_task(config, "train")
        task.batch(np.arange(batch_size))
        start, count = time.process_time(), 0
        while (elapsed := time.process_time() - start) < seconds:
            task.batch(np.arange(count, count + batch_size))
            count += batch_size
        speeds[config.name] = count / elapsed
    return speeds


def measure_scaling(seconds: float = 2.0) -> dict[str, list[tuple[int, float]]]:
    """Milliseconds of a training step, the median, against glimpses, batch, image area and processes; uncompiled."""
    base, cluttered = preset("multimnist-3"), preset("cluttered-5")

    def step_time(experiment: Experiment, batch_size: int, processes: int = 1) -> float:
        run = replace(experiment.run, compile=False, precision="fp32")
        settings = offline(replace(experiment, run=run), batch_size).to_dict()
        job = Job(settings, "train", batch_size, seconds, size=processes)
        result, *_ = run_jobs([replace(job, rank=rank) for rank in range(processes)])
        return float(1000 * result["median_step_seconds"])

    def looking(glimpses: int) -> Experiment:
        return replace(base, model=replace(base.model, glimpses=glimpses))  # type: ignore[call-arg]

    def sized(side: int) -> Experiment:
        model = replace(cluttered.model, height=side, width=side)
        return replace(cluttered, model=model, task=replace(cluttered.task, size=side))  # type: ignore[call-arg]

    counts = [2**power for power in range(cores().bit_length())]
    return {
        "glimpses": [(n, step_time(looking(n), 64)) for n in (2, 4, 8)],
        "batch": [(n, step_time(base, n)) for n in (32, 64, 128)],
        "pixels": [(side * side, step_time(sized(side), 32)) for side in (50, 100, 150)],
        "processes": [(n, step_time(base, 128, n)) for n in counts if n <= cores() and 128 % n == 0],
    }


def multiply_adds(config: NetworkConfig) -> int:
    """Multiply-adds of one image's pass forward: matrix products, convolutions and routing, nothing else.

    A training step is counted as three passes: forward, gradient of the inputs, gradient of the weights.
    The first glimpse of OCRA needs no product with the hidden states, which are zero. Those of other networks are
    counted by PyTorch.
    """
    if not isinstance(config, ModelConfig):
        model = config.network(config).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, *config.image_shape))
        return counter.get_total_flops() // 2
    hidden, latent = config.hidden, config.object_capsules * config.capsule_size
    primary = config.primary_capsules * config.primary_size
    height, width, read, write = config.height, config.width, config.glimpse_size, config.write_size
    rows, columns = (read, read) if config.attention else (height, width)
    convolutions = rows * columns * config.filters * config.channels * 25
    convolutions += (rows // 2) * (columns // 2) * config.filters**2 * 9
    if config.capsules:  # votes, then weighted sums and agreements
        objects = primary * latent + (2 * config.routings - 1) * config.primary_capsules * latent
    else:
        objects = primary * latent + latent * config.object_capsules
    if config.attention:
        written = config.channels * write**2
        reading = read * height * width + read * read * width
        writing = write * write * width + height * write * width
        attention = config.channels * (reading + writing) + 2 * 4 * hidden
    else:
        written, attention = config.channels * height * width, 0
    inputs = config.features + (hidden if config.feedback else 0)
    lstms = 4 * hidden * (inputs + latent)
    glimpse = convolutions + lstms + hidden * primary + objects + hidden * written + attention
    return config.glimpses * glimpse + (config.glimpses - 1) * 2 * 4 * hidden * hidden
