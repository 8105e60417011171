"""Runs that go on from other runs: what a network cost from its random beginning on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ocra.model.weights import read_config, shipped
from ocra.reproduce.results import Result
from ocra.reproduce.words import hours, millions


@dataclass(frozen=True)
class Lineage:
    """A run and all runs whose weights it goes back to, the newest first."""

    runs: tuple[Result, ...]
    unknown: str | None
    """weights that the oldest of these runs started from and of which no run is recorded"""

    @property
    def images(self) -> int:
        """Images seen by all runs together."""
        return sum(run.images for run in self.runs)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all runs together."""
        return sum(run.cpu_seconds for run in self.runs)

    @property
    def before(self) -> int:
        """Images seen by the runs before the newest."""
        return self.images - self.runs[0].images

    @property
    def count(self) -> str:
        """Such as: 5 runs."""
        more = f", and those of {self.unknown}, which are not recorded" if self.unknown else ""
        return f"{len(self.runs)} run" + "s" * (len(self.runs) > 1) + more

    def in_words(self) -> str:
        """Such as: 9 M images, 6.4 CPU hours in 5 runs."""
        return f"{millions(self.images)} images, {hours(self.cpu_seconds)} CPU hours in {self.count}"


def shipped_result(name: str, results: Iterable[Result]) -> Result | None:
    """The run whose weights are shipped under this name, if it is among the results."""
    if name not in shipped():
        return None
    own = read_config(name)[1].record.get("result")
    return next((result for result in results if result.name == own), None)


def lineage(result: Result, results: Iterable[Result]) -> Lineage:
    """The run of a result and those it goes back to, as far as they are among the results."""
    known = {other.name: other for other in results if other.name != result.name}
    runs, source = [result], result.start_from
    while source in known:
        runs.append(known.pop(source))
        source = runs[-1].start_from
    return Lineage(tuple(runs), source)
