"""Running an experiment: trials, a table of means with intervals, a figure, a page of text."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ocra.config import AnswerRule
from ocra.data.task import Batch
from ocra.errors import OcraError, UsageError
from ocra.files import printable, rows_to_csv, write_text_atomically
from ocra.lab.stimuli import Scenes, Shown, Stimuli
from ocra.metrics import wilson_interval, wrong_answers
from ocra.model.deciding import answer_margin
from ocra.model.network import Network
from ocra.model.trace import Trace, Windows
from ocra.model.weights import content_hash, resolve
from ocra.prediction import Source, answers, load
from ocra.prediction import run as show
from ocra.viz.curves import COLOURS
from ocra.viz.style import FAINT, MUTED, Sheet, save_figure, styled

BATCH = 50
UNTIL = 0.3
"""The margin at which an answer counts as decided, unless another is asked for."""
COUNTED = ("decision", "glimpses")
"""Measures that are numbers of glimpses; others between 0 and 1 are shares, drawn in per cent."""
Control = Callable[[Shown, Network], dict[str, Any]]


@dataclass(frozen=True)
class Condition:
    """What is shown and done in one cell of an experiment."""

    x: float | str
    """Its place on the axis of the figure: a number, or the name of a category."""
    scenes: Stimuli
    series: str = ""
    """The line of the figure that it belongs to."""
    interventions: dict[str, Any] = field(default_factory=dict)
    """Arguments of `OCRA.forward`, the same in all trials: glimpses, until, routings, lesion."""
    control: Control | None = None
    """Makes further ones from the scenes shown: windows, winners."""


@dataclass(frozen=True)
class Look:
    """One trial as an experiment's `measure` sees it."""

    row: dict[str, Any]
    """The stimulus, the answer and what was measured so far; a row of trials.csv."""
    trace: Trace
    """Of the whole batch; `index` is the trial's place in it."""
    batch: Batch
    index: int
    model: Network

    @property
    def classes(self) -> list[int]:
        """The classes of the digits, in the order of the scene."""
        assert self.batch.annotations is not None
        return self.batch.annotations.classes[self.index].tolist()


