"""Records: one small JSON file for each run that was made, with its settings, its cost, its curve and its figures."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ocra.errors import OcraError
from ocra.experiment import Experiment
from ocra.files import read_json, write_text_atomically
from ocra.model.weights import read_config, shipped
from ocra.presets import ALL_PRESETS, PRESETS, Recipe, preset
from ocra.training.checkpoint import Checkpoints, read_experiment
from ocra.training.logging import read_log, versions

# The authors' program after one pass over its 2.7 M training images: 87.75 % right on its test set.
AUTHORS_ERROR = 0.1225
AUTHORS_IMAGES = 2_700_000
# Chance is 97.8 % or more on all tasks: a run above this has learnt next to nothing.
HOPELESS = 0.9
MOST_POINTS = 200
WORST = 5
_FIGURES = (
    "object_error",
    "reconstruction_mse",
    "output_error",
    "lengths",
    "objects_in_image",
    "calibration",
)
SAVED = "ocra train --config settings.json"
# What is reported, saved and checked on the way does not change what is learnt; nor do folders of a machine.
_IMMATERIAL = ("name", "description", "paper_error", "seed", "task.root", "task.download", "run.")
# Settings of a stage that name weights.
_WEIGHTS = ("init_from", "attention_teacher")
# Only training images change with these, so the task is still that of the paper's table.
_TRAINING_ONLY = ("task.augment", "task.extra")


Taught = Literal["by boxes", "by labels", "no"]


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    images: int
    """images seen"""
    planned_images: int
    """images it was to see"""
    best_images: int
    """images seen by the weights that are scored: those of the lowest validation error, or the released ones"""
    seconds: float
    cpu_seconds: float
    """of all processes together"""
    processes: int


@dataclass(frozen=True)
class Record:
    """What is kept of one run."""

    name: str
    version: str
    """version of ocra that made it, and in whose words the settings are"""
    preset: str
    command: str
    """the command that trains it; settings.json stands for `settings` of this record"""
    init_from: str | None
    """record it was fine-tuned from, with the hash of the weights where it is known; None: random weights"""
    commit: str | None
    seed: int
    date: str
    """day on which it ended"""
    versions: dict[str, str]
    machine: str | None
    cost: Cost
    curve: list[tuple[int, float | None, float]]
    """validations: images, CPU seconds where the log has them, exact error"""
    figures: list[dict[str, Any]]
    """evaluations of its weights"""
    changes: dict[str, Any]
    """settings that were not those of its preset at the time, its length and its seed apart"""
    settings: dict[str, Any]
    """the experiment exactly as it was run"""
    status: Literal["finished", "stopped", "failed"] = "finished"
    notes: str = ""
    taught_by: str | None = None
    """record of the weights that found the objects to look at (attention_teacher), with their hash"""

    @property
    def is_of_preset(self) -> bool:
        """Whether task and network are those of the preset; its training may be another."""
        changed = (key for key in self.changes if key.startswith(("task.", "model.")))
        return self.preset in ALL_PRESETS and all(key in _TRAINING_ONLY for key in changed)

    @property
    def has_stages(self) -> bool:
        """Whether it was made by one command; the runs of version 0.1, which had no stages, were chained by hand."""
        return "stages" in self.settings

    @property
    def has_failed(self) -> bool:
        """Whether it diverged, or finished having learnt next to nothing."""
        hopeless = self.test is not None and self.test["error"] > HOPELESS
        return self.status == "failed" or (self.status == "finished" and hopeless)

    @property
    def taught_to_look(self) -> Taught:
        """What taught the run where to look: the objects' boxes, a teacher that knew labels alone, or nothing."""
        if not self.has_stages:
            return "by boxes" if self.settings["training"].get("guide") else "no"
        shown = [
            stage for stage in self.settings["stages"] if stage["attention_supervision"] not in (0, [0, 0])
        ]
        if any(stage.get("attention_teacher") is None for stage in shown):
            return "by boxes"
        return "by labels" if shown else "no"

    @property
    def validation_error(self) -> float | None:
        """The lowest."""
        return min((error for _, _, error in self.curve), default=None)

    @cached_property
    def test(self) -> dict[str, Any] | None:
        """The figures it is judged by: the test split of its own task, with its own number of glimpses."""
        return self.test_with({})

    def test_with(self, changed: dict[str, Any]) -> dict[str, Any] | None:
        """The test on most images of its task with some settings changed; of equal ones the latest."""
        own = (self.settings["model"].get("glimpses", 1), None)
        fitting = [test for test in reversed(self._tests_with(changed)) if test["glimpses"] in own]
        return max(fitting, key=lambda test: test["n"], default=None)

    def _tests_with(self, changed: dict[str, Any]) -> list[dict[str, Any]]:
        """All figures on the test split of the task it was trained on, or of that with some settings changed."""
        task = {**self.settings["task"], **changed}
        tests = [figure for figure in self.figures if figure["split"] == "test"]
        return [
            test
            for test in tests
            if changed.keys() <= test["task"].keys()
            and all(task.get(key) == value for key, value in test["task"].items())
        ]

    def errors_by_glimpses(self) -> tuple[int, dict[int, float]]:
        """Images, and the exact error for each number of glimpses on the same images; of several sets the fullest."""
        sets: dict[tuple[int, int], dict[int, float]] = {}
        for figure in self._tests_with({}):
            if figure["glimpses"] is not None:
                sets.setdefault((figure["n"], figure["seed"]), {})[figure["glimpses"]] = figure["error"]
        fullest = max(sets, key=lambda images: (len(sets[images]), images), default=None)
        if fullest is None or len(sets[fullest]) == 1:
            return 0, {}
        return fullest[0], dict(sorted(sets[fullest].items()))

    def with_figure(self, figure: dict[str, Any]) -> Record:
        """The same with one more evaluation, in place of an earlier one of the same images and glimpses."""

        def scored(test: dict[str, Any]) -> tuple[Any, ...]:
            task = material({"task": {**self.settings["task"], **test["task"]}})
            return (task, *(test[key] for key in ("split", "seed", "glimpses", "n")))

        kept = [other for other in self.figures if scored(other) != scored(figure)]
        return replace(self, figures=[*kept, figure])


