"""What is written from records: the pages of results and README's blocks; model cards are in `cards`."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ocra.data import task_config
from ocra.errors import OcraError
from ocra.model.weights import shipped
from ocra.presets import ALL_PRESETS, PAPER_IMAGES
from ocra.reproduce.records import (
    AUTHORS_ERROR,
    AUTHORS_IMAGES,
    Milestone,
    Record,
    chain,
    material,
    milestone,
    shipped_record,
)

NOTHING = "–"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its rows that are ours to make, and those it took from others."""

    title: str
    presets: tuple[str, ...]
    remark: str
    others: tuple[tuple[str, str, str], ...] = ()
    """model, parameters, error in percent"""
    second_test: dict[str, Any] = field(default_factory=dict)
    """settings of the task for a further test set"""
    further: tuple[str, ...] = ()
    """presets that are shown beside the rows, but are not run with them: their training is another one"""


TABLES = {
    "multimnist": PaperTable(
        "MultiMNIST",
        ("multimnist-3", "multimnist-10"),
        "Two overlapping digits on 36×36 pixels, shifted by up to 4 pixels. A further test set has shifts of up to 6, "
        "as in CapsNet's release; the figure quoted for CapsNet may be on that one.",
        (
            ("CNN baseline (Sabour et al., 2017)", "24.56 M", "8.1"),
            ("CapsNet (Sabour et al., 2017)", "11.36 M", "5.2"),
        ),
        {"max_shift": 6},
        ("multimnist-3-long",),
    ),
    "ablations": PaperTable(
        "Ablations on MultiMNIST",
        (
            "multimnist-3", "multimnist-3-one-routing", "multimnist-3-no-capsules", "multimnist-recurrent-3",
            "multimnist-feedforward",
        ),
        "One part of the network taken away at a time, from random weights, for an equal number of images.",
    ),
    "cluttered": PaperTable(
        "Cluttered MNIST",
        ("cluttered-5", "cluttered-7", "cluttered-5-no-capsules"),
        "Two digits and six fragments of others anywhere on 100×100 pixels; a class may occur twice.",
        (
            ("RAM (Mnih et al., 2014)", "", "9"),
            ("DRAM without context (Ba et al., 2015)", "", "7"),
            ("DRAM (Ba et al., 2015)", "> 10 M", "5"),
        ),
    ),
    "svhn": PaperTable(
        "Street View House Numbers",
        ("svhn-12",),
        "Whole numbers of one to five digits: all of them must be right. Images are cropped by the true boxes of the "
        "digits, at test time too, as in the authors' program. The paper trained on 235,000 images (train and extra), "
        "these runs on 30,401 of the train set; 3,000 are held out for validation. The paper's error on single digits "
        "is 2.65 ± 0.11 % (quoted); the authors' program counts all five outputs, so it stands beside ours of those.",
    ),
}  # fmt: skip


def second_test(preset: str) -> dict[str, Any]:
    """The settings of a further test set of a preset, none if its table has none."""
    return next(
        (table.second_test for table in TABLES.values() if preset in table.presets + table.further), {}
    )


RESULTS = """# Results

Written from the records in `benchmarks/results`, each of which is one run that was really made; never edited by
hand. For each network the current figure: that of the shipped weights, else of the best run by validation.
[Every run](runs.md), those that failed too, has a page of its own.

**Error** is the exact error on the test split, the share of images with anything wrong in the answer, with its 95 %
interval, or its mean ± standard deviation over seeds. The interval is for more images of the same test digits; for
other digits it would be wider. **Trained on** counts the images of all runs that led to the weights, each fine-tuned
from the one before, and **CPU hours** those of all their processes. **Taught where to look**: by the objects' boxes, or
by the places where weights trained on class labels alone found the objects; the paper's networks found out by
themselves. Figures marked as quoted are the paper's or others', not measured here.
"""

