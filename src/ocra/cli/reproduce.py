"""ocra reproduce: every row of a table of the paper, recorded, and the pages of results."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ocra.cli.main import parse
from ocra.errors import UsageError
from ocra.reproduce import runner
from ocra.reproduce.baselines import (
    PAGE,
    SHORT_MINUTES,
    Measurements,
    planned_baselines,
    test_runs,
    write_baselines,
)
from ocra.reproduce.records import read_records
from ocra.reproduce.release import write_pages

RESULTS = Path("benchmarks/results")


def reproduce(
    table: Literal["multimnist", "ablations", "cluttered", "svhn", "all", "baselines"],
    /,
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
    recipe: Literal["default", "paper"] = "default",
    images: int | None = None,
    budget: str | None = None,
    cpu_minutes: float = 60.0,
    runs: Path = Path("runs"),
    results: Path = RESULTS,
    out: Path = Path("docs"),
    tables_only: bool = False,
    ray: str | None = None,
    processes: int = 0,
    quiet: bool = False,
) -> None:
    """Run every row of a table of the paper, record the runs, and write the pages of results with their plots.

    Runs that are recorded are skipped, runs that were stopped are resumed: give the same command again.
    To record a run of 'ocra train', see 'ocra reproduce record --help'.

    Examples:

    ocra reproduce multimnist --seeds 1 2 3

    ocra reproduce ablations --budget 2h --seeds 1

    ocra reproduce baselines --cpu-minutes 60 --seeds 1 2 3

    Args:
        table: Which table of the paper, or all of them; or OCRA and the baselines at equal CPU time.
        seeds: One run of each row for each seed; the paper has five.
        recipe: Our recipe of training, or the paper's.
        images: Images each run sees, in place of the preset's number; 5e6 may be written.
        budget: Time for all runs one after the other, such as 2h or 90m: the machine's speed is measured, and
            all rows of a table get the same number of images.
        cpu_minutes: For baselines: CPU time of each run, whatever the clock says; its speed is measured first.
        runs: Where the folders of the runs are.
        results: Where runs are recorded.
        out: Folder of the pages results.md and runs.md; plots go to plots/ in it.
        tables_only: Make no run, only write the pages from what is recorded.
        ray: Make the runs side by side: auto for a Ray cluster on this machine (started if there is none), or
            the address of one. All its machines must see the folder of --runs.
        processes: Processes that share each run. 0: one for each core, or a single one with --ray.
        quiet: Show no progress of single runs.
    """

    if table == "baselines":
        if budget is not None or images is not None:
            raise UsageError("The baselines get equal CPU time: give --cpu-minutes for each run.")
        results = results / "baselines"  # apart from those of the paper's tables
        return _reproduce_baselines(seeds, cpu_minutes, runs, results, out, tables_only, quiet)

    def write() -> None:
        write_pages(read_records(results), out)

    if images is not None and budget is not None:
        raise UsageError("Give either --images or --budget, not both.")
    if tables_only and not read_records(results):
        raise UsageError(f"There are no records in {results}; say with --results where they are.")
    if not tables_only:
        # Before the speed is measured, so that missing data is told first.
        runner.check_data(runner.planned_runs(table, seeds, recipe))
        counts = None if images is None else dict.fromkeys(runner.tables_of(table), images)
        if budget is not None:
            counts = runner.budgeted_images(table, budget, seeds, recipe, 1 if ray else processes, runs)
            print("; ".join(f"{name}: {count:,} images for each run" for name, count in counts.items()))
        left = runner.outstanding(runner.planned_runs(table, seeds, recipe, counts), results)
        if ray is None:
            runner.run_one_by_one(left, runs, results, processes=processes, quiet=quiet, after=write)
        elif left:
            runner.run_side_by_side(left, runs, results, address=ray, processes=processes or 1, after=write)
    write()
    print(f"{out / 'results.md'} and {out / 'runs.md'} written from the records in {results}")


def _reproduce_baselines(
    seeds: tuple[int, ...], cpu_minutes: float, runs: Path, results: Path, out: Path, tables_only: bool, quiet: bool
) -> None:  # fmt: skip
    """OCRA and the baselines, each for as many CPU minutes, in one process; the speed of each is measured first."""
    tested = 1_000 if cpu_minutes < SHORT_MINUTES else 5_000

    def test_and_write() -> None:
        test_runs(runs, results, tested)
        write_baselines(results, out)

    if not tables_only:
        measured = Measurements(results)
        planned = planned_baselines(cpu_minutes, seeds, measured.speed_of)
        runner.check_data(planned)
        left = runner.outstanding(planned, results)
        runner.run_one_by_one(left, runs, results, processes=1, quiet=quiet, after=test_and_write)
        measured.test_shipped(5_000)
        test_and_write()
    write_baselines(results, out)
    print(f"{out / PAGE} written from the records in {results}")


def record(run: Path, /, name: str = "", note: str = "", failed: str = "", results: Path = RESULTS) -> None:
    """Record a run made with 'ocra train' as one small file, for the tables.

    It holds the settings, command, seed, versions, date, cost, validations and the test at the end of the run.

    Example: ocra reproduce record runs/mine --note "Twice the batch."

    Args:
        run: Folder of a run, finished or not.
        name: Name of the record. Default: preset, images and seed.
        note: A sentence on the run that the pages show.
        failed: Why the run failed, if it did.
        results: Where it is recorded.
    """
    found = runner.keep(run, results, name, note, failed)
    print(f"{results / found.name}.json: {runner.outcome(found)}")


def main(args: list[str]) -> None:
    """Run `ocra reproduce` with these arguments."""
    if args[:1] == ["record"]:
        parse(record, args[1:], "ocra reproduce record")
    else:
        parse(reproduce, args, "ocra reproduce")
