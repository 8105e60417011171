"""From a run to weights in the package: score them as they are stored, record the result, write the card."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ocra.config import ModelConfig
from ocra.data import TaskConfig, make_task
from ocra.errors import OcraError, UsageError
from ocra.evaluation import evaluate
from ocra.files import write_json_atomically, write_text_atomically
from ocra.model import weights as pretrained
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo
from ocra.presets import PRESETS
from ocra.reproduce.cards import model_card
from ocra.reproduce.groups import test_of
from ocra.reproduce.results import Result, from_run, read_results, with_earlier_evaluations, write_result
from ocra.reproduce.scores import condense, evaluate_command
from ocra.reproduce.settings import portable
from ocra.reproduce.words import interval, percent

CHECK = "check.json"
CHECKED_IMAGES = 8
Storage = Literal["float32", "float16"]


def ship(
    run: Path,
    name: str,
    *,
    which: Literal["best", "last"] = "best",
    images: int = 10_000,
    curve_images: int = 5_000,
    storage: Storage = "float16",
    into: Path | None = None,
    results: Path,
    result_name: str = "",
    notes: str = "",
    threads: int = 0,
    say: Callable[[str], None] = print,
) -> Result:
    """Put the weights of a run, ended or not, into the package under a name, with their figures.

    images: of each generated test set, 0 for all of it; house numbers are scored on their whole test set.
    curve_images: for the error by number of glimpses, all on the same images; 0 leaves that out.
    """
    source, target = run / "weights" / which, (into or pretrained.SHIPPED) / name
    _check(source, name)
    result = from_run(run, notes)
    model = pretrained.load(source)
    info = model.info
    with tempfile.TemporaryDirectory() as folder:  # what is scored is what is stored
        pretrained.save(model, folder, info, storage)
        model = pretrained.load(folder)
    # Earlier figures of the same weights stay; a name that is taken is refused now, not after the tests.
    seen = int(info.record.get("training", {}).get("images_seen", result.best_images))
    result = replace(result, name=result_name or result.name, best_images=seen, evaluations=[])
    result = with_earlier_evaluations(result, results)
    task = TaskConfig(**_tuples(info.task))
    for test in planned_tests(model.config, task, images, curve_images):
        result = result.with_evaluation(score(model, name, task, test, threads, say))
    pretrained.save(model, target, _told(model.config, info, result), storage)
    write_json_atomically(target / CHECK, glyph_check(model, task.name))
    path = write_result(results, result)
    write_text_atomically(
        target / "README.md", model_card(name, result, seen, storage, read_results(results))
    )
    if (main := test_of(result)) is not None:
        say(f"{name}: exact error {percent(main['exact_error'])} % ({interval(main)}); {target}; {path}")
    return result


def _check(source: Path, name: str) -> None:
    """Refuse what cannot be shipped before anything is computed."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(f"'{name}' is no name for weights: use small letters, digits and hyphens.")
    if not source.is_dir():
        raise OcraError(
            f"{source} is missing: a run has it after its first validation (best) or its end (last)."
        )
    if name not in PRESETS:
        return
    own = json.loads((source / pretrained.CONFIG).read_text("utf-8"))["model"]
    if ModelConfig.from_dict(own) != PRESETS[name].model:
        raise OcraError(f"{source} holds another network than the preset {name}; ship it under another name.")


def planned_tests(
    model: ModelConfig, task: TaskConfig, images: int, curve_images: int
) -> list[dict[str, Any]]:
    """Which test sets to score on: shift, glimpses and number of images (None: all) of each."""
    count = None if task.name == "svhn" or images == 0 else images
    tests: list[dict[str, Any]] = []
    if model.recurrent and curve_images:
        tests += [
            {"shift": None, "glimpses": number, "images": curve_images}
            for number in glimpse_counts(model.glimpses)
            if (number, curve_images) != (model.glimpses, count)
        ]
    if task.name == "multimnist":
        tests.append({"shift": 6, "glimpses": model.glimpses, "images": count})
    return [*tests, {"shift": None, "glimpses": model.glimpses, "images": count}]


def glimpse_counts(own: int) -> list[int]:
    """Numbers of glimpses that show how the error falls, up to a few more than the model was trained with."""
    return [number for number in sorted({1, 2, 3, 4, 5, 7, 10, own, own + 2}) if number <= own + 2]


def score(
    model: OCRA, name: str, task: TaskConfig, test: dict[str, Any], threads: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """One evaluation, condensed, with the command that gives it."""
    config = task if test["shift"] is None else replace(task, max_shift=test["shift"])
    started = time.monotonic()
    found = evaluate(model, config, images=test["images"], glimpses=test["glimpses"], threads=threads)
    kept = condense({**found.to_dict(), "max_shift": config.max_shift, "weights": name})
    if test["glimpses"] != model.config.glimpses:
        kept = {
            key: value for key, value in kept.items() if key not in ("classes", "confusions", "hardest_pairs")
        }
    kept["command"] = evaluate_command(name, kept)
    took = time.monotonic() - started
    say(f"{kept['command']}\n    exact error {percent(found.exact_error)} %, {took:.0f} s")
    return kept


def glyph_check(model: OCRA, task: str) -> dict[str, Any]:
    """Scores on a few glyph digits, by which anybody can see that weights work as they did here."""
    with torch.no_grad():
        scores = model(glyph_images(model.config, task)).scores
    return {"glyph_images": CHECKED_IMAGES, "scores": [[round(x, 4) for x in row] for row in scores.tolist()]}


def glyph_images(config: ModelConfig, task: str) -> torch.Tensor:
    """Images of glyph digits of the model's size: float32 [8, channels, height, width]."""
    name: Any = "multimnist" if task == "multimnist" else "cluttered"
    source = make_task(TaskConfig(name=name, digits="glyphs", size=config.height), "test")
    images = source.batch(range(CHECKED_IMAGES)).images
    return images.expand(-1, config.channels, -1, -1).contiguous()


def tell(name: str, result: Result, others: Iterable[Result]) -> Path:
    """Write the card and the figures of shipped weights from their recorded result again; returns their folder."""
    if name not in pretrained.shipped():
        raise UsageError(f"There are no shipped weights '{name}'; say with --into where the card goes.")
    folder, (config, info) = pretrained.resolve(name), pretrained.read_config(name)
    if info.record.get("result") != result.name:
        raise UsageError(
            f"The weights {name} are those of the result {info.record.get('result')}, not of {result.name}."
        )
    pretrained.save_info(folder, _told(config, info, result))
    seen = int(info.record["training"]["images_seen"])
    card = model_card(name, result, seen, pretrained.stored_as(folder), others)
    write_text_atomically(folder / "README.md", card)
    return folder


def _told(config: ModelConfig, info: ModelInfo, result: Result) -> ModelInfo:
    """What the shipped config says besides the network."""
    told = {**portable(info.to_dict()), "result": result.name}
    if (test := test_of(result)) is not None:
        names = ("n", "exact_error", "exact_error_interval", "object_error", "command")
        told["test"] = {name: test[name] for name in names}
    return ModelInfo.from_dict(told, config)


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
