"""ocra evaluate and ocra bench: how good a model is, and how fast."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.progress import Progress
from tyro.conf import OmitArgPrefixes, arg

from ocra import benchmark, evaluation
from ocra.cli.main import Device, Interventions, Split, columns
from ocra.errors import UsageError
from ocra.files import printable
from ocra.images.reading import endings
from ocra.model.weights import resolve, save_info
from ocra.prediction import given, load

MOST_CONFUSIONS = 10


def evaluate(
    weights: str,
    /,
    *,
    task: str | None = None,
    images: int | None = None,
    seed: int = 0,
    split: Split = "test",
    out: Path | None = None,
    as_json: Annotated[bool, arg(name="json")] = False,
    device: Device | None = None,
    threads: int = 0,
    interventions: OmitArgPrefixes[Interventions],
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
        device: Where to compute: cpu, cuda or mps.
        threads: Batches scored at once on a CPU. 0: one for each core.
    """
    if threads < 0:
        raise UsageError(f"--threads must be at least 1, or 0 for one on each core, not {threads}.")
    if out is not None:
        endings(out, (".csv",))
    with _progress(shown=not as_json) as advance:
        result = evaluation.evaluate(
            weights, task, split=split, seed=seed, images=images, device=device, threads=threads,
            trials=out is not None, on_progress=advance, **interventions.given(), **given(**vars(settings)),
        )  # fmt: skip
    if out is not None:
        result.save_trials(out)
    if as_json:
        print(json.dumps({"weights": weights, **result.to_dict()}))
    else:
        print(_format_evaluation(result, weights))


def calibrate(
    weights: str,
    /,
    *,
    images: int = 5_000,
    task: str | None = None,
    device: Device | None = None,
    settings: Any,
) -> None:
    """Find out how sure the answers of weights are, and write it into their config.json.

    On validation images, which no network was trained on, margins between scores are made probabilities by a
    temperature and an offset. 'ocra predict' then says how sure it is, and "unsure" below a threshold at which the
    answers that are left are wrong half as often. A network that always names two objects, say, also learns to tell
    its images from single objects and noise, which are "unsure" too. 'ocra evaluate' tells what that comes to on test
    images.

    Example: ocra calibrate runs/mine

    Args:
        weights: A folder of weights, the folder of a run (its best weights), or the name of shipped weights.
        images: How many validation images.
        task: Images of another task than the weights were trained on.
        device: Where to compute: cpu, cuda or mps.
    """
    folder = resolve(weights)
    model = load(folder, device)
    found = evaluation.calibrate(model, task, images=images, **given(**vars(settings)))
    save_info(folder, replace(model.info, calibration=found))
    print(
        printable(
            f"Temperature {found.temperature:.3g}, offset {found.offset:.3g}, threshold {found.threshold:.3g}, found "
            f"on {found.images:,} validation images, are in {folder / 'config.json'}."
        )
    )


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal that goes away at the end; nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        bar = progress.add_task("images", total=None)
        yield lambda done, total: progress.update(bar, advance=done, total=total)


def _format_evaluation(result: evaluation.Evaluation, weights: str) -> str:
    """The figures as a page of text."""
    figures, details, confusion = result.figures, result.details, result.details["confusion"]
    low, high = figures["exact_error_interval"]
    rows = {
        "exact error": f"{figures['exact_error']:.2%}  (95 % interval {low:.2%} to {high:.2%})",
        "per-object error": f"{figures['object_error']:.2%}",
    }
    if "mean_glimpses" in figures:
        rows["glimpses taken, mean"] = f"{figures['mean_glimpses']:.2f}"
    if "output_error" in details:
        rows["wrong among the outputs, 'no digit' included"] = f"{details['output_error']:.2%}"
    if "reconstruction_mse" in figures:
        rows["reconstruction, mean squared error"] = f"{figures['reconstruction_mse']:.5f}"
    if lengths := details["longest_capsules"]:
        rows["longest capsule at each glimpse, mean"] = " ".join(f"{length:.2f}" for length in lengths)
    looks = f", {result.glimpses} glimpses" if result.glimpses else ""
    title = f"{weights} on {figures['n']:,} {result.split} images of {result.task['name']} (seed {result.seed}){looks}"
    width = max(map(len, rows))
    parts = ["\n".join([printable(title), *(f"{name:{width}}  {value}" for name, value in rows.items())])]

    def add_table(titles: str, found: dict[str, dict[str, Any]], *errors: str) -> None:
        cells = [
            [name, f"{row['n']:,}", *(f"{row[key]:.2%}" for key in errors)] for name, row in found.items()
        ]
        parts.append(columns(cells, titles.split(", ")))

    if "lengths" in details:
        add_table(
            "digits, numbers, exact error, digit error", details["lengths"], "exact_error", "digit_error"
        )
    add_table("class, objects, error", details["classes"], "error")
    mistakes = [
        (count, true, answered)
        for true, row in zip(confusion["true"], confusion["counts"], strict=True)
        for answered, count in zip(confusion["answered"], row, strict=True)
        if count and true != answered
    ]
    worst = sorted(mistakes, reverse=True)[:MOST_CONFUSIONS]
    named = [(true, answered, f"{count:.0f}") for count, true, answered in worst]
    parts.append(columns(named, ("true", "taken for", "times")))
    if "pairs" in details:
        hardest = sorted(details["pairs"].items(), key=lambda item: -item[1]["error"])[:MOST_CONFUSIONS]
        add_table("hardest pairs, images, error", dict(hardest), "error")
    return "\n\n".join(parts)


