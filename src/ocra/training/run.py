"""Where a run begins: in a new folder, in that of a run that was stopped, or as a helper of another process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ocra.data import make_task
from ocra.errors import OcraError
from ocra.evaluation import check_fit
from ocra.guidance import check_guidance
from ocra.model.weights import resolve, shipped
from ocra.presets import Experiment
from ocra.training.distributed import check_processes, further_process, process_group, under_torchrun
from ocra.training.folder import fresh_path, new_run, old_run
from ocra.training.logging import Reporter
from ocra.training.precision import check_precision
from ocra.training.schedule import guide_weight
from ocra.training.trainer import Run


def train(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
) -> dict[str, Any]:
    """Train an experiment in a new folder (runs/NAME by default) and return what its summary.json holds.

    processes: how many share each batch; 0 takes one for each core or GPU. Under torchrun its group is joined.
    """
    if further_process():
        return take_part(device)
    check_precision(experiment.training.precision, device)
    check_processes(processes, device, experiment.training.batch)
    _check_data(experiment)
    experiment = _from_anywhere(experiment)
    path = fresh_path(experiment.name) if out is None else Path(out)
    reporter = Reporter(path, quiet, track)
    with (
        new_run(path, experiment) as folder,
        process_group(processes, device, experiment.training.batch) as group,
    ):
        group.spread_json({"experiment": experiment.to_dict(), "goes_on": False})
        return Run(experiment, group, folder, reporter).go()


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
                print(
                    f"The run in {out} has ended at {summary['images']:,} images; there is nothing to resume."
                )
            if under_torchrun():  # the others are waiting to be told
                with process_group(0, device) as group:
                    group.spread_json(None)
            return summary
        check_precision(experiment.training.precision, device)
        _check_guide(experiment)
        checkpoint = folder.checkpoints.load()
        processes = processes or (checkpoint.state["processes"] if checkpoint else 0)
        with process_group(processes, device, experiment.training.batch) as group:
            goes_on = checkpoint is not None
            group.spread_json({"experiment": experiment.to_dict(), "goes_on": goes_on})
            return Run(
                experiment, group, folder, Reporter(folder.path, quiet, track), checkpoint, goes_on
            ).go()


def take_part(device: str = "auto") -> dict[str, Any]:
    """Help another process with its run: it says what to train, and alone reads and writes the folder."""
    with process_group(0, device) as group:
        told = group.spread_json(None)
        if told is None:
            return {}
        experiment = Experiment.from_dict(told["experiment"])
        return Run(experiment, group, None, Reporter(None), goes_on=told["goes_on"]).go()


def _from_anywhere(experiment: Experiment) -> Experiment:
    """The same experiment with whole paths, so that it can be resumed from another folder; refuses missing weights."""
    task, training = experiment.task, experiment.training
    if (source := training.start_from) is not None:
        resolve(source)
        if source not in shipped() and (folder := Path(source).expanduser()).is_dir():
            training = replace(training, start_from=str(folder.resolve()))
    if root := task.to_dict().get("root"):
        task = task.with_settings(root=Path(root).expanduser().resolve())
    return replace(experiment, task=task, training=training)


def _check_data(experiment: Experiment) -> None:
    """Refuse a run without data, or with data that does not fit the model, before anything is written."""
    for split in (
        ("train", "validation", "test") if experiment.training.test_images else ("train", "validation")
    ):
        check_fit(experiment.model, make_task(experiment.task, split))
    _check_guide(experiment)


def _check_guide(experiment: Experiment) -> None:
    """Refuse to show where to look if that is not known, or if nothing looks."""
    if guide_weight(experiment.training, 0) > 0:
        if not experiment.model.attention:
            raise OcraError(
                "training.guide shows where to look, and this model has no glimpses; set it to 0."
            )
        task = make_task(experiment.task, "train", experiment.seed)
        check_guidance(task.batch([0], annotations=True).annotations, task.name)
