"""One page about one training run: figures, curves, confusions, samples, scanpaths, config."""

from __future__ import annotations

import dataclasses
import json
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ocra.cli.sources import Network, load_network
from ocra.data import Task, make_task
from ocra.errors import OcraError
from ocra.evaluation import Evaluation, evaluate
from ocra.files import write_text_atomically
from ocra.prediction import run
from ocra.presets import Experiment
from ocra.training.folder import read_spec
from ocra.training.logging import read_log
from ocra.viz import page
from ocra.viz.curves import Curve, draw_curves, to_svg
from ocra.viz.figure import draw_look
from ocra.viz.gaze import draw_gaze
from ocra.viz.grid import draw_grid
from ocra.viz.record import Record, records

Log = list[dict[str, Any]]
SAMPLES = 20
GAZES = 200


def write_report(run: str | os.PathLike[str], out: str | os.PathLike[str], images: int = 2_000) -> None:
    """Write one self-contained HTML page about the run in a folder.

    images: how many test images the best weights are scored on for confusions and samples; 0: none of that.
    A run that is still going on, or whose data cannot be found, gets the page without what is missing.
    """
    folder = Path(run)
    if not (folder / "config.json").is_file():
        raise OcraError(
            f"{folder} holds no run: there is no config.json in it. Give the folder of 'ocra train'."
        )
    experiment, log = read_spec(folder / "config.json"), read_log(folder / "log.jsonl")
    summary = _read_summary(folder / "summary.json")
    parts = [_heading(folder, experiment, log, summary), page.section("Curves", _curves(log))]
    parts.append(page.section("Final figures", _final_figures(summary)))
    parts += _about_weights(folder, experiment, images)
    parts.append(page.section("Config", *_config(experiment, summary)))
    try:
        write_text_atomically(out, page.page(f"{experiment.name} · {folder.name}", parts))
    except OSError as error:
        raise OcraError(f"{out} could not be written: {error.strerror or error}.") from None