@dataclass(frozen=True)
class Chain:
    """A run, the runs it was fine-tuned from, newest first, and those of the weights that taught them where to look."""

    runs: tuple[Record, ...]
    unknown: str | None = None
    """weights that one of these runs needed and of which no run is recorded"""

    @property
    def images(self) -> int:
        """Images seen by all runs together."""
        return sum(run.cost.images for run in self.runs)

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all runs together."""
        return sum(run.cost.cpu_seconds for run in self.runs)

    @property
    def taught_to_look(self) -> Taught:
        """What taught any of the runs where to look: weights keep what they learnt so."""
        found = {run.taught_to_look for run in self.runs}
        return next((kind for kind in get_args(Taught) if kind in found), "no")

    @property
    def count(self) -> str:
        """Such as: 5 runs."""
        more = f" and the unrecorded ones of {self.unknown}" if self.unknown else ""
        return f"{len(self.runs)} run" + "s" * (len(self.runs) > 1) + more


def chain(record: Record, records: Iterable[Record]) -> Chain:
    """The run of a record and those that it needed, as far as they are among the records."""
    known = {other.name: other for other in records if other.name != record.name}
    seen, runs, unknown = {record.name}, [record], None
    for run in runs:  # which grows on the way
        for weights in filter(None, (run.init_from, run.taught_by)):
            name = weights.split("@")[0]
            if name in known and name not in seen:
                runs.append(known[name])
            elif name not in seen:
                unknown = unknown or weights
            seen.add(name)
    return Chain(tuple(runs), unknown)


def shipped_record(name: str, records: Iterable[Record]) -> Record | None:
    """The run whose weights are shipped under this name, if it is among the records."""
    own = read_config(name)[1].record.get("result") if name in shipped() else None
    return next((record for record in records if record.name == own), None)


class Milestone(NamedTuple):
    """Where a run was when it first had an error."""

    images: int
    cpu_seconds: float
    error: float


def milestone(record: Record, error: float = AUTHORS_ERROR) -> Milestone | None:
    """The first validation at or below an error; CPU seconds that are not in the log are by share of images."""
    for images, seconds, found in record.curve:
        if found <= error:
            share = record.cost.cpu_seconds * images / max(1, record.cost.images)
            return Milestone(images, share if seconds is None else seconds, found)
    return None


def record_run(folder: Path, *, name: str = "", notes: str = "", failed: str = "") -> Record:
    """The record of the run in a folder, finished or not; `failed` says why it failed, if it did."""
    experiment = read_experiment(folder / "config.json")
    settings = portable(experiment.to_dict())
    command, changes = _against_preset(experiment)
    ended, checkpoints = folder / "summary.json", Checkpoints(folder / "checkpoints")
    log = read_log(folder / "log.jsonl")
    if ended.is_file():
        summary = state = read_json(ended)
    else:
        newest = checkpoints.load()
        if newest is None or not (newest.state["images"] or log or failed):
            raise OcraError(f"{folder} has neither a summary.json nor a checkpoint of anything learnt yet.")
        summary, state, ended = {}, _beyond(newest.state, log), checkpoints.paths()[0]
    found = dict(summary.get("versions") or versions())
    record = Record(
        name=name or run_name(experiment),
        version=".".join(found["ocra"].split(".")[:2]),
        preset=experiment.name,
        command=command,
        init_from=_source(experiment.stages[0].init_from),
        commit=summary.get("commit"),  # a run that was stopped may be resumed under another
        seed=experiment.seed,
        date=datetime.fromtimestamp(ended.stat().st_mtime, timezone.utc).date().isoformat(),
        versions=found,
        machine=found.pop("platform", None),
        cost=Cost(
            state["images"], experiment.planned_images, state["best_images"], round(state["seconds"], 1),
            round(state["cpu_seconds"], 1), state["processes"],
        ),
        curve=_curve(log),
        figures=[],
        changes=changes,
        settings=settings,
        status="failed" if failed else "finished" if summary else "stopped",
        notes=" ".join(filter(None, (failed, notes))),
        taught_by=_source(next(iter(experiment.attention_teachers), None)),
    )  # fmt: skip
    if tested := summary.get("test", {}).get("best"):
        about = {"task": settings["task"], "glimpses": experiment.model.glimpses, "command": command}
        record = record.with_figure(figure({**about, **tested}))
    return record


def _beyond(state: dict[str, Any], log: list[dict[str, Any]]) -> dict[str, Any]:
    """Where a run is that was lost, diverged or goes on after its newest checkpoint; its cost grew with its images."""
    timed = max([state, *(line for line in log if "cpu_seconds" in line)], key=lambda line: line["images"])
    images = max([timed["images"], *(line["images"] for line in log)])
    validations = [line for line in log if "validation_error" in line]
    best = min(validations, key=lambda line: line["validation_error"], default={})
    return {
        **state,
        "images": images,
        "best_images": best.get("images", images),
        "seconds": state["seconds"] * images / max(1, state["images"]),
        "cpu_seconds": timed["cpu_seconds"] * images / max(1, timed["images"]),
    }


def run_name(experiment: Experiment) -> str:
    """Name of a run's folder and of its record, such as multimnist-3-1.3M-seed0."""
    number = str(images := experiment.planned_images)
    for size, letter in ((1_000, "k"), (1_000_000, "M")):
        if images >= size and images * 100 % size == 0:
            number = f"{images / size:.2f}".rstrip("0").rstrip(".") + letter
    return f"{experiment.name}-{number}-seed{experiment.seed}"


