"""What changes during a run is a function of the images seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ocra.errors import OcraError
from ocra.presets import PRESETS, preset
from ocra.training.config import TrainingConfig
from ocra.training.sampling import image_indices, share
from ocra.training.schedule import (
    average_decay,
    crossed,
    glimpse_count,
    guide_weight,
    learning_rate,
    reconstruction_share,
    single_share,
    spread_share,
)

DEFAULT = TrainingConfig(
    images=1_000_000, learning_rate=5e-3, warmup_images=10_000, single_until_images=60_000
)


def test_default_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [learning_rate(DEFAULT, seen) for seen in range(0, 1_000_001, 1000)]
    peak = int(np.argmax(rates))
    assert 0 < rates[0] < 0.02 * DEFAULT.learning_rate
    assert 9 <= peak <= 11 and rates[peak] == pytest.approx(5e-3, rel=1e-3)
    assert all(a > b for a, b in zip(rates[peak:], rates[peak + 1 :], strict=False))
    assert rates[500] == pytest.approx(2.5e-3) and rates[-1] == pytest.approx(0, abs=1e-9)


def test_a_short_run_spends_a_tenth_of_its_images_on_the_warm_up() -> None:
    short = replace(DEFAULT, images=10_000, batch=100)
    rates = [learning_rate(short, seen) for seen in range(0, 10_000, 100)]
    assert 8 <= int(np.argmax(rates)) <= 10


@pytest.mark.parametrize("name", PRESETS)
def test_the_papers_learning_rate_never_changes(name: str) -> None:
    training = preset(name, "paper").training
    assert {learning_rate(training, seen) for seen in (0, 10**6, 10**8)} == {1e-3}
    assert single_share(training, 0) == 0 and average_decay(training, 1000) == 0


def test_single_objects_become_rarer_until_there_are_none() -> None:
    shares = [single_share(DEFAULT, seen) for seen in (0, 30_000, 60_000, 900_000)]
    assert shares == [1.0, 0.5, 0.0, 0.0]


def test_phases_of_the_curriculum_end_well_before_a_short_run_does() -> None:
    short = TrainingConfig(
        images=10_000, single_until_images=60_000, spread=0.5, spread_until_images=60_000, few_glimpses=2,
        few_until_images=60_000,
    )  # fmt: skip
    assert single_share(short, 3_000) == 0.5 and single_share(short, 6_000) == 0
    assert spread_share(short, 3_000) == 0.75 and spread_share(short, 6_000) == 1
    assert glimpse_count(short, 10, 3_000) == 6 and glimpse_count(short, 10, 6_000) == 10


def test_averages_forget_the_start() -> None:
    assert average_decay(DEFAULT, 0) == 0.1
    assert average_decay(DEFAULT, 100_000) == DEFAULT.average


def test_crossing_of_multiples() -> None:
    assert crossed(99, 100, 100) and crossed(0, 250, 100)
    assert not crossed(100, 199, 100)


def test_an_epoch_shows_every_image_once_and_the_next_shows_fresh_ones() -> None:
    first, second = image_indices(0, 1000, 0, 1000), image_indices(0, 1000, 1000, 2000)
    assert sorted(first) == list(range(1000))
    assert sorted(second) == list(range(1000, 2000))
    assert not np.array_equal(first, second - 1000)
    assert not np.array_equal(first, image_indices(1, 1000, 0, 1000))


def test_glimpses_grow_from_few_to_all() -> None:
    growing = replace(DEFAULT, few_glimpses=3, few_until_images=70_000)
    counts = [glimpse_count(growing, 10, seen) for seen in range(0, 100_000, 10_000)]
    assert counts == [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert glimpse_count(growing, 10, 9_999) == 3
    assert glimpse_count(growing, 2, 0) == 2  # never more than the model makes
    assert glimpse_count(DEFAULT, 10, 0) == 10


def test_digits_spread_from_the_middle() -> None:
    spreading = replace(DEFAULT, spread=0.2, spread_until_images=40_000)
    shares = [spread_share(spreading, seen) for seen in range(0, 60_000, 10_000)]
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert spread_share(DEFAULT, 0) == 1.0


def test_the_weight_of_reconstruction_may_fall() -> None:
    falling = replace(DEFAULT, images=1000, reconstruction_end=0.2)
    assert [reconstruction_share(falling, seen) for seen in (0, 500, 1000)] == pytest.approx([1.0, 0.6, 0.2])
    assert reconstruction_share(DEFAULT, 1000) == 1.0


def test_showing_where_to_look_fades() -> None:
    guided = replace(DEFAULT, images=50_000, guide=2.0, guide_until_images=60_000)  # four fifths of the run
    weights = [guide_weight(guided, seen) for seen in range(0, 60_000, 10_000)]
    assert weights == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.0, 0.0])
    assert guide_weight(DEFAULT, 0) == 0.0 and guide_weight(replace(DEFAULT, guide=1.0), 0) == 0.0


def test_a_batch_may_lie_across_epochs_and_depends_on_its_place_only() -> None:
    whole = image_indices(3, 100, 0, 1000)
    assert np.array_equal(image_indices(3, 100, 150, 460), whole[150:460])


@pytest.mark.parametrize(("processes", "size"), [(1, 7), (2, 128), (3, 100), (8, 8)])
def test_processes_share_a_batch_without_gap_or_overlap(processes: int, size: int) -> None:
    items = list(range(size))
    shares = [items[share(rank, processes, size)] for rank in range(processes)]
    assert [item for part in shares for item in part] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    "bad",
    [
        {"images": 0},
        {"batch": 2.5},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"average": 1.0},
        {"beta2": -0.1},
        {"clip": 0.0},
        {"patience": -1},
        {"schedule": "linear"},
        {"precision": "fp16"},
        {"checkpoint_minutes": 0.0},
        {"learning_rate": "fast"},
        {"forget_bias": float("inf")},
        {"attention_rate": -0.1},
        {"attention_init": float("inf")},
        {"read_window": 0.0},
        {"few_glimpses": 0},
        {"few_until_images": -1},
        {"spread": 1.1},
        {"background_scale": float("nan")},
        {"spread_until_images": -1},
        {"guide": -1.0},
        {"whitening": -0.1},
        {"reconstruction_end": float("nan")},
        {"guide_until_images": -1},
    ],
)
def test_impossible_settings_are_refused(bad: dict) -> None:
    with pytest.raises(OcraError, match=f"training.{next(iter(bad))}"):
        replace(DEFAULT, **bad)
