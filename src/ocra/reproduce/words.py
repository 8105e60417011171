"""Numbers as they are written in tables and cards, and tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

NOTHING = "–"


def percent(share: float) -> str:
    """8.12 for 0.0812."""
    return f"{100 * share:.2f}"


def spread(errors: Sequence[float]) -> str:
    """Mean ± sample standard deviation in percent."""
    if not errors:
        return NOTHING
    if len(errors) == 1:
        return percent(errors[0])
    return f"{percent(statistics.fmean(errors))} ± {percent(statistics.stdev(errors))}"


def interval(test: dict[str, Any]) -> str:
    """The 95 % interval of an error in percent, such as 7.60 to 8.67."""
    low, high = test["exact_error_interval"]
    return f"{percent(low)} to {percent(high)}"


def millions(count: float) -> str:
    """A number of images: 1.2 M, 150 k, 640."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}" if count < 1000 * size else f"{count / size:,.0f} {letter}"
    return f"{count:.0f}"


def hours(seconds: float) -> str:
    """Hours with two digits that mean something."""
    value = seconds / 3600
    if value < 0.01:
        return "< 0.01"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def short(commit: str) -> str:
    """The first letters of a commit, and whether its source was changed."""
    name, *changed = commit.split(maxsplit=1)
    return " ".join([name[:7], *changed])


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int = 1) -> str:
    """A table; columns from `numbers_from` on are set to the right."""
    rules = ["---" if k < numbers_from else "---:" for k in range(len(titles))]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rules, *cells))
