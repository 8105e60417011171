"""ocra evaluate: score weights on a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import Progress
from tyro.conf import Positional, arg

from ocra.cli.main import Device, Split, columns, lesion_of, parse
from ocra.errors import UsageError
from ocra.evaluation import Evaluation, evaluate
from ocra.files import printable
from ocra.images.reading import endings
from ocra.prediction import given

MOST_CONFUSIONS = 10


def score(
    weights: Positional[str],
    /,
    *,
    task: str | None = None,
    images: int | None = None,
    seed: int = 0,
    split: Split = "test",
    out: Path | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
    glimpses: int | None = None,
    until: float | None = None,
    routings: int | None = None,
    lesion: tuple[str, ...] = (),
    device: Device | None = None,
    threads: int = 0,
    settings: Any,
) -> None:
    """Score weights on a task: exact error with its 95 % interval, per-object error, confusions.

    Exact error is the share of images with anything wrong in the answer. For house numbers it is that of whole
    numbers, by their length as well; they are cropped by their true boxes, for test images too.

    Example: ocra evaluate multimnist-3 --task multimnist --images 50e3 --max-shift 6

    Args:
        weights: Name of shipped weights, a folder of weights, or the folder of a run (its best weights).
        task: What to score on: a name, or package.module:Class. Default: what the weights were trained on.
        images: How many images, a fixed random sample. Default: the whole split.
        seed: Another seed gives another test set of the same kind (house numbers and folders: always the same).
        split: Which part of the data.
        out: Write a table with a row for each image: index, truth, answer, scores, windows, boxes (.csv).
        as_json: Print one JSON object; errors are fractions.
        glimpses: Number of glimpses, if not the one the model was trained with.
        until: Stop at an image once its answer is so far ahead of the next class, in capsule lengths (0.5, say).
        routings: Number of routings, if not the model's own.
        lesion: Parts to silence: encoder-memory, decoder-memory, feedback, or numbers of object capsules.
        device: Where to compute: cpu, cuda or mps.
        threads: Batches scored at once on a CPU. 0: one for each core.
    """
    if threads < 0:
        raise UsageError(f"--threads must be at least 1, or 0 for one on each core, not {threads}.")
    if out is not None:
        endings(out, (".csv",))
    with _progress(shown=not as_json) as advance:
        result = evaluate(
            weights, task, split=split, seed=seed, images=images, glimpses=glimpses, until=until, routings=routings,
            lesion=lesion_of(lesion), device=device, threads=threads, trials=out is not None, on_progress=advance,
            **given(**vars(settings)),
        )  # fmt: skip
    if out is not None:
        result.save_trials(out)
    if as_json:
        print(json.dumps({"weights": weights, **result.to_dict()}))
    else:
        print(format_evaluation(result, weights))


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal that goes away at the end; nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        bar = progress.add_task("images", total=None)
        yield lambda done, total: progress.update(bar, advance=done, total=total)


def format_evaluation(result: Evaluation, weights: str) -> str:
    """The figures as a page of text."""
    figures, details = result.figures, result.details
    low, high = figures["exact_error_interval"]
    looks = f", {result.glimpses} glimpses" if result.glimpses else ""
    where = f"{result.split} images of {result.task['name']} (seed {result.seed})"
    rows = [
        ("exact error", f"{figures['exact_error']:.2%}  (95 % interval {low:.2%} to {high:.2%})"),
        ("per-object error", f"{figures['object_error']:.2%}"),
    ]
    if "mean_glimpses" in figures:
        rows.append(("glimpses taken, mean", f"{figures['mean_glimpses']:.2f}"))
    if "output_error" in details:
        rows.append(("wrong among the outputs, 'no digit' included", f"{details['output_error']:.2%}"))
    if "reconstruction_mse" in figures:
        rows.append(("reconstruction, mean squared error", f"{figures['reconstruction_mse']:.5f}"))
    if details["longest_capsules"]:
        lengths = " ".join(f"{length:.2f}" for length in details["longest_capsules"])
        rows.append(("longest capsule at each glimpse, mean", lengths))
    width = max(len(name) for name, _ in rows)
    parts = [
        "\n".join(
            [
                printable(f"{weights} on {figures['n']:,} {where}{looks}"),
                *(f"{name:{width}}  {value}" for name, value in rows),
            ]
        )
    ]
    if "lengths" in details:
        numbers = [
            (length, f"{row['n']:,}", f"{row['exact_error']:.2%}", f"{row['digit_error']:.2%}")
            for length, row in details["lengths"].items()
        ]
        parts.append(columns(numbers, ("digits", "numbers", "exact error", "digit error")))
    parts.append(columns(_errors(details["classes"].items()), ("class", "objects", "error")))
    parts.append(columns(_confusions(details["confusion"]), ("true", "taken for", "times")))
    if "pairs" in details:
        worst = sorted(details["pairs"].items(), key=lambda item: -item[1]["error"])[:MOST_CONFUSIONS]
        parts.append(columns(_errors(worst), ("hardest pairs", "images", "error")))
    return "\n\n".join(parts)


def _errors(rows: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str]]:
    return [(name, f"{row['n']:,}", f"{row['error']:.2%}") for name, row in rows]


def _confusions(confusion: dict[str, Any]) -> list[tuple[str, ...]]:
    """The most frequent mistakes."""
    mistakes = [
        (count, true, answered)
        for true, row in zip(confusion["true"], confusion["counts"], strict=True)
        for answered, count in zip(confusion["answered"], row, strict=True)
        if count and true != answered
    ]
    return [
        (true, answered, f"{count:.0f}")
        for count, true, answered in sorted(mistakes)[: -MOST_CONFUSIONS - 1 : -1]
    ]


def main(args: list[str]) -> None:
    """Run `ocra evaluate` with these arguments."""
    parse(score, args, "ocra evaluate")
