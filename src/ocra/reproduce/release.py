"""From a run to weights in the package: score them as they are stored, record the run, write card and tables."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ocra.config import ModelConfig, NetworkConfig
from ocra.data import ClutteredMNIST, TaskConfig, make_task, task_config
from ocra.data.corruptions import CORRUPTIONS
from ocra.errors import OcraError, UsageError
from ocra.evaluation import calibrate, evaluate
from ocra.files import read_json, write_json_atomically, write_text_atomically
from ocra.model import weights as pretrained
from ocra.model.deciding import is_sure
from ocra.model.network import Network
from ocra.presets import ALL_PRESETS
from ocra.reproduce.cards import DAMAGE, SCALES, SEVERITIES, model_card
from ocra.reproduce.plots import draw_all, plots
from ocra.reproduce.records import (
    Record,
    figure,
    read_records,
    record_run,
    shipped_record,
    with_earlier_figures,
    write_record,
)
from ocra.reproduce.tables import (
    blocks,
    evaluate_command,
    filled,
    percent,
    results_page,
    runs_page,
    second_test,
)

CHECK = "check.json"
CHECKED_IMAGES = 8
SINGLE_OBJECTS = 2_000
"""Test images of one object that a network is shown which always names several; the last ones, as yet unseen."""
DETAILS = (
    "classes",
    "confusions",
    "hardest_pairs",
    "objects_in_image",
    "lengths",
    "output_error",
    "calibration",
)
"""What is kept of the main test only."""
Test = tuple[dict[str, Any], int, int | None]
"""Changed settings of the task, glimpses and number of images (None: all)."""


def release(
    run: Path,
    name: str,
    *,
    results: Path,
    which: Literal["best", "last"] = "best",
    images: int | None = None,
    curve_images: int = 5_000,
    damaged_images: int = 1_000,
    into: Path = pretrained.SHIPPED,
    notes: str = "",
    threads: int = 0,
    say: Callable[[str], None] = print,
) -> Record:
    """Put the weights of a run, finished or not, into the package under a name, with their figures and their card.

    They are calibrated first. images: test images, by default the whole test set. curve_images: for the error by
    number of glimpses, the same images for each number; damaged_images: for each corruption and each size of the
    digits; 0 leaves these out.
    """
    source, target = run / "weights" / which, into / name
    _check(source, name)
    record = record_run(run, notes=notes)
    model = pretrained.load(source)
    info = model.info
    with tempfile.TemporaryDirectory() as folder:  # what is scored is what is stored
        pretrained.save(model, folder, info, "float16")
        model = pretrained.load(folder)
    seen = int(info.record.get("images", record.cost.best_images))
    record = replace(record, cost=replace(record.cost, best_images=seen), figures=[])
    record = with_earlier_figures(record, results)  # a name that is taken is refused now, not after the tests
    task = task_config(record.settings["task"])
    info = replace(info, calibration=calibrate(model, task))
    model.info = info
    tests = planned_tests(name, model.config, images, curve_images)
    tests += damage_tests(task, model.config, damaged_images)
    record = score(model, name, record, tests, threads, say)
    told = {**info.record, "experiment": record.settings, "result": record.name, "test": record.test}
    info = replace(info, name=name, task=record.settings["task"], record=told)
    pretrained.save(model, target, info, "float16")
    with torch.no_grad():
        scores = model(glyph_images(model.config, task)).scores
    rounded = [[round(x, 4) for x in row] for row in scores.tolist()]
    checked = {"content": pretrained.content_hash(target), "glyph_images": CHECKED_IMAGES, "scores": rounded}
    write_json_atomically(target / CHECK, checked)
    write_record(results, record)
    write_text_atomically(target / "README.md", model_card(name, record, read_records(results)))
    return record


def rescore(
    name: str,
    *,
    results: Path,
    images: int | None = 10_000,
    damaged_images: int = 1_000,
    threads: int = 0,
    say: Callable[[str], None] = print,
) -> Record:
    """Calibrate shipped weights anew, and score how sure they are and what they withstand, into their record."""
    record = shipped_record(name, read_records(results))
    if record is None:
        raise UsageError(f"There are no shipped weights '{name}' with a record in {results}.")
    model = pretrained.load(name)
    task = task_config(record.settings["task"])
    model.info = replace(model.info, calibration=calibrate(model, task))
    pretrained.save_info(pretrained.SHIPPED / name, model.info)
    tests: list[Test] = [({}, model.config.glimpses, images)]
    tests += damage_tests(task, model.config, damaged_images)
    record = score(model, name, record, tests, threads, say)
    write_record(results, record)
    return record


def score(
    model: Network,
    name: str,
    record: Record,
    tests: list[Test],
    threads: int,
    say: Callable[[str], None],
) -> Record:
    """The record with the figures of these tests of its weights."""
    task = task_config(record.settings["task"])
    for changed, glimpses, count in tests:
        started = time.monotonic()
        found = evaluate(
            model, task.with_settings(**changed), images=count, glimpses=glimpses, threads=threads
        )
        about = {"task": {**record.settings["task"], **changed}, "command": ""}
        kept = figure({**found.to_dict(), **about})
        kept["command"] = evaluate_command(name, kept, record)
        if changed.keys() & DAMAGE or glimpses != model.config.glimpses:
            kept = {key: value for key, value in kept.items() if key not in DETAILS}
        elif not changed and (single := answered_single_objects(model, task)) is not None:
            kept["calibration"]["single_objects"] = single
        record = record.with_figure(kept)
        took = time.monotonic() - started
        say(f"{kept['command']}\n    exact error {percent(kept['error'])} %, {took:.0f} s")
    return record


@torch.inference_mode()
def answered_single_objects(model: Network, task: TaskConfig) -> dict[str, float] | None:
    """Test images of one object that a network answers which always names several: their number, the share it answers.

    For all others it says "unsure" or "nothing". None for a network that was not calibrated for it.
    """
    info = model.info
    if info.calibration is None or not info.calibration.plausible or (info.answer.objects or 0) < 2:
        return None
    source = make_task(task, "test")
    indices = np.arange(max(0, len(source) - 2 * SINGLE_OBJECTS), len(source))
    batch = source.batch(indices, single_objects=1.0)
    single = batch.take((batch.counts.sum(1) == 1).nonzero()[:SINGLE_OBJECTS, 0])
    if not len(single):
        return None
    answered = [
        is_sure(trace, info.answer, info.calibration) & (trace.scores.amax(1) > info.calibration.silence)
        for trace in map(model, single.images.split(128))
    ]
    return {"n": len(single), "answered": float(torch.cat(answered).double().mean())}


def _check(source: Path, name: str) -> None:
    """Refuse what cannot be released before anything is computed."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(f"'{name}' is no name for weights: use small letters, digits and hyphens.")
    if not source.is_dir():
        raise OcraError(
            f"{source} is missing: a run has it after its first validation (best) or its end (last)."
        )
    if name in ALL_PRESETS and pretrained.read_config(source)[0] != ALL_PRESETS[name].model:
        raise OcraError(f"{source} is another network than the preset {name}; release it under another name.")


