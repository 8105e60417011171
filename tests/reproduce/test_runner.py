"""The runs of a table: which they are, what a budget buys; skipped, resumed, failed."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated import TINY, tiny
from safetensors.torch import load_file

from ocra.cli.main import main as cli
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.presets import PRESETS
from ocra.reproduce import runner
from ocra.reproduce.records import read_record
from ocra.reproduce.runner import (
    budgeted_images,
    check_data,
    outstanding,
    parse_budget,
    planned_runs,
    run_one_by_one,
    share_budget,
)
from ocra.reproduce.tables import TABLES
from ocra.training.trainer import Diverged, Trainer


def go(runs: dict[str, Experiment], folder: Path) -> list[str]:
    """Carry out what is outstanding; returns what was said."""
    said: list[str] = []
    left = outstanding(runs, folder / "results", said.append)
    run_one_by_one(left, folder / "runs", folder / "results", processes=1, quiet=True, say=said.append)
    return said


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("1.5h", 5400), ("45 min", 2700), ("1d", 86400)],
)
def test_budgets_are_times_with_units(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "two hours", "h", "-1h", "2h!", "0h", "1h 2x"])
def test_other_budgets_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="2h"):
        parse_budget(text)


def test_all_tables_need_each_preset_once_for_each_seed() -> None:
    runs = planned_runs("all", (1, 2))
    assert {experiment.name for experiment in runs.values()} == set(PRESETS)
    assert [experiment.seed for experiment in runs.values()] == [1] * len(PRESETS) + [2] * len(PRESETS)


def test_a_table_or_a_seed_that_is_missing_is_told() -> None:
    with pytest.raises(UsageError, match="no table 'mnist'"):
        planned_runs("mnist", (1,))
    with pytest.raises(UsageError, match="at least one seed"):
        planned_runs("svhn", ())
    with pytest.raises(OcraError, match="at least 1, not 0"):
        planned_runs("svhn", (1,), images={"svhn": 0})


def test_a_budget_gives_all_rows_of_a_table_the_same_images() -> None:
    images = share_budget("ablations", 10 * 3600, (1, 2), lambda name: 0.002)
    assert images == {"ablations": 1_600_000}  # 0.9 · 36,000 s / (2 seeds · 5 rows · 2 ms), rounded down


def test_a_budget_that_buys_next_to_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"only [\d,]+ images.*more time or fewer --seeds"):
        share_budget("all", 60, (1, 2, 3), lambda name: 0.01)


def test_a_budget_is_measured_once_so_that_a_second_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measured(experiment: Experiment, processes: int) -> float:
        asked.append(experiment.name)
        return 0.001

    monkeypatch.setattr(runner, "measure", measured)
    first = budgeted_images("multimnist", "1h", (1,), "default", 1, tmp_path)
    assert budgeted_images("multimnist", "60m", (1,), "default", 1, tmp_path) == first
    assert asked == ["multimnist-3", "multimnist-10"]
    next(tmp_path.glob("plan-*.json")).write_text("[]")
    with pytest.raises(OcraError, match=r"plan-.*is broken; remove it"):
        budgeted_images("multimnist", "1h", (1,), "default", 1, tmp_path)


def test_speed_is_measured_by_training() -> None:
    assert 0 < runner.measure(TINY, processes=1) < 1


def test_what_is_recorded_is_not_run_again_and_pages_are_written_after_each_run(tmp_path: Path) -> None:
    first, second = tiny(1, images=64), tiny(2, images=64)
    assert "exact error" in go(first, tmp_path)[-1]
    recorded: list[int] = []
    left = outstanding({**first, **second}, tmp_path / "results", lambda text: None)
    assert left == second
    run_one_by_one(
        left, tmp_path, tmp_path / "results", processes=1, quiet=True, say=lambda text: None,
        after=lambda: recorded.append(len([*(tmp_path / "results").glob("*.json")])),
    )  # fmt: skip
    assert recorded == [2]


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,), validate = tiny(), Trainer.validate

    def interrupted(self: Trainer) -> None:
        validate(self)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(tiny(), tmp_path)
    assert not (tmp_path / "results").exists()
    said = go(tiny(), tmp_path)
    assert "exact error" in said[-1]
    weights = [
        load_file(run / "weights/last/model.safetensors") for run in (tiny_run, tmp_path / "runs" / name)
    ]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])


def test_a_run_that_diverges_is_recorded_as_failed_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.step

    def diverge(self: Trainer, *args: Any, **options: Any) -> tuple[bool, bool]:
        if self.experiment.seed == 1 and self.progress.step == 6:
            raise Diverged("The run has diverged.")
        ends = time.process_time() + 0.1  # so that its cost can be told on any machine
        while time.process_time() < ends:
            pass
        return step(self, *args, **options)

    monkeypatch.setattr(Trainer, "step", diverge)
    runs = {**tiny(1), **tiny(2)}
    go(runs, tmp_path)
    failed, other = (read_record(tmp_path / "results" / f"{name}.json") for name in runs)
    assert failed.status == "failed" and "diverged" in failed.notes and failed.cost.images == 192
    assert other.status == "finished" and 0 < failed.cost.cpu_seconds < other.cost.cpu_seconds
    assert go(runs, tmp_path)[0] == f"{failed.name}: failed before, skipped"


def test_a_run_that_diverges_at_once_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: Trainer, *args: Any, **options: Any) -> tuple[bool, bool]:
        raise Diverged("The run has diverged.")

    monkeypatch.setattr(Trainer, "step", diverge)
    assert go(tiny(1), tmp_path)[-1].endswith("failed: The run has diverged.")


def test_the_run_of_another_experiment_is_not_taken_for_this_one(tmp_path: Path) -> None:
    ((name, experiment),) = tiny(1, images=64).items()
    go({name: experiment}, tmp_path)
    other = {name: replace(experiment, stages=(replace(experiment.stages[0], lr=0.5),))}
    with pytest.raises(OcraError, match=r"other settings \(stages\.0\.lr \[0\.005, 0\.0\], not 0\.5\)"):
        go(other, tmp_path)
    (tmp_path / "results" / f"{name}.json").unlink()
    with pytest.raises(OcraError, match=r"config\.json is that of a run with other settings"):
        go(other, tmp_path)


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
    assert "tiny-64-seed1: finished before, skipped" in capsys.readouterr().out
    page = (tmp_path / "docs" / "runs.md").read_text("utf-8")
    assert "tiny-64-seed1" in page and "tiny-64-seed2" in page
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny-64-seed1", "tiny-64-seed2"}


def test_missing_data_is_told_before_anything_runs(tmp_path: Path) -> None:
    absent = replace(TINY, task=replace(TINY.task, digits="mnist", root=str(tmp_path / "nothing")))
    with pytest.raises(OcraError):
        check_data({"tiny": TINY, "absent": absent})
