"""All systems at equal CPU time, `ocra reproduce baselines`: their runs, and tables and a plot for each task."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from ocra.benchmark import multiply_adds
from ocra.data import make_task, task_config
from ocra.errors import OcraError, UsageError
from ocra.evaluation import evaluate
from ocra.experiment import Experiment
from ocra.files import read_json, write_json_atomically, write_text_atomically
from ocra.model.network import Network
from ocra.model.weights import content_hash, load, resolve, shipped
from ocra.presets import preset
from ocra.reproduce.plots import COLOURS, labelled_axes
from ocra.reproduce.records import Record, chain, figure, read_records, run_name, shipped_record, write_record
from ocra.reproduce.tables import (
    NOTHING,
    filled,
    hours,
    interval,
    markdown_table,
    millions,
    parameters,
    percent,
    seeds_of_each,
)
from ocra.training.distributed import Group
from ocra.training.logging import Reporter, versions
from ocra.training.run import choose_precision
from ocra.training.trainer import Trainer
from ocra.viz.style import save_figure, styled

PAGE = "baselines.md"
MEASURED = "measured.json"
SYSTEMS = {
    "MultiMNIST": ("multimnist-3", "capsnet-multimnist", "cnn-multimnist", "cnn-small-multimnist"),
    "Cluttered MNIST": (
        "cluttered-5", "dram-cluttered", "dram-no-context-cluttered", "ram-cluttered", "cnn-small-cluttered",
    ),
}  # fmt: skip
"""The rows for each task, OCRA first."""
FEWEST_IMAGES = 500
VALIDATIONS = 10
# Of the images trained on, those of one validation: so all validations together take a few percent of the time.
VALIDATED = 1 / 50
SHORT_MINUTES = 30
MEASURING_SECONDS = 4.0


@dataclass(frozen=True)
class Condition:
    """Test images unlike those of the training."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """of the task, where they differ"""
    scale: float = 1.0
    """size of the digits; about the middle, what leaves the image is lost"""
    noise: float = 0.0
    """standard deviation of Gaussian noise on each pixel, clipped to [0, 1]"""

    def changed(self, images: Tensor, side: int, generator: torch.Generator) -> Tensor:
        """Images [batch, channels, any, any] as the network gets them: [batch, channels, side, side]."""
        if self.scale != 1:
            size = round(self.scale * images.shape[-1])
            images = F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)
            left = (side - size) // 2
            images = F.pad(images, (left, side - size - left) * 2)  # negative: cut off
        if self.noise:
            images = images + self.noise * torch.randn(images.shape, generator=generator)
        return images.clamp(0, 1)


SIZES = (Condition("digits × 0.8", scale=0.8), Condition("digits × 1.25", scale=1.25))
NOISE = Condition("noise 0.2", noise=0.2)
CONDITIONS = {
    "MultiMNIST": (
        Condition("shifts up to 6", {"max_shift": 6}), Condition("shifts up to 8", {"max_shift": 8}), *SIZES, NOISE,
    ),
    # Digits lie anywhere in training already. Another size of image, brought to 100 × 100, is another size of digit.
    "Cluttered MNIST": (
        Condition("12 fragments", {"distractors": 12}), replace(SIZES[0], settings={"size": 125}),
        replace(SIZES[1], settings={"size": 80}), NOISE,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """Images for each second of CPU time, in one thread."""

    training: float
    inference: float


def on_equal_terms(name: str) -> Experiment:
    """A preset as it is compared: bfloat16 for whoever gains by it, hard examples selected by nobody."""
    experiment = preset(name)
    stages = tuple(replace(stage, select=1) for stage in experiment.stages)
    return replace(experiment, stages=stages, run=replace(experiment.run, precision="auto"))


def planned_baselines(
    cpu_minutes: float, seeds: Sequence[int], speed_of: Callable[[str], Speed]
) -> dict[str, Experiment]:
    """All runs by name, one seed after the other, each so long that it takes `cpu_minutes` of CPU time."""
    if not seeds:
        raise UsageError("Give at least one seed, for example --seeds 1 2 3.")
    if not 0 < cpu_minutes < 1e6:
        raise UsageError(f"--cpu-minutes must be a number above 0, not {cpu_minutes:g}.")
    runs = {}
    for seed in seeds:
        for name in (name for row in SYSTEMS.values() for name in row):
            speed = speed_of(name)
            seconds = 1 / speed.training + VALIDATIONS * VALIDATED / speed.inference
            images = int(60 * cpu_minutes / seconds)
            size = 10 ** max(0, len(str(images)) - 2)  # two digits: the names of the runs stay short
            if (images := images // size * size) < FEWEST_IMAGES:
                raise UsageError(
                    f"{cpu_minutes:g} CPU minutes buy only {images:,} images for {name}; give more."
                )
            experiment = replace(on_equal_terms(name), seed=seed).scaled(images)
            run = replace(
                experiment.run, validate_every_images=max(1, images // VALIDATIONS),
                validate_images=min(5_000, max(200, int(images * VALIDATED))),
                test_images=2_000 if cpu_minutes < SHORT_MINUTES else 10_000,
            )  # fmt: skip
            runs[run_name(experiment)] = replace(experiment, run=run)
    return runs


class Measurements:
    """The speed of each system on this machine, and how shipped weights do under other conditions; kept in a file."""

    def __init__(self, results: Path) -> None:
        self.path, self.machine = results / MEASURED, versions()["platform"]
        kept = read_json(self.path) if self.path.is_file() else {}
        self.speeds = {name: Speed(**values) for name, values in kept.get("speeds", {}).items()}
        self.measured_on: str = kept.get("machine", self.machine)
        self.shipped: dict[str, dict[str, Any]] = kept.get("shipped", {})

    def speed_of(self, name: str) -> Speed:
        """Measured once, so that the same command plans the same runs again; on another machine afresh."""
        if self.measured_on != self.machine:
            self.speeds, self.measured_on = {}, self.machine
        if name not in self.speeds:
            self.speeds[name] = measure_speed(on_equal_terms(name))
            self.save()
        return self.speeds[name]

    def test_shipped(self, images: int) -> None:
        """Test the shipped weights of OCRA under all conditions, unless these very ones were."""
        for task, names in SYSTEMS.items():
            for name in set(names) & set(shipped()):
                content = content_hash(resolve(name))
                if self.shipped.get(name, {}).get("hash") != content:
                    tests = dict(figures_under(load(name), preset(name).task.to_dict(), task, images))
                    self.shipped[name] = {"hash": content, "tests": tests}
                    self.save()

    def save(self) -> None:
        """Write the file."""
        speeds = {
            name: {key: round(value, 1) for key, value in asdict(speed).items()}
            for name, speed in self.speeds.items()
        }
        write_json_atomically(
            self.path, {"machine": self.measured_on, "speeds": speeds, "shipped": self.shipped}
        )


def measure_speed(experiment: Experiment) -> Speed:
    """Repeat the step of the last stage, and a pass without gradients, for a few seconds of CPU time each."""
    last = replace(experiment.stages[-1], images=10**9, warmup_images=0, init_from=None)
    precision = choose_precision("auto", "cpu", experiment.model.network.supports_bf16)
    experiment = replace(experiment, stages=(last,), run=replace(experiment.run, precision=precision))
    with _one_thread():
        trainer = Trainer(experiment, Group(), None, Reporter(None))
        images = trainer.task.batch(range(last.batch_size)).images

        @torch.no_grad()
        def look() -> None:
            with trainer.model.as_used():
                trainer.model(images)

        training, inference = (last.batch_size / _seconds(step) for step in (trainer.step, look))
    return Speed(training, inference)


def _seconds(step: Callable[[], object]) -> float:
    """CPU seconds of a step, on average; the first, in which things are compiled, does not count."""
    step()
    start, count = time.process_time(), 0
    while (elapsed := time.process_time() - start) < MEASURING_SECONDS:
        step()
        count += 1
    return elapsed / count


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def figures_under(
    model: Network, settings: dict[str, Any], task: str, images: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each condition with the figures of a model trained on a task of these settings."""
    side = model.config.height
    for condition in CONDITIONS[task]:
        source = make_task(task_config({**settings, **condition.settings}), "test")
        generator = torch.Generator().manual_seed(0)

        def look(batch: Tensor, condition: Condition = condition, generator: Any = generator) -> Any:
            # Scores alone: a canvas could not be compared with images of another size.
            return model(condition.changed(batch, side, generator)).scores

        found = evaluate(look, source, images=images, threads=1)
        about = {
            "task": {**settings, "condition": condition.name},
            "glimpses": model.config.glimpses,
            "command": "ocra reproduce baselines",
        }
        yield condition.name, figure({**found.figures, **about})