def _read_summary(path: Path) -> dict[str, Any]:
    """The summary of a run that has ended, else nothing."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OcraError(f"{path} cannot be read: {error}.") from None


def _heading(folder: Path, experiment: Experiment, log: Log, summary: dict[str, Any]) -> str:
    """What was trained, how far it got, and the figures to see first."""
    seen = log[-1]["images"] if log else 0
    validations = [line for line in log if "validation_error" in line]
    state = "finished" if summary else "not finished"
    figures = []
    test = (summary.get("test") or {}).get("best")
    if test:
        low, high = test["exact_error_interval"]
        figures.append(
            ("test error", _percent(test["exact_error"]), f"95 % interval {_percent(low)} – {_percent(high)}")
        )
    if validations:
        best = min(validations, key=lambda line: line["validation_error"])
        figures.append(
            ("best validation error", _percent(best["validation_error"]), f"after {best['images']:,} images")
        )
    if experiment.paper_error:
        remark = "mean ± sd of five runs" if "±" in experiment.paper_error else "quoted"
        figures.append(("the paper", f"{experiment.paper_error} %", remark))
    share = seen / experiment.training.images
    figures.append(("images seen", f"{seen:,}", f"{share:.0%} of {experiment.training.images:,}"))
    if "cpu_seconds" in summary:
        wall = summary.get("seconds", 0) / 3600
        figures.append(
            ("processor time", f"{summary['cpu_seconds'] / 3600:.2f} h", f"{wall:.2f} h on the clock")
        )
    speeds = [line["images_per_second"] for line in log if "images_per_second" in line]
    if speeds:
        figures.append(("speed", f"{np.median(speeds):.0f} / s", "images in training, median"))
    about = f"{experiment.description.rstrip('.')}. " if experiment.description else ""
    if experiment.training.start_from:
        source = Path(experiment.training.start_from).name
        about += f"Went on from the weights {source}, whose images and hours are not counted here. "
    about = escape(f"{about}Seed {experiment.seed}, {state}.")
    title = escape(f"{experiment.name} · {folder.name}")
    return f"<h1>{title}</h1><p class='muted'>{about}</p>{page.cards(figures)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _curves(log: Log) -> str:
    """Error, loss, learning rate, gradient and speed over the images seen."""

    def curve(name: str, key: str, marked: bool = False) -> Curve | None:
        lines = [line for line in log if key in line and line[key] is not None]
        return Curve(name, [n["images"] for n in lines], [n[key] for n in lines], marked) if lines else None

    loss = [
        ("total", "loss"), ("margin", "margin_loss"), ("reconstruction", "reconstruction_loss"),
        ("readout", "readout_loss"), ("share", "share_loss"), ("guide", "guide_loss"),
    ]  # fmt: skip
    groups: list[tuple[str, str, list[Curve | None], dict[str, Any]]] = [
        ("error", "Image-level error",
         [curve("training", "error"), curve("validation", "validation_error", True)], {"percent": True}),
        ("loss", "Loss and its parts before weighting",
         [curve(*names) for names in loss], {"logarithmic": True}),
        ("rate", "Learning rate", [curve("learning rate", "learning_rate")], {}),
        ("gradient", "Norm of the gradient", [curve("gradient", "gradient_norm")], {}),
        ("speed", "Images per second", [curve("speed", "images_per_second")], {}),
    ]  # fmt: skip
    drawn = []
    for name, caption, lines, options in groups:
        present = [line for line in lines if line is not None and any(line.y)]
        if present:
            drawn.append(page.drawing(caption, to_svg(draw_curves(present, **options), name, caption)))
    return page.side_by_side(drawn) if drawn else "<p class='muted'>The log holds no report yet.</p>"


def _final_figures(summary: dict[str, Any]) -> str:
    """The test figures that the run itself recorded."""
    tests = summary.get("test") or {}
    rows = [
        (
            f"{which} weights", f"{t['n']:,}", _percent(t["exact_error"]),
            " – ".join(_percent(value) for value in t["exact_error_interval"]),
            _percent(t["object_error"]), f"{t['reconstruction_mse']:.5f}",
        )
        for which, t in tests.items()
    ]  # fmt: skip
    head = ("", "test images", "exact error", "95 % interval", "object error", "reconstruction error")
    return page.table("Measured by the run at its end", head, rows) if rows else ""


def _about_weights(folder: Path, experiment: Experiment, images: int) -> list[str]:
    """What the best weights do with test images; a sentence where that cannot be shown."""
    if images < 1 or not (folder / "weights" / "best").is_dir():
        return []
    try:
        network = load_network(str(folder / "weights" / "best"))
        task = make_task(experiment.task, "test", 0)
        result = evaluate(network.model, task, images=images)
    except OcraError as error:
        return [
            page.section("Test images", f"<p class='muted'>They could not be shown: {escape(str(error))}</p>")
        ]
    seen = _records(network, task, range(min(GAZES, len(task))))
    return [
        page.section(f"Best weights on {result.figures['n']:,} test images", *_confusion(result)),
        page.section("Samples", *_samples(seen)),
        page.section("Scanpaths", *_scanpaths(seen)),
    ]


def _confusion(result: Evaluation) -> list[str]:
    """Who is taken for whom, and what is hard."""
    confusion = result.details["confusion"]
    counts = np.asarray(confusion["counts"])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = confusion["true"]
    exact, single = _percent(result.exact_error), _percent(result.figures["object_error"])
    parts = [
        f"<p>Exact error {exact}, object error {single}.</p>",
        "<p class='muted'>Rows: what is there. Columns: what it was taken for, in percent.</p>",
    ]
    if len(names) <= 30:
        parts.append(page.heat_table(names, confusion["answered"], shares.tolist()))
    if result.details.get("pairs"):
        worst = sorted(result.details["pairs"].items(), key=lambda item: -item[1]["error"])[:10]
        hard = [(pair, f"{v['n']:,}", _percent(v["error"])) for pair, v in worst]
        parts.append(page.folded("Hardest pairs", page.table("", ("pair", "images", "error"), hard)))
    if result.details.get("lengths"):
        rows = [
            (length, f"{v['n']:,}", _percent(v["exact_error"]), _percent(v["digit_error"]))
            for length, v in result.details["lengths"].items()
        ]
        head = ("digits", "numbers", "exact error", "digit error")
        parts.append(page.table("By length of the number", head, rows))
    return parts


def _records(network: Network, task: Task, indices: range) -> list[Record]:
    batch = task.batch(list(indices))
    return records(
        run(network.model, batch.images),
        batch.images,
        network.model.config,
        network.info,
        truths=batch.names(task.class_names),
        titles=[f"image {i}" for i in indices],
    )


def _samples(seen: list[Record]) -> list[str]:
    """The first images, and the first that go wrong."""
    wrong = [record for record in seen if record.right is False][: SAMPLES // 2]
    parts = [
        page.photograph(
            "The first test images and their reconstructions", draw_grid(seen[:SAMPLES], "in their order")
        )
    ]
    if wrong:
        parts.append(page.photograph("The first errors", draw_grid(wrong, "in their order")))
    return parts


def _scanpaths(seen: list[Record]) -> list[str]:
    """Where it looks at each step, and one image from beginning to end."""
    example = next((record for record in seen if record.right), seen[0])
    caption = f"Centres of the windows on {len(seen)} test images, with the mean window"
    return [
        page.photograph(caption, draw_gaze(seen)),
        page.photograph("One image, step by step", draw_look(example), dpi=110),
    ]


def _config(experiment: Experiment, summary: dict[str, Any]) -> list[str]:
    """All settings, and what took part."""
    parts = []
    for name in ("model", "task", "loss", "training"):
        rows = [(key, str(value)) for key, value in dataclasses.asdict(getattr(experiment, name)).items()]
        parts.append(page.folded(name, page.table("", ("setting", "value"), rows)))
    made_by = {**(summary.get("versions") or {}), "commit": summary.get("commit")}
    rows = [(key, str(value)) for key, value in made_by.items() if value]
    if rows:
        parts.append(page.folded("versions", page.table("", ("", ""), rows)))
    return parts
