"""Carrying runs out: what is recorded is skipped, what was stopped is resumed, what diverges is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocra.data import make_task
from ocra.errors import OcraError
from ocra.presets import Experiment
from ocra.reproduce.groups import test_of
from ocra.reproduce.plan import Job
from ocra.reproduce.results import Result, from_run, read_result, with_earlier_evaluations, write_result
from ocra.reproduce.settings import first_difference
from ocra.training.folder import read_spec

Say = Callable[[str], None]


def carry_out(experiment: Experiment, folder: Path, processes: int = 0, quiet: bool = False) -> str:
    """Make a run from wherever it is to its end; returns why it failed if it diverged, else nothing."""
    from ocra.training.run import resume, train
    from ocra.training.trainer import Diverged

    try:
        if (folder / "config.json").is_file():
            refuse_other_settings(
                folder / "config.json", read_spec(folder / "config.json").to_dict(), experiment
            )
            resume(folder, processes=processes, quiet=quiet)
        else:
            train(experiment, folder, processes=processes, quiet=quiet)
    except Diverged as error:
        return str(error)
    return ""


def refuse_other_settings(path: Path, config: dict[str, Any], experiment: Experiment) -> None:
    """Refuse to take the run of another experiment for this one."""
    other = first_difference(config, experiment.to_dict())
    if other is not None:
        raise OcraError(
            f"{path} is that of a run with other settings ({other}); move it away, or choose other folders "
            "with --runs and --results."
        )


def outstanding(jobs: list[Job], results: Path, say: Say = print) -> list[Job]:
    """The runs that are not recorded yet. One that failed is recorded too, and not tried again."""
    left = []
    for job in jobs:
        path = results / f"{job.name}.json"
        if not path.is_file():
            left.append(job)
            continue
        known = read_result(path)
        refuse_other_settings(path, known.config, job.experiment)
        if known.stopped_early:
            left.append(job)
        else:
            say(f"{job.name}: {'failed' if known.failed else 'done'} before, skipped")
    return left


def check_data(jobs: list[Job]) -> None:
    """Refuse to start if the data of any run is missing, instead of hours later."""
    for config in {job.experiment.task for job in jobs}:
        for split in ("train", "test"):
            make_task(config, split)


def read_run(folder: Path, results: Path, *, name: str = "", notes: str = "", failed: str = "") -> Result:
    """The result of the run in a folder, with the evaluations it was given earlier."""
    result = from_run(folder, notes, failed)
    return with_earlier_evaluations(replace(result, name=name or result.name), results)


def record(folder: Path, results: Path, *, failed: str = "") -> Result:
    """Keep the result of the run in a folder."""
    result = read_run(folder, results, failed=failed)
    write_result(results, result)
    return result


def run_one_by_one(
    jobs: list[Job], runs: Path, results: Path, *, processes: int = 0, quiet: bool = False,
    say: Say = print, after: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make all runs one after the other; each is recorded, and `after` called, as soon as it ends."""
    for number, job in enumerate(jobs, 1):
        say(f"{job.name}: run {number} of {len(jobs)}, in {runs / job.name}")
        failed = carry_out(job.experiment, runs / job.name, processes, quiet)
        result = record(runs / job.name, results, failed=failed)
        say(f"{job.name}: {outcome(result)}")
        after()


def outcome(result: Result) -> str:
    """What came of a run, in a few words."""
    if result.failed:
        return f"failed: {result.reason}"
    test = test_of(result)
    if test is None:
        return f"{'ended' if result.ended else 'stopped'} at {result.images:,} images"
    return f"exact error {test['exact_error']:.2%} on {test['n']:,} test images"
