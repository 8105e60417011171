"""Model cards: what shipped weights are, how they were made, how good they are and what they are bad at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ocra.data.config import DIGIT_TASKS
from ocra.presets import PRESETS
from ocra.reproduce.groups import test_of
from ocra.reproduce.lineage import Lineage, lineage
from ocra.reproduce.results import Result
from ocra.reproduce.scores import glimpse_series, main_evaluation
from ocra.reproduce.words import hours, interval, markdown_table, millions, percent, short
from ocra.training.schedule import guide_end

DATA = {
    "multimnist": "MultiMNIST, made on the fly: two overlapping digits of different classes on "
    "36×36 pixels, each shifted by up to {max_shift} pixels.",
    "cluttered": "Cluttered MNIST, made on the fly: {objects} digits, which may be of one class, and "
    "{distractors} fragments of others, {distractor_size}×{distractor_size} pixels each, anywhere on "
    "{size}×{size} pixels.",
    "svhn": "Street View House Numbers, format 1: numbers of one to five digits, cropped by the true boxes "
    "of their digits (at test time too), grey, inverted, 64×64 pixels. Training images are varied: shift, "
    "scale, rotation, contrast, noise, margin of the crop.",
    "folder": "A folder of labelled pictures.",
}
SPLITS = {
    "folder": "",
    "glyphs": "The digits are glyphs drawn from fonts.",
    "mnist": "The digits are 54,000 of MNIST's 60,000 training digits; the other 6,000 serve validation, and "
    "the test images are made from MNIST's test digits.",
    "svhn": "Trained on the train set{extra}; a part of it serves validation, and the official test set "
    "gives the figures below.",
}
LICENCES = {
    "folder": ("other", "The licence of the pictures applies; the program is under the MIT licence."),
    "glyphs": ("mit", "Trained on digits drawn from fonts; the program is under the MIT licence."),
    "mnist": (
        "cc-by-sa-3.0",
        "Trained on MNIST (Y. LeCun, C. Cortes, C. J. C. Burges), which is licensed CC BY-SA 3.0; the "
        "program is under the MIT licence.",
    ),
    "svhn": (
        "other",
        "**For non-commercial use only**, as the data set is: Y. Netzer, T. Wang, A. Coates, A. Bissacco, "
        "B. Wu, A. Y. Ng, *Reading Digits in Natural Images with Unsupervised Feature Learning*, 2011. The "
        "program is under the MIT licence.",
    ),
}
BEYOND = {
    "multimnist": "It always names two different digits: images with one digit, with three, or with the same digit "
    "twice are outside what it learnt, as are digits of another size.",
    "cluttered": "It always names two digits, of MNIST's size: other numbers of digits and other sizes are "
    "outside what it learnt.",
    "svhn": "It expects a crop close around the number: it does not find a number in a street scene.",
    "folder": "Pictures unlike those of its folder are outside what it learnt.",
}
"""What a network cannot know from its training."""
FEWEST_NUMBERS = 20
"""House numbers of one length from which its error says something."""


def model_card(
    name: str,
    result: Result,
    images_seen: int | None = None,
    storage: str = "float16",
    others: Iterable[Result] = (),
) -> str:
    """The README.md of shipped weights.

    images_seen: by the weights, if they are not the run's best ones; others: results, of which some may be of the
    runs this one went on from.
    """
    config = result.config
    licence, terms = LICENCES[_source(config["task"])]
    description = PRESETS[name].description if name in PRESETS else config.get("description", "")
    parts = [
        f"---\nlibrary_name: ocra\nlicense: {licence}\ntags: [ocra, capsules, attention, glimpses]\n---",
        f"# {name}",
        f"{description}. This card is made from a recorded run, `benchmarks/results/{result.name}.json`.",
        f'```python\nimport ocra\n\nmodel = ocra.OCRA.from_pretrained("{name}")\n```',
        _data(config),
        _recipe(lineage(result, others), images_seen or result.best_images, storage),
        _figures(name, result),
        _weaknesses(result),
        f"## Licence\n\n{terms}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data(config: dict[str, Any]) -> str:
    task = config["task"]
    splits = SPLITS[_source(task)].format(extra=" and the extra set" if task["extra"] else " only")
    return f"## Data\n\n{DATA[task['name']].format(**task)} {splits}".rstrip()


def _source(task: dict[str, Any]) -> str:
    """Where the pictures come from: svhn, a folder, or single digits of mnist or of glyphs."""
    return str(task["name"] if task["name"] in ("svhn", "folder") else task["digits"])


def _recipe(line: Lineage, images_seen: int, storage: str) -> str:
    result = line.runs[0]
    training, loss = result.config["training"], result.config["loss"]
    rows = [
        ["images seen by these weights", f"{images_seen:,}"],
        ["images of the whole run", f"{result.images:,}" + _stopped(result)],
        [
            "CPU hours of the whole run",
            f"{hours(result.cpu_seconds)} in {result.processes} process" + "es" * (result.processes > 1),
        ],
        ["with all runs it went on from", line.in_words()],
        ["seed", str(result.seed)],
        ["date", result.date],
        ["batch", str(training["batch"])],
        ["optimiser", _optimiser(training)],
        ["learning rate", f"{training['learning_rate']:g}, {training['schedule']}"],
        ["warm-up", f"{millions(training['warmup_images'])} images"],
        ["averaged weights", str(training["average"] or "no")],
        ["attention layers", _attention(training)],
        ["single objects at first", _until(training["single_until_images"])],
        ["fewer glimpses at first", _fewer(training)],
        ["digits nearer the middle at first", _nearer(training)],
        ["shown at first where the objects are", _guided(line)],
        ["weight of reconstruction", _reconstruction(loss["reconstruction_weight"], training)],
        ["weight of scores half an object too high", f"{loss.get('excess_weight', 0.0):g}"],
        ["weight of each class's share of the scores", f"{loss.get('share_weight', 0.0):g}"],
        ["started from", result.start_from or "random weights"],
        ["stored as", storage],
        [
            "versions",
            ", ".join(f"{key} {value}" for key, value in result.versions.items() if key != "platform"),
        ],
        ["commit", short(result.commit or "unknown")],
    ]
    notes = [result.notes] if result.notes else []
    if len(line.runs) > 1:
        names = ", ".join(f"`{run.name}`" for run in line.runs[1:])
        notes.append(f"It went on from the weights of these runs, each from those of the next: {names}.")
    return "\n\n".join(["## Recipe", markdown_table(["", ""], rows, 2), *notes])


def _stopped(result: Result) -> str:
    return f" (of {result.planned:,} planned; not at its end yet)" if result.stopped_early else ""


def _optimiser(training: dict[str, Any]) -> str:
    rate = training.get("whitening", 0.0)
    whitened = f", large matrices whitened at {rate:g}" if rate else ""
    return f"Adam, β₂ {training['beta2']}{whitened}, gradients clipped to norm {training['clip']:g}"


def _attention(training: dict[str, Any]) -> str:
    """How the windows start and learn; results from before these settings were made do not have them."""
    rate, scale, read, write = (
        training.get(name, 1.0)
        for name in ("attention_rate", "attention_init", "read_window", "write_window")
    )
    start = (
        ""
        if read == write == 1
        else f", first windows for reading on {read:g} and writing on {write:g} of the image"
    )
    still = "" if scale == 1 else f", weights × {scale:g} at the start"
    return f"learning rate × {rate:g}{still}{start}"


def _until(images: int) -> str:
    return f"share falls to none over {millions(images)} images" if images else "no"


def _fewer(training: dict[str, Any]) -> str:
    images = training.get("few_until_images", 0)
    return f"from {training['few_glimpses']} to all over {millions(images)} images" if images else "no"


def _nearer(training: dict[str, Any]) -> str:
    images = training.get("spread_until_images", 0)
    return (
        f"from {training['spread']:g} of the room to all over {millions(images)} images" if images else "no"
    )


def _reconstruction(weight: float, training: dict[str, Any]) -> str:
    left = training.get("reconstruction_end", 1.0)
    return f"{weight:g}" if left == 1 else f"from {weight:g} to {weight * left:g} at the end of the run"


def _guided(line: Lineage) -> str:
    """Guidance of the newest run that had any: weights keep what they were shown, whatever run comes after."""
    for run in line.runs:
        training = run.config["training"]
        images = guide_end(training["images"], training.get("guide_until_images", 0))
        if training.get("guide") and images:
            where = "" if run is line.runs[0] else f" in {run.name}"
            return f"yes{where}, weight from {training['guide']:g} to none over {millions(images)} images"
    return "no"


def _figures(name: str, result: Result) -> str:
    """Test figures with their commands, and the paper's beside them."""
    tests = [test_of(result)]
    if result.config["task"]["name"] == "multimnist":
        tests.append(main_evaluation(result.evaluations, result.config, 6))
    found = [test for test in tests if test is not None]
    if not found:
        return "## Test\n\nNot tested yet."
    rows = [
        [
            _test_name(test), f"{test['n']:,}", percent(test["exact_error"]), interval(test),
            percent(test["object_error"]), f"{test['reconstruction_mse']:.4f}",
        ]
        for test in found
    ]  # fmt: skip
    titles = [
        "test set",
        "images",
        "exact error, %",
        "95 % interval",
        "per-object error, %",
        "reconstruction MSE",
    ]
    parts = ["## Test", markdown_table(titles, rows)]
    if result.config["task"]["name"] in DIGIT_TASKS:
        parts.append(
            "The interval is for more images of the same test digits; for other digits it would be wider."
        )
    if name in PRESETS:
        parts.append(
            f"The paper's exact error for this network is {PRESETS[name].paper_error} % (quoted, not ours)."
        )
    commands = "\n".join(test["command"] for test in found)
    parts.append(f"```\n{commands}\n```")
    if "lengths" in found[0]:
        lengths = [
            [length, f"{row['n']:,}", percent(row["exact_error"]), percent(row["digit_error"])]
            for length, row in found[0]["lengths"].items()
        ]
        titles = ["digits in the number", "numbers", "whole numbers wrong, %", "digits wrong, %"]
        parts.append(markdown_table(titles, lengths))
    return "\n\n".join(parts)


