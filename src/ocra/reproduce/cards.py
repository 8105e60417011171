"""Model cards: what shipped weights are, how they were made, how good they are and what they are bad at."""

from __future__ import annotations

from typing import Any

from ocra.data import task_config
from ocra.presets import PRESETS
from ocra.reproduce.records import Record, chain
from ocra.reproduce.tables import (
    NOTHING,
    evaluate_command,
    hours,
    lengths_table,
    markdown_table,
    millions,
    percent,
    second_test,
    tests_table,
    yes,
)

FEWEST_NUMBERS = 20
"""House numbers of one length from which its error says something."""


def model_card(name: str, record: Record, records: list[Record]) -> str:
    """The README.md of shipped weights, from the record of their run and those it was fine-tuned from."""
    task = task_config(record.settings["task"])
    data = f"{task.about} {task.source.splits}"
    description = PRESETS[name].description if name in PRESETS else record.settings.get("description", "")
    parts = [
        f"---\nlibrary_name: ocra\nlicense: {task.source.licence}\ntags: [ocra, capsules, attention, glimpses]\n---",
        f"# {name}",
        f"{description}. Written from the record `benchmarks/results/{record.name}.json`.",
        f'```python\nimport ocra\n\nmodel = ocra.OCRA.from_pretrained("{name}")\n```',
        f"## Data\n\n{data.strip()}",
        _training(record, records),
        _figures(name, record),
        _weaknesses(record, task.task.limits),
        f"## Licence\n\n{task.source.terms}",
    ]
    return "\n\n".join(parts) + "\n"


def _training(record: Record, records: list[Record]) -> str:
    """What made the weights: the command, every run with its cost, and the stages of the last one."""
    line = chain(record, records)
    supervised = (
        "its attention was supervised at first by the objects' boxes, which the paper's was not"
        if line.supervised_attention
        else "its attention was not supervised"
    )
    text = (
        f"{millions(line.images)} images and {hours(line.cpu_seconds)} CPU hours in {line.count}; {supervised}. "
        f"The weights are those after {record.cost.best_images:,} images of the last run, stored as float16."
    )
    rows = [
        [
            f"`{run.name}`", run.date, str(run.seed), millions(run.cost.images), hours(run.cost.cpu_seconds),
            percent(run.test["error"]) if run.test else NOTHING, yes(run.supervised_attention),
            run.init_from or "random weights",
        ]
        for run in reversed(line.runs)
    ]  # fmt: skip
    titles = "run | date | seed | images | CPU hours | test error, % | supervised | fine-tuned from"
    versions = ", ".join(f"{key} {value}" for key, value in record.versions.items())
    commit = f", commit {record.commit}" if record.commit else ""
    parts = [
        "## Training",
        text,
        markdown_table(titles, rows),
        record.notes,
        f"Made with {versions}{commit}.",
    ]
    if "stages" not in record.settings:
        parts.append("The settings of each run are in its record, in the words of version 0.1.")
    else:
        stages = record.settings["stages"]
        titles = " | ".join(["setting", *(f"stage {number}" for number in range(1, len(stages) + 1))])
        values = [[key, *(_value(stage[key]) for stage in stages)] for key in stages[0]]
        parts += [f"Reproduce with `{record.command}`:", markdown_table(titles, values)]
    return "\n\n".join(part for part in parts if part)


def _value(value: Any) -> str:
    """A value, or a pair as start → end."""
    return " → ".join(map(str, value)) if isinstance(value, list) else str(value)


def _figures(name: str, record: Record) -> str:
    """Test figures with their commands, and the paper's beside them."""
    if record.test is None:
        return "## Test\n\nNot tested yet."
    parts = ["## Test", tests_table([record])]
    parts.append(
        "The interval is for more images made from the same test data; for other data it would be wider."
    )
    if name in PRESETS:
        parts.append(
            f"The paper's exact error for this network is {PRESETS[name].paper_error} % (quoted, not ours)."
        )
    tests = [record.test, record.test_with(second_test(record.preset)) or record.test]
    commands = dict.fromkeys(evaluate_command(name, test, record) for test in tests)
    parts += ["Reproduce with:\n\n```\n" + "\n".join(commands) + "\n```", lengths_table(record)]
    return "\n\n".join(part for part in parts if part)


def _weaknesses(record: Record, beyond: str) -> str:
    """What the test says about where the model goes wrong, and what it cannot know from its training."""
    test, lines = record.test or {}, []
    if classes := test.get("classes"):
        worst = sorted(classes.items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{name} ({percent(share)} %)" for name, share in worst)
        lines.append(f"Classes it misses most: {shown}.")
    if confusions := test.get("confusions"):
        named = [
            f"{true} {'not named' if answer == 'none' else f'taken for {answer}'} ({percent(share)} % of all {true})"
            for true, answer, share in confusions[:3]
        ]
        lines.append(f"Mistakes it makes most: {', '.join(named)}.")
    if pairs := test.get("hardest_pairs"):
        named = [f"{name.replace(' ', ' and ')} ({percent(share)} %)" for name, share, _ in pairs[:3]]
        lines.append(f"Pairs it gets wrong most: {', '.join(named)}.")
    enough = {key: row for key, row in test.get("lengths", {}).items() if row["n"] >= FEWEST_NUMBERS}
    if enough:
        length, row = max(enough.items(), key=lambda item: item[1]["exact_error"])
        lines.append(
            f"Numbers of {length} digits: {percent(row['exact_error'])} % of {row['n']:,} are read wrongly."
        )
    images, errors = record.errors_by_glimpses()
    if errors:
        shown = ", ".join(f"{count}: {percent(error)} %" for count, error in errors.items())
        lines.append(f"Error by number of glimpses, each on the same {images:,} test images: {shown}.")
    return "## What it is bad at\n\n" + "\n".join(f"- {line}" for line in [*lines, beyond])
