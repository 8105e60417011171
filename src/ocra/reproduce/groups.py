"""Runs of one experiment under several seeds, and their mean."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ocra.presets import PRESETS, preset
from ocra.reproduce.plan import scaled
from ocra.reproduce.results import Result
from ocra.reproduce.scores import main_evaluation
from ocra.reproduce.settings import differences, settings

# Chance is 97.8 % or more on all tasks: a run above this has learnt next to nothing.
HOPELESS = 0.9


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    results: list[Result]

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def preset(self) -> str:
        return self.first.preset

    @property
    def images(self) -> int:
        """Images seen, the most of any of the runs."""
        return max(result.images for result in self.results)

    @property
    def budget(self) -> int:
        """Images each run was to see, or did see where it was stopped by hand."""
        return self.first.images if self.first.stopped_early else self.first.planned

    @property
    def scored(self) -> list[Result]:
        """Runs that count in the mean: those that were tested and did not fail."""
        return [result for result in self.results if not has_failed(result) and test_of(result) is not None]

    @property
    def failures(self) -> int:
        return sum(has_failed(result) for result in self.results)

    def figures(self, figure: str, shift: int | None = None) -> list[float]:
        """A figure of the test of each run that has it."""
        tests = [main_evaluation(result.evaluations, result.config, shift) for result in self.scored]
        return [test[figure] for test in tests if test is not None and test.get(figure) is not None]

    @property
    def error(self) -> float | None:
        """Mean exact error as a fraction, or None if no run counts."""
        errors = self.figures("exact_error")
        return statistics.fmean(errors) if errors else None

    @property
    def changes(self) -> str:
        """How the settings differ from the preset's, in words."""
        return changes_to_preset(self.first.config)

    def mean(self, value: Callable[[Result], float]) -> float:
        """Mean of a number over all runs."""
        return statistics.fmean(value(result) for result in self.results)


def changes_to_preset(config: dict[str, Any]) -> str:
    """How an experiment differs from the preset it is named after, its length and start apart, in words."""
    name, images = config.get("name", ""), config["training"]["images"]
    if name not in PRESETS:
        return ""
    told_elsewhere = ("training.images", "training.start_from")
    ours, papers = (
        {
            key: here
            for key, (here, _) in differences(config, scaled(preset(name, recipe), images).to_dict()).items()
            if key not in told_elsewhere
        }
        for recipe in ("default", "paper")
    )
    if ours and not papers:
        return "the paper's recipe of training"
    return ", ".join(f"{key} {here}" for key, here in ours.items())


def group_results(results: list[Result]) -> list[Group]:
    """Results that differ in nothing but their seed together; the groups that saw most images first."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        # Where a run failed does not matter; where one was stopped by hand does.
        seen = result.images if result.stopped_early else None
        key = (result.preset, tuple(sorted(settings(result.config).items(), key=lambda item: item[0])), seen)
        groups.setdefault(repr(key), []).append(result)
    made = [Group(sorted(members, key=lambda result: result.seed)) for members in groups.values()]
    return sorted(made, key=lambda group: (-group.images, group.first.name))


def test_of(result: Result) -> dict[str, Any] | None:
    """The test that a result is judged by."""
    return main_evaluation(result.evaluations, result.config)


def has_failed(result: Result) -> bool:
    """Whether a run diverged, or ended having learnt next to nothing."""
    test = test_of(result)
    return result.failed or (result.ended and test is not None and test["exact_error"] > HOPELESS)
