"""Recorded results: one small JSON file for each run that was really made."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ocra.errors import OcraError, UsageError
from ocra.files import read_json, write_text_atomically
from ocra.model.weights import read_config
from ocra.reproduce.plan import job_name
from ocra.reproduce.scores import condense, from_figures, same_test
from ocra.reproduce.settings import first_difference, portable, recorded_source
from ocra.training.checkpoint import Checkpoints
from ocra.training.folder import RunFolder, read_spec
from ocra.training.logging import read_log
from ocra.training.summary import versions

MOST_POINTS = 200


@dataclass(frozen=True)
class Result:
    """What is kept of one run."""

    preset: str
    seed: int
    config: dict[str, Any]
    """the whole experiment, without folders of the machine it ran on"""
    images: int
    """images seen"""
    best_images: int
    """images seen by the best weights, which are those that are scored"""
    cpu_seconds: float
    """of all processes together"""
    seconds: float
    processes: int
    date: str
    """day on which it ended"""
    versions: dict[str, str]
    commit: str | None
    start_from: str | None = None
    """weights it started from, whose own images are not counted in `images`"""
    notes: str = ""
    ended: bool = True
    """whether the run came to its end before it was recorded"""
    failed: bool = False
    reason: str = ""
    """why it failed"""
    validation: list[list[float]] = field(default_factory=list)
    """images seen, exact error and, where the log has them, CPU seconds"""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    name: str = ""
    """name of the file it is kept in"""

    @property
    def planned(self) -> int:
        """Images the run was to see."""
        return int(self.config["training"]["images"])

    @property
    def stopped_early(self) -> bool:
        """Whether it was recorded before its end, and could go on."""
        return not self.failed and not self.ended

    def with_evaluation(self, evaluation: dict[str, Any]) -> Result:
        """The same with one more evaluation, in place of an earlier one of the same kind."""
        kept = [other for other in self.evaluations if not same_test(other, evaluation)]
        return replace(self, evaluations=[*kept, evaluation])


def from_run(folder: Path, notes: str = "", failed: str = "") -> Result:
    """The result of the run in a folder, ended or not; `failed` says why it failed, if it did."""
    experiment = read_spec(folder / "config.json")
    summary = RunFolder(folder).summary()
    state = summary or _newest_state(folder)
    ended = folder / "summary.json" if summary else Checkpoints(folder / "checkpoints").paths()[0]
    day = datetime.fromtimestamp(ended.stat().st_mtime, timezone.utc).date().isoformat()
    config = portable(experiment.to_dict())
    source = experiment.training.start_from
    tests = (summary or {}).get("test", {})
    command = f"scored at the end of: ocra train --config {folder.name}/config.json"
    return Result(
        preset=experiment.name,
        seed=experiment.seed,
        config=config,
        images=state["images"],
        best_images=state["best_images"],
        cpu_seconds=round(state["cpu_seconds"], 1),
        seconds=round(state["seconds"], 1),
        processes=state["processes"],
        date=day,
        versions=(summary or {}).get("versions") or versions(),
        commit=summary["commit"] if summary else None,  # a run may have gone on under several
        start_from=None if source is None else recorded_source(source),
        notes=notes,
        ended=summary is not None,
        failed=bool(failed),
        reason=failed,
        validation=validation_series(read_log(folder / "log.jsonl")),
        evaluations=[from_figures(tests["best"], experiment, command)] if "best" in tests else [],
        name=job_name(experiment),
    )


def _newest_state(folder: Path) -> dict[str, Any]:
    """Where a run that has not ended is, by its newest checkpoint."""
    checkpoint = Checkpoints(folder / "checkpoints").load()
    if checkpoint is None:
        raise OcraError(
            f"{folder} has neither a summary.json nor a checkpoint: there is nothing to record yet."
        )
    log = read_log(folder / "log.jsonl")
    state = checkpoint.state
    checks = [line for line in log if "validation_error" in line]
    if checks:
        state = {**state, "best_images": min(checks, key=lambda line: line["validation_error"])["images"]}
    # A run that is going on has seen a little more since; its cost grows with it.
    seen = max([state["images"], *(line["images"] for line in log)])
    costs = {"seconds": state["seconds"] * seen / max(1, state["images"])}
    last = max([state, *(line for line in checks if "cpu_seconds" in line)], key=lambda at: at["images"])
    costs["cpu_seconds"] = last["cpu_seconds"] * seen / max(1, last["images"])
    return {**state, **costs, "images": seen}


def validation_series(log: list[dict[str, Any]]) -> list[list[float]]:
    """The validations of a log, thinned out to a few hundred; the last and the best always stay."""
    points = [
        [record["images"], round(record["validation_error"], 6)]
        + ([round(record["cpu_seconds"], 1)] if "cpu_seconds" in record else [])
        for record in log
        if "validation_error" in record
    ]
    if len(points) <= MOST_POINTS:
        return points
    every = -(-len(points) // MOST_POINTS)
    best = min(points, key=lambda point: point[1])
    return [point for k, point in enumerate(points, 1) if k % every == 0 or k == len(points) or point is best]


def read_result(path: Path) -> Result:
    """A result from its file."""
    values = read_json(path)
    names = {item.name for item in dataclasses.fields(Result)} - {"name"}
    required = {"preset", "seed", "config", "images", "cpu_seconds", "date"}
    if not isinstance(values, dict) or (missing := sorted(required - set(values))):
        wanting = "an object" if not isinstance(values, dict) else missing[0]
        raise OcraError(
            f"{path} is no recorded result: {wanting} is missing. 'ocra reproduce record' writes them."
        )
    config = values["config"]
    if not isinstance(config, dict) or not {"model", "task", "loss", "training"} <= set(config):
        raise OcraError(f"{path} is no recorded result: its config does not say how the run was made.")
    given = {name: value for name, value in values.items() if name in names}
    defaults: dict[str, Any] = {
        "best_images": values["images"], "seconds": 0.0, "processes": 1, "versions": {}, "commit": None
    }  # fmt: skip
    result = Result(**{**defaults, **given, "name": path.stem})
    try:
        figures = [result.planned, result.images, result.cpu_seconds, result.best_images]
        figures += [figure for point in result.validation for figure in (point[0], point[1])]
        figures += [test[name] for test in result.evaluations for name in ("n", "exact_error")]
        [float(figure) for figure in figures]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise OcraError(f"{path} is no recorded result: a figure is missing or none ({error}).") from None
    return result


def read_results(folder: Path) -> list[Result]:
    """All results in a folder, by name; a folder that is not there holds none.

    Measurements of other kinds (speed.json) lie beside them and are passed over.
    """
    return [read_result(path) for path in sorted(folder.glob("*.json")) if _may_be_result(path)]


def _may_be_result(path: Path) -> bool:
    """False for a JSON object without a preset; a broken file is left to `read_result` to refuse."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return True
    return not isinstance(values, dict) or "preset" in values


