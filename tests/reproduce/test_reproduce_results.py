"""What is kept of a run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import evaluation, made_up

from ocra.cli.evaluate import main as evaluate_command_line
from ocra.cli.reproduce import main
from ocra.errors import OcraError, UsageError
from ocra.model.weights import read_config
from ocra.presets import preset
from ocra.reproduce.groups import changes_to_preset
from ocra.reproduce.milestones import milestone
from ocra.reproduce.results import (
    from_run,
    read_evaluation,
    read_result,
    read_results,
    validation_series,
    with_earlier_evaluations,
    write_result,
)
from ocra.reproduce.runner import outcome
from ocra.reproduce.scores import condense, glimpse_series, main_evaluation
from ocra.reproduce.settings import differences, portable, recorded_source, source_name
from ocra.training.checkpoint import Checkpoints
from ocra.training.distributed import Group
from ocra.training.folder import read_spec
from ocra.training.initialise import build_model
from ocra.training.state import State


def test_a_run_is_recorded_with_what_it_was_and_what_it_cost(tiny_run: Path, tmp_path: Path) -> None:
    main(["record", str(tiny_run), "--results", str(tmp_path), "--note", "A tiny one."])
    result = read_result(tmp_path / "tiny-320-seed0.json")
    assert (result.preset, result.seed, result.images, result.notes) == ("tiny", 0, 320, "A tiny one.")
    assert result.ended and not result.failed
    assert result.cpu_seconds > 0 and result.processes == 1
    assert [point[0] for point in result.validation] == [160, 320]
    assert result.evaluations[0]["n"] == 64 and result.evaluations[0]["shift"] == 4
    assert "torch" in result.versions
    assert (tmp_path / "tiny-320-seed0.json").stat().st_size < 10_000


def test_evaluations_of_the_command_line_are_added_and_kept(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command_line([str(tiny_run), "--shift", "6", "--images", "50", "--json"])
    (tmp_path / "six.json").write_text(capsys.readouterr().out)
    results = tmp_path / "results"
    words = ["record", str(tiny_run), "--results", str(results)]
    main([*words, "--evaluation", str(tmp_path / "six.json")])
    main(words)  # once more: what was added stays
    result = read_result(results / "tiny-320-seed0.json")
    assert len(result.evaluations) == 2
    six = main_evaluation(result.evaluations, result.config, shift=6)
    assert six is not None and six["n"] == 50 and "--shift 6" in six["command"]
    main(["record", str(results / "tiny-320-seed0.json"), "--evaluation", str(tmp_path / "six.json")])
    assert len(read_result(results / "tiny-320-seed0.json").evaluations) == 2


def test_a_run_that_has_not_ended_is_recorded_from_its_checkpoint(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "log.jsonl"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    with pytest.raises(OcraError, match=r"neither a summary\.json nor a checkpoint"):
        from_run(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    newest = max((tiny_run / "checkpoints").iterdir())
    (tmp_path / "checkpoints" / newest.name).write_bytes(newest.read_bytes())
    result = from_run(tmp_path)
    assert result.stopped_early and result.images == 320 and result.evaluations == []


def test_what_is_recorded_names_no_folder_of_the_machine() -> None:
    config = made_up("cluttered-5").config
    config["task"]["root"] = "/somewhere/data"
    config["training"]["start_from"] = "/somewhere/runs/first/weights/best"
    assert "somewhere" not in json.dumps(portable(config))
    assert portable(config)["training"]["start_from"] == "first"
    assert source_name("multimnist-3") == "multimnist-3"


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    result = made_up("svhn-12", seed=3, error=0.2, notes="Ünïcode", start_from="x")
    assert read_result(write_result(tmp_path, result)) == result
    (tmp_path / "speed.json").write_text('{"rows": []}')  # another kind of measurement
    assert read_results(tmp_path) == [result]
    assert read_results(tmp_path / "nowhere") == []


def test_a_result_is_not_overwritten_by_another_experiment(tmp_path: Path) -> None:
    write_result(tmp_path, made_up("multimnist-3"))
    other = made_up("multimnist-3")
    other.config["training"]["batch"] = 7
    with pytest.raises(OcraError, match=r"another experiment \(training\.batch 64, not 7\).*--name"):
        write_result(tmp_path, other)


def test_evaluations_of_weights_that_changed_are_dropped(tmp_path: Path) -> None:
    first = made_up("multimnist-3").with_evaluation(evaluation("multimnist", 0.05, shift=6, glimpses=3))
    write_result(tmp_path, first)
    same = with_earlier_evaluations(made_up("multimnist-3"), tmp_path)
    assert len(same.evaluations) == 2
    again = replace(made_up("multimnist-3"), validation=[[3_000_000, 0.09]])  # a run made once more
    for other in (replace(made_up("multimnist-3"), best_images=5), again):
        with pytest.warns(UserWarning, match="score them again"):
            changed = with_earlier_evaluations(other, tmp_path)
        assert len(changed.evaluations) == 1


def test_the_test_on_most_images_counts() -> None:
    result = made_up("multimnist-3", error=0.08)
    result = result.with_evaluation(evaluation("multimnist", 0.075, n=500_000, glimpses=3))
    result = result.with_evaluation(evaluation("multimnist", 0.05, n=600_000, glimpses=3, shift=6))
    result = result.with_evaluation(evaluation("multimnist", 0.3, n=700_000, glimpses=2))
    test = main_evaluation(result.evaluations, result.config)
    assert test is not None and test["exact_error"] == 0.075


def test_numbers_of_glimpses_are_compared_on_the_same_images() -> None:
    result = made_up("multimnist-3", error=0.08)  # on 10,000 images
    assert glimpse_series(result.evaluations, result.config) == []
    for glimpses, error in ((4, 0.07), (1, 0.9), (3, 0.06)):
        result = result.with_evaluation(evaluation("multimnist", error, n=2_000, glimpses=glimpses))
    expected = [(1, 0.9, 2_000), (3, 0.06, 2_000), (4, 0.07, 2_000)]
    assert glimpse_series(result.evaluations, result.config) == expected


def test_an_evaluation_is_condensed_to_its_worst_mistakes() -> None:
    kept = condense(
        {
            "task": "cluttered", "split": "test", "seed": 0, "glimpses": 5, "max_shift": 4, "n": 10,
            "exact_error": 1 / 3, "exact_error_interval": (0.1, 0.6), "object_error": 0.2, "weights": "a/b",
            "reconstruction_mse": 0.01, "classes": {"0": {"n": 5, "error": 0.4}, "1": {"n": 5, "error": 0.0}},
            "pairs": {"0 1": {"n": 5, "error": 0.5}},
            "confusion": {
                "true": ["0", "1"], "answered": ["0", "1", "none"], "counts": [[3, 1, 1], [0, 5, 0]]
            },
        }
    )  # fmt: skip
    assert kept["exact_error"] == 0.333333
    assert kept["shift"] is None
    assert kept["confusions"] == [["0", "1", 0.2], ["0", "none", 0.2]]
    assert kept["hardest_pairs"] == [["0 1", 0.5, 5]]
    assert kept["command"] == "ocra evaluate b --task cluttered --images 10 --seed 0 --glimpses 5"


def test_a_long_log_is_thinned_out_but_keeps_its_best_and_last() -> None:
    log = [
        {"images": k, "validation_error": 0.5 if k != 777 else 0.1, "cpu_seconds": 2.0 * k}
        for k in range(1, 1002)
    ]
    points = validation_series([{"images": 1, "loss": 1.0}, *log])
    assert len(points) <= 202
    assert [777, 0.1, 1554.0] in points and points[-1][0] == 1001


def test_differences_ignore_what_does_not_change_the_weights() -> None:
    config, other = made_up("multimnist-3").config, made_up("multimnist-3").config
    other["training"].update(validate_images=7, checkpoint_minutes=1.0, compile=False)
    other["task"]["root"] = "elsewhere"
    assert differences(config, other) == {}
    other["loss"]["reconstruction_weight"] = 77.0
    assert changes_to_preset(other) == "loss.reconstruction_weight 77.0"


def test_a_shorter_run_or_another_start_is_no_change_of_settings() -> None:
    short = made_up("multimnist-3", images=20_000).config
    short["training"]["start_from"] = "elsewhere"
    assert changes_to_preset(short) == ""
    assert changes_to_preset(preset("multimnist-3", "paper").to_dict()) == "the paper's recipe of training"


def test_the_first_validation_below_an_error_is_found() -> None:
    result = made_up(
        "multimnist-3", images=1_000_000, validation=[[200_000, 0.2], [400_000, 0.122], [600_000, 0.1]]
    )
    point = milestone(result)
    assert point is not None and (point.images, point.estimated) == (400_000, True)
    assert point.cpu_seconds == pytest.approx(7200 * 0.4)
    timed = replace(result, validation=[[100, 0.1, 33.0]])
    assert milestone(timed) == (100, 33.0, 0.1, False)
    assert milestone(result, 0.01) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "no recorded result"), ('{"preset": "x"}', "config is missing")],
)
def test_broken_results_are_told(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(OcraError, match=rf"bad\.json.*{message}"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": "many"}, {"validation": [[1]]}, {"validation": [["a", "b"]]}, {"evaluations": [{"n": 3}]},
        {"evaluations": "none"}, {"config": {"model": {}, "task": {}, "loss": {}, "training": {}}},
    ],
)  # fmt: skip
def test_results_without_their_figures_are_told(tmp_path: Path, wrong: dict[str, object]) -> None:
    values = {**dataclasses.asdict(made_up("multimnist-3")), **wrong}
    (tmp_path / "bad.json").write_text(json.dumps(values))
    with pytest.raises(OcraError, match=r"bad\.json is no recorded result"):
        read_results(tmp_path)


def test_a_run_that_was_stopped_soon_is_recorded_with_its_cost(tiny_run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "log.jsonl"):
        (tmp_path / name).write_bytes((tiny_run / name).read_bytes())
    experiment = read_spec(tmp_path / "config.json")
    state = State(build_model(experiment), experiment.training, Group(), extras=0)
    Checkpoints(tmp_path / "checkpoints").save(state.checkpoint())
    result = from_run(tmp_path)
    assert result.images == 320 and result.cpu_seconds > 0 and result.best_images > 0
    assert outcome(result) == "stopped at 320 images"


def test_evaluations_of_other_tasks_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate_command_line(["cluttered-5", "--digits", "glyphs", "--images", "4", "--json"])
    (tmp_path / "e.json").write_text(capsys.readouterr().out)
    shipped = read_config("cluttered-5")[1].record["training"]
    ours = made_up("cluttered-5", seed=shipped["seed"], best_images=shipped["images_seen"])
    with pytest.raises(UsageError, match="digits of glyphs"):
        read_evaluation(tmp_path / "e.json", ours, Path("run"))
    on_glyphs = replace(ours, config={**ours.config, "task": {**ours.config["task"], "digits": "glyphs"}})
    kept = read_evaluation(tmp_path / "e.json", on_glyphs, Path("run"))
    assert (kept["task"], kept["n"], kept["shift"]) == ("cluttered", 4, None)
    with pytest.raises(UsageError, match="weights cluttered-5, not of the best ones of run"):
        read_evaluation(tmp_path / "e.json", replace(on_glyphs, best_images=5), Path("run"))


def test_broken_evaluations_are_told(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text('{"n": 1}')
    with pytest.raises(UsageError, match="ocra evaluate WEIGHTS --json"):
        read_evaluation(tmp_path / "e.json", made_up("multimnist-3"), tmp_path)
    with pytest.raises(OcraError, match="does not exist"):
        read_evaluation(tmp_path / "none.json", made_up("multimnist-3"), tmp_path)


def test_record_says_what_is_wrong(tmp_path: Path, tiny_run: Path) -> None:
    with pytest.raises(UsageError, match="Say which run"):
        main(["record"])
    with pytest.raises(UsageError, match="about one run"):
        main(["record", "a", "b", "--name", "c"])
    with pytest.raises(OcraError, match="does not exist"):
        main(["record", str(tmp_path / "nothing")])
    (tmp_path / "e.json").write_text(json.dumps(evaluation("svhn", 0.5)))
    words = ["record", str(tiny_run), "--results", str(tmp_path), "--evaluation", str(tmp_path / "e.json")]
    with pytest.raises(UsageError, match="task svhn"):
        main(words)
    assert not (tmp_path / "tiny-320-seed0.json").exists()


def test_what_a_run_started_from_is_named_by_the_result_of_the_weights(tmp_path: Path) -> None:
    assert recorded_source("multimnist-3") == read_config("multimnist-3")[1].record["result"]
    assert recorded_source(str(tmp_path / "mine" / "weights" / "best")) == "mine"


def test_a_result_without_its_settings_is_refused(tmp_path: Path) -> None:
    path = write_result(tmp_path, made_up("multimnist-3"))
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "config": {}}))
    with pytest.raises(OcraError, match="does not say how the run was made"):
        read_result(path)
