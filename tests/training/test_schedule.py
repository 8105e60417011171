"""What a step of a run does is a function of the images seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ocra.experiment import Stage
from ocra.presets import PRESETS, preset
from ocra.training.schedule import crossed, ema_decay, image_indices, moment, share_of

STAGE = Stage(
    1000, batch_size=10, lr=(8e-3, 2e-3), shampoo_lr=0.0, reconstruction=(10.0, 5.0), spread=(0.5, 1.0)
)


def rates(stage: Stage) -> list[float]:
    return [moment([stage], seen, 3).lr for seen in range(0, stage.images + 1, stage.batch_size)]


def test_pairs_of_values_go_linearly_from_start_to_end() -> None:
    start, middle, end = (moment([STAGE], seen, 3) for seen in (0, 500, 1000))
    assert [now.weights.reconstruction for now in (start, middle, end)] == [10, 7.5, 5]
    assert [now.spread for now in (start, middle, end)] == [0.5, 0.75, 1]
    assert {now.weights.cross_entropy for now in (start, middle, end)} == {0}


def test_learning_rates_fall_along_a_cosine_or_a_line() -> None:
    cosine, linear = rates(STAGE), rates(replace(STAGE, schedule="linear"))
    for course in (cosine, linear):
        assert (course[0], course[50], course[-1]) == pytest.approx((8e-3, 5e-3, 2e-3))
        assert all(earlier > later for earlier, later in pairwise(course))
    assert cosine[25] > linear[25] == pytest.approx(6.5e-3) and cosine[75] < linear[75]


def test_a_warm_up_rises_from_the_first_step_on_and_changes_nothing_afterwards() -> None:
    warm, plain = rates(replace(STAGE, lr=8e-3, warmup_images=100)), rates(replace(STAGE, lr=8e-3))
    assert warm[:10] == pytest.approx([8e-4 * step for step in range(1, 11)])
    assert warm[10:] == plain[10:]


@pytest.mark.parametrize("pair", [(1, 4), (4, 1)])
def test_glimpses_spend_equal_time_at_every_number_between_both_ends(pair: tuple[int, int]) -> None:
    counts = [moment([replace(STAGE, glimpses=pair)], seen, 9).glimpses for seen in range(0, 1001, 10)]
    order = sorted({1, 2, 3, 4}, reverse=pair[0] > pair[1])
    assert counts[:-1] == [number for number in order for _ in range(25)] and counts[-1] == pair[1]


def test_glimpses_are_the_models_own_unless_a_stage_says_otherwise() -> None:
    assert moment([STAGE], 0, 9).glimpses == 9
    assert moment([replace(STAGE, glimpses=2)], 0, 9).glimpses == 2


def test_a_run_is_in_one_stage_after_the_other() -> None:
    stages = [STAGE, replace(STAGE, images=95, lr=1e-3), replace(STAGE, batch_size=20)]
    course = [moment(stages, seen, 3) for seen in (0, 990, 1000, 1090, 1100, 5000)]
    assert [now.index for now in course] == [0, 0, 1, 1, 2, 2]  # 95 images are ten whole batches
    assert [now.first for now in course] == [True, False, True, False, True, False]
    assert course[2].lr == course[3].lr == 1e-3


def test_the_images_drawn_never_repeat_or_leave_a_gap() -> None:
    stages = [STAGE, replace(STAGE, images=95, batch_size=16, select=3), replace(STAGE, images=50, select=2)]
    seen, drawn = 0, 0
    while seen < sum(stage.steps * stage.batch_size for stage in stages):
        now = moment(stages, seen, 3)
        assert now.drawn == drawn
        seen, drawn = seen + now.stage.batch_size, drawn + now.stage.batch_size * now.stage.select
    assert drawn == 1000 + 96 * 3 + 50 * 2


@pytest.mark.parametrize("name", PRESETS)
def test_the_papers_learning_rate_never_changes(name: str) -> None:
    stages = preset(name, "paper").stages
    assert {moment(stages, seen, 3).lr for seen in (0, 10**6, 10**8)} == {1e-3}


def test_averages_forget_the_start() -> None:
    assert ema_decay(STAGE, 0) == 0.1 and ema_decay(STAGE, 100_000) == STAGE.ema_decay
    assert ema_decay(replace(STAGE, ema_decay=0.0), 1000) == 0


def test_crossing_of_multiples() -> None:
    assert crossed(99, 100, 100) and crossed(0, 250, 100)
    assert not crossed(100, 199, 100)


def test_an_epoch_shows_every_image_once_and_the_next_shows_fresh_ones() -> None:
    first, second = image_indices(0, 1000, 0, 1000), image_indices(0, 1000, 1000, 2000)
    assert sorted(first) == list(range(1000)) and sorted(second) == list(range(1000, 2000))
    assert not np.array_equal(first, second - 1000)
    assert not np.array_equal(first, image_indices(1, 1000, 0, 1000))


def test_a_batch_may_lie_across_epochs_and_depends_on_its_place_only() -> None:
    whole = image_indices(3, 100, 0, 1000)
    assert np.array_equal(image_indices(3, 100, 150, 460), whole[150:460])


@pytest.mark.parametrize(("processes", "size"), [(1, 7), (2, 128), (3, 100), (8, 8)])
def test_processes_share_a_batch_without_gap_or_overlap(processes: int, size: int) -> None:
    items = list(range(size))
    shares = [items[share_of(rank, processes, size)] for rank in range(processes)]
    assert [item for part in shares for item in part] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
