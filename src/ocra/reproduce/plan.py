"""Which runs the tables of the paper need, and how a budget is shared among them."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ocra.errors import OcraError, UsageError
from ocra.files import write_json_atomically
from ocra.presets import PAPER_IMAGES, Experiment, Recipe, preset
from ocra.reproduce.settings import settings


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its rows that are ours to make, and those it took from others."""

    title: str
    presets: tuple[str, ...]
    others: tuple[tuple[str, str, str], ...] = ()
    """model, parameters, error in percent"""
    remark: str = ""


TABLES = {
    "multimnist": PaperTable(
        "MultiMNIST",
        ("multimnist-3", "multimnist-10"),
        (
            ("CNN baseline (Sabour et al., 2017)", "24.56 M", "8.1"),
            ("CapsNet (Sabour et al., 2017)", "11.36 M", "5.2"),
        ),
        "Two overlapping digits on 36×36 pixels, shifted by up to 4 pixels. CapsNet's figure may be that of "
        "the test set of its release, with shifts of up to 6 pixels and so less overlap.",
    ),
    "ablations": PaperTable(
        "Ablations on MultiMNIST",
        (
            "multimnist-3", "multimnist-3-one-routing", "multimnist-3-no-capsules", "multimnist-recurrent-3",
            "multimnist-feedforward",
        ),
        (),
        "One part of the network taken away at a time, three steps, all rows at one equal number of images.",
    ),
    "cluttered": PaperTable(
        "Cluttered MNIST",
        ("cluttered-5", "cluttered-7", "cluttered-5-no-capsules"),
        (
            ("RAM (Mnih et al., 2014)", "", "9"),
            ("DRAM without context (Ba et al., 2015)", "", "7"),
            ("DRAM (Ba et al., 2015)", "> 10 M", "5"),
        ),
        "Two digits and six fragments of others anywhere on 100×100 pixels; a class may occur twice.",
    ),
    "svhn": PaperTable(
        "Street View House Numbers",
        ("svhn-12",),
        (),
        "Whole numbers of one to five digits: all of them must be right. Images are cropped by the true "
        "boxes of the digits, at test time too, as in the paper's program. The paper trained on 235,000 "
        "images (train and extra); the runs here used 30,401 of the train set (3,000 are "
        "held out for validation), unless their settings say otherwise.",
    ),
}  # fmt: skip

FEWEST_IMAGES = 5_000
# What validation and the test at the end take of the time.
OVERHEAD = 0.1
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "min": 60, "s": 1}
_PROBE_STEPS = 15


@dataclass(frozen=True)
class Job:
    """One run that has to be made."""

    name: str
    experiment: Experiment


def job_name(experiment: Experiment) -> str:
    """Name of a run's folder and of its recorded result."""
    paper = "-paper" if experiment.name in _presets_of("all") and _has_paper_training(experiment) else ""
    return f"{experiment.name}{paper}-{short_number(experiment.training.images)}-seed{experiment.seed}"


def short_number(number: int) -> str:
    """1.2M for 1,200,000; a number that has no short form stays as it is."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number * 100 % size == 0:
            return f"{number / size:.2f}".rstrip("0").rstrip(".") + letter
    return str(number)


def tables_of(choice: str) -> list[str]:
    """The tables that a word on the command line stands for."""
    if choice != "all" and choice not in TABLES:
        raise UsageError(f"There is no table '{choice}'; choose {', '.join(TABLES)} or all.")
    return list(TABLES) if choice == "all" else [choice]


def make_jobs(
    choice: str, seeds: Sequence[int], recipe: Recipe = "default", images: dict[str, int] | None = None
) -> list[Job]:
    """All runs of a table, or of all tables, one seed after the other, each run once.

    images: for each table how many images its runs see, if not as many as the recipe says.
    """
    if not seeds:
        raise UsageError("Give at least one seed, for example --seeds 1 2 3.")
    jobs = {}
    for seed in seeds:
        for table in tables_of(choice):
            for name in TABLES[table].presets:
                experiment = replace(preset(name, recipe), seed=seed)
                if images is not None:
                    experiment = scaled(experiment, images[table])
                jobs[job_name(experiment)] = Job(job_name(experiment), experiment)
    return list(jobs.values())


def scaled(experiment: Experiment, images: int) -> Experiment:
    """The same experiment over another number of images, its first phases no longer than a part of it."""
    if images < 1:
        raise UsageError(f"--images must be at least 1, not {images}.")
    training = experiment.training
    return replace(
        experiment,
        training=replace(
            training,
            images=images,
            warmup_images=min(training.warmup_images, images // 10),
            single_until_images=min(training.single_until_images, images * 3 // 10),
            spread_until_images=min(training.spread_until_images, images * 3 // 10),
            few_until_images=min(training.few_until_images, images // 2),
            validate_every_images=max(training.batch, min(training.validate_every_images, images // 20)),
        ),
    )


def parse_budget(text: str) -> float:
    """Seconds from 2h, 90m, 1h30m or 1.5h."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|d|h|m|s)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", text.lower()):
        raise UsageError(f"--budget '{text}' is no time; write for example 2h, 90m or 1h30m.")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"--budget '{text}' is no time at all; write for example 2h.")
    return seconds


