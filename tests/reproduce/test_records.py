"""What is kept of a run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import TINY, a_test, made_up

from ocra.cli.reproduce import main
from ocra.errors import OcraError
from ocra.experiment import Experiment
from ocra.model.weights import SHIPPED, content_hash, read_config
from ocra.presets import preset
from ocra.reproduce.records import (
    MOST_POINTS,
    Record,
    chain,
    differences,
    figure,
    milestone,
    portable,
    read_record,
    read_records,
    record_run,
    run_name,
    with_earlier_figures,
    write_record,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_run_is_recorded_with_what_it_was_and_what_it_cost(tiny_run: Path, tmp_path: Path) -> None:
    main(["record", str(tiny_run), "--results", str(tmp_path), "--note", "A tiny one."])
    record = read_record(tmp_path / "tiny-320-seed0.json")
    assert (record.preset, record.seed, record.status, record.notes) == ("tiny", 0, "finished", "A tiny one.")
    assert record.cost.images == record.cost.planned_images == 320
    assert record.cost.cpu_seconds > 0 and record.cost.processes == 1
    assert [images for images, _, _ in record.curve] == [160, 320]
    assert record.test is not None and record.test["n"] == 64 and record.test["task"]["max_shift"] == 4
    assert "torch" in record.versions and record.command == "ocra train --config settings.json"
    assert record.settings == portable(TINY.to_dict())
    assert record.init_from is None and record.taught_to_look == "no"


def test_a_run_that_was_stopped_is_recorded_from_its_checkpoint(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "log.jsonl"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    with pytest.raises(OcraError, match=r"neither a summary\.json nor a checkpoint"):
        record_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    newest = max((tiny_run / "checkpoints").iterdir())
    (tmp_path / "checkpoints" / newest.name).write_bytes(newest.read_bytes())
    record = record_run(tmp_path)
    assert (record.status, record.cost.images, record.figures) == ("stopped", 320, [])


def test_what_is_recorded_names_no_folder_of_the_machine() -> None:
    settings = made_up("cluttered-5").settings
    settings["task"]["root"] = "/somewhere/data"
    settings["stages"][0]["init_from"] = "/somewhere/runs/first/weights/best@0123456789ab"
    assert "somewhere" not in json.dumps(portable(settings))
    assert portable(settings)["stages"][0]["init_from"] == "first@0123456789ab"


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    record = made_up("svhn-12", seed=3, error=0.2, notes="Ünïcode", init_from="x@0123456789ab")
    assert read_record(write_record(tmp_path, record)) == record
    (tmp_path / "speed.json").write_text('{"rows": []}')  # another kind of measurement
    assert read_records(tmp_path) == [record]
    assert read_records(tmp_path / "nowhere") == []


def test_a_record_is_not_overwritten_by_another_experiment(tmp_path: Path) -> None:
    write_record(tmp_path, made_up("multimnist-3"))
    other = made_up("multimnist-3")
    other.settings["stages"][1]["batch_size"] = 7
    with pytest.raises(OcraError, match=r"another experiment \(stages\.1\.batch_size 64, not 7\).*--name"):
        write_record(tmp_path, other)


def test_figures_stay_with_the_weights_they_are_of(tmp_path: Path) -> None:
    six = a_test(0.05, n=10)
    write_record(tmp_path, made_up("multimnist-3", notes="Kept.").with_figure(six))
    same = with_earlier_figures(made_up("multimnist-3"), tmp_path)
    assert len(same.figures) == 2 and same.notes == "Kept."
    with pytest.warns(UserWarning, match="score them again"):
        again = with_earlier_figures(made_up("multimnist-3", curve=[(3_000_000, None, 0.09)]), tmp_path)
    assert len(again.figures) == 1


def test_a_record_is_judged_by_the_test_on_most_images_of_its_own_task() -> None:
    record = made_up("multimnist-3", error=0.08)
    for test in (
        a_test(0.075, n=500_000),
        a_test(0.05, n=600_000, max_shift=6),
        a_test(0.3, n=700_000, glimpses=2),
        a_test(0.01, n=800_000, split="train"),
    ):
        record = record.with_figure(test)
    assert record.test is not None and record.test["error"] == 0.075
    six = record.test_with({"max_shift": 6})
    assert six is not None and six["error"] == 0.05


def test_numbers_of_glimpses_are_compared_on_the_same_images() -> None:
    record = made_up("multimnist-3", error=0.08)  # on 10,000 images
    assert record.errors_by_glimpses() == (0, {})
    for glimpses, error in ((4, 0.07), (1, 0.9), (3, 0.06)):
        record = record.with_figure(a_test(error, n=2_000, glimpses=glimpses))
    assert record.errors_by_glimpses() == (2_000, {1: 0.9, 3: 0.06, 4: 0.07})


def test_an_evaluation_is_condensed_to_its_worst_mistakes() -> None:
    kept = figure(
        {
            "task": {"name": "cluttered", "root": "/somewhere"}, "n": 10, "glimpses": 5, "command": "ocra",
            "exact_error": 1 / 3, "exact_error_interval": (0.1, 0.6), "object_error": 0.2,
            "classes": {"0": {"n": 5, "error": 0.4}}, "pairs": {"0 1": {"n": 5, "error": 0.5}},
            "confusion": {
                "true": ["0", "1"], "answered": ["0", "1", "none"], "counts": [[3, 1, 1], [0, 5, 0]]
            },
        }
    )  # fmt: skip
    assert kept["error"] == 0.333333 and kept["task"] == {"name": "cluttered"}
    assert kept["confusions"] == [["0", "1", 0.2], ["0", "none", 0.2]]
    assert kept["hardest_pairs"] == [["0 1", 0.5, 5]]


def test_a_long_curve_is_thinned_out_but_keeps_its_best_and_last(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "summary.json"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    lines = [
        {"images": 1, "validation_error": 0.1 if k == 777 else 0.5, "cpu_seconds": 1.0 * k}
        for k in range(1, 1002)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    curve = record_run(tmp_path).curve
    assert len(curve) <= MOST_POINTS + 2
    assert (1, 777.0, 0.1) in curve and curve[-1][1] == 1001.0


def test_a_setting_that_is_younger_than_a_record_has_its_default_there() -> None:
    settings = preset("multimnist-10").to_dict()
    older = json.loads(json.dumps(settings))
    for stage in older["stages"]:
        del stage["detach_windows"], stage["attention_teacher"]
    assert differences(older, settings) == {}
    changed = {
        **settings,
        "stages": [{**settings["stages"][0], "detach_windows": True}, *settings["stages"][1:]],
    }
    assert differences(older, changed) == {"stages.0.detach_windows": (False, True)}


def test_differences_ignore_what_does_not_change_the_weights() -> None:
    settings, other = made_up("cluttered-5").settings, made_up("cluttered-5").settings
    other["run"].update(validate_images=7, checkpoint_minutes=1.0, compile=False)
    other["task"]["root"] = "elsewhere"
    other["stages"][0]["init_from"] = settings["stages"][0]["init_from"].split("@")[0] + "@0123456789ab"
    assert differences(settings, other) == {}
    other["stages"][1]["reconstruction"] = 77.0
    assert differences(settings, other) == {"stages.1.reconstruction": (20.0, 77.0)}


def recorded(experiment: Experiment, tiny_run: Path, folder: Path) -> Record:
    """The record of a run of an experiment, with the figures of another."""
    for name in ("summary.json", "log.jsonl"):
        (folder / name).write_bytes((tiny_run / name).read_bytes())
    (folder / "config.json").write_text(json.dumps(experiment.to_dict()))
    return record_run(folder)


@pytest.mark.parametrize(
    ("experiment", "words", "changes"),
    [
        (preset("multimnist-3"), "ocra train multimnist-3 --seed 0", {}),
        (preset("svhn-12").scaled(20_000), "ocra train svhn-12 --seed 0 --images 20000", {}),
        (
            preset("cluttered-5", "paper"),
            "ocra train cluttered-5 --seed 0 --recipe paper",
            {"recipe": "paper"},
        ),
        (
            replace(preset("multimnist-3"), init="paper"),
            "ocra train --config settings.json",
            {"init": "paper"},
        ),
    ],
    ids=["preset", "shorter", "paper", "changed"],
)
def test_a_record_has_the_command_that_trains_it(
    experiment: Experiment, words: str, changes: dict[str, object], tiny_run: Path, tmp_path: Path
) -> None:
    record = recorded(experiment, tiny_run, tmp_path)
    assert (record.command, record.changes) == (words, changes)


def test_weights_to_start_from_are_named_by_their_record(tiny_run: Path, tmp_path: Path) -> None:
    known = f"multimnist-3@{content_hash(SHIPPED / 'multimnist-3')}"
    first = replace(preset("multimnist-10").stages[0], init_from=known)
    record = recorded(replace(preset("multimnist-10"), stages=(first,)), tiny_run, tmp_path)
    shipped_as = read_config("multimnist-3")[1].record["result"]
    assert record.init_from == known.replace("multimnist-3", shipped_as)
    first = replace(first, init_from="multimnist-3@0123456789ab")  # others, of the same name
    record = recorded(replace(preset("multimnist-10"), stages=(first,)), tiny_run, tmp_path)
    assert record.init_from == "multimnist-3@0123456789ab"


@pytest.mark.parametrize(
    ("images", "name"),
    [(3_000_000, "3M"), (1_250_000, "1.25M"), (12_800, "12.8k"), (640, "640"), (1_234_567, "1234567")],
)
def test_names_say_preset_images_and_seed(images: int, name: str) -> None:
    assert run_name(replace(TINY, name="svhn-12", seed=4).scaled(images)) == f"svhn-12-{name}-seed4"


def test_the_first_validation_below_an_error_is_found() -> None:
    curve = [(200_000, None, 0.2), (400_000, None, 0.122), (600_000, 1.0, 0.1)]
    record = made_up("multimnist-3", images=1_000_000, curve=curve)
    assert milestone(record) == (400_000, pytest.approx(7200 * 0.4), 0.122)
    assert milestone(record, 0.1) == (600_000, 1.0, 0.1)
    assert milestone(record, 0.01) is None


def test_a_chain_goes_back_to_random_weights_or_to_what_is_not_recorded() -> None:
    first = made_up("cluttered-5-supervised", name="first", init_from="lost@0123456789ab")
    second = made_up("multimnist-3", name="second", init_from="first@0123456789ab")
    line = chain(second, [first, second])
    assert [run.name for run in line.runs] == ["second", "first"]
    assert line.images == 6_000_000 and line.unknown == "lost@0123456789ab"
    assert line.taught_to_look == "by boxes" and second.taught_to_look == "no"
    assert "2 runs and the unrecorded ones of lost" in line.count


def test_a_teacher_counts_among_the_runs_and_its_boxes_are_no_supervision() -> None:
    start, teacher = made_up("multimnist-3", name="start"), made_up("mnist-6-early", name="teacher")
    record = made_up(
        "cluttered-5", name="own", init_from="start@0123456789ab", taught_by="teacher@0123456789ab"
    )
    line = chain(record, [start, teacher, record])
    assert [run.name for run in line.runs] == ["own", "start", "teacher"] and line.unknown is None
    assert line.images == 9_000_000 and line.taught_to_look == "by labels"
    assert chain(record, [start]).unknown == "teacher@0123456789ab"


def test_runs_fine_tuned_from_each_other_are_counted_once() -> None:
    one, two = (
        made_up("svhn-12", name="one", init_from="two"),
        made_up("svhn-12", name="two", init_from="one"),
    )
    assert [run.name for run in chain(one, [one, two]).runs] == ["one", "two"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost": {"images": "many"}}, {"curve": [[1]]}, {"curve": [["a", 1, "b"]]}, {"figures": [{"n": 3}]},
        {"figures": "none"}, {"settings": {}}, {"surplus": 1},
    ],
)  # fmt: skip
def test_broken_records_are_told(tmp_path: Path, wrong: dict[str, object]) -> None:
    values = {**dataclasses.asdict(made_up("multimnist-3")), **wrong}
    (tmp_path / "bad.json").write_text(json.dumps(values))
    with pytest.raises(OcraError, match=r"bad\.json is no record of a run"):
        read_records(tmp_path)


def test_all_runs_of_version_0_1_are_kept_with_their_settings() -> None:
    old = [record for record in read_records(RESULTS) if not record.has_stages]
    assert len(old) == 72 and sum(len(record.figures) for record in old) >= 179
    assert all({"model", "task", "loss", "training"} <= set(record.settings) for record in old)
    assert all(record.cost.planned_images == record.settings["training"]["images"] for record in old)
