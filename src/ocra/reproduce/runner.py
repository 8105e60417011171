"""The runs of a table: which they are, how a budget is shared; made one by one, or side by side through Ray."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ocra.data import make_task
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.files import read_json, write_json_atomically
from ocra.presets import Recipe, preset
from ocra.reproduce.records import (
    Record,
    first_difference,
    read_record,
    record_run,
    run_name,
    with_earlier_figures,
    write_record,
)
from ocra.reproduce.tables import TABLES
from ocra.training.checkpoint import read_experiment
from ocra.training.logging import read_log
from ocra.training.run import resume, train
from ocra.training.trainer import Diverged

Say = Callable[[str], None]
FEWEST_IMAGES = 5_000
# What validation and the test at the end take of the time.
OVERHEAD = 0.1
RESTARTS = 5
# Runs talk through files; what goes through Ray's store are their names and settings.
STORE_BYTES = 100_000_000
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "min": 60, "s": 1}
_PROBE_STEPS = 15


def tables_of(choice: str) -> list[str]:
    """The tables that a word on the command line stands for."""
    if choice != "all" and choice not in TABLES:
        raise UsageError(f"There is no table '{choice}'; choose {', '.join(TABLES)} or all.")
    return list(TABLES) if choice == "all" else [choice]


def planned_runs(
    choice: str, seeds: Sequence[int], recipe: Recipe = "default", images: dict[str, int] | None = None
) -> dict[str, Experiment]:
    """All runs of a table, or of all tables, by name, one seed after the other, each run once.

    images: for each table how many images its runs see, if not as many as the preset says.
    """
    if not seeds:
        raise UsageError("Give at least one seed, for example --seeds 1 2 3.")
    if images is not None and min(images.values()) < 1:
        raise UsageError(f"--images must be at least 1, not {min(images.values())}.")
    runs = {}
    for seed in seeds:
        for table in tables_of(choice):
            for name in TABLES[table].presets:
                experiment = replace(preset(name, recipe), seed=seed)
                if images is not None:
                    experiment = experiment.scaled(images[table])
                    every = max(1, min(experiment.run.validate_every_images, images[table] // 20))
                    experiment = replace(experiment, run=replace(experiment.run, validate_every_images=every))
                suffix = "-paper" if recipe == "paper" else ""
                runs[run_name(replace(experiment, name=name + suffix))] = experiment
    return runs


def parse_budget(text: str) -> float:
    """Seconds from 2h, 90m, 1h30m or 1.5h."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|d|h|m|s)", text.strip().lower())
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0 or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", text.lower()):
        raise UsageError(f"--budget '{text}' is no time; write for example 2h, 90m or 1h30m.")
    return seconds


def share_budget(
    choice: str, budget: float, seeds: Sequence[int], seconds_per_image: Callable[[str], float]
) -> dict[str, int]:
    """How many images each run of each table sees, if all runs together are to take `budget` seconds.

    Tables get equal times; the rows of one table see equal numbers of images, or they could not be compared.
    """
    images = {}
    for table in (names := tables_of(choice)):
        time = (1 - OVERHEAD) * budget / len(names) / max(1, len(seeds))
        count = int(time / sum(seconds_per_image(name) for name in TABLES[table].presets))
        if count < FEWEST_IMAGES:
            raise UsageError(
                f"The budget buys only {count:,} images for each run of the table {table}; give more time or "
                "fewer --seeds."
            )
        size = 10 ** (len(str(count)) - 2)
        images[table] = count // size * size  # two digits: the names of the runs stay short
    return images


def budgeted_images(
    choice: str, budget: str, seeds: Sequence[int], recipe: Recipe, processes: int, runs: Path
) -> dict[str, int]:
    """The images that a budget buys on this machine, measured once and kept: a second call resumes."""
    seconds = parse_budget(budget)
    path = runs / f"plan-{choice}-{recipe}-{int(seconds)}s-seeds-{'-'.join(map(str, seeds))}.json"
    if path.is_file():
        try:
            kept = read_json(path)
            return {table: int(kept[table]) for table in tables_of(choice)}
        except (OcraError, ValueError, KeyError, TypeError):
            raise OcraError(f"{path} is broken; remove it, and the budget is planned afresh.") from None
    measured = cache(lambda name: measure(preset(name, recipe), processes))
    images = share_budget(choice, seconds, seeds, measured)
    write_json_atomically(path, images)
    return images