REPRODUCE = """## Reproduce with

```
ocra reproduce multimnist --seeds 1 2 3        # every row of a table; again to resume
ocra reproduce ablations --images 1e6          # shorter runs: the table says what was spent
ocra reproduce cluttered --budget 12h
ocra reproduce all --ray auto                  # runs side by side on a Ray cluster
ocra reproduce record runs/mine                # record a run made with `ocra train`
ocra reproduce all --tables-only               # write these pages again
```"""

RUNS = """# Every run

Written from the records in `benchmarks/results`; never edited by hand. Runs of version 0.1 keep their settings in
the words of that version: reproduce one with `ocra train --config settings.json` of version 0.1, where settings.json
is `settings` of its record. **Failed** is a run that diverged or finished above 90 % error.
"""


def percent(share: float) -> str:
    """8.12 for 0.0812."""
    return f"{100 * share:.2f}"


def interval(test: dict[str, Any]) -> str:
    """The 95 % interval of an error in percent, such as 7.60 to 8.67."""
    return " to ".join(map(percent, test["interval"]))


def millions(count: float) -> str:
    """A number of images: 1.2 M, 150 k, 640."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}" if count < 1000 * size else f"{count / size:,.0f} {letter}"
    return f"{count:.0f}"


def hours(seconds: float) -> str:
    """Hours with two digits that mean something."""
    value = seconds / 3600
    return "< 0.01" if value < 0.01 else f"{value:.0f}" if value >= 10 else f"{value:#.2g}"


def settings_in_words(values: dict[str, Any]) -> str:
    """Such as: max_shift 6, augment False."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


def markdown_table(titles: str, rows: Iterable[Sequence[str]], numbers_from: int = 1) -> str:
    """A table with titles such as "model | error, %"; columns from `numbers_from` on are set to the right."""
    rules = ["---" if k < numbers_from else "---:" for k in range(titles.count(" | ") + 1)]
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join([f"| {titles} |", *(f"| {' | '.join(row)} |" for row in (rules, *cells))])


def sections(*parts: str) -> str:
    """A page of these parts; empty ones are left out."""
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def parameters(preset: str) -> str:
    """Trainable parameters of the network of a preset, in millions."""
    with torch.device("meta"):
        model = ALL_PRESETS[preset].model
        return f"{model.network(model).parameter_count / 1e6:.2f} M"


def evaluate_command(weights: str, test: dict[str, Any], record: Record) -> str:
    """The command that gives the figures of an evaluation of shipped weights."""
    own, words = record.settings, f"ocra evaluate {weights} --images {test['n']}"
    usual = {**task_config(own["task"]).to_dict(), **own["task"]}
    for key, value in test["task"].items():
        if value != usual.get(key, value):
            words += f" --{key.replace('_', '-')} {value}"
    if test["glimpses"] not in (None, own["model"]["glimpses"]):
        words += f" --glimpses {test['glimpses']}"
    return words


def training_command(record: Record, records: list[Record]) -> str:
    """How weights are trained again: one command, or the chain of runs that led to them."""
    if record.has_stages:
        return (
            f"`{record.command}`"
            + (f", from `{record.init_from}`" if record.init_from else "")
            + (f", taught where to look by `{record.taught_by}`" if record.taught_by else "")
        )
    runs = chain(record, records).runs
    names = " → ".join(f"`{run.name}`" for run in reversed(runs))
    return f"{len(runs)} runs of version {record.version}, each fine-tuned from the one before: {names}"