def damage_tests(task: TaskConfig, model: NetworkConfig, images: int) -> list[Test]:
    """A test for each corruption at two severities, and for digits of other sizes where the task knows sizes."""
    if not images:
        return []
    kinds = {function: kind for kind, function in reversed(CORRUPTIONS.items())}  # one name for each
    changes: list[dict[str, Any]] = [
        {"corruption": kind, "severity": severity} for kind in kinds.values() for severity in SEVERITIES
    ]
    if "scale" in task.to_dict():
        changes += [{"scale": scale} for scale in SCALES]
    return [(changed, model.glimpses, images) for changed in changes]


def planned_tests(name: str, model: ModelConfig, images: int | None, curve_images: int) -> list[Test]:
    """Which tests to make: changed settings of the task, glimpses and number of images (None: all) of each."""
    tests: list[Test] = []
    if model.recurrent and curve_images:
        counts = sorted({1, 2, 3, 4, 5, 7, 10, model.glimpses, model.glimpses + 2})
        tests = [({}, count, curve_images) for count in counts if count <= model.glimpses + 2]
    if changed := second_test(name):
        tests.append((changed, model.glimpses, images))
    tests = [test for test in tests if test != ({}, model.glimpses, images)]
    return [*tests, ({}, model.glimpses, images)]


def glyph_images(config: ModelConfig, task: TaskConfig) -> torch.Tensor:
    """Images of glyph digits of the model's size, by which anybody can see that weights work as they did here.

    float32 [8, channels, height, width]
    """
    own = task.offline()
    if own is None or make_task(own, "test").image_shape != config.image_shape:
        own = ClutteredMNIST.Config(digits="glyphs", size=config.height)
    images = make_task(own, "test").batch(range(CHECKED_IMAGES)).images
    return images.expand(-1, config.channels, -1, -1).contiguous()


def pages(records: list[Record], folder: Path) -> dict[Path, str]:
    """The two pages of results in a folder of documents, by their files."""
    titles = {name: title for name, (title, _) in plots(records).items()}
    return {
        folder / "results.md": results_page(records, titles),
        folder / "runs.md": runs_page(records),
    }


def write_pages(records: list[Record], folder: Path) -> None:
    """Write the two pages of results into a folder, and their plots below it."""
    try:
        draw_all(records, folder / "plots")
        for path, text in pages(records, folder).items():
            write_text_atomically(path, text)
    except OSError as error:
        raise OcraError(f"The results could not be written to {folder}: {error.strerror}.") from None


def generated(root: Path) -> dict[Path, str]:
    """The text of every file below the project's folder that is written from its records."""
    results = root / "benchmarks" / "results"
    records = read_records(results)
    found = blocks(records, read_json(results / "speed.json"))
    files = pages(records, root / "docs")
    for page in (root / "README.md", root / "benchmarks" / "README.md"):  # the blocks in them
        files[page] = filled(page.read_text("utf-8"), found)
    for name in pretrained.shipped():
        if (record := shipped_record(name, records)) is not None:
            files[root / "src/ocra/pretrained" / name / "README.md"] = model_card(name, record, records)
    return files


def publish(root: Path) -> None:
    """Write every table, page, plot and card of the project anew from its records."""
    draw_all(read_records(root / "benchmarks" / "results"), root / "docs" / "plots")
    for path, text in generated(root).items():
        write_text_atomically(path, text)