def _against_preset(experiment: Experiment) -> tuple[str, dict[str, Any]]:
    """The command that trains an experiment, and the settings in which it differs from its preset."""
    if experiment.name not in ALL_PRESETS:
        return SAVED, {}
    images = experiment.planned_images
    for recipe in get_args(Recipe) if experiment.name in PRESETS else ("default",):
        known = preset(experiment.name, recipe)
        if not differences(experiment.to_dict(), known.scaled(images).to_dict()):
            words = f"ocra train {experiment.name} --seed {experiment.seed}"
            words += "" if images == known.planned_images else f" --images {images}"
            return (f"{words} --recipe paper", {"recipe": "paper"}) if recipe == "paper" else (words, {})
    own = differences(experiment.to_dict(), preset(experiment.name).scaled(images).to_dict())
    return SAVED, {key: here for key, (here, _) in own.items()}


def _source(weights: str | None) -> str | None:
    """Weights to start from by the record they are shipped with, as their name may come to mean others."""
    if weights is None:
        return None
    name, at, content = weight_name(weights).partition("@")
    with suppress(OcraError):  # they are no longer there, or others by now
        name = read_config(weights)[1].record.get("result", name)
    return f"{name}{at}{content}"


def weight_name(source: str) -> str:
    """Weights without the folders of a machine, such as name@hash: of a run's best or last, the name of the run."""
    path, at, content = source.rpartition("@") if "@" in source else (source, "", "")
    parts = [part for part in Path(path).parts if part not in ("/", "..", ".", "~")]
    while len(parts) > 1 and parts[-1] in ("best", "last", "weights"):
        parts.pop()
    return f"{parts[-1]}{at}{content}" if parts else source


