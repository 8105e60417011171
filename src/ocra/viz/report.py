"""One web page about one training run: figures, curves, confusions, samples, scanpaths, config.

The page stands alone: text, tables and images in one file, readable on a phone and in the dark.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ocra.data import make_task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import Evaluation, evaluate
from ocra.experiment import Experiment
from ocra.files import read_json
from ocra.images.reading import endings
from ocra.metrics import wilson_interval
from ocra.prediction import load
from ocra.training.checkpoint import read_experiment
from ocra.training.logging import read_log
from ocra.viz.curves import Curve, draw_curves, to_svg
from ocra.viz.figure import draw_look
from ocra.viz.grid import draw_gaze, draw_results
from ocra.viz.record import records
from ocra.viz.style import css_variables, written

Log = list[dict[str, Any]]
SAMPLES, GAZES, HARDEST = 20, 200, 10
LOSS_NAMES = {
    "loss": "total", "margin": "margin", "reconstruction": "reconstruction", "readout": "readout",
    "cross_entropy": "cross-entropy", "attention_supervision": "supervision", "early_answers": "early answers",
}  # fmt: skip
"""Of each part of the loss in the log, what its curve is called."""


def report(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] = "report.html",
    *,
    images: int = 2_000,
    device: str | None = None,
) -> Path:
    """Write one self-contained HTML page about the run in a folder, and return its path.

    images: how many test images the best weights are scored on for confusions and samples; 0: none of that.
    device: cpu, cuda or mps, where that is done.
    A run that is still going on, or whose data cannot be found, gets the page without what is missing.
    """
    endings(out, (".html", ".htm"))
    if images < 0:
        raise UsageError(f"The number of images must be at least 0, not {images}.")
    folder = Path(run)
    if not (folder / "config.json").is_file():
        raise OcraError(
            f"{folder} holds no run: there is no config.json in it. Give the folder of 'ocra train'."
        )
    experiment, log = read_experiment(folder / "config.json"), read_log(folder / "log.jsonl")
    file = folder / "summary.json"
    summary = read_json(file) if file.is_file() else {}
    if not isinstance(summary, dict):
        raise OcraError(f"{file} is not the summary of a run.")
    parts = [
        _heading(folder, experiment, log, summary),
        _section("Curves", _curves(log, experiment)),
        _section("Final figures", _final_figures(summary)),
        *_about_weights(folder, experiment, images, device),
        _section("Config", *_config(experiment, summary)),
    ]
    with written(out) as temporary:
        temporary.write_text(_page(f"{experiment.name} · {folder.name}", parts), "utf-8")
    return Path(out)


def _heading(folder: Path, experiment: Experiment, log: Log, summary: dict[str, Any]) -> str:
    """What was trained, how far it got, and the figures to see first."""
    seen = log[-1]["images"] if log else 0
    validations = [line for line in log if "validation_error" in line]
    speeds = [line["images_per_second"] for line in log if "images_per_second" in line]
    figures = []
    if test := (summary.get("test") or {}).get("best"):
        interval = " – ".join(map(_percent, test["exact_error_interval"]))
        figures.append(("test error", _percent(test["exact_error"]), f"95 % interval {interval}"))
    if validations:
        best = min(validations, key=lambda line: line["validation_error"])
        value = _percent(best["validation_error"])
        figures.append(("best validation error", value, f"after {best['images']:,} images"))
    if experiment.paper_error:
        remark = "mean ± sd of five runs" if "±" in experiment.paper_error else "quoted"
        figures.append(("the paper", f"{experiment.paper_error} %", remark))
    planned = experiment.images
    figures.append(("images seen", f"{seen:,}", f"{seen / planned:.0%} of {planned:,}"))
    if "cpu_seconds" in summary:
        wall = f"{summary.get('seconds', 0) / 3600:.2f} h on the clock"
        figures.append(("processor time", f"{summary['cpu_seconds'] / 3600:.2f} h", wall))
    if speeds:
        figures.append(("speed", f"{np.median(speeds):.0f} / s", "images in training, median"))
    about = f"{experiment.description.rstrip('.')}. " if experiment.description else ""
    if experiment.stages[0].init_from:
        source = Path(experiment.stages[0].init_from).name
        about += f"Fine-tuned from the weights {source}, whose images and hours are not counted here. "
    for teacher in experiment.attention_teachers:
        about += f"Taught where to look by the weights {Path(teacher).name}. "
    about += f"Seed {experiment.seed}, {'finished' if summary else 'not finished'}."
    title = escape(f"{experiment.name} · {folder.name}")
    return f"<h1>{title}</h1><p class='muted'>{escape(about)}</p>{_cards(figures)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _curves(log: Log, experiment: Experiment) -> str:
    """Error, loss, learning rate, gradient and speed over the images seen; the paper's error as a line across."""

    def curve(name: str, key: str, marked: bool = False) -> Curve:
        return Curve(name, [(line["images"], line[key]) for line in log if line.get(key) is not None], marked)

    scored = [line for line in log if line.get("validation_error") is not None]
    # Earlier logs do not say how many images were scored.
    counts = [line.get("validation_images") or experiment.run.validate_images for line in scored]
    intervals = [
        wilson_interval(line["validation_error"] * n, n) for line, n in zip(scored, counts, strict=True)
    ]
    validation = replace(curve("validation", "validation_error", True), intervals=intervals)
    in_percent = {"percent": True, "quoted": _quoted(experiment)}
    groups: list[tuple[str, str, list[Curve], dict[str, Any]]] = [
        ("error", "Image-level error; shaded: 95 % interval", [curve("training", "error"), validation], in_percent),
        ("loss", "Loss and its parts before weighting",
         [curve(name, key) for key, name in LOSS_NAMES.items()], {"logarithmic": True}),
        ("rate", "Learning rates", [curve("Adam", "lr"), curve("Shampoo", "shampoo_lr")], {}),
        ("gradient", "Norm of the gradient", [curve("gradient", "gradient_norm")], {}),
        ("speed", "Images per second", [curve("speed", "images_per_second")], {}),
    ]  # fmt: skip
    drawn = ""
    for name, caption, curves, options in groups:
        if present := [line for line in curves if any(y for _, y in line.points)]:
            svg = to_svg(draw_curves(present, **options), name, caption)
            drawn += f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"
    return f'<div class="two">{drawn}</div>' if drawn else "<p class='muted'>The log holds no report yet.</p>"