def seeds_of_each(records: Iterable[Record]) -> list[list[Record]]:
    """Records that differ in nothing but their seed together, those that saw most images first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        # Where a run failed does not matter; where one was stopped by hand does.
        stopped = record.cost.images if record.status == "stopped" else None
        key = json.dumps([record.preset, record.version, material(record.settings), stopped], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return sorted(groups.values(), key=lambda group: (-group[0].cost.images, group[0].name))


def scored(group: list[Record]) -> list[Record]:
    """Runs that count in a mean: those that were tested and did not fail."""
    return [record for record in group if record.test is not None and not record.has_failed]


def mean_error(group: list[Record]) -> float:
    """Of the runs that count; 1 if there are none."""
    return statistics.fmean([run.test["error"] for run in scored(group) if run.test] or [1.0])


def current(preset: str, records: list[Record]) -> list[Record]:
    """The runs, of one experiment under several seeds, that stand for a preset: shipped, or best by validation."""
    groups = seeds_of_each(run for run in records if run.preset == preset and run.is_of_preset)
    own = shipped_record(preset, records)
    for group in groups:
        if own in group:
            return [own, *(record for record in group if record is not own)]
    tested = [group for group in groups if scored(group)]
    failed = (group for group in groups if group[0].has_failed)

    def validation(group: list[Record]) -> float:
        return statistics.fmean(run.validation_error or 1.0 for run in scored(group))

    return min(tested, key=validation) if tested else next(failed, [])


def error_of(group: list[Record]) -> str:
    """The error of a row: with its interval for one run, with its deviation for several, and those that failed."""
    tests = [record.test for record in scored(group) if record.test]
    failures = sum(record.has_failed for record in group)
    failed = f"{failures} of {len(group)} failed" if failures else ""
    if not tests:
        return failed or "not run"
    spread = f"({interval(tests[0])})"
    if len(tests) > 1:
        spread = f"± {percent(statistics.stdev(test['error'] for test in tests))}"
    return f"**{percent(mean_error(group))}** {spread}" + (f"; {failed}" if failed else "")


COSTS = "test images | trained on | CPU hours | taught where to look"


def _costs(group: list[Record], records: list[Record]) -> list[str]:
    """What the runs of a row cost with all they were fine-tuned from."""
    if not group:
        return [NOTHING] * 4
    chains = [chain(record, records) for record in group]
    seeds = f", {len(group)} seeds" if len(group) > 1 else ""
    return [
        f"{group[0].test['n']:,}" if group[0].test else NOTHING,
        f"{millions(max(one.images for one in chains))} in {chains[0].count}{seeds}",
        hours(statistics.fmean(one.cpu_seconds for one in chains)),
        chains[0].taught_to_look,
    ]


def results_page(records: list[Record], plots: dict[str, str] | None = None) -> str:
    """The current figure of every row of the paper. plots: titles by file name."""
    parts = [RESULTS]
    for name, table in TABLES.items():
        parts += [f"## {table.title}", table.remark]
        parts += _ablations(records) if name == "ablations" else _paper_table(table, records)
    parts.append(_time_to_error(records))
    if plots:
        parts += ["## Plots", *(f"![{title}](plots/{name})" for name, title in plots.items())]
    return sections(*parts, REPRODUCE)


def _paper_table(table: PaperTable, records: list[Record]) -> list[str]:
    """A table of the paper, how the weights of its rows were made, and their further figures."""
    chosen = {name: current(name, records) for name in table.presets + table.further}
    rows = [
        [
            f"`{name}`", parameters(name), error_of(group), *_costs(group, records), ALL_PRESETS[name].paper_error,
            millions(PAPER_IMAGES.get(ALL_PRESETS[name].task, 0)),
        ]
        for name, group in chosen.items()
    ]  # fmt: skip
    rows += [[model, size or NOTHING, *[NOTHING] * 5, error, NOTHING] for model, size, error in table.others]
    titles = f"model | parameters | error, % | {COSTS} | the paper's error, % (quoted) | its images"
    runs = [group[0] for group in chosen.values() if group and group[0].test]
    made = []
    for run in runs:
        text = f"- `{run.preset}`: Trained by {training_command(run, records)}."
        if run.status == "stopped":
            text += f" Stopped at {millions(run.cost.images)} of {millions(run.cost.planned_images)} images."
        if run.has_stages and run.changes:
            text += f" Not as in the preset: {settings_in_words(run.changes)}."
        made.append(text)
    lengths = [f"`{run.preset}` by length:\n\n{found}" for run in runs if (found := lengths_table(run))]
    return [markdown_table(titles, rows), "\n".join(made), tests_table(runs) if runs else "", *lengths]


def tests_table(runs: Iterable[Record]) -> str:
    """All main figures of runs, on the test set of their task and on a second one if there is one."""
    rows = []
    for run in runs:
        second = second_test(run.preset)
        for changed in ({}, second) if second else ({},):
            if test := run.test_with(changed):
                rows.append([
                    f"`{run.preset}`", settings_in_words(changed) or "its task", f"{test['n']:,}",
                    percent(test["error"]), interval(test), percent(test["object_error"]),
                    f"{test['reconstruction_mse']:.4f}" if "reconstruction_mse" in test else NOTHING,
                ])  # fmt: skip
    titles = "model | test set | images | exact error, % | 95 % interval | per-object error, % | reconstruction MSE"
    return markdown_table(titles, rows, 2)


def lengths_table(record: Record) -> str:
    """Errors by the length of the sequence, where the task has sequences; else nothing."""
    test = record.test or {}
    if "lengths" not in test:
        return ""
    rows = [
        [length, f"{row['n']:,}", percent(row["exact_error"]), percent(row["digit_error"])]
        for length, row in test["lengths"].items()
    ]
    rows.append(["all", f"{test['n']:,}", percent(test["error"]), percent(test["object_error"])])
    table = markdown_table("digits in the number | numbers | whole numbers wrong, % | digits wrong, %", rows)
    if "output_error" not in test:
        return table
    return f'{table}\n\nOf all outputs, "no digit" included, {percent(test["output_error"])} % are wrong.'


def _ablations(records: list[Record]) -> list[str]:
    """All rows at the number of images at which most of them were run from random weights, ordered by our error."""
    names = TABLES["ablations"].presets
    own = [run for run in records if run.preset in names and run.is_of_preset and not run.init_from]
    groups = [group for group in seeds_of_each(own) if scored(group)]
    budgets: dict[int, dict[str, list[Record]]] = {}
    groups.sort(key=lambda group: (len(group[0].changes), -len(group)))  # the preset's settings first
    for group in groups:
        budgets.setdefault(group[0].cost.planned_images, {}).setdefault(group[0].preset, group)
    budget, chosen = max(budgets.items(), key=lambda item: (len(item[1]), item[0]), default=(0, {}))
    ours = sorted(names, key=lambda name: mean_error(chosen.get(name, [])))
    rows = [
        [
            f"`{name}`", parameters(name), error_of(chosen.get(name, [])),
            hours(statistics.fmean(run.cost.cpu_seconds for run in chosen[name])) if name in chosen else NOTHING,
            ALL_PRESETS[name].paper_error,
        ]
        for name in ours
    ]  # fmt: skip
    titles = "model | parameters | our error, % | CPU hours | the paper's error, % (quoted)"
    table = markdown_table(titles, rows)
    if not chosen:
        return [table]
    papers = sorted(chosen, key=lambda name: float(ALL_PRESETS[name].paper_error.split(" ±")[0].strip("> ")))
    verdict = "The order of the rows is the paper's."
    if papers != [name for name in ours if name in chosen]:
        verdict = f"The paper's order is another one: {', '.join(f'`{name}`' for name in papers)}."
    return [f"{millions(budget)} images each:", table, verdict]


def milestones(records: Iterable[Record]) -> list[tuple[Record, Milestone]]:
    """Runs of multimnist-3 from random weights that got as far as the authors' first pass, the soonest first."""
    fresh = [
        run for run in records if run.preset == "multimnist-3" and run.is_of_preset and not run.init_from
    ]
    found = [(run, point) for run in fresh if (point := milestone(run)) is not None]
    return sorted(found, key=lambda pair: pair[1].cpu_seconds)


