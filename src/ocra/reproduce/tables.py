"""docs/results.md, written from recorded results."""

from __future__ import annotations

from pathlib import Path

import torch

from ocra.config import ModelConfig
from ocra.model.ocra import OCRA
from ocra.presets import PRESETS
from ocra.reproduce.groups import Group, group_results, has_failed, test_of
from ocra.reproduce.milestones import AUTHORS_ERROR, AUTHORS_IMAGES, Milestone, milestones
from ocra.reproduce.plan import TABLES, paper_images
from ocra.reproduce.results import Result
from ocra.reproduce.settings import is_of_preset
from ocra.reproduce.words import NOTHING, hours, interval, markdown_table, millions, percent, short, spread

NOT_RUN, NOT_TESTED = "not run", "not tested"
PAPER = "the paper's error, % (not ours)"

HEAD = """# Results

Written by `ocra reproduce` from the files in `benchmarks/results`, each of which is one run that was really
made; never edited by hand. `ocra reproduce all --table-only` writes it again.

**Error** is the exact error on images of the test split: the share of images with anything wrong in the
answer. Ours is that of the weights with the lowest validation error; ± is the standard deviation over
runs with different seeds, and for a single run the 95 % interval of its test is given instead. That is
for more images of the same test digits: images that share digits are alike, so for other digits it would
be wider. A run has **failed** if it diverged or ended above 90 % error; failed runs are counted, and are
not part of the mean. **CPU hours** are those of all processes together. Figures marked as the paper's or as quoted
were not measured here.
"""


def report(results: list[Result], plots: dict[str, Path] | None = None, folder: Path | None = None) -> str:
    """The whole page. plots: pictures by name, linked relative to `folder`, where the page is."""
    groups = group_results(results)
    own = [group for group in groups if is_of_preset(group.first.config)]  # none of another task or network
    sections = [HEAD, _main_table("multimnist", own), _second_test_set(own), _first_below(results)]
    sections += [_ablations(own), _main_table("cluttered", own), _main_table("svhn", own)]
    sections += [
        _lengths(own),
        _pictures(plots or {}, folder),
        _every_run(results),
        _trials(groups),
        _how(),
    ]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _main_table(name: str, groups: list[Group]) -> str:
    """The rows of a table of the paper, each as often as it was tested under different settings, best first."""
    table = TABLES[name]
    titles = ["model", "parameters", "our error, %", "runs", "failed", "images seen, each", "CPU hours, each"]
    titles += ["test images", PAPER, "paper's images"]
    rows, shown = [], []
    for preset in table.presets:
        own = [group for group in groups if group.preset == preset]
        judged = [group for group in own if not _is_trial(group)]
        judged.sort(key=lambda group: 1.0 if group.error is None else group.error)
        trials = sum(len(group.results) for group in own if _is_trial(group))
        rows += [_row(group) for group in judged] or [_empty_row(preset, trials)]
        shown += judged
    rows += [
        [model, size or NOTHING, *[NOTHING] * 6, f"{error} (quoted)", NOTHING]
        for model, size, error in table.others
    ]
    parts = [f"## {table.title}", table.remark, markdown_table(titles, rows)]
    return "\n\n".join([*parts, *_remarks(shown)])


def _is_trial(group: Group) -> bool:
    """Whether the runs of a group were neither tested nor failed: they belong to the search for a recipe."""
    return not group.scored and not group.failures


def _row(group: Group) -> list[str]:
    experiment = PRESETS[group.preset]
    tested = sorted({int(n) for n in group.figures("n")})
    return [
        _label(group),
        parameters(ModelConfig.from_dict(group.first.config["model"])),
        _error(group),
        str(len(group.results)),
        str(group.failures),
        millions(group.images) + ("*" if group.first.stopped_early else ""),
        hours(group.mean(lambda result: result.cpu_seconds)),
        " / ".join(f"{n:,}" for n in tested) or NOTHING,
        experiment.paper_error,
        paper_images(experiment.task.name),
    ]


def _empty_row(preset: str, trials: int = 0) -> list[str]:
    experiment = PRESETS[preset]
    start = [
        f"`{preset}`",
        parameters(experiment.model),
        NOT_TESTED if trials else NOT_RUN,
        str(trials),
        *[NOTHING] * 4,
    ]
    return [*start, experiment.paper_error, paper_images(experiment.task.name)]


def _label(group: Group) -> str:
    return f"`{group.preset}`" + (" (other settings, see below)" if group.changes else "")


