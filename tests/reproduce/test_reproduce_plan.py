"""Which runs are made, and how a budget is shared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import TINY

from ocra.errors import OcraError, UsageError
from ocra.presets import PRESETS, preset
from ocra.reproduce import plan
from ocra.reproduce.plan import (
    TABLES,
    job_name,
    make_jobs,
    parse_budget,
    planned_images,
    scaled,
    share_budget,
    short_number,
)


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


def test_every_preset_is_in_a_table() -> None:
    assert {name for table in TABLES.values() for name in table.presets} == set(PRESETS)


def test_all_tables_need_each_preset_once_for_each_seed() -> None:
    jobs = make_jobs("all", (1, 2))
    assert len(jobs) == 2 * len(PRESETS)
    assert [job.experiment.seed for job in jobs] == [1] * len(PRESETS) + [2] * len(PRESETS)
    assert len({job.name for job in jobs}) == len(jobs)


def test_a_table_or_a_seed_that_is_missing_is_told() -> None:
    with pytest.raises(UsageError, match="no table 'mnist'"):
        make_jobs("mnist", (1,))
    with pytest.raises(UsageError, match="at least one seed"):
        make_jobs("svhn", ())
    with pytest.raises(UsageError, match="at least 1, not 0"):
        make_jobs("svhn", (1,), images={"svhn": 0})


@pytest.mark.parametrize(
    ("number", "text"),
    [(3_000_000, "3M"), (1_250_000, "1.25M"), (12_800, "12.8k"), (640, "640"), (1_234_567, "1234567")],
)
def test_numbers_in_names_are_short_and_exact(number: int, text: str) -> None:
    assert short_number(number) == text


def test_names_say_preset_recipe_images_and_seed() -> None:
    assert job_name(scaled(replace(preset("svhn-12"), seed=4), 5_000_000)) == "svhn-12-5M-seed4"
    assert job_name(preset("cluttered-5", "paper")) == "cluttered-5-paper-180M-seed0"
    assert job_name(TINY) == "tiny-320-seed0"


def test_a_shorter_run_has_shorter_first_phases_and_validates_as_often() -> None:
    training = scaled(preset("multimnist-3"), 40_000).training
    assert training.images == 40_000
    assert training.warmup_images <= 4_000
    assert training.single_until_images <= 12_000
    assert 0 < scaled(preset("svhn-12"), 40_000).training.few_until_images <= 20_000
    assert training.validate_every_images <= 2_000


def test_a_budget_gives_all_rows_of_a_table_the_same_images() -> None:
    images = share_budget("ablations", 10 * 3600, (1, 2), lambda name: 0.002)
    assert images == {"ablations": 1_600_000}  # 0.9 · 36,000 s / (2 seeds · 5 rows · 2 ms), rounded down
    assert len({job.experiment.training.images for job in make_jobs("ablations", (1, 2), images=images)}) == 1


def test_a_budget_that_buys_next_to_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"only [\d,]+ images.*more time or fewer --seeds"):
        share_budget("all", 60, (1, 2, 3), lambda name: 0.01)


def test_a_budget_is_measured_once_so_that_a_second_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(plan, "measure", lambda experiment, processes: asked.append(experiment.name) or 0.001)
    first = planned_images("multimnist", "1h", (1,), "default", 1, tmp_path)
    assert planned_images("multimnist", "60m", (1,), "default", 1, tmp_path) == first
    assert asked == ["multimnist-3", "multimnist-10"]
    kept = next(tmp_path.glob("plan-*.json"))
    assert json.loads(kept.read_text()) == first
    kept.write_text("[]")
    with pytest.raises(OcraError, match=r"plan-.*is broken; remove it"):
        planned_images("multimnist", "1h", (1,), "default", 1, tmp_path)


def test_speed_is_measured_by_training() -> None:
    assert 0 < plan.measure(TINY, processes=1) < 1