def with_conditions(record: Record, weights: Path, images: int) -> Record:
    """The record of a run with the figures of its best weights under all conditions."""
    task = next(task for task, names in SYSTEMS.items() if record.preset in names)
    for _, found in figures_under(load(weights), record.settings["task"], task, images):
        record = record.with_figure(found)
    return record


def test_runs(runs: Path, results: Path, images: int) -> None:
    """Test every recorded run that was not yet, as far as its folder is there, under all conditions."""
    for record in read_records(results):
        task = next((task for task, names in SYSTEMS.items() if record.preset in names), None)
        weights = runs / record.name / "weights" / "best"
        if task is None or not weights.is_dir():
            continue
        if any(record.test_with({"condition": condition.name}) is None for condition in CONDITIONS[task]):
            write_record(results, with_conditions(record, weights, images))


def newest(name: str, records: Iterable[Record]) -> list[Record]:
    """The runs of a system, under several seeds, that saw most images: a longer comparison replaces a shorter one."""
    groups = seeds_of_each(
        run for run in records if run.preset == name and run.is_of_preset and run.test is not None
    )
    return groups[0] if groups else []


def in_percent(tests: Sequence[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, or the 95 % interval of a single test."""
    if not tests:
        return "not run"
    if len(tests) == 1:
        return f"{percent(tests[0]['error'])} ({interval(tests[0])})"
    errors = [test["error"] for test in tests]
    return f"{percent(statistics.fmean(errors))} ± {percent(statistics.stdev(errors))}"


def training_seconds(run: Record) -> float:
    """CPU seconds to the end of training, validations included, the test at the end not."""
    return run.curve[-1][1] or run.cost.cpu_seconds if run.curve else run.cost.cpu_seconds


def baselines_table(records: list[Record], measured: Measurements, own: list[Record]) -> str:
    """Tables for each task. own: the records of OCRA's longer runs, of which the shipped weights are."""
    parts = []
    for task, names in SYSTEMS.items():
        rows = [_row(name, newest(name, records), measured.speeds.get(name)) for name in names]
        titles = (
            "system | precision | parameters | multiply-adds | error, % | seeds | images seen | CPU seconds | "
            "training, images/s | inference, images/s | quoted error, %"
        )
        parts.append(f"### {task}\n\n{markdown_table(titles, rows, 2)}")
        if (longer := shipped_record(names[0], own)) and longer.test:
            line = chain(longer, own)
            parts.append(
                f"Trained for longer, OCRA has {in_percent([longer.test])} %: the shipped `{names[0]}`, "
                f"{millions(line.images)} images and {hours(line.cpu_seconds)} CPU hours in {line.count}."
            )
        if any(run.curve for name in names for run in newest(name, records)):
            parts.append(f"![{task}: validation error against CPU time](plots/{_plot(task)})")
        parts.append(_conditions_table(task, records, measured))
    return "\n\n".join(filter(None, parts)) + "\n"


def _row(name: str, group: list[Record], speed: Speed | None) -> list[str]:
    """A system in the table."""
    network = [parameters(name), f"{multiply_adds(preset(name).model) / 1e6:,.0f} M"]
    speeds = [f"{value:,.0f}" for value in (speed.training, speed.inference)] if speed else [NOTHING] * 2
    quoted = preset(name).paper_error or NOTHING
    if not group:
        return [f"`{name}`", NOTHING, *network, "not run", *[NOTHING] * 3, *speeds, quoted]
    return [
        f"`{name}`", group[0].settings["run"]["precision"], *network,
        in_percent([run.test for run in group if run.test]), str(len(group)),
        millions(statistics.fmean(run.cost.images for run in group)),
        f"{statistics.fmean(map(training_seconds, group)):,.0f}", *speeds, quoted,
    ]  # fmt: skip


def _conditions_table(task: str, records: list[Record], measured: Measurements) -> str:
    """How each system does on images unlike those of the training; nothing if none was tested so."""
    rows = []
    for name in SYSTEMS[task]:
        group = newest(name, records)
        found = [
            [test for run in group if (test := run.test_with({"condition": condition.name}))]
            for condition in CONDITIONS[task]
        ]
        if any(found):
            rows.append([f"`{name}`", *map(in_percent, ([run.test for run in group if run.test], *found))])
    for name in SYSTEMS[task]:
        if name in measured.shipped:
            tests = measured.shipped[name]["tests"]
            found = [[tests[condition.name]] for condition in CONDITIONS[task] if condition.name in tests]
            rows.append([f"`{name}`, as shipped", NOTHING, *map(in_percent, found)])
    titles = " | ".join(["error, %", "as in training", *(condition.name for condition in CONDITIONS[task])])
    return markdown_table(titles, rows) if rows else ""


def against_cpu_time(records: list[Record], task: str) -> Figure:
    """Validation error of each run over its CPU seconds."""
    with styled():
        chart, axes = labelled_axes("CPU seconds", "validation error, %", f"{task}, all systems")
        for number, name in enumerate(SYSTEMS[task]):
            label: str | None = name
            for run in newest(name, records):
                known = [(cpu, 100 * error) for _, cpu, error in run.curve if cpu is not None]
                if known:
                    axes.plot(
                        *zip(*known, strict=True),
                        color=COLOURS[number],
                        label=label,
                        marker="o",
                        markersize=2,
                    )
                label = None
        axes.legend(frameon=False)
    return chart


def write_baselines(results: Path, folder: Path) -> None:
    """Write the block of the page, and the plots, from the records and measurements in `results`."""
    records, path = read_records(results), folder / PAGE
    table = baselines_table(records, Measurements(results), read_records(results.parent))
    try:
        text = path.read_text("utf-8")
        for task, names in SYSTEMS.items():
            if any(run.curve for name in names for run in newest(name, records)):
                save_figure(against_cpu_time(records, task), folder / "plots" / _plot(task))
        write_text_atomically(path, filled(text, {"baselines": table}))
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror}.") from None


def _plot(task: str) -> str:
    return f"baselines-{task.split()[0].lower()}.svg"