def _error(group: Group) -> str:
    errors = group.figures("exact_error")
    if not errors:
        return "failed" if group.failures else NOT_TESTED
    if len(errors) > 1:
        return spread(errors)
    test = test_of(group.scored[0])
    return f"{percent(errors[0])} ({interval(test)})" if test else NOTHING


def parameters(model: ModelConfig) -> str:
    """Trainable parameters of a network, in millions."""
    with torch.device("meta"):
        return f"{OCRA(model).parameter_count / 1e6:.2f} M"


def _remarks(groups: list[Group]) -> list[str]:
    """Sentences below a table on what its rows do not show."""
    lines = [
        f"- `{group.preset}`, {millions(group.images)} images: {remark}"
        for group in groups
        if (remark := _remark(group))
    ]
    return ["\n".join(lines)] if lines else []


def _remark(group: Group) -> str:
    """Where the runs of a group began, whether they came to their end, and what is not as in the preset."""
    parts = []
    if source := group.first.start_from:
        parts.append(f"Started from the weights {source}, whose own images are not counted here.")
    if group.first.stopped_early:
        parts.append(f"\\* Recorded before its end at {millions(group.first.planned)} images.")
    if group.changes:
        parts.append(f"Settings that differ from the preset's: {group.changes}.")
    return " ".join(parts)


def _second_test_set(groups: list[Group]) -> str:
    """MultiMNIST in more detail: the 6-pixel set, per-object error, reconstruction."""
    rows = [
        [
            _label(group), millions(group.images), spread(group.figures("exact_error")),
            spread(group.figures("exact_error", 6)), spread(group.figures("object_error")),
            spread(group.figures("object_error", 6)), _mse(group),
        ]
        for group in groups
        if group.preset in TABLES["multimnist"].presets and group.scored
    ]  # fmt: skip
    if not rows:
        return ""
    titles = ["model", "images seen", "error, shifts to 4 px, %", "error, shifts to 6 px, %"]
    titles += [
        "per-object error, 4 px, %",
        "per-object error, 6 px, %",
        "mean squared error of reconstruction",
    ]
    text = "Two test sets: shifts of up to 4 pixels (the paper's), and of up to 6 (CapsNet's release)."
    return f"{text}\n\n{markdown_table(titles, rows)}"


def _mse(group: Group) -> str:
    values = group.figures("reconstruction_mse")
    return f"{sum(values) / len(values):.4f}" if values else NOTHING


def _first_below(results: list[Result]) -> str:
    """How soon multimnist-3 reached what the authors' program had after one pass."""
    rows = [
        [f"{result.name}", f"{point.images:,}", _cpu(point), f"{percent(point.error)}"]
        for result, point in milestones(results)
    ]
    goal = f"{percent(AUTHORS_ERROR)} % exact error"
    text = (
        f"**Images until `multimnist-3` first has {goal}.** The authors' program needed "
        f"{AUTHORS_IMAGES:,} (quoted, on its test set). Ours is read from the validations during a run, on "
        "images of 6,000 MNIST digits that are never trained on (`benchmarks/time_to_error.py`)."
    )
    if not rows:
        return f"{text} No recorded run is there yet."
    titles = ["run", "images", "CPU seconds", "validation error there, %"]
    return f"{text}\n\n{markdown_table(titles, rows)}"


def _cpu(point: Milestone) -> str:
    return f"{point.cpu_seconds:,.0f}" + (" (by share of images)" if point.estimated else "")


def _ablations(groups: list[Group]) -> str:
    """One table for each number of images at which more than one row was run from scratch, ordered by our error."""
    table = TABLES["ablations"]
    own = [
        group
        for group in groups
        if group.preset in table.presets and group.scored and not group.first.start_from
    ]
    budgets = sorted({group.budget for group in own}, reverse=True)
    parts = [f"## {table.title}", table.remark]
    for budget in budgets:
        chosen = _one_each([group for group in own if group.budget == budget])
        if len(chosen) > 1:
            parts += _ablation_table(budget, chosen)
    if len(parts) == 2:
        order = sorted(table.presets, key=_paper_figure)
        rows = [
            [f"`{name}`", parameters(PRESETS[name].model), NOT_RUN, PRESETS[name].paper_error]
            for name in order
        ]
        parts.append(markdown_table(["model", "parameters", "our error, %", PAPER], rows))
    return "\n\n".join(parts)


def _one_each(groups: list[Group]) -> list[Group]:
    """Of each preset the group closest to its settings: fewest changes, then most runs."""
    best: dict[str, Group] = {}
    for group in sorted(groups, key=lambda group: (len(group.changes), -len(group.scored))):
        best.setdefault(group.preset, group)
    return list(best.values())


