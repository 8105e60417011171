"""Runs one after the other: skipped, resumed, failed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated import TINY, tiny_job
from safetensors.torch import load_file

from ocra.cli.main import main as cli
from ocra.errors import OcraError
from ocra.presets import PRESETS
from ocra.reproduce.plan import TABLES, Job
from ocra.reproduce.results import read_result
from ocra.reproduce.runner import check_data, outstanding, run_one_by_one
from ocra.training.trainer import Diverged, Run


def go(jobs: list[Job], folder: Path) -> list[str]:
    """Carry out what is outstanding; returns what was said."""
    said: list[str] = []
    left = outstanding(jobs, folder / "results", said.append)
    run_one_by_one(left, folder / "runs", folder / "results", processes=1, quiet=True, say=said.append)
    return said


def test_what_is_recorded_is_not_run_again(tmp_path: Path) -> None:
    jobs = [tiny_job(1, images=64), tiny_job(2, images=64)]
    said = go(jobs[:1], tmp_path)
    assert "exact error" in said[-1]
    said = go(jobs, tmp_path)
    assert said[0] == f"{jobs[0].name}: done before, skipped"
    assert (tmp_path / "results" / f"{jobs[1].name}.json").is_file()


def test_the_tables_are_written_after_each_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    recorded: list[int] = []
    jobs = [tiny_job(1, images=64), tiny_job(2, images=64)]
    run_one_by_one(
        jobs, tmp_path, results, processes=1, quiet=True, say=lambda text: None,
        after=lambda: recorded.append(len([*results.glob("*.json")])),
    )  # fmt: skip
    assert recorded == [1, 2]


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, validate = tiny_job(), Run.validate

    def interrupted(self: Run) -> None:
        validate(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go([job], tmp_path)
    assert not (tmp_path / "results").exists()
    said = go([job], tmp_path)
    assert "exact error" in said[-1]
    weights = [
        load_file(run / "weights/last/model.safetensors") for run in (tiny_run, tmp_path / "runs" / job.name)
    ]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])


def test_a_run_that_diverges_is_recorded_as_failed_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Run.step

    def diverge(self: Run, *args: Any, **options: Any) -> bool:
        if self.experiment.seed == 1 and self.progress.step == 1:
            raise Diverged("The run has diverged.")
        return step(self, *args, **options)

    monkeypatch.setattr(Run, "step", diverge)
    jobs = [tiny_job(1, images=64), tiny_job(2, images=64)]
    go(jobs, tmp_path)
    failed = read_result(tmp_path / "results" / f"{jobs[0].name}.json")
    assert failed.failed and "diverged" in failed.reason and failed.images == 32
    assert not read_result(tmp_path / "results" / f"{jobs[1].name}.json").failed
    assert go(jobs, tmp_path)[0] == f"{jobs[0].name}: failed before, skipped"


def test_the_run_of_another_experiment_is_not_taken_for_this_one(tmp_path: Path) -> None:
    job = tiny_job(1, images=64)
    go([job], tmp_path)
    other = Job(
        job.name, replace(job.experiment, training=replace(job.experiment.training, learning_rate=0.5))
    )
    with pytest.raises(OcraError, match=r"other settings \(training\.learning_rate 0\.005, not 0\.5\)"):
        go([other], tmp_path)
    (tmp_path / "results" / f"{job.name}.json").unlink()
    with pytest.raises(OcraError, match=r"config\.json is that of a run with other settings"):
        go([other], tmp_path)


def test_the_command_runs_a_table_and_goes_on_with_more_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setitem(TABLES, "svhn", replace(TABLES["svhn"], presets=("tiny",)))
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "svhn", "--images", "64", "--processes", "1", "--quiet", "--seeds"]
    assert cli([*words, "1"]) == 0
    assert "tiny-64-seed1: run 1 of 1" in capsys.readouterr().out
    assert cli([*words, "1", "2"]) == 0
    assert "tiny-64-seed1: done before, skipped" in capsys.readouterr().out
    page = (tmp_path / "docs" / "results.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `tiny`"))
    assert "| 2 |" in row and "| 64 |" in row
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny-64-seed1", "tiny-64-seed2"}


def test_missing_data_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job()
    absent = replace(
        job.experiment, task=replace(job.experiment.task, digits="mnist", root=str(tmp_path / "nothing"))
    )
    with pytest.raises(OcraError):
        check_data([job, Job("absent", absent)])