def measure(experiment: Experiment, processes: int) -> float:
    """Seconds that training takes for an image of this experiment, by a few steps of it."""
    last = experiment.stages[-1]
    stage = replace(last, images=_PROBE_STEPS * last.batch_size, warmup_images=0, init_from=None)
    run = replace(
        experiment.run, report_every_images=_PROBE_STEPS // 3 * last.batch_size, validate_every_images=10**9,
        validate_images=1, test_images=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe"
        train(replace(experiment, stages=(stage,), run=run), out, processes=processes, quiet=True)
        speeds = [line["images_per_second"] for line in read_log(out / "log.jsonl") if "loss" in line]
    return 1 / speeds[-1]  # the first reports include compiling


def check_data(runs: dict[str, Experiment]) -> None:
    """Refuse to start if the data of any run is missing, instead of hours later."""
    for config in {experiment.task for experiment in runs.values()}:
        for split in ("train", "test"):
            make_task(config, split)


def outstanding(runs: dict[str, Experiment], results: Path, say: Say = print) -> dict[str, Experiment]:
    """The runs that are not recorded yet. One that failed is recorded too, and not tried again."""
    left = {}
    for name, experiment in runs.items():
        path = results / f"{name}.json"
        known = read_record(path) if path.is_file() else None
        if known is not None:
            _refuse_another(path, known.settings, experiment)
        if known is None or known.status == "stopped":
            left[name] = experiment
        else:
            say(f"{name}: {known.status} before, skipped")
    return left


def _refuse_another(path: Path, settings: dict[str, Any], experiment: Experiment) -> None:
    """Refuse to take the run of another experiment for this one."""
    if other := first_difference(settings, experiment.to_dict()):
        raise OcraError(
            f"{path} is that of a run with other settings ({other}); move it away, or choose other folders "
            "with --runs and --results."
        )


def carry_out(experiment: Experiment, folder: Path, processes: int = 0, quiet: bool = False) -> str:
    """Make a run from wherever it is to its end; returns why it failed if it diverged, else nothing."""
    config = folder / "config.json"
    try:
        if config.is_file():
            _refuse_another(config, read_experiment(config).to_dict(), experiment)
            resume(folder, processes=processes, quiet=quiet)
        else:
            train(experiment, folder, processes=processes, quiet=quiet)
    except Diverged as error:
        return str(error)
    return ""


def keep(folder: Path, results: Path, name: str = "", notes: str = "", failed: str = "") -> Record:
    """Record the run in a folder, with the evaluations that its record has already."""
    record = with_earlier_figures(record_run(folder, name=name, notes=notes, failed=failed), results)
    write_record(results, record)
    return record


def outcome(record: Record) -> str:
    """What came of a run, in a few words."""
    if record.status == "failed":
        return f"failed: {record.notes}"
    if record.test is None:
        return f"{record.status} at {record.cost.images:,} images"
    return f"exact error {record.test['error']:.2%} on {record.test['n']:,} test images"


def run_one_by_one(
    runs: dict[str, Experiment], folder: Path, results: Path, *, processes: int = 0, quiet: bool = False,
    say: Say = print, after: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make all runs one after the other; each is recorded, and `after` called, as soon as it ends."""
    for number, (name, experiment) in enumerate(runs.items(), 1):
        say(f"{name}: run {number} of {len(runs)}, in {folder / name}")
        failed = carry_out(experiment, folder / name, processes, quiet)
        say(f"{name}: {outcome(keep(folder / name, results, name, failed=failed))}")
        after()


def run_side_by_side(
    runs: dict[str, Experiment], folder: Path, results: Path, *, address: str = "auto", processes: int = 1,
    say: Say = print, after: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make all runs on a Ray cluster whose machines share the folder of the runs.

    A run uses one process with one thread unless told otherwise, so that a machine takes one run per core. A
    run whose worker dies is started again and goes on from its checkpoint. The others go on whatever becomes
    of one of them; what went wrong is said at the end.
    """
    ray, processes = join(address), max(1, processes)
    resources = ray.cluster_resources()
    needs = {"num_cpus": processes, "num_gpus": processes if resources.get("GPU") else 0}
    task = ray.remote(**needs, max_retries=RESTARTS)(_work)
    waiting = {
        task.remote(experiment.to_dict(), str((folder / name).resolve()), processes): name
        for name, experiment in runs.items()
    }
    say(f"{len(runs)} runs on {int(resources.get('CPU', 0))} cores of a Ray cluster")
    problems = []
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(done)
            try:
                said = outcome(keep(folder / name, results, name, failed=ray.get(done)))
            except (ray.exceptions.RayError, OcraError) as error:
                cause = getattr(error, "cause", None)  # of what a worker raised
                said = str(cause if isinstance(cause, OcraError) else error)
                problems.append(f"{name}: {said}")
            say(f"{name}: {said}")
            after()
    finally:
        for reference in waiting:
            ray.cancel(reference)
    if problems:
        raise OcraError(f"{len(problems)} of {len(runs)} runs did not end: {problems[0]}")


def _work(experiment: dict[str, Any], folder: str, processes: int) -> str:
    """What a worker does: one run, from wherever it is to its end."""
    import torch

    torch.set_num_threads(1)
    return carry_out(Experiment.from_dict(experiment), Path(folder), processes, quiet=True)


def join(address: str) -> Any:
    """The ray module, connected to `address`; 'auto' is a cluster that runs here, or else one started now."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise OcraError("--ray needs Ray; run: pip install 'ocra-vision[ray]'.") from None
    if ray.is_initialized():
        return ray
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address not in ("auto", "local"):
        if not host or not port.isdigit():
            raise UsageError(f"--ray takes auto or an address such as 10.0.0.1:6379, not '{address}'.")
        try:  # Ray itself would try for minutes where nobody answers
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise OcraError(f"There is no Ray cluster at {address}: {error}.") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster started here reports to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning on every start
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        if address != "auto":
            reason = (str(error).strip().splitlines() or ["no answer"])[0]
            raise OcraError(f"There is no Ray cluster at {address}: {reason}") from None
        ray.init(include_dashboard=False, object_store_memory=STORE_BYTES, **options)
    return ray
