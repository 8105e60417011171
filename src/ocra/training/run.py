"""Where a run begins: in a new folder, in that of a run that was stopped, or as a helper of another process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from ocra.data.labels import HUB
from ocra.data.task import Task, make_task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import check_fit
from ocra.experiment import Experiment
from ocra.losses import check_attention_supervision
from ocra.model.weights import SHIPPED, content_hash, resolve
from ocra.training.checkpoint import fresh_path, new_run, old_run
from ocra.training.distributed import (
    PeerLost,
    choose_device,
    count_processes,
    further_process,
    process_group,
    under_torchrun,
)
from ocra.training.localisation import Localiser
from ocra.training.logging import Reporter
from ocra.training.trainer import Diverged, Trainer


def train(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    task: type[Task] | None = None,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
) -> dict[str, Any]:
    """Train an experiment in a new folder (runs/NAME by default) and return what its summary.json holds.

    task: a task of one's own in place of the experiment's, with its default settings; model and loss are made to fit.
    processes: how many share each batch; 0 takes one for each core or GPU. Under torchrun its group is joined.
    track: "tensorboard" writes event files as well.
    """
    if further_process():
        return take_part(device)
    if task is not None:
        name = f"{experiment.name}-{task.__name__}"
        experiment = replace(
            experiment, name=name, description="", paper_error="", task=task.Config()
        ).fitted()
    experiment.check()
    processes = _processes_for(experiment, processes)
    precision = choose_precision(experiment.run.precision, device, experiment.model.network.supports_bf16)
    experiment = replace(experiment, run=replace(experiment.run, precision=precision))
    batch_size = min(stage.batch_size for stage in experiment.stages)
    processes = count_processes(processes, device, batch_size)
    for split in ("train", "validation", "test") if experiment.run.test_images else ("train", "validation"):
        check_fit(experiment.model, make_task(experiment.task, split))
    _check_network(experiment)
    _check_attention_supervision(experiment)
    experiment = _from_anywhere(experiment)
    path = fresh_path(experiment.name) if out is None else Path(out)
    reporter = Reporter(path, quiet, track)
    with (
        new_run(path, experiment, processes) as folder,
        process_group(processes, device, batch_size) as group,
    ):
        group.broadcast_json({"experiment": experiment.to_dict(), "resumed": False})
        return Trainer(experiment, group, folder, reporter).run()


def resume(
    out: str | Path,
    *,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder from its newest checkpoint, to the same end as if it had never stopped.

    processes: 0 takes as many as the run had, which is what the same end needs to the last bit.
    """
    if further_process():
        return take_part(device)
    with old_run(Path(out)) as (folder, experiment):
        if (summary := folder.summary()) is not None:
            if not quiet:
                print(f"The run in {out} has ended; there is nothing to resume.")
            if under_torchrun():  # the others are waiting to be told
                with process_group(0, device) as group:
                    group.broadcast_json(None)
            return summary
        choose_precision(experiment.run.precision, device)
        _check_attention_supervision(experiment)
        checkpoint = folder.checkpoints.load()
        had = checkpoint.state["processes"] if checkpoint else folder.processes
        processes = processes or had or _processes_for(experiment, 0)
        batch_size = min(stage.batch_size for stage in experiment.stages)
        with process_group(processes, device, batch_size) as group:
            resumed = checkpoint is not None
            group.broadcast_json({"experiment": experiment.to_dict(), "resumed": resumed})
            reporter = Reporter(folder.path, quiet, track)
            return Trainer(experiment, group, folder, reporter, checkpoint, resumed).run()


def take_part(device: str = "auto") -> dict[str, Any]:
    """Help another process with its run: it says what to train, and alone reads and writes the folder."""
    with process_group(0, device) as group:
        told = group.broadcast_json(None)
        if told is None:
            return {}
        experiment = Experiment.from_dict(told["experiment"])
        return Trainer(experiment, group, None, Reporter(None), resumed=told["resumed"]).run()


def help_out(device: str, parent: int) -> int:
    """A process that `process_group` started: train along, and end with the process that started this one."""

    def end_with_parent() -> None:
        while os.getppid() == parent:  # also before the two have met
            time.sleep(1.0)
        os._exit(1)

    warnings.simplefilter("ignore")
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        take_part(device)
    except (PeerLost, Diverged, KeyboardInterrupt):  # the first process tells the user
        return 1
    except OcraError as error:
        print(f"error in a helping process of the run: {error}", file=sys.stderr)
        return 1
    return 0


