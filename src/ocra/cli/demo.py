"""ocra demo: the system at work on test digits, in under a minute."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ocra.cli import sources
from ocra.cli.main import parse
from ocra.data import Task, TaskConfig, get_task, make_task, task_config, task_names
from ocra.errors import OcraError, UsageError
from ocra.evaluation import check_fit, evaluate
from ocra.model.ocra import OCRA
from ocra.model.weights import shipped
from ocra.viz import save_look
from ocra.viz.grid import draw_results
from ocra.viz.record import Record, records
from ocra.viz.style import save_figure

PREFERRED = "multimnist-3"
SHOWN, IN_GRID = 6, 50
OTHER = {"multimnist": "cluttered-5", "cluttered": "multimnist-3"}


def main(args: list[str]) -> None:
    """Run the command."""
    parse(demo, args, "ocra demo")


def demo(out: Path = Path("demo"), images: int = 3000, weights: str = PREFERRED) -> None:
    """Recognise test digits with shipped weights, print the error, and draw how the model looks.

    Example: ocra demo --weights cluttered-5

    Args:
        out: Folder for the pictures.
        images: Test images to score.
        weights: multimnist-3, multimnist-10, cluttered-5, or a folder with weights for such digits.
    """
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()
    if weights == PREFERRED and PREFERRED not in shipped():
        raise OcraError("This build ships no weights; train some with: ocra train multimnist-3")
    model = OCRA.from_pretrained(weights)
    task, digits = _test_digits(console, sources.task_config(model))
    check_fit(model.config, task)
    console.print(
        f"[bold]{escape(weights)}[/bold]: {model.parameter_count:,} parameters, {model.config.glimpses} glimpses an "
        f"image, on {task.scene} {digits}.\n"
    )
    batch = task.batch(np.arange(IN_GRID))
    seen = records(
        model,
        batch.images,
        truths=batch.names(task.class_names),
        titles=[f"test image {i}" for i in range(IN_GRID)],
    )
    console.print(_answers(seen[:SHOWN]))
    figures = evaluate(model, task, images=images).figures
    low, high = figures["exact_error_interval"]
    console.print(
        f"\nOf {figures['n']:,} test images {figures['exact_error']:.1%} were not wholly right "
        f"(95 % interval {low:.1%} to {high:.1%}); "
        f"of single digits {figures['object_error']:.1%} were wrong.\n"
    )
    _draw(seen, out, f"Test images of {weights}")
    console.print(
        f"Open {out}/look.png (what it saw and wrote), {out}/look.gif (moving), {out}/grid.png (fifty).",
        markup=False,
    )
    console.print(f"Try next:  ocra predict YOUR_PICTURE.png     ocra demo --weights {OTHER[task.name]}")
    console.print(
        "           ocra evaluate multimnist-3        ocra app   (needs pip install 'ocra-vision\\[app]')"
    )
    console.print(f"[dim]{time.monotonic() - started:.0f} seconds[/dim]")


def _test_digits(console: Console, own: TaskConfig) -> tuple[Task, str]:
    """The weights' own task with MNIST's test digits, fetched if need be, or else with digits drawn from fonts."""
    if (glyphs := own.offline()) is None:
        scenes = [name for name in task_names() if get_task(name).scene]
        raise UsageError(
            f"The demo shows {' and '.join(scenes)}, not {own.name}; try: ocra look --task {own.name}"
        )
    if own.to_dict()["digits"] == "mnist":
        try:
            return make_task(
                task_config({**own.to_dict(), "root": None, "download": True}), "test"
            ), "MNIST test digits"
        except OcraError as error:
            console.print(f"[yellow]MNIST is not at hand: {escape(str(error))}[/yellow]")
            console.print(
                "[yellow]Going on with digits drawn from fonts, which the model was not trained on: expect more "
                "errors than the results table says.[/yellow]\n"
            )
    return make_task(glyphs, "test"), "digits drawn from fonts"


def _answers(seen: list[Record]) -> Table:
    """What the model says of the first images, and which capsule won at each glimpse."""
    table = Table("image", "there is", "the model says", "winner at each glimpse", "")
    for index, record in enumerate(seen):
        table.add_row(
            str(index),
            " ".join(record.truth or ()),
            " ".join(record.prediction.labels),
            "  ".join(f"{glimpse.winner} ({glimpse.length:.2f})" for glimpse in record.prediction.glimpses),
            "[green]right[/green]" if record.right else "[red]wrong[/red]",
        )
    return table


def _draw(seen: list[Record], out: Path, title: str) -> None:
    """The figure and the animation of one image, and a grid of all."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = next((record for record in seen if record.right and _won_once_each(record)), seen[0])
    save_look(chosen, out / "look.png")
    save_look(chosen, out / "look.gif")
    save_figure(draw_results(seen, title=title), out / "grid.png")


def _won_once_each(record: Record) -> bool:
    """Whether each object was the winner at some glimpse: the clearest case to look at."""
    return set(record.truth or ()) <= {glimpse.winner for glimpse in record.prediction.glimpses}
