"""Model cards, written from records: what a network is, how it was trained, what it gets wrong."""

from __future__ import annotations

from collections.abc import Iterator

from ocra.data import task_config
from ocra.exporting import card_front
from ocra.presets import ALL_PRESETS
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
    sections,
    tests_table,
)

FEWEST_NUMBERS = 20
"""House numbers of one length from which its error says something."""


def model_card(name: str, record: Record, records: list[Record]) -> str:
    """The README.md of shipped weights, from the record of their run and those it was fine-tuned from."""
    task = task_config(record.settings["task"])
    data = f"{task.about} {task.source.splits}"
    description = (
        ALL_PRESETS[name].description if name in ALL_PRESETS else record.settings.get("description", "")
    )
    return sections(
        card_front(name, description, task, record.test),
        f"# {name}",
        f"{description}. Written from the record `benchmarks/results/{record.name}.json`.",
        f'```python\nimport ocra\n\nmodel = ocra.OCRA.from_pretrained("{name}")\n```',
        f"## Data\n\n{data.strip()}",
        *_training(record, records),
        *_tests(name, record),
        *_confidence(record),
        *_damage(name, record),
        "## What it is bad at",
        "\n".join(f"- {line}" for line in [*_weaknesses(record), task.task.limits]),
        f"## Licence\n\n{task.source.terms}",
    )


def _training(record: Record, records: list[Record]) -> list[str]:
    """What made the weights: the command, every run with its cost, and the stages of the last one."""
    line = chain(record, records)
    teacher = next((run.taught_by for run in line.runs if run.taught_by), None)
    taught = {
        "no": "its attention was not supervised",
        "by boxes": "its attention was supervised by the objects' boxes, which the paper's was not",
        "by labels": f"where to look it was taught by `{teacher}`, slid over the images to find the objects: "
        "class labels were the only supervision, but the paper's network found out by itself",
    }
    rows = [
        [
            f"`{run.name}`", run.date, str(run.seed), millions(run.cost.images), hours(run.cost.cpu_seconds),
            percent(run.test["error"]) if run.test else NOTHING, run.taught_to_look,
            run.init_from or "random weights",
        ]
        for run in reversed(line.runs)
    ]  # fmt: skip
    versions = ", ".join(f"{key} {value}" for key, value in record.versions.items())
    commit = f", commit {record.commit}" if record.commit else ""
    parts = [
        "## Training",
        f"{millions(line.images)} images and {hours(line.cpu_seconds)} CPU hours in {line.count}; "
        f"{taught[line.taught_to_look]}. "
        f"The weights are those after {record.cost.best_images:,} images of the last run, stored as float16.",
        markdown_table(
            "run | date | seed | images | CPU hours | test error, % | taught where to look | fine-tuned from",
            rows,
        ),
        record.notes,
        f"Made with {versions}{commit}.",
    ]
    if "stages" not in record.settings:
        return [*parts, "The settings of each run are in its record, in the words of version 0.1."]
    stages = record.settings["stages"]
    titles = " | ".join(["setting", *(f"stage {number}" for number in range(1, len(stages) + 1))])
    values = {key: [stage[key] for stage in stages] for key in stages[0]}
    rows = [
        [key, *(" → ".join(map(str, value)) if isinstance(value, list) else str(value) for value in row)]
        for key, row in values.items()
    ]
    return [*parts, f"Reproduce with `{record.command}`:", markdown_table(titles, rows)]


def _tests(name: str, record: Record) -> list[str]:
    """Test figures with their commands, and the paper's beside them."""
    if record.test is None:
        return ["## Test", "Not tested yet."]
    tests = [record.test, record.test_with(second_test(record.preset)) or record.test]
    commands = dict.fromkeys(evaluate_command(name, test, record) for test in tests)
    error = ALL_PRESETS[name].paper_error if name in ALL_PRESETS else ""
    return [
        "## Test",
        tests_table([record]),
        "The interval is for more images made from the same test data; for other data it would be wider.",
        f"The paper's exact error for this network is {error} % (quoted, not ours)." if error else "",
        "Reproduce with:\n\n```\n" + "\n".join(commands) + "\n```",
        lengths_table(record),
    ]