def place_of(folder: Path, result: Result) -> Path:
    """The file of a result; one that holds another experiment is not overwritten."""
    path = folder / f"{result.name}.json"
    other = first_difference(read_result(path).config, result.config) if path.exists() else None
    if other is not None:
        raise OcraError(f"{path} holds another experiment ({other}); give this one another --name.")
    return path


def write_result(folder: Path, result: Result) -> Path:
    """Keep a result in a folder under its name.

    A line for each field: such a file is small, and a change of it can be read.
    """
    path = place_of(folder, result)
    values = dataclasses.asdict(result)
    del values["name"]
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    write_text_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def with_earlier_evaluations(result: Result, folder: Path) -> Result:
    """A result with the evaluations it had when it was recorded before, if its weights are still the same.

    They are if they had seen as many images and had the same validation error: another run would have another one.
    """
    path = place_of(folder, result)
    if not path.is_file():
        return result
    earlier = read_result(path)
    if _weights(earlier) != _weights(result):
        if earlier.evaluations:
            warnings.warn(f"The weights of {result.name} have changed: score them again.", stacklevel=2)
        return result
    for evaluation in earlier.evaluations:
        if not any(same_test(evaluation, own) for own in result.evaluations):
            result = replace(result, evaluations=[*result.evaluations, evaluation])
    return replace(result, notes=result.notes or earlier.notes)


def _weights(result: Result) -> tuple[int, float | None]:
    """By what the best weights of two recordings of a run are known: images they saw, and their validation error."""
    errors = {point[0]: point[1] for point in result.validation}
    return result.best_images, errors.get(result.best_images)


def read_evaluation(path: Path, result: Result, run: Path) -> dict[str, Any]:
    """What `ocra evaluate --json` printed into a file about the best weights of a run, condensed to what is kept."""
    values = read_json(path)
    needed = {"task", "n", "exact_error", "exact_error_interval", "object_error", "reconstruction_mse"}
    if not isinstance(values, dict) or not needed <= set(values):
        raise UsageError(
            f"{path} is no evaluation; write it with: ocra evaluate WEIGHTS --json > {path.name}"
        )
    own = result.config["task"]
    if values["task"] != own["name"]:
        raise UsageError(
            f"The evaluation {path} is of the task {values['task']}, but {run} was trained on {own['name']}."
        )
    if (digits := values.get("digits", own["digits"])) != own["digits"]:
        raise UsageError(
            f"The evaluation {path} is on digits of {digits}, but {run} was trained on those of {own['digits']}."
        )
    if "weights" in values and _are_others(values["weights"], result):
        raise UsageError(
            f"The evaluation {path} is of the weights {values['weights']}, not of the best ones of {run}."
        )
    return condense(values)


def _are_others(weights: str, result: Result) -> bool:
    """Whether weights, if they can be found, are not the best ones of the run of this result."""
    try:
        _, about = read_config(weights)
    except OcraError:
        return False
    training = about.record.get("training", {})
    told = about.name, training.get("seed"), training.get("images_seen")
    return told != (result.preset, result.seed, result.best_images)