def _time_to_error(records: list[Record]) -> str:
    """How soon runs reached what the authors' program had after one pass."""
    rows = [
        [record.name, f"{point.images:,}", f"{point.cpu_seconds:,.0f}", percent(point.error)]
        for record, point in milestones(records)
    ]
    text = (
        f"## Time to {percent(AUTHORS_ERROR)} %\n\nThe authors' program had this error on its test set after one pass "
        f"over {AUTHORS_IMAGES:,} images (quoted). Runs of `multimnist-3` from random weights first had it in a "
        "validation, on images of 6,000 MNIST digits that are never trained on, after:"
    )
    return f"{text}\n\n{markdown_table('run | images | CPU seconds | error there, %', rows)}" if rows else ""


def runs_page(records: list[Record]) -> str:
    """All runs, those that failed and those that were stopped too."""
    rows, notes = [], []
    for record in sorted(records, key=lambda record: (record.preset, record.name)):
        rows.append([
            f"`{record.name}`", str(record.seed), record.date, "failed" if record.has_failed else record.status,
            f"{record.cost.images:,}", hours(record.cost.cpu_seconds),
            NOTHING if record.validation_error is None else percent(record.validation_error),
            *((percent(record.test["error"]), f"{record.test['n']:,}") if record.test else (NOTHING, NOTHING)),
            record.taught_to_look, record.init_from or "random weights", (record.commit or NOTHING)[:7],
        ])  # fmt: skip
        text = record.notes
        if record.changes:
            text += f" Not as in its preset at the time: {settings_in_words(record.changes)}."
        if text:
            notes.append(f"- `{record.name}` (version {record.version}): {text.strip()}")
    titles = (
        "run | seed | date | status | images | CPU hours | validation error, % | test error, % | test images | "
        "taught where to look | fine-tuned from | commit"
    )
    table = markdown_table(titles, rows) if rows else "None is recorded yet."
    return sections(RUNS, table, "## Notes" if notes else "", "\n".join(notes))