def _test_name(test: dict[str, Any]) -> str:
    return test["task"] if test.get("shift") is None else f"{test['task']}, shifts to {test['shift']} px"


def _weaknesses(result: Result) -> str:
    """What the test says about where the model goes wrong."""
    test = test_of(result)
    if test is None:
        return ""
    lines = []
    if classes := test.get("classes"):
        worst = sorted(classes.items(), key=lambda item: -item[1])[:3]
        lines.append(
            "- Digits it misses most: "
            + ", ".join(f"{name} ({percent(share)} %)" for name, share in worst)
            + "."
        )
    if confusions := test.get("confusions"):
        named = [
            f"{true} taken for {answer} ({percent(share)} % of all {true})"
            if answer != "none"
            else f"{true} not named ({percent(share)} % of all {true})"
            for true, answer, share in confusions[:3]
        ]
        lines.append(f"- Mistakes it makes most: {', '.join(named)}.")
    if pairs := test.get("hardest_pairs"):
        named = [f"{name.replace(' ', ' and ')} ({percent(share)} %)" for name, share, _ in pairs[:3]]
        lines.append(f"- Pairs it gets wrong most: {', '.join(named)}.")
    enough = {key: row for key, row in test.get("lengths", {}).items() if row["n"] >= FEWEST_NUMBERS}
    if enough:
        length, row = max(enough.items(), key=lambda item: item[1]["exact_error"])
        lines.append(
            f"- Numbers of {length} digits: {percent(row['exact_error'])} % of {row['n']:,} are read wrongly."
        )
    series = glimpse_series(result.evaluations, result.config)
    if series:
        shown = ", ".join(f"{count}: {percent(error)} %" for count, error, _ in series)
        lines.append(
            f"- Error by number of glimpses, each on the same {series[0][2]:,} test images: {shown}."
        )
    lines.append(f"- {BEYOND[result.config['task']['name']]}")
    return "## What it is bad at\n\n" + "\n".join(lines)
