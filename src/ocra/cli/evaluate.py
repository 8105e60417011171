"""ocra evaluate: score weights on a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.progress import Progress
from tyro.conf import Positional, arg

from ocra.cli.main import columns, parse
from ocra.cli.sources import task_config
from ocra.data import make_task
from ocra.errors import UsageError
from ocra.evaluation import Evaluation, evaluate
from ocra.files import printable
from ocra.model.ocra import OCRA

MOST_CONFUSIONS = 10
# Below this many glimpses in all, compiling takes longer than it saves.
WORTH_COMPILING = 1_000_000


def score(
    weights: Positional[str],
    /,
    task: Literal["multimnist", "cluttered", "svhn", "folder"] | None = None,
    images: int | None = None,
    seed: int = 0,
    split: Literal["test", "validation", "train"] = "test",
    glimpses: int | None = None,
    shift: int | None = None,
    digits: Literal["mnist", "glyphs"] | None = None,
    root: str | None = None,
    threads: int = 0,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Score weights on a task: exact error with its 95 % interval, per-object error, confusions.

    Exact error is the share of images with anything wrong in the answer. For house numbers it is that of whole
    numbers, by their length as well; they are cropped by their true boxes, for test images too.

    Example: ocra evaluate multimnist-3 --task multimnist --images 50e3

    Args:
        weights: Name of shipped weights, a folder of weights, or the folder of a run (its best weights).
        task: What to score on. Default: the task the weights were trained on.
        images: How many images. Default: the whole split.
        seed: Another seed gives another test set of the same kind (house numbers and folders: always the same).
        split: Which part of the data.
        glimpses: Number of glimpses, if not the one the model was trained with.
        shift: multimnist: largest shift in pixels; 6 gives the second test set, that of CapsNet's release.
        digits: Where single digits come from: MNIST, or glyphs drawn from fonts.
        root: Folder with the data. Default: $OCRA_DATA, then the cache folder.
        threads: Batches scored at once. 0: one for each core.
        as_json: Print one JSON object; errors are fractions.
    """
    if threads < 0:
        raise UsageError(f"--threads must be at least 1, or 0 for one on each core, not {threads}.")
    model = OCRA.from_pretrained(weights)
    changes: dict[str, Any] = {"max_shift": shift, "digits": digits, "root": root}
    config = task_config(model, task)
    if "class_names" in config.to_dict() and model.info.task:
        changes["class_names"] = model.info.class_names
    config = config.with_settings(**changes)
    source = make_task(config, split, seed)
    count = min(images or len(source), len(source))
    if count * (glimpses or model.config.glimpses) >= WORTH_COMPILING:
        model.compile_step()
    with _progress(count, shown=not as_json) as advance:
        result = evaluate(
            model, source, images=images, glimpses=glimpses, threads=threads, on_progress=advance
        )
    if as_json:
        about = {name: value for name, value in config.to_dict().items() if name in ("max_shift", "digits")}
        print(json.dumps({"weights": weights, **result.to_dict(), **about}))
    else:
        _show(result, weights)


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal that goes away at the end; nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        bar = progress.add_task("images", total=total)
        yield lambda count: progress.advance(bar, count)


def _show(result: Evaluation, weights: str) -> None:
    figures, details = result.figures, result.details
    low, high = figures["exact_error_interval"]
    print(
        printable(
            f"{weights} on {figures['n']:,} {result.split} images of {result.task} "
            f"(seed {result.seed}), {result.glimpses} glimpses"
        )
    )
    print(f"exact error       {figures['exact_error']:.2%}  (95 % interval {low:.2%} to {high:.2%})")
    print(f"per-object error  {figures['object_error']:.2%}")
    if "output_error" in details:
        print(f"wrong among the outputs, 'no digit' included  {details['output_error']:.2%}")
    print(f"reconstruction, mean squared error     {figures['reconstruction_mse']:.5f}")
    lengths = " ".join(f"{length:.2f}" for length in details["longest_capsules"])
    print(f"longest capsule at each glimpse, mean  {lengths}")
    if "lengths" in details:
        rows = [
            (length, f"{row['n']:,}", f"{row['exact_error']:.2%}", f"{row['digit_error']:.2%}")
            for length, row in details["lengths"].items()
        ]
        print("\n" + columns(rows, ("digits", "numbers", "exact error", "digit error")))
    print("\n" + columns(_errors(details["classes"].items()), ("class", "objects", "error")))
    print("\n" + columns(_confusions(details["confusion"]), ("true", "taken for", "times")))
    if "pairs" in details:
        worst = sorted(details["pairs"].items(), key=lambda item: -item[1]["error"])[:MOST_CONFUSIONS]
        print("\n" + columns(_errors(worst), ("hardest pairs", "images", "error")))


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