def blocks(records: list[Record], speed: dict[str, Any]) -> dict[str, str]:
    """Tables and sentences that stand between markers in README.md and benchmarks/README.md, by name."""
    found = [(name, shipped_record(name, records)) for name in shipped()]
    released = [(name, record, record.test) for name, record in found if record is not None and record.test]
    accuracy = [
        [f"`{name}`", error_of([record]), *_costs([record], records), ALL_PRESETS[name].paper_error]
        for name, record, _ in released
    ]
    commands = [
        [
            f"`{name}`", percent(test["error"]), f"`{evaluate_command(name, test, record)}`",
            training_command(record, records),
        ]
        for name, record, test in released
    ]  # fmt: skip
    speeds = [
        [
            f"`{row['preset']}`", row["mode"], row["precision"], f"{row['images_per_second']:,.0f}",
            f"{row['share_of_peak']:.0%}",
            f"{row['times_plain']:.1f}", f"{row['peak_memory_mb']:,.0f}",
        ]
        for row in speed["rows"]
    ]  # fmt: skip
    record, point = milestones(records)[0]
    accuracy_titles = f"weights | exact error, % (95 % interval) | {COSTS} | the paper's error, % (quoted)"
    speed_titles = (
        "preset | mode | precision | images/s | of its GEMM peak | × plain pseudocode | MB a process"
    )
    return {
        "accuracy": markdown_table(accuracy_titles, accuracy),
        "commands": markdown_table("weights | error, % | score them with | trained by", commands, 4),
        "milestone": f"From random weights `multimnist-3` first has {percent(AUTHORS_ERROR)} % after {point.images:,} "
        f"images and {point.cpu_seconds:,.0f} CPU seconds\n(validation, run `{record.name}`); the authors' program "
        f"needed {AUTHORS_IMAGES:,} images for that (quoted).",
        "speed": markdown_table(speed_titles, speeds, 3),
    }


def filled(text: str, found: dict[str, str]) -> str:
    """A page with all its blocks written anew: what stands between <!-- NAME: … --> and <!-- end of NAME -->."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in found:
            raise OcraError(f"There is nothing to write into the block '{match['name']}'.")
        return f"{match['start']}{found[match['name']]}\n{match['end']}"

    pattern = r"(?P<start><!-- (?P<name>[a-z-]+):[^>]*-->\n).*?(?P<end><!-- end of (?P=name) -->)"
    return re.sub(pattern, block, text, flags=re.S)