def share_budget(
    choice: str, budget: float, seeds: Sequence[int], seconds_per_image: Callable[[str], float]
) -> dict[str, int]:
    """How many images each run of each table sees, if all runs together are to take `budget` seconds.

    Tables get equal times; the rows of one table see equal numbers of images, or they could not be compared.
    """
    names = tables_of(choice)
    images = {}
    for table in names:
        time = (1 - OVERHEAD) * budget / len(names) / max(1, len(seeds))
        count = time / sum(seconds_per_image(name) for name in TABLES[table].presets)
        images[table] = _two_digits(count)
        if images[table] < FEWEST_IMAGES:
            raise UsageError(
                f"The budget buys only {int(count):,} images for each run of the table {table}; "
                "give more time or fewer --seeds."
            )
    return images


def planned_images(
    choice: str, budget: str, seeds: Sequence[int], recipe: Recipe, processes: int, runs: Path
) -> dict[str, int]:
    """The images that a budget buys on this machine, measured once and kept: a second call resumes."""
    seconds = parse_budget(budget)
    key = f"{choice}-{recipe}-{int(seconds)}s-seeds-{'-'.join(map(str, seeds))}"
    path = runs / f"plan-{key}.json"
    if path.is_file():
        try:
            kept = json.loads(path.read_text("utf-8"))
            return {table: int(kept[table]) for table in tables_of(choice)}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OcraError(f"{path} is broken; remove it, and the budget is planned afresh.") from None
    speeds: dict[str, float] = {}

    def measured(name: str) -> float:
        if name not in speeds:
            speeds[name] = measure(preset(name, recipe), processes)
        return speeds[name]

    images = share_budget(choice, seconds, seeds, measured)
    write_json_atomically(path, images)
    return images


def measure(experiment: Experiment, processes: int) -> float:
    """Seconds that training takes for an image of this experiment, by a few steps of it."""
    from ocra.training.logging import read_log
    from ocra.training.run import train

    batch = experiment.training.batch
    training = replace(
        experiment.training, images=_PROBE_STEPS * batch, report_every_images=_PROBE_STEPS // 3 * batch,
        validate_every_images=10**9, validate_images=1, test_images=0, start_from=None, few_until_images=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe"
        train(replace(experiment, training=training), out, processes=processes, quiet=True)
        speeds = [line["images_per_second"] for line in read_log(out / "log.jsonl") if "loss" in line]
    return 1 / speeds[-1]  # the first reports include compiling


def _two_digits(number: float) -> int:
    """Rounded down to two significant digits."""
    whole = int(number)
    size = 10 ** max(0, len(str(whole)) - 2)
    return whole // size * size


def _presets_of(choice: str) -> set[str]:
    return {name for table in tables_of(choice) for name in TABLES[table].presets}


def _has_paper_training(experiment: Experiment) -> bool:
    """Whether a run was trained as in the paper, for however many images."""
    own = settings(experiment.to_dict())
    paper = settings(scaled(preset(experiment.name, "paper"), experiment.training.images).to_dict())
    return all(own[name] == value for name, value in paper.items() if name.startswith("training."))


def paper_images(spec_task: str) -> str:
    """How many images the paper trained on, in words."""
    total = PAPER_IMAGES.get(spec_task)
    return "" if total is None else f"{total / 1e6:.0f} M"