class LabExperiment:
    """A question put to a model: conditions, what is measured in each trial, and how it is drawn.

    A subclass has a name, a question, and `conditions`. `measure` adds columns to the row of a trial; every trial has
    truth, answer, `error` (0 or 1), confidence, glimpses, `decision` (glimpse at which the answer was decided) and
    the scanpath.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    question: ClassVar[str] = ""
    beside: ClassVar[str] = ""
    """What is known of people, with its source."""
    axis: ClassVar[str] = ""
    measures: ClassVar[tuple[str, ...]] = ("error",)
    labels: ClassVar[dict[str, str]] = {}
    """What a measure is called in the figure, where it is not its own name."""
    chance: ClassVar[dict[str, float]] = {}
    """The value of a measure that guessing would give, drawn as a dotted line."""
    logarithmic: ClassVar[bool] = False
    """Whether shares are drawn on a logarithmic axis, which is linear below 1 %."""
    smallest: ClassVar[int] = 0
    """Side of the smallest image that the experiment needs."""

    def conditions(self, base: Any, model: Network) -> list[Condition]:
        """The cells, made from what `scenes` gives: as a rule `Scenes` like those that the model was trained on."""
        raise NotImplementedError

    def scenes(self, model: Network) -> Any:
        """What the conditions of a model are made from."""
        return scenes_like(model)

    def measure(self, look: Look) -> dict[str, Any]:
        """Further columns of a trial's row."""
        return {}

    def observations(self, row: dict[str, Any]) -> Iterator[tuple[str, float | str, str, float]]:
        """What a trial says, as (series, x, measure, value); by default each measure at the condition's x."""
        for name in self.measures:
            yield row["series"], row["x"], name, row[name]

    def remarks(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Sentences about one model's trials for the page."""
        return []

    def place(self, summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> float | str:
        """Where a row of the summary is drawn along the axis, given the trials it sums up."""
        return summary["x"]


@dataclass(frozen=True)
class Outcome:
    """What came out of an experiment."""

    experiment: LabExperiment
    trials: list[dict[str, Any]]
    """A row for each trial: model, condition, stimulus, truth, answer, measures, scanpath."""
    summary: list[dict[str, Any]]
    """A row for each model, series, place on the axis and measure: n, mean and its 95 % interval (low, high)."""
    page: str
    """What was done and what came out, in Markdown."""

    def mean(self, model: str, x: float | str, measure: str = "error", series: str = "") -> float:
        """One mean of the summary."""
        for row in self.summary:
            if (row["model"], row["x"], row["measure"], row["series"]) == (model, x, measure, series):
                return row["mean"]
        raise UsageError(f"The summary has no {measure} of {model} at {x} in the series '{series}'.")


def run(
    experiment: LabExperiment | str,
    weights: Source | Network | Sequence[Source | Network] = "multimnist-3",
    *,
    trials: int = 200,
    seed: int = 0,
    out: Source | None = None,
    until: float = UNTIL,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    **interventions: Any,
) -> Outcome:
    """Run an experiment on one or several models, the same trials for each.

        ocra.lab.run("crowding", ["cluttered-5", "runs/mine/weights/best"], trials=300, out="crowding")

    experiment: a name (`ocra lab list`), package.module:Class, or an object of one's own class.
    weights: names, folders or models. trials: for each condition. out: folder for trials.csv, summary.csv, page.md
    and the figure as PNG, SVG and PDF. until: the margin at which an answer counts as decided.
    interventions: glimpses, routings, lesion, and cue, the (x, y) of the first window, in all conditions. A list of
    values runs everything with each of them, side by side: `routings=[1, 3]`, `cue=[None, (22, 22)]`.
    """
    if isinstance(experiment, str):
        from ocra.lab.experiments import find_experiment

        experiment = find_experiment(experiment)
    if trials < 1:
        raise UsageError(f"An experiment needs at least 1 trial in each condition, not {trials}.")
    sources: list[Any] = list(weights) if isinstance(weights, list | tuple) else [weights]
    models = [load(each, device) for each in sources]
    names = names_of(models)
    plans: list[tuple[str, Network, list[Condition], dict[str, Any]]] = []
    hashes: dict[str, str | None] = {}
    for name, model, source in zip(names, models, sources, strict=True):
        if model.config.height < experiment.smallest:
            needs = f"{experiment.name} needs images of {experiment.smallest} pixels"
            raise UsageError(f"{needs}; {name} looks at {model.config.height}.")
        conditions = experiment.conditions(experiment.scenes(model), model)
        known = None if isinstance(source, Network) else content_hash(resolve(os.fspath(source)))
        for label, chosen in _variants(interventions):
            hashes[name + label] = known
            plans.append((name + label, model.eval(), conditions, chosen))
    total = trials * sum(len(conditions) for _, _, conditions, _ in plans)
    rows: list[dict[str, Any]] = []
    for name, model, conditions, chosen in plans:
        for condition in conditions:
            for start in range(0, trials, BATCH):
                numbers = range(start, min(start + BATCH, trials))
                shown = condition.scenes.make(numbers, seed)
                extra = condition.control(shown, model) if condition.control else {}
                options = {**_cued(chosen, len(numbers), model), **condition.interventions, **extra}
                for row in _trials(experiment, model, shown, until, options):
                    rows.append({"model": name, "series": condition.series, "x": condition.x, **row})
                if on_progress is not None:
                    on_progress(len(numbers), total)
    summary = summarise(experiment, rows)
    about = {
        "trials": trials,
        "seed": seed,
        "until": until,
        **{k: v for k, v in interventions.items() if v is not None},
    }
    page = _page(experiment, hashes, rows, summary, about)
    outcome = Outcome(experiment, rows, summary, page)
    if out is not None:
        save(outcome, out)
    return outcome


def _variants(interventions: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every choice of one value each, with a label that names those of which there are several."""
    names = list(interventions)
    each = [value if isinstance(value, list) else [value] for value in interventions.values()]
    found = []
    for values in product(*each):
        several = [
            f" · {name} {'as trained' if value is None else value}"
            for name, value, choices in zip(names, values, each, strict=True)
            if len(choices) > 1
        ]
        given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        found.append(("".join(several), given))
    return found


def _cued(interventions: dict[str, Any], trials: int, model: Network) -> dict[str, Any]:
    """The interventions with windows in place of the cue: the first one's centre is given, all else is free."""
    if "cue" not in interventions:
        return interventions
    if not model.config.attention:
        raise UsageError("This network reads the whole image at each step: it has no window to cue.")
    options = dict(interventions)
    free = torch.full((trials, options.get("glimpses", model.config.glimpses)), math.nan)
    center = torch.stack([free, free], dim=2)
    center[:, 0] = torch.tensor(options.pop("cue"), dtype=center.dtype)
    return {**options, "windows": Windows(center, free, free)}


def scenes_like(model: Network) -> Scenes:
    """Scenes of digits as the model's own task makes them."""
    info, task = model.info, model.info.task
    objects = info.answer.objects
    if model.config.readout_digits or objects is None or model.config.channels != 1:
        raise UsageError(
            f"The lab shows digits to networks that name a known number of them in grey images; {info.name} is not one."
        )
    return Scenes(
        size=model.config.height,
        objects=objects,
        relation="any" if info.answer.repeats else "different",
        clutter=task.get("distractors", 6 if task.get("name") == "cluttered" else 0),
        source=task.get("digits", "mnist"),
        reach=task.get("max_shift"),
    )


def names_of(models: Sequence[Network]) -> list[str]:
    """A name for each model, each only once."""
    names: list[str] = []
    for model in models:
        name, number = model.info.name or "model", 1
        while name in names:
            number += 1
            name = f"{model.info.name or 'model'} ({number})"
        names.append(name)
    return names


def _trials(
    experiment: LabExperiment, model: Network, shown: Shown, until: float, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row for each scene of a batch: stimulus, answer, measures, scanpath."""
    trace = show(model, shown.images, **options)
    rule, names = model.info.answer, model.info.class_names
    wrong = wrong_answers(trace, shown.batch, rule).tolist()
    found = answers(trace, names, rule)
    decisions = decision_glimpses(trace, rule, until)
    for k, stimulus in enumerate(shown.rows):
        row = dict(stimulus)
        row |= {
            "answer": " ".join(item.label for item in found[k]),
            "error": int(wrong[k]),
            "confidence": round(min((item.confidence for item in found[k]), default=0.0), 4),
            "glimpses": trace.glimpses_of(k),
            "decision": decisions[k],
        }
        row |= experiment.measure(Look(row, trace, shown.batch, k, model))
        if trace.read_windows is not None:
            places = trace.read_windows.center[k, : trace.glimpses_of(k)].tolist()
            row["scanpath"] = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield row


def decision_glimpses(trace: Trace, rule: AnswerRule, until: float) -> list[int]:
    """The glimpse at which each answer was decided, as `until` would have stopped there; the last if it never was."""
    classes, last = trace.scores.shape[1], trace.capsule_lengths.shape[1]
    scores = trace.capsule_lengths[:, :, :classes].cumsum(1)
    margins = torch.stack([answer_margin(scores[:, t], rule) for t in range(last)], 1)
    reached = margins >= until
    at = torch.where(reached.any(1), reached.float().argmax(1) + 1, last)
    return (at if trace.taken is None else torch.minimum(at, trace.taken)).tolist()


def summarise(experiment: LabExperiment, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means with 95 % intervals by model, series, place and measure, see `interval`."""
    values: dict[tuple[str, str, float | str, str], list[float]] = defaultdict(list)
    behind: dict[tuple[str, str, float | str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for series, x, name, value in experiment.observations(row):
            if not math.isnan(value):
                values[row["model"], series, x, name].append(value)
                behind[row["model"], series, x, name].append(row)
    summary = []
    for key, found in values.items():
        mean, low, high = interval(found)
        entry: dict[str, Any] = dict(zip(("model", "series", "x", "measure"), key, strict=True))
        entry |= {"n": len(found), "mean": round(mean, 5), "low": round(low, 5), "high": round(high, 5)}
        summary.append({**entry, "drawn_at": experiment.place(entry, behind[key])})
    # Along an axis of numbers by what was measured, else in the order of the conditions.
    lines = list(dict.fromkeys((row["model"], row["series"]) for row in summary))
    numbers = all(not isinstance(row["x"], str) for row in summary)
    place = (lambda x: x) if numbers else _condition_order(rows)
    return sorted(summary, key=lambda row: (lines.index((row["model"], row["series"])), place(row["x"])))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval: Wilson's where all values are 0 or 1, else mean ± 1.96 standard errors.

    Where every value lies between 0 and 1, so does the interval.
    """
    mean, n = float(np.mean(values)), len(values)
    if set(values) <= {0, 1}:
        return mean, *wilson_interval(sum(values), n)
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    low, high = (0.0, 1.0) if min(values) >= 0 and max(values) <= 1 else (-math.inf, math.inf)
    return mean, max(low, mean - half), min(high, mean + half)


def save(outcome: Outcome, folder: Source) -> None:
    """Write trials.csv, summary.csv, page.md and the figure (PNG, SVG, PDF) into a folder."""
    target, name = Path(os.fspath(folder)), outcome.experiment.name or "experiment"
    try:
        write_text_atomically(target / "trials.csv", rows_to_csv(outcome.trials))
        write_text_atomically(target / "summary.csv", rows_to_csv(outcome.summary))
        write_text_atomically(target / "page.md", outcome.page)
    except OSError as error:
        raise OcraError(f"{folder} could not be written: {error.strerror or error}.") from None
    figure = draw(outcome)
    for ending in ("png", "svg", "pdf"):
        save_figure(figure, target / f"{name}.{ending}")


def draw(outcome: Outcome) -> Any:
    """A panel for each measure: lines over numbers, points over categories, with 95 % intervals."""
    experiment, summary = outcome.experiment, outcome.summary
    lines = list(dict.fromkeys((row["model"], row["series"]) for row in summary))
    models, series = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
    measures = list(dict.fromkeys(row["measure"] for row in summary))
    places = list(dict.fromkeys(row["drawn_at"] for row in summary))
    categories: list[str] = []
    if any(isinstance(place, str) for place in places):
        categories = sorted(map(str, places), key=_condition_order(outcome.trials))
    crowded = len(categories) > 6

    def at(row: dict[str, Any]) -> float:
        return categories.index(str(row["drawn_at"])) if categories else row["drawn_at"]

    def look(line: tuple[str, str]) -> dict[str, Any]:
        """A colour for each model and a kind of line for each series, or a colour for each series of one model."""
        several = len(models) > 1
        hue, kind = (models.index(line[0]), series.index(line[1])) if several else (lines.index(line), 0)
        dashes = "none" if categories else ("-", "--", ":", "-.")[kind % 4]
        return {"color": COLOURS[hue % len(COLOURS)], "marker": "oDsv"[kind % 4], "linestyle": dashes}

    # Lines stand a little apart, so that their bars do not hide each other.
    span = max(map(at, summary)) - min(map(at, summary))
    step = 0.5 / len(lines) if categories else min(0.012, 0.03 / len(lines)) * span
    wide = 3.4 if not categories else max(3.4, 0.34 * len(categories))
    # Room for the names below the axis, of which the longest stands upright where they are many.
    below = 0.45 + 0.055 * max(map(len, categories)) if crowded else 0.52
    below -= 0 if experiment.axis else 0.2
    title = " · ".join([experiment.title or experiment.name, *(models if len(models) == 1 else [])])
    width = max(0.62 + len(measures) * (wide + 0.75) - 0.55, 0.72 + 0.085 * len(title))
    handles = _legend(lines, models, series, look)
    columns = max(
        1, int(width / (0.55 + 0.07 * max((len(str(each.get_label())) for each in handles), default=1)))
    )
    rows = math.ceil(len(handles) / columns)
    with styled():
        figure = Sheet(width, 0.62 + 2.5 + below + (0.1 + 0.18 * rows if rows else 0))
        figure.write(0.62, 0.22, title, size=10, weight="bold")
        for number, name in enumerate(measures):
            axes = figure.panel(0.62 + number * (wide + 0.75), 0.5, wide, 2.5)
            shown = [row for row in summary if row["measure"] == name]
            for k, line in enumerate(lines):
                own = sorted((row for row in shown if (row["model"], row["series"]) == line), key=at)
                if not own:
                    continue
                x = [at(row) + step * (k - (len(lines) - 1) / 2) for row in own]
                y = np.array([row["mean"] for row in own])
                bars = np.abs(np.array([[row["low"], row["high"]] for row in own]).T - y)
                axes.errorbar(
                    x, y, yerr=np.where(np.isfinite(bars), bars, 0), **look(line), markersize=4,
                    linewidth=1.5, elinewidth=1, capsize=2,
                )  # fmt: skip
            if categories:
                axes.set_xticks(range(len(categories)), categories)
                axes.set_xlim(-0.6, len(categories) - 0.4)
                axes.tick_params(axis="x", labelrotation=60 if crowded else 0)
                for text in axes.get_xticklabels() if crowded else []:
                    text.set_horizontalalignment("right")
                    text.set_rotation_mode("anchor")
            elif all(float(row["x"]).is_integer() for row in summary):
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            label = experiment.labels.get(name, name)
            if name not in COUNTED and all(0 <= row["mean"] <= 1 for row in shown):
                label += ", %"
                if experiment.logarithmic:
                    axes.set_yscale("symlog", linthresh=0.01)
                    axes.set_yticks([0, 0.01, 0.03, 0.1, 0.3, 1])
                    axes.minorticks_off()
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
            axes.set_ylabel(label)
            axes.set_xlabel(experiment.axis, color=MUTED)
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
            if name in COUNTED:
                axes.set_ylim(top=math.ceil(axes.get_ylim()[1]) + 0.1)
            if name in experiment.chance:
                axes.axhline(experiment.chance[name], color=MUTED, linewidth=1, linestyle=":", zorder=0)
            axes.tick_params(labelsize=8, color=FAINT)
            axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        if rows:
            figure.legend(
                handles=handles,
                loc="lower left",
                ncols=columns,
                frameon=False,
                fontsize=8,
                bbox_to_anchor=(0.3 / width, 0),
            )
    return figure


def _legend(
    lines: Sequence[tuple[str, str]],
    models: Sequence[str],
    series: Sequence[str],
    look: Callable[[tuple[str, str]], dict[str, Any]],
) -> list[Line2D]:
    """What tells lines apart: each line, or, of several models with several series, a colour and a mark for each."""
    if len(lines) == 1:
        return []
    if min(len(models), len(series)) == 1:
        names = [model if len(models) > 1 else name for model, name in lines]
        return [
            Line2D([], [], label=name, markersize=4, **look(line))
            for name, line in zip(names, lines, strict=True)
        ]
    colours = [{**look((model, series[0])), "marker": "s", "linestyle": "none"} for model in models]
    marks = [{**look((models[0], name)), "color": MUTED} for name in series]
    return [
        Line2D([], [], label=name, markersize=4, **style)
        for name, style in zip([*models, *series], [*colours, *marks], strict=True)
    ]


def _condition_order(trials: Sequence[dict[str, Any]]) -> Callable[[Any], tuple[int, str]]:
    """Conditions as they were run, then what was found beside them by name."""
    conditions = [str(x) for x in dict.fromkeys(row["x"] for row in trials)]
    return lambda x: (conditions.index(str(x)), "") if str(x) in conditions else (len(conditions), str(x))


def _page(
    experiment: LabExperiment,
    hashes: dict[str, str | None],
    rows: Sequence[dict[str, Any]],
    summary: Sequence[dict[str, Any]],
    about: dict[str, Any],
) -> str:
    """What was done, with what, and what came out, in Markdown."""
    name = experiment.name or type(experiment).__name__
    parts = [f"# {experiment.title or name}", experiment.question]
    if experiment.beside:
        parts.append(f"**Human finding.** {experiment.beside}")
    settings = "".join(
        f", {key} {value}" for key, value in about.items() if key not in ("trials", "seed", "until")
    )
    shown = ", ".join(f"`{key}@{known}`" if known else key for key, known in hashes.items())
    parts.append(
        f"**Method.** {about['trials']:,} trials per condition, {len(rows):,} in all, the same scenes for every model; "
        f"seed {about['seed']}{settings}. An answer counts as decided at a margin of {about['until']}. "
        f"Weights: {shown}."
    )
    parts.append(f"![{experiment.title or name}]({name}.png)")
    titles, cells = table(experiment, summary)
    lines = [titles, ("---",) * len(titles), *cells]
    parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    for model in hashes:
        for remark in experiment.remarks([row for row in rows if row["model"] == model]):
            parts.append(f"{model}: {remark}")
    return printable_lines("\n\n".join(part for part in parts if part)) + "\n"


def table(
    experiment: LabExperiment, summary: Sequence[dict[str, Any]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The summary as titles and cells, with the place in the figure where that is not the condition's own value."""
    apart = any(row["drawn_at"] != row["x"] for row in summary)
    axis = experiment.axis or "condition"
    titles = (
        "model",
        "series",
        *(("condition", axis) if apart else (axis,)),
        "measure",
        "n",
        "mean",
        "95 % interval",
    )
    cells = []
    for row in summary:
        place = (f"{row['drawn_at']:.2f}",) if apart else ()
        measure = experiment.labels.get(row["measure"], row["measure"])
        mean, between = f"{row['mean']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}"
        cells.append(
            (
                row["model"],
                row["series"],
                " ".join(str(row["x"]).split()),
                *place,
                measure,
                str(row["n"]),
                mean,
                between,
            )
        )
    return titles, cells


def printable_lines(text: str) -> str:
    """Lines without characters that steer a terminal."""
    return "\n".join(map(printable, text.split("\n")))