def _ablation_table(budget: int, groups: list[Group]) -> list[str]:
    groups = sorted(groups, key=lambda group: group.error or 0.0)
    rows = [
        [str(rank), *_row(group)[:5], _row(group)[6], PRESETS[group.preset].paper_error]
        for rank, group in enumerate(groups, 1)
    ]
    missing = [name for name in TABLES["ablations"].presets if name not in {group.preset for group in groups}]
    rows += [[NOTHING, *_empty_row(name)[:5], NOTHING, PRESETS[name].paper_error] for name in missing]
    titles = ["place", "model", "parameters", "our error, %", "runs", "failed", "CPU hours, each", PAPER]
    ours = [group.preset for group in groups]
    papers = sorted(ours, key=_paper_figure)
    if ours == papers:
        verdict = "The order of the rows is the paper's."
    else:
        verdict = f"The paper's order is another one: {', '.join(f'`{name}`' for name in papers)}."
    return [
        f"### {millions(budget)} images each",
        markdown_table(titles, rows, 2),
        verdict,
        *_remarks(groups),
    ]


def _paper_figure(preset: str) -> float:
    return float(PRESETS[preset].paper_error.split(" ±")[0].strip("> "))


def _lengths(groups: list[Group]) -> str:
    """House numbers by their length, for each run that was tested so."""
    blocks = []
    for group in groups:
        for result in group.scored if group.preset == "svhn-12" else []:
            test = test_of(result) or {}
            if "lengths" not in test:
                continue
            rows = [
                [length, f"{row['n']:,}", percent(row["exact_error"]), percent(row["digit_error"])]
                for length, row in test["lengths"].items()
            ]
            rows.append(
                ["all", f"{test['n']:,}", percent(test["exact_error"]), percent(test["object_error"])]
            )
            titles = [
                "digits in the number",
                "numbers",
                "error of whole numbers, %",
                "error of single digits, %",
            ]
            block = f"By length, {result.name}:\n\n{markdown_table(titles, rows)}"
            if "output_error" in test:
                block += f'\n\nOf all five outputs, "no digit" included, {percent(test["output_error"])} % are wrong.'
            blocks.append(block)
    text = (
        "The paper's error on single digits is 2.65 ± 0.11 % (quoted); the authors' program counts all five "
        "outputs, so it stands beside ours of the five outputs."
    )
    return "\n\n".join([*blocks, text]) if blocks else ""


def _pictures(plots: dict[str, Path], folder: Path | None) -> str:
    lines = [
        f"![{title}]({path.relative_to(folder).as_posix() if folder else path})"
        for title, path in plots.items()
    ]
    return "\n\n".join(["## Plots", *lines]) if lines else ""


def _every_run(results: list[Result]) -> str:
    """All runs, those that failed too."""
    if not results:
        return "## Every run\n\nNone is recorded yet."
    rows = []
    for result in sorted(results, key=lambda result: (result.preset, result.name)):
        test = test_of(result)
        state = "failed" if has_failed(result) else "stopped" if result.stopped_early else "ended"
        rows.append([
            result.name, str(result.seed), result.date, state, f"{result.images:,}",
            hours(result.cpu_seconds), percent(test["exact_error"]) if test else NOTHING,
            f"{test['n']:,}" if test else NOTHING,
            short(result.commit or NOTHING), result.reason or result.notes or NOTHING,
        ])  # fmt: skip
    titles = [
        "run",
        "seed",
        "date",
        "state",
        "images seen",
        "CPU hours",
        "error, %",
        "test images",
        "commit",
        "notes",
    ]
    return "## Every run\n\n" + markdown_table(titles, rows)


def _trials(groups: list[Group]) -> str:
    """The settings of the runs that are in no table above."""
    lines = [
        f"- {result.name}: {_remark(group) or 'the settings of the preset.'}"
        for group in groups
        if _is_trial(group)
        for result in group.results
    ]
    if not lines:
        return ""
    return "### Runs that were not tested\n\nStopped, or made to compare settings.\n\n" + "\n".join(
        sorted(lines)
    )


def _how() -> str:
    return """## How to make these figures

```
ocra reproduce multimnist --seeds 1 2 3        # every row of a table; again to go on where it stopped
ocra reproduce ablations --images 1e6          # scaled down: the table says what was spent
ocra reproduce cluttered --budget 12h
ocra reproduce all --ray auto                  # runs side by side on a Ray cluster
ocra reproduce record runs/mine                # keep a run made with `ocra train`
ocra reproduce all --table-only                # write this page again
```"""