def _quoted(experiment: Experiment) -> tuple[str, float] | None:
    """The paper's error, with its name, where it is a figure and not a bound."""
    mean, given, _ = experiment.paper_error.partition(" ±")
    return (f"the paper: {mean} %", float(mean) / 100) if given else None


def _final_figures(summary: dict[str, Any]) -> str:
    """The test figures that the run itself recorded."""
    rows = [
        (
            f"{which} weights", f"{t['n']:,}", _percent(t["exact_error"]),
            " – ".join(map(_percent, t["exact_error_interval"])),
            _percent(t["object_error"]), f"{t['reconstruction_mse']:.5f}" if "reconstruction_mse" in t else "–",
        )
        for which, t in (summary.get("test") or {}).items()
    ]  # fmt: skip
    head = ("", "test images", "exact error", "95 % interval", "object error", "reconstruction error")
    return _table("Measured by the run at its end", head, rows) if rows else ""


def _about_weights(folder: Path, experiment: Experiment, images: int, device: str | None) -> list[str]:
    """What the best weights do with test images; a sentence where that cannot be shown."""
    weights = folder / "weights" / "best"
    if images < 1 or not weights.is_dir():
        return []
    try:
        model = load(weights, device)
        task = make_task(experiment.task, "test", 0)
        result = evaluate(model, task, images=images)
    except OcraError as error:
        why = f"<p class='muted'>They could not be shown: {escape(str(error))}</p>"
        return [_section("Test images", why)]
    number = min(GAZES, len(task))
    batch, titles = task.batch(range(number)), [f"image {i}" for i in range(number)]
    seen = records(model, batch.images, truths=batch.names(task.class_names), titles=titles)
    wrong = [record for record in seen if record.right is False][: SAMPLES // 2]
    example = next((record for record in seen if record.right), seen[0])
    first, order = "The first test images and their reconstructions", "in their order"
    samples = [_image(first, draw_results(seen[:SAMPLES], order))]
    samples += [_image("The first errors", draw_results(wrong, order))] if wrong else []
    gaze = _image(f"Centres of the windows on {len(seen)} test images, with the mean window", draw_gaze(seen))
    return [
        _section(f"Best weights on {result.figures['n']:,} test images", *_confusion(result)),
        _section("Samples", *samples),
        _section("Scanpaths", gaze, _image("One image, step by step", draw_look(example), dpi=110)),
    ]


def _confusion(result: Evaluation) -> list[str]:
    """Who is taken for whom, and what is hard."""
    confusion = result.details["confusion"]
    counts = np.asarray(confusion["counts"])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    exact, single = _percent(result.exact_error), _percent(result.figures["object_error"])
    parts = [
        f"<p>Exact error {exact}, object error {single}.</p>",
        "<p class='muted'>Rows: what is there. Columns: what it was taken for, in percent.</p>",
    ]
    if len(confusion["true"]) <= 30:
        parts.append(_heat_table(confusion["true"], confusion["answered"], shares.tolist()))
    if result.details.get("pairs"):
        worst = sorted(result.details["pairs"].items(), key=lambda item: -item[1]["error"])[:HARDEST]
        hard = [(pair, f"{v['n']:,}", _percent(v["error"])) for pair, v in worst]
        parts.append(_folded("Hardest pairs", _table("", ("pair", "images", "error"), hard)))
    if result.details.get("lengths"):
        rows = [
            (length, f"{v['n']:,}", _percent(v["exact_error"]), _percent(v["digit_error"]))
            for length, v in result.details["lengths"].items()
        ]
        head = ("digits", "numbers", "exact error", "digit error")
        parts.append(_table("By length of the number", head, rows))
    return parts


def _config(experiment: Experiment, summary: dict[str, Any]) -> list[str]:
    """All settings, and what took part."""
    parts = []
    settings = experiment.to_dict()
    for name in ("model", "task", "loss", "run"):
        rows = [(key, str(value)) for key, value in settings[name].items()]
        parts.append(_folded(name, _table("", ("setting", "value"), rows)))
    stages = settings["stages"]
    head = ("setting", *(f"stage {k + 1}" for k in range(len(stages))))
    by_stage = [(key, *(str(stage[key]) for stage in stages)) for key in stages[0]]
    parts.append(_folded("stages", _table("", head, by_stage)))
    made_by = {**(summary.get("versions") or {}), "commit": summary.get("commit")}
    if rows := [(key, str(value)) for key, value in made_by.items() if value]:
        parts.append(_folded("versions", _table("", ("", ""), rows)))
    return parts


# The page in HTML.


def _page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts that are HTML already."""
    style = css_variables("@media (prefers-color-scheme: dark) {{ :root {{ {} }} }}")
    style += (Path(__file__).parent / "report.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, *parts: str) -> str:
    """A heading and what belongs to it; nothing where nothing does."""
    content = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>" if content else ""


def _cards(figures: Sequence[tuple[str, str, str]]) -> str:
    """Figures to see at a glance: name, value, remark."""
    cards = "".join(
        f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>'
        for name, value, note in figures
    )
    return f'<div class="cards">{cards}</div>'


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns after the first are numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        made = (f"<{tag}{' class=n' if k else ''}>{escape(cell)}</{tag}>" for k, cell in enumerate(row))
        return f"<tr>{''.join(made)}</tr>"

    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead>{cells("th", head)}</thead>'
        f"<tbody>{''.join(cells('td', row) for row in rows)}</tbody></table></div>"
    )


def _heat_table(rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]]) -> str:
    """Shares of each row in percent; what lies off the diagonal is shaded by how much it is."""
    wrong = max((v for i, row in enumerate(shares) for j, v in enumerate(row) if i != j), default=0.0) or 1.0
    body = ""
    for i, row in enumerate(shares):
        body += f"<tr><th>{escape(rows[i])}</th>"
        for j, share in enumerate(row):
            colour, depth = ("right", 0.18) if i == j else ("wrong", 0.75 * share / wrong)
            text = f"{100 * share:.1f}" if share >= 0.0005 else "·"
            body += f'<td style="--c:var(--ocra-{colour});--v:{depth:.3f}">{text}</td>'
        body += "</tr>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return (
        f'<div class="scroll"><table class="heat"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _image(caption: str, figure: Figure, dpi: int = 130) -> str:
    """A figure inside the page, as wide as the page; on a narrow screen it is moved sideways."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    content = base64.b64encode(file.getvalue()).decode("ascii")
    inches = float(figure.get_size_inches()[0])
    size = f"--least:{min(4.4 * inches, 52):.0f}rem;--most:{7 * inches:.0f}rem"
    return (
        f'<figure style="{size}"><figcaption>{escape(caption)}</figcaption><div class="scroll">'
        f'<img alt="{escape(caption)}" src="data:image/png;base64,{content}"></div></figure>'
    )


def _folded(title: str, content: str) -> str:
    """Something to open."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
