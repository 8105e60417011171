"""Write the tables of README.md from recorded results: python benchmarks/readme.py

Accuracy comes from the results of the shipped weights, speed from benchmarks/results/speed.json, which
`python benchmarks/speed.py --record` measures. A test holds README.md against what this writes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ocra.files import write_text_atomically
from ocra.model.weights import shipped
from ocra.presets import PRESETS
from ocra.reproduce.groups import test_of
from ocra.reproduce.lineage import lineage, shipped_result
from ocra.reproduce.milestones import AUTHORS_ERROR, AUTHORS_IMAGES, milestones
from ocra.reproduce.results import read_results
from ocra.reproduce.scores import evaluate_command
from ocra.reproduce.words import hours, interval, markdown_table, millions, percent

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
SPEED = RESULTS / "speed.json"


def accuracy_table() -> str:
    """One row for each of the shipped weights."""
    results = read_results(RESULTS)
    rows = []
    for name in shipped():
        result = shipped_result(name, results)
        assert result is not None
        test = test_of(result)
        assert test is not None
        line = lineage(result, results)
        rows.append(
            [
                f"`{name}`",
                f"**{percent(test['exact_error'])}** ({interval(test)})",
                f"{test['n']:,}",
                f"{millions(line.images)} in {line.count}",
                hours(line.cpu_seconds),
                PRESETS[name].paper_error,
                f"`{evaluate_command(name, test)}`",
            ]
        )
    titles = [
        "weights", "exact error, % (95 % interval)", "test images", "trained on", "CPU hours",
        "the paper's error, % (not ours)", "made again by",
    ]  # fmt: skip
    return markdown_table(titles, rows)


def milestone_sentence() -> str:
    """How soon the fastest learner had the error of the authors' program; it began with random weights."""
    result, point = min(milestones(read_results(RESULTS)), key=lambda pair: pair[1].images)
    return (
        f"From random weights `multimnist-3` first has {percent(AUTHORS_ERROR)} % after {point.images:,} images and "
        f"{point.cpu_seconds:,.0f} CPU seconds\n(validation, seed {result.seed}); the authors' program needed "
        f"{AUTHORS_IMAGES:,} images for that (quoted).\n"
        f"`python benchmarks/time_to_error.py benchmarks/results/{result.name}.json`"
    )


def speed_table() -> str:
    """One row for each main preset, training and inference."""
    rows = [_speed_row(row) for row in json.loads(SPEED.read_text("utf-8"))["rows"]]
    titles = ["preset", "mode", "images/s", "of the GEMM peak", "× plain pseudocode", "MB a process"]
    return markdown_table(titles, rows, numbers_from=2)


def _speed_row(row: dict[str, Any]) -> list[str]:
    return [
        f"`{row['preset']}`",
        row["mode"],
        f"{row['images_per_second']:,.0f}",
        f"{row['share_of_peak']:.0%}",
        f"{row['times_plain']:.1f}",
        f"{row['peak_memory_mb']:,.0f}",
    ]


def filled(text: str) -> str:
    """README's text with the tables between its markers written anew."""
    parts = {"accuracy": accuracy_table(), "milestone": milestone_sentence(), "speed": speed_table()}
    for name, table in parts.items():
        pattern = rf"(<!-- {name}:[^>]*-->\n).*?(<!-- end of {name} -->)"
        text, count = re.subn(
            pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.S
        )
        if count != 1:
            raise SystemExit(f"README.md has no place for '{name}'.")
    return text


if __name__ == "__main__":
    write_text_atomically(README, filled(README.read_text("utf-8")))
