"""`ocra bench`: how fast the model is on this machine."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from typing import Literal

from rich.console import Console
from rich.table import Table

from ocra.benchmark import FORMULA, MAIN_PRESETS, MODES, Row, measure_all, measure_data, measure_scaling
from ocra.cli.main import parse

Growth = dict[str, list[tuple[int, float]]]

EXAMPLE = """Measure speed and memory on this machine.

The trainer's own step is timed, with data, optimisers and averages, and what each part of it costs.
Each figure stands beside the speed of a plain matrix product, timed before and after in the same processes.

Example: ocra bench --preset multimnist-3 --mode train --seconds 5
"""


def main(args: list[str]) -> None:
    """Run the command."""
    parse(bench, args, "ocra bench", description=EXAMPLE)


def bench(
    preset: tuple[str, ...] = (),
    mode: Literal["train", "inference", "both"] = "both",
    seconds: float = 10.0,
    batch_size: int = 128,
    processes: int = 0,
    precision: Literal["fp32", "bf16"] = "fp32",
    compile: bool = True,
    plain: bool = True,
    scaling: bool = False,
    json: bool = False,
) -> None:
    """Measure.

    Args:
        preset: Presets to measure. Default: the main preset of each task.
        mode: Training, inference, or both.
        seconds: Time for each measurement, after a warm-up.
        batch_size: Images in one step, over all processes together.
        processes: Processes with one thread each. 0: one for each core.
        precision: Arithmetic of the large products.
        compile: Compile the glimpse step.
        plain: Also measure the paper's pseudocode, written plainly, for comparison.
        scaling: Also show how time grows with glimpses, batch and image area.
        json: Print one JSON object in place of the tables.
    """
    modes = MODES if mode == "both" else (mode,)
    rows = measure_all(
        preset or MAIN_PRESETS,
        modes,
        seconds=seconds,
        batch_size=batch_size,
        processes=processes,
        precision=precision,
        compile=compile,
        plain=plain,
        progress=lambda line: print(f"measuring {line} …", file=sys.stderr, flush=True),
    )
    everything = not preset and mode == "both"
    data = measure_data() if everything else {}
    growth = measure_scaling() if scaling else {}
    if json:
        _print_json(rows, data, growth)
    else:
        _print_tables(rows, data, growth)


def _print_json(rows: list[Row], data: dict[str, float], growth: Growth) -> None:
    result = {
        "gemm_gflops": sum(row.gemm_gflops for row in rows) / len(rows),
        "formula": FORMULA,
        "rows": [asdict(row) for row in rows],
        "data_images_per_second": data,
        "scaling_step_ms": growth,
    }
    print(json_format.dumps(result, indent=2))


def _print_tables(rows: list[Row], data: dict[str, float], growth: Growth) -> None:
    console = Console(soft_wrap=True)
    table = Table(caption=FORMULA, caption_justify="left")
    columns = (
        "preset", "mode", "precision", "batch", "processes", "images/s", "of peak", "× plain", "MB a process",
        "first step s", "GEMM GFLOP/s",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column in ("preset", "mode", "precision") else "right")
    for row in rows:
        table.add_row(
            row.preset,
            row.mode,
            row.precision,
            str(row.batch_size),
            str(row.processes),
            f"{row.images_per_second:.0f}",
            f"{row.share_of_peak:.0%}",
            "" if row.times_plain is None else f"{row.times_plain:.1f}",
            f"{row.peak_memory_mb:.0f}",
            f"{row.first_step_seconds:.1f}",
            f"{row.gemm_gflops:.0f}",
        )
    console.print(table)
    for row in rows:
        if row.parts:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in row.parts.items())
            console.print(f"{row.preset}, a training step: {shares}")
    for name, speed in data.items():
        console.print(f"making {name} images on one core: {speed:,.0f} images/s")
    for name, points in growth.items():
        steps = ", ".join(f"{value:,}: {time:.0f} ms" for value, time in points)
        console.print(f"training step against {name}: {steps}")
