"""ocra reproduce: every row of a table of the paper, recorded results, tables and model cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ocra.cli.main import parse
from ocra.errors import OcraError, UsageError
from ocra.files import write_text_atomically

PROGRAM = "ocra reproduce"
RESULTS, OUT = Path("benchmarks/results"), Path("docs/results.md")


def reproduce(
    table: Positional[Literal["multimnist", "ablations", "cluttered", "svhn", "all"]],
    /,
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
    recipe: Literal["default", "paper"] = "default",
    images: int | None = None,
    budget: str | None = None,
    runs: Path = Path("runs"),
    results: Path = RESULTS,
    out: Path = OUT,
    table_only: bool = False,
    ray: str | None = None,
    processes: int = 0,
    quiet: bool = False,
) -> None:
    """Make every run of a table of the paper, record it, and write the tables and plots.

    Runs that are recorded are skipped, runs that were stopped are resumed: the same command again goes on.
    To keep a run of 'ocra train', see 'ocra reproduce record --help'; for model cards 'ocra reproduce card
    --help'.

    Examples:

    ocra reproduce multimnist --seeds 1 2 3

    ocra reproduce ablations --budget 2h --seeds 1

    Args:
        table: Which table, or all of them.
        seeds: One run of each row for each seed; the paper has five.
        recipe: Our recipe of training, or the paper's.
        images: Images each run sees, in place of the recipe's number; 5e6 may be written.
        budget: Time for all runs one after the other, such as 2h or 90m: the machine's speed is measured, and
            all rows of a table get the same number of images.
        runs: Where the folders of the runs are.
        results: Where results are recorded.
        out: The page to write; plots go to the folder plots beside it.
        table_only: Make no run, only write the page from what is recorded.
        ray: Make the runs side by side: auto for a Ray cluster on this machine (started if there is none), or
            the address of one. All its machines must see the folder of --runs.
        processes: Processes that share each run. 0: one for each core, or a single one with --ray.
        quiet: Show no progress of single runs.
    """
    if not table_only:
        if images is not None and budget is not None:
            raise UsageError("Give either --images or --budget, not both.")
        _make_runs(table, seeds, recipe, images, budget, runs, results, out, ray, processes, quiet)
    write_page(results, out, empty=not table_only)
    print(f"{out} written from the results in {results}")


def _make_runs(
    table: str, seeds: tuple[int, ...], recipe: Literal["default", "paper"], images: int | None,
    budget: str | None, runs: Path, results: Path, out: Path, ray: str | None, processes: int, quiet: bool,
) -> None:  # fmt: skip
    from ocra.reproduce.plan import make_jobs, planned_images, tables_of
    from ocra.reproduce.runner import check_data, outstanding, run_one_by_one

    # Before the speed is measured, so that missing data is told first.
    check_data(make_jobs(table, seeds, recipe))
    counts = None if images is None else dict.fromkeys(tables_of(table), images)
    if budget is not None:
        counts = planned_images(table, budget, seeds, recipe, 1 if ray else processes, runs)
        print("; ".join(f"{name}: {count:,} images for each run" for name, count in counts.items()))
    jobs = outstanding(make_jobs(table, seeds, recipe, counts), results)

    def after() -> None:
        write_page(results, out)

    if ray is None:
        run_one_by_one(jobs, runs, results, processes=processes, quiet=quiet, after=after)
    elif jobs:
        from ocra.reproduce.cluster import run_side_by_side

        run_side_by_side(jobs, runs, results, address=ray, processes=processes or 1, after=after)


def write_page(results: Path, out: Path, empty: bool = True) -> None:
    """Write the tables and plots from what is recorded; `empty`: even if that is nothing."""
    from ocra.reproduce.plots import draw_all
    from ocra.reproduce.results import read_results
    from ocra.reproduce.tables import report

    found = read_results(results)
    if not found and not empty:
        raise UsageError(f"There are no recorded results in {results}; say with --results where they are.")
    plots = draw_all(found, out.parent / "plots")
    try:
        write_text_atomically(out, report(found, plots, out.parent))
    except OSError as error:
        raise OcraError(f"{out} could not be written: {error.strerror}.") from None


def record(
    runs: Positional[tuple[Path, ...]],
    /,
    evaluation: tuple[Path, ...] = (),
    name: str = "",
    note: str = "",
    failed: str = "",
    results: Path = RESULTS,
) -> None:
    """Keep the result of runs made with 'ocra train' as one small file each, for the tables.

    It holds the config, seed, versions, date, what it cost, the validations and the test at the end of the
    run. A test on more images, or with shifts of 6 pixels, is added from what 'ocra evaluate --json'
    printed.

    Examples:

    ocra reproduce record runs/mine

    ocra evaluate runs/mine --shift 6 --json > six.json; ocra reproduce record runs/mine --evaluation six.json

    Args:
        runs: Folders of runs, ended or not, or files of results to which evaluations are added.
        evaluation: Files with evaluations of this run's best weights.
        name: Name of the result. Default: preset, images and seed.
        note: A sentence on the run that the tables show.
        failed: Why the run failed, if it did.
        results: Where results of folders are recorded.
    """
    from ocra.reproduce.results import read_evaluation, read_result, write_result
    from ocra.reproduce.runner import outcome, read_run

    if not runs:
        raise UsageError("Say which run, for example: ocra reproduce record runs/mine")
    if len(runs) > 1 and (evaluation or name or note or failed):
        raise UsageError("--evaluation, --name, --note and --failed are about one run; give one run only.")
    for run in runs:
        if run.suffix == ".json":
            if name or failed:
                raise UsageError("--name and --failed are for folders of runs, not for recorded results.")
            result, folder = read_result(run), run.parent
            result = replace(result, notes=note or result.notes)
        else:
            result, folder = read_run(run, results, name=name, notes=note, failed=failed), results
        for path in evaluation:
            result = result.with_evaluation(read_evaluation(path, result, run))
        path = write_result(folder, result)
        print(f"{path}: {outcome(result)}")


def card(
    name: Positional[str],
    /,
    result: Annotated[Path, arg(help="File of the recorded result of these weights.")],
    into: Path | None = None,
) -> None:
    """Write the model card (README.md) of weights from their recorded result.

    The figures that shipped weights carry in their config.json are written as well.

    Example: ocra reproduce card multimnist-3 --result benchmarks/results/multimnist-3-1.1M-seed2.json

    Args:
        name: Name of the weights.
        result: File of the recorded result of these weights.
        into: Folder to write to. Default: that of the shipped weights of this name.
    """
    from ocra.reproduce.cards import model_card
    from ocra.reproduce.results import read_result, read_results
    from ocra.reproduce.shipping import tell

    found, others = read_result(result), read_results(result.parent)
    if into is None:
        folder = tell(name, found, others)
    else:
        folder = into
        write_text_atomically(folder / "README.md", model_card(name, found, others=others))
    print(f"{folder / 'README.md'} written from {result}")


def main(args: list[str]) -> None:
    """Run `ocra reproduce` with these arguments."""
    others: dict[str, Callable[..., None]] = {"record": record, "card": card}
    if args and args[0] in others:
        parse(others[args[0]], args[1:], f"{PROGRAM} {args[0]}")
    else:
        parse(reproduce, args, PROGRAM)