def _processes_for(experiment: Experiment, wanted: int) -> int:
    """The processes to ask for: one alone for a task that other processes could not import."""
    if make_task(experiment.task).__class__.__module__ != "__main__":
        return wanted
    if wanted > 1:
        raise UsageError(
            "A task that is defined in a script trains in one process; put it into a module of its own."
        )
    return 1


def _from_anywhere(experiment: Experiment) -> Experiment:
    """The same experiment with whole paths, to be resumed from any folder, and with weights named by their hash."""
    task = experiment.task
    stages = tuple(
        replace(
            stage,
            init_from=_by_content(stage.init_from),
            attention_teacher=_by_content(stage.attention_teacher),
        )
        for stage in experiment.stages
    )
    root = getattr(task, "root", None)
    if root is not None and not root.startswith(HUB):
        task = replace(task, root=str(Path(task.root).expanduser().resolve()))  # type: ignore[call-arg, attr-defined]
    return replace(experiment, task=task, stages=stages)


def _by_content(source: str | None) -> str | None:
    """The weights of this name as NAME@HASH."""
    if source is None:
        return None
    folder = resolve(source)
    name = folder.name if folder.parent == SHIPPED else str(folder.resolve())
    return f"{name}@{content_hash(folder)}"


def _check_network(experiment: Experiment) -> None:
    """Refuse what the network cannot be asked for, or what its losses would not heed."""
    network = experiment.model.network
    if network.losses is None:
        return
    for name in ("cross_entropy", "over_count", "attention_supervision", "early_answers"):
        if any(getattr(stage, name) not in (0, (0, 0)) for stage in experiment.stages):
            raise OcraError(f"{network.__name__} has losses of its own; set {name} to 0 in all stages.")
    if any(stage.glimpses is not None for stage in experiment.stages) and not experiment.model.recurrent:
        raise OcraError(f"{network.__name__} looks once; leave out glimpses in all stages.")
    task = make_task(experiment.task, "train", experiment.seed)
    if network.needs_annotations and task.batch([0], annotations=True).annotations is None:
        raise OcraError(
            f"{network.__name__} learns from each object's own image, which the task {task.name} does not know."
        )


def _check_attention_supervision(experiment: Experiment) -> None:
    """Refuse to show where to look if that is not known, or if nothing looks."""
    supervised = [stage for stage in experiment.stages if stage.attention_supervision not in (0, (0, 0))]
    if not supervised:
        return
    if not experiment.model.attention:
        raise OcraError(
            "A model without glimpses has no attention to supervise; set attention_supervision to 0."
        )
    task = make_task(experiment.task, "train", experiment.seed)
    for teacher in experiment.attention_teachers:
        Localiser(teacher, task)
    if any(stage.attention_teacher is None for stage in supervised):
        check_attention_supervision(task.batch([0], annotations=True).annotations, task.name)


_PROBE = """
import time, torch
a = torch.ones(512, 512, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.functional.conv2d((a @ a)[None, None], torch.ones(4, 1, 3, 3)).sum().backward()
def seconds(m):
    m @ m
    start = time.perf_counter()
    for _ in range(20):
        m @ m
    return time.perf_counter() - start
plain = a.detach()
print(min(seconds(plain) for _ in range(3)) / min(seconds(plain.bfloat16()) for _ in range(3)))
"""
WORTHWHILE = 1.3
"""How many times faster bfloat16 products have to be to be chosen."""


def choose_precision(wanted: str, device: str, supported: bool = True) -> Literal["fp32", "bf16"]:
    """The arithmetic of a run: bfloat16 where it was asked for and works, or was left to us and is faster.

    supported: whether the network knows how to.
    """
    place = choose_device(device)
    if not supported:
        if wanted == "bf16":
            raise OcraError("This network is not made for bfloat16; use --run.precision fp32.")
        return "fp32"
    if wanted == "bf16" and bf16_gain(place.type) == 0:
        raise OcraError(f"bfloat16 does not work on this {place.type}; use --run.precision fp32.")
    if wanted == "auto":
        return "bf16" if bf16_gain(place.type) > WORTHWHILE else "fp32"
    return "bf16" if wanted == "bf16" else "fp32"


@lru_cache(maxsize=2)
def bf16_gain(device: str) -> float:
    """How many times faster than in float32 a product is in bfloat16; 0 where that does not work.

    On a CPU it is tried in a process of its own: one that promises instructions it lacks would end this one.
    """
    if device == "cuda":
        return 2.0 if torch.cuda.is_bf16_supported() else 0.0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, env=environment)
    return float(probe.stdout) if probe.returncode == 0 else 0.0