def _curve(log: list[dict[str, Any]]) -> list[tuple[int, float | None, float]]:
    """The validations of a log, thinned out to a few hundred; the last and the best always stay."""
    points = [
        (line["images"], round(line["cpu_seconds"], 1) if "cpu_seconds" in line else None, round(error, 6))
        for line in log
        if (error := line.get("validation_error")) is not None
    ]
    every = -(-len(points) // MOST_POINTS)
    best = min(points, key=lambda point: point[2], default=None)
    return [point for k, point in enumerate(points, 1) if k % every == 0 or k == len(points) or point is best]


def portable(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, without the folders of the machine they were run on."""
    settings = json.loads(json.dumps(settings))
    if settings["task"].get("root"):
        settings["task"]["root"] = None
    for stage in settings.get("stages", ()):
        for key in _WEIGHTS:
            if stage.get(key):
                stage[key] = weight_name(stage[key])
    return settings


def _completed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of those that came after their record."""
    try:
        return Experiment.from_dict(settings).to_dict() if "stages" in settings else settings
    except OcraError:  # of a version, or a task, that is not known here
        return settings


def material(settings: dict[str, Any]) -> dict[str, Any]:
    """All that matters to what is learnt, as one flat dictionary, such as {"stages.0.batch_size": 128, …}."""
    flat: dict[str, Any] = {}

    def flatten(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                flatten(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            flatten({str(number): inner for number, inner in enumerate(value)}, key)
        elif not key.startswith(_IMMATERIAL):
            # A run knows by their hash what weights its preset calls by name.
            flat[key] = value.split("@")[0] if key.endswith(_WEIGHTS) and value else value

    flatten(portable(_completed(settings)), "")
    return flat


def differences(settings: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ in what is learnt, each with its value here and there."""
    here, there = material(settings), material(other)
    pairs = {key: (here.get(key), there.get(key)) for key in {**here, **there}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def figure(values: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an evaluation, from what `Evaluation.to_dict` gives with its task and command beside it."""
    # Errors of test sets need no more than six digits behind the point.
    values = json.loads(json.dumps(values), parse_float=lambda text: round(float(text), 6))
    kept: dict[str, Any] = {
        "task": {key: value for key, value in values["task"].items() if key not in ("root", "download")},
        "split": values.get("split", "test"), "seed": values.get("seed", 0), "glimpses": values.get("glimpses"),
        "n": values["n"], "error": values["exact_error"], "interval": values["exact_error_interval"],
        "command": values["command"], **{name: values[name] for name in _FIGURES if name in values},
    }  # fmt: skip
    if "classes" in values:
        kept["classes"] = {name: row["error"] for name, row in values["classes"].items()}
    if pairs := values.get("pairs"):
        enough = sum(row["n"] for row in pairs.values()) / len(pairs) / 2  # rare pairs say too little
        common = [[name, row["error"], row["n"]] for name, row in pairs.items() if row["n"] >= enough]
        kept["hardest_pairs"] = sorted(common, key=lambda row: -row[1])[:WORST]
    if confusion := values.get("confusion"):
        mistakes = [
            [true, answered, round(count / sum(row), 6)]
            for true, row in zip(confusion["true"], confusion["counts"], strict=True)
            for answered, count in zip(confusion["answered"], row, strict=True)
            if count and true != answered
        ]
        kept["confusions"] = sorted(mistakes, key=lambda mistake: -mistake[2])[:WORST]
    return kept


def read_record(path: Path) -> Record:
    """A record from its file; what is missing or no number is told."""
    values = read_json(path)
    try:
        record = Record(**{**values, "name": path.stem, "cost": Cost(**values["cost"])})
        record = replace(record, curve=[(images, cpu, error) for images, cpu, error in record.curve])
        numbers = [record.cost.images, record.cost.cpu_seconds, *(error for _, _, error in record.curve)]
        for test in record.figures:
            numbers += [test["n"], test["error"], *test["interval"]]
        if not all(isinstance(number, int | float) for number in numbers) or "task" not in record.settings:
            raise ValueError("a figure is no number, or the settings are missing")
    except (KeyError, TypeError, ValueError) as error:
        raise OcraError(
            f"{path} is no record of a run ({error}); 'ocra reproduce record' writes them."
        ) from None
    return record


def read_records(folder: Path) -> list[Record]:
    """All records in a folder, by name; measurements of other kinds (speed.json) have no preset and are passed over."""
    return [read_record(path) for path in sorted(folder.glob("*.json")) if "preset" in read_json(path)]


def write_record(folder: Path, record: Record) -> Path:
    """Keep a record in a folder under its name; one of another experiment is not overwritten.

    A line for each field: such a file is small, and a change of it can be read.
    """
    path = folder / f"{record.name}.json"
    _earlier(path, record)
    values = dataclasses.asdict(record)
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    write_text_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _earlier(path: Path, record: Record) -> Record | None:
    """The record in a file, if there is one; that of another experiment is refused."""
    earlier = read_record(path) if path.exists() else None
    if earlier is not None and (other := first_difference(earlier.settings, record.settings)):
        raise OcraError(f"{path} holds another experiment ({other}); give this one another --name.")
    return earlier


def first_difference(settings: dict[str, Any], other: dict[str, Any]) -> str:
    """The first setting that differs, in words; empty if the experiments are the same."""
    found = {"seed": (settings["seed"], other["seed"])} if settings["seed"] != other["seed"] else {}
    found |= differences(settings, other)
    return next((f"{key} {here}, not {there}" for key, (here, there) in found.items()), "")


def with_earlier_figures(record: Record, folder: Path) -> Record:
    """The record with the evaluations that its file has already, if they are of the same weights.

    They are if those had seen as many images and had the same validation error: another run would have another one.
    """
    earlier = _earlier(folder / f"{record.name}.json", record)
    if earlier is None:
        return record
    same = record.cost.best_images == earlier.cost.best_images
    if not same or _best_validation(earlier) != _best_validation(record):
        if earlier.figures:
            warnings.warn(f"The weights of {record.name} have changed: score them again.", stacklevel=2)
        return record
    for new in record.figures:
        earlier = earlier.with_figure(new)
    return replace(record, figures=earlier.figures, notes=record.notes or earlier.notes)


def _best_validation(record: Record) -> float | None:
    """The validation error of the weights that are scored, if there was a validation then."""
    return {images: error for images, _, error in record.curve}.get(record.cost.best_images)
