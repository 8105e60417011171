"""Where a run begins: in a new folder, in that of a run that was stopped, or as a helper of another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data import make_task
from ..errors import OcraError
from ..evaluation import check_fit
from ..guidance import check_guidance
from ..presets import Spec
from ..pretrained import find
from .distribution import check_processes, further_process, process_group, under_torchrun
from .folder import fresh_path, new_run, old_run
from .logs import Reporter
from .loop import Run
from .precision import check_precision
from .schedule import guide_weight


def train(
    spec: Spec,
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
    check_precision(spec.training.precision, device)
    check_processes(processes, device, spec.training.batch)
    _check_data(spec)
    if spec.training.start_from is not None:
        find(spec.training.start_from)
    path = fresh_path(spec.name) if out is None else Path(out)
    reporter = Reporter(path, quiet, track)
    with new_run(path, spec) as folder, process_group(processes, device, spec.training.batch) as group:
        group.spread_json(spec.to_dict())
        return Run(spec, group, folder, reporter).go()


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
    with old_run(Path(out)) as (folder, spec):
        if (summary := folder.summary()) is not None:
            if not quiet:
                print(
                    f"The run in {out} has ended at {summary['images']:,} images; there is nothing to resume."
                )
            if under_torchrun():  # the others are waiting to be told
                with process_group(0, device) as group:
                    group.spread_json(None)
            return summary
        check_precision(spec.training.precision, device)
        _check_guide(spec)
        checkpoint = folder.checkpoints.load()
        processes = processes or (checkpoint.state["processes"] if checkpoint else 0)
        with process_group(processes, device, spec.training.batch) as group:
            group.spread_json(spec.to_dict())
            return Run(spec, group, folder, Reporter(folder.path, quiet, track), checkpoint).go()


def take_part(device: str = "auto") -> dict[str, Any]:
    """Help another process with its run: it says what to train, and alone reads and writes the folder."""
    with process_group(0, device) as group:
        spec = group.spread_json(None)
        return {} if spec is None else Run(Spec.from_dict(spec), group, None, Reporter(None)).go()


def _check_data(spec: Spec) -> None:
    """Refuse a run without data, or with data that does not fit the model, before anything is written."""
    for split in ("train", "validation", "test") if spec.training.test_images else ("train", "validation"):
        check_fit(spec.model, make_task(spec.task, split))
    _check_guide(spec)


def _check_guide(spec: Spec) -> None:
    """Refuse to show where to look if that is not known, or if nothing looks."""
    if guide_weight(spec.training, 0) > 0:
        if not spec.model.attention:
            raise OcraError(
                "training.guide shows where to look, and this model has no glimpses; set it to 0."
            )
        task = make_task(spec.task, "train", spec.seed)
        check_guidance(task.batch([0], parts=True).parts, task.name)
