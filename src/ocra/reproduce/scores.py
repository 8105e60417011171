"""What is kept of an evaluation: main figures, the command that gives them, and where the model is weak."""

from __future__ import annotations

import shlex
from typing import Any

from ocra.presets import Experiment
from ocra.reproduce.settings import source_name

WORST = 5
_FIGURES = ("n", "exact_error", "exact_error_interval", "object_error", "reconstruction_mse", "output_error")


def condense(values: dict[str, Any], command: str | None = None) -> dict[str, Any]:
    """An evaluation as `ocra evaluate --json` gives it, in a few lines."""
    kept: dict[str, Any] = {
        "task": values["task"],
        "split": values.get("split", "test"),
        "shift": values.get("max_shift") if values["task"] == "multimnist" else None,
        "seed": values.get("seed", 0),
        "glimpses": values.get("glimpses"),
    }
    kept.update({name: _rounded(values[name]) for name in _FIGURES if name in values})
    if "lengths" in values:
        kept["lengths"] = _rounded(values["lengths"])
    if "classes" in values:
        kept["classes"] = {name: _rounded(row["error"]) for name, row in values["classes"].items()}
    if "pairs" in values:
        kept["hardest_pairs"] = _hardest(values["pairs"])
    if "confusion" in values:
        kept["confusions"] = _worst_confusions(values["confusion"])
    kept["command"] = command or evaluate_command(source_name(str(values.get("weights", "WEIGHTS"))), kept)
    return kept


def from_figures(figures: dict[str, Any], experiment: Experiment, command: str) -> dict[str, Any]:
    """The test at the end of a run, as it stands in summary.json."""
    about = {
        "task": experiment.task.name,
        "max_shift": experiment.task.max_shift,
        "glimpses": experiment.model.glimpses,
    }
    return condense({**about, **figures}, command)


def evaluate_command(weights: str, evaluation: dict[str, Any]) -> str:
    """The command that gives the figures of an evaluation."""
    words = ["ocra", "evaluate", weights, "--task", evaluation["task"], "--images", str(evaluation["n"])]
    for option in ("seed", "shift", "glimpses"):
        if evaluation.get(option) is not None:
            words += [f"--{option}", str(evaluation[option])]
    if evaluation["split"] != "test":
        words += ["--split", evaluation["split"]]
    return shlex.join(words)


def same_test(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two evaluations scored the same images in the same way."""
    names = ("task", "split", "shift", "seed", "glimpses", "n")
    return all(one.get(name) == other.get(name) for name in names)


def main_evaluation(
    evaluations: list[dict[str, Any]], config: dict[str, Any], shift: int | None = None
) -> dict[str, Any] | None:
    """Of all tests with the model's own number of glimpses the one on most images; of equal ones the latest.

    shift: for MultiMNIST, another shift than that of training.
    """
    task, glimpses = config["task"], config["model"]["glimpses"]
    wanted = None
    if task["name"] == "multimnist":
        wanted = task["max_shift"] if shift is None else shift
    fitting = [
        evaluation
        for evaluation in evaluations
        if evaluation["split"] == "test"
        and evaluation["task"] == task["name"]
        and evaluation.get("shift") == wanted
        and evaluation.get("glimpses") in (glimpses, None)
    ]
    return max(reversed(fitting), key=lambda evaluation: evaluation["n"], default=None)


def glimpse_series(evaluations: list[dict[str, Any]], config: dict[str, Any]) -> list[tuple[int, float, int]]:
    """(glimpses, exact error, images) if a model was given several numbers of glimpses on the same images, else none.

    Of several sets of images that with most numbers of glimpses counts, of equal ones the largest.
    """
    task = config["task"]
    own = (task["name"], "test", task["max_shift"] if task["name"] == "multimnist" else None)
    sets: dict[tuple[int, int], dict[int, float]] = {}
    for evaluation in evaluations:
        kind = (evaluation["task"], evaluation["split"], evaluation.get("shift"))
        if kind == own and evaluation.get("glimpses") is not None:
            errors = sets.setdefault((evaluation["n"], evaluation["seed"]), {})
            errors[evaluation["glimpses"]] = evaluation["exact_error"]
    (images, _), errors = max(sets.items(), key=lambda item: (len(item[1]), item[0]), default=((0, 0), {}))
    return [(count, errors[count], images) for count in sorted(errors)] if len(errors) > 1 else []


def _hardest(pairs: dict[str, dict[str, float]]) -> list[list[Any]]:
    """The pairs of classes with the highest error: pair, error, images. Rare pairs say too little and are left out."""
    enough = sum(row["n"] for row in pairs.values()) / len(pairs) / 2
    common = [(name, row) for name, row in pairs.items() if row["n"] >= enough]
    worst = sorted(common, key=lambda item: -item[1]["error"])[:WORST]
    return [[name, _rounded(row["error"]), row["n"]] for name, row in worst]


def _worst_confusions(confusion: dict[str, Any]) -> list[list[Any]]:
    """The mistakes made most often: true class, answer, share of the objects of that class."""
    mistakes = [
        (count / max(1.0, sum(row)), true, answered)
        for true, row in zip(confusion["true"], confusion["counts"], strict=True)
        for answered, count in zip(confusion["answered"], row, strict=True)
        if count and true != answered
    ]
    worst = sorted(mistakes, key=lambda mistake: -mistake[0])[:WORST]
    return [[true, answered, round(share, 6)] for share, true, answered in worst]


def _rounded(value: Any) -> Any:
    """Floats to six digits behind the point: errors of test sets need no more."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value
