"""ocra demo and ocra app: the system at work on test digits, in under a minute, and on a page of its own."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ocra.cli.main import Device, columns
from ocra.data import Task, get_task, make_task, task_names
from ocra.errors import OcraError, UsageError
from ocra.evaluation import check_fit, config_for, evaluate
from ocra.files import printable
from ocra.model.network import Network
from ocra.model.weights import read_config, shipped
from ocra.prediction import DEFAULT_WEIGHTS, load
from ocra.viz import save_look
from ocra.viz.grid import draw_results
from ocra.viz.record import Record, records
from ocra.viz.style import save_figure

SHOWN, IN_GRID = 6, 50


def demo(
    out: Path = Path("demo"), images: int = 3000, weights: str = DEFAULT_WEIGHTS, device: Device | None = None
) -> None:
    """Recognise test digits with shipped weights, print the error, and draw how the model looks.

    Example: ocra demo --weights cluttered-5

    Args:
        out: Folder for the figures.
        images: Test images to score.
        weights: multimnist-3, multimnist-10, cluttered-5, or a folder with weights for such digits.
        device: Where to compute: cpu, cuda or mps.
    """
    started = time.monotonic()
    model = load(weights, device)
    task, digits = _test_digits(model)
    check_fit(model.config, task)
    size = f"{model.parameter_count:,} parameters, {model.config.glimpses} glimpses an image"
    print(printable(f"{weights}: {size}, on {task.scene} {digits}.") + "\n")
    batch = task.batch(np.arange(IN_GRID))
    titles = [f"test image {i}" for i in range(IN_GRID)]
    seen = records(model, batch.images, truths=batch.names(task.class_names), titles=titles)
    print(_answers(seen[:SHOWN]))
    figures = evaluate(model, task, images=images).figures
    low, high = figures["exact_error_interval"]
    print(
        f"\nOf {figures['n']:,} test images {figures['exact_error']:.1%} were not wholly right (95 % interval "
        f"{low:.1%} to {high:.1%}); of single digits {figures['object_error']:.1%} were wrong.\n"
    )
    out.mkdir(parents=True, exist_ok=True)
    chosen = next((record for record in seen if record.right and _won_once_each(record)), seen[0])
    save_look(chosen, out / "look.png")
    save_look(chosen, out / "look.gif")
    save_figure(draw_results(seen, title=f"Test images of {weights}"), out / "grid.png")
    made = f"{out}/look.png (what it saw and wrote), {out}/look.gif (moving), {out}/grid.png (fifty)"
    print(printable(f"Open {made}."))
    print(f"Try next:  ocra predict YOUR_IMAGE.png     ocra demo --weights {_other(task)}")
    print(
        f"           ocra evaluate {DEFAULT_WEIGHTS}      ocra app   (needs pip install 'ocra-vision[app]')"
    )
    print(f"{time.monotonic() - started:.0f} seconds")


def _test_digits(model: Network) -> tuple[Task, str]:
    """The weights' own task with MNIST's test digits, fetched if need be, or else with digits drawn from fonts."""
    own = config_for(model)
    glyphs = own.offline()
    if glyphs is None:
        shown = " and ".join(name for name in task_names() if get_task(name).scene)
        raise UsageError(f"The demo shows {shown}, not {own.name}; try: ocra look --task {own.name}")
    if own != glyphs:
        try:
            return make_task(replace(own, root=None, download=True), "test"), "MNIST test digits"  # type: ignore[call-arg]
        except OcraError as error:
            print(printable(f"MNIST is not at hand: {error}"))
            print(
                "Going on with digits drawn from fonts, which the model was not trained on: expect more errors than "
                "the results table says.\n"
            )
    return make_task(glyphs, "test"), "digits drawn from fonts"


def _other(task: Task) -> str:
    """Shipped weights for digits that lie otherwise."""
    tasks = {name: get_task(read_config(name)[1].task_name) for name in shipped()}
    others = (name for name, other in tasks.items() if other.scene and other.name != task.name)
    return min(others, key=lambda name: (name != DEFAULT_WEIGHTS, name), default=DEFAULT_WEIGHTS)


def _answers(seen: list[Record]) -> str:
    """What the model says of the first images, and which capsule won at each glimpse."""
    rows = [
        (
            str(index),
            " ".join(record.truth or ()),
            " ".join(record.prediction.labels),
            "  ".join(f"{glimpse.winner} ({glimpse.length:.2f})" for glimpse in record.prediction.glimpses),
            "right" if record.right else "wrong",
        )
        for index, record in enumerate(seen)
    ]
    return columns(rows, ("image", "there is", "the model says", "winner at each glimpse", ""))


def _won_once_each(record: Record) -> bool:
    """Whether each object was the winner at some glimpse: the clearest case to look at."""
    return set(record.truth or ()) <= {glimpse.winner for glimpse in record.prediction.glimpses}


def app(
    weights: tuple[str, ...] = (),
    host: str = "127.0.0.1",
    port: int | None = None,
    open: bool = False,
    static: Path | None = None,
    onnxruntime: Path | None = None,
) -> None:
    """Serve a web page on this machine: draw digits, watch the glimpses, move the model's gaze.

    Nothing leaves the machine and no internet is needed. With --static a smaller page is written instead, for any web
    server: the network then runs in the visitor's browser.

    Example: ocra app --open

    Args:
        weights: Names of shipped weights or folders of your own. Default: all that are shipped.
        host: Address to listen on; 0.0.0.0 lets other machines in your network see the page.
        port: Port to listen on. Default: the first free one from 7860.
        open: Open the page in the browser.
        static: Folder to write the page to, with the first of the weights; needs 'ocra-vision[onnx]' and npm.
        onnxruntime: With --static: a folder with the npm package onnxruntime-web, in place of npm.
    """
    if static is not None:
        from ocra.app.static_page import write_page

        write_page(static, weights[0] if weights else DEFAULT_WEIGHTS, onnxruntime)
        print(printable(f"The page is in {static}. To see it: python -m http.server --directory {static}"))
        return
    if onnxruntime is not None:
        raise UsageError("--onnxruntime goes with --static FOLDER, which says where to write the page.")
    from ocra.app.server import serve

    serve(weights, host, port, open)