def bench(
    preset: tuple[str, ...] = (),
    mode: Literal["train", "inference", "both"] = "both",
    seconds: float = 10.0,
    batch_size: int = 128,
    processes: int = 0,
    precision: Literal["auto", "fp32", "bf16", "both"] = "fp32",
    compile: bool = True,
    plain: bool = True,
    scaling: bool = False,
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Measure speed and memory on this machine.

    The trainer's own step is timed, with data, optimisers and averages, and what each part of it costs.
    Each figure stands beside the speed of a plain matrix product of the same precision, timed between the steps in
    the same processes.

    Example: ocra bench --preset multimnist-3 --mode train --seconds 5

    Args:
        preset: Presets to measure. Default: the main preset of each task.
        mode: Training, inference, or both.
        seconds: Time for each measurement, after a warm-up.
        batch_size: Images in one step, over all processes together.
        processes: Processes with one thread each. 0: one for each core.
        precision: Arithmetic of the large products. auto: bfloat16 where it is faster. both: one row for each.
        compile: Compile the glimpse step.
        plain: Also measure the paper's pseudocode, written plainly, for comparison.
        scaling: Also show how time grows with glimpses, batch and image area, and falls with processes.
        as_json: Print one JSON object in place of the tables.
    """
    rows = benchmark.measure_all(
        preset or benchmark.MAIN_PRESETS, benchmark.MODES if mode == "both" else (mode,), seconds=seconds,
        batch_size=batch_size, processes=processes, precision=precision, compile=compile, plain=plain,
        progress=lambda line: print(f"measuring {line} …", file=sys.stderr, flush=True),
    )  # fmt: skip
    data = benchmark.measure_data() if not preset and mode == "both" else {}
    growth = benchmark.measure_scaling() if scaling else {}
    if as_json:
        result = {
            "formula": benchmark.FORMULA,
            "rows": [asdict(row) for row in rows], "data_images_per_second": data, "scaling_step_ms": growth,
        }  # fmt: skip
        print(json.dumps(result, indent=2))
        return
    titles = (
        "preset", "mode", "precision", "batch", "processes", "images/s", "of peak", "× plain", "MB a process",
        "first step s", "GEMM GFLOP/s",
    )  # fmt: skip
    cells = [
        [
            row.preset, row.mode, row.precision, str(row.batch_size), str(row.processes),
            f"{row.images_per_second:.0f}", f"{row.share_of_peak:.0%}",
            "" if row.times_plain is None else f"{row.times_plain:.1f}", f"{row.peak_memory_mb:.0f}",
            f"{row.first_step_seconds:.1f}", f"{row.gemm_gflops:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    print(columns(cells, titles))
    print(benchmark.FORMULA)
    for row in rows:
        if row.parts:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in row.parts.items())
            print(f"{row.preset}, a training step in {row.precision}: {shares}")
    for name, speed in data.items():
        print(f"making {name} images on one core: {speed:,.0f} images/s")
    for name, points in growth.items():
        steps = ", ".join(f"{value:,}: {time:.0f} ms" for value, time in points)
        print(f"training step against {name}: {steps}")