def _confidence(record: Record) -> list[str]:
    """How sure it is and how right it then is, on test images; nothing for weights that were never calibrated."""
    tests = [test for test in record.figures if "calibration" in test and test["split"] == "test"]
    if not tests:
        return []
    test, told = tests[-1], tests[-1]["calibration"]  # the last is of the calibration in use
    single = told.get("single_objects")
    rows = [[f"{n:,}", percent(sure), percent(right)] for n, sure, right in told["reliability"]]
    return [
        "## How sure it is",
        "Confidence is the probability that the whole answer is right, calibrated on validation images. On "
        f"{test['n']:,} test images it is off by {percent(told['expected_calibration_error'])} % on average "
        "(expected calibration error, ten bins):",
        markdown_table("test images | mean confidence, % | right, %", rows, 0),
        f'Below {percent(told["threshold"])} % it answers "unsure". It answers {percent(told["coverage"])} % of the '
        f"test images; {percent(told['error_if_sure'])} % of these answers are wrong, of all "
        f"{percent(test['error'])} %.",
        f"Shown {single['n']:,} test images of one object, it answers {percent(single['answered'])} %, though it "
        "always names more; of the others it says that it is unsure."
        if single
        else "",
    ]


SEVERITIES = (1.0, 3.0)
"""Of the corruptions that cards tell of."""
SCALES = (0.7, 0.85, 1.2, 1.4)
"""Sizes of the digits that cards tell of."""
DAMAGE = {"corruption", "severity", "scale"}


def _damage(name: str, record: Record) -> list[str]:
    """The error under each corruption and for each size of the digits, where that was scored."""
    found: dict[str, dict[float, float]] = {}
    sizes: dict[float, float] = {}
    images: set[int] = set()
    example = ""
    for test in record.figures:
        task = test["task"]
        if task.get("corruption"):
            found.setdefault(task["corruption"], {})[task["severity"]] = test["error"]
            example = evaluate_command(name, test, record)
        elif task.get("scale", 1.0) != 1.0:
            sizes[task["scale"]] = test["error"]
        else:
            continue
        images.add(test["n"])
    if not found:
        return []
    rows = [
        [kind, *(percent(by[severity]) if severity in by else NOTHING for severity in SEVERITIES)]
        for kind, by in sorted(found.items(), key=lambda item: max(item[1].values()))
    ]
    severities = " | ".join(f"severity {severity:g}, % wrong" for severity in SEVERITIES)
    parts = [
        "## What it withstands",
        f"Exact error on {', '.join(f'{n:,}' for n in sorted(images))} test images each, undamaged "
        f"{percent((record.test or {})['error'])} %; `ocra.data.corruptions` says what each corruption does.",
        markdown_table(f"corruption | {severities}", rows),
    ]
    if sizes:
        cells = [[f"{scale:g}", percent(error)] for scale, error in sorted(sizes.items())]
        parts.append(markdown_table("size of the digits, relative to training | % wrong", cells))
    return [
        *parts,
        f"Reproduce with `{example}` and so on, all of them with `python benchmarks/release.py --rescore {name}`.",
    ]


def _weaknesses(record: Record) -> Iterator[str]:
    """What the test says about where the model goes wrong, a sentence each."""
    test = record.test or {}
    if classes := test.get("classes"):
        worst = sorted(classes.items(), key=lambda item: -item[1])[:3]
        yield f"Classes it misses most: {', '.join(f'{name} ({percent(share)} %)' for name, share in worst)}."
    if confusions := test.get("confusions"):
        named = [
            f"{true} {'not named' if answer == 'none' else f'taken for {answer}'} ({percent(share)} % of all {true})"
            for true, answer, share in confusions[:3]
        ]
        yield f"Mistakes it makes most: {', '.join(named)}."
    if pairs := test.get("hardest_pairs"):
        named = [f"{name.replace(' ', ' and ')} ({percent(share)} %)" for name, share, _ in pairs[:3]]
        yield f"Pairs it gets wrong most: {', '.join(named)}."
    if enough := {key: row for key, row in test.get("lengths", {}).items() if row["n"] >= FEWEST_NUMBERS}:
        length, row = max(enough.items(), key=lambda item: item[1]["exact_error"])
        yield f"Numbers of {length} digits: {percent(row['exact_error'])} % of {row['n']:,} are read wrongly."
    images, errors = record.errors_by_glimpses()
    if errors:
        shown = ", ".join(f"{count}: {percent(error)} %" for count, error in errors.items())
        yield f"Error by number of glimpses, each on the same {images:,} test images: {shown}."
