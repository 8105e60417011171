"""docs/results.md and the plots, from made-up results in a temporary folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import evaluation, made_up

from ocra.cli.main import main as cli
from ocra.model.weights import read_config
from ocra.presets import PRESETS
from ocra.reproduce.groups import group_results
from ocra.reproduce.milestones import is_comparable
from ocra.reproduce.plots import against_glimpses, against_images
from ocra.reproduce.results import Result, write_result
from ocra.reproduce.tables import report
from ocra.reproduce.words import markdown_table


def row_of(page: str, start: str) -> list[str]:
    """The cells of the first table row that starts like this."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_without_results_every_row_is_there_and_says_not_run() -> None:
    page = report([])
    for name, experiment in PRESETS.items():
        row = row_of(page, f"`{name}`")
        assert "not run" in row and experiment.paper_error in row
    assert "None is recorded yet" in page


def test_several_seeds_give_mean_and_standard_deviation() -> None:
    page = report(
        [made_up("multimnist-3", seed, error=error) for seed, error in ((1, 0.07), (2, 0.08), (3, 0.09))]
    )
    row = row_of(page, "`multimnist-3`")
    assert row[1:7] == ["3.88 M", "8.00 ± 1.00", "3", "0", "3 M", "2.0"]
    assert row[7:] == ["10,000", "7.24 ± 0.11", "150 M"]


def test_a_single_run_gives_its_interval() -> None:
    assert row_of(report([made_up("cluttered-5", error=0.1)]), "`cluttered-5`")[2] == "10.00 (9.43 to 10.60)"


def test_failed_runs_are_counted_and_not_averaged() -> None:
    results = [
        made_up("cluttered-5", 1, error=0.1),
        made_up("cluttered-5", 2, error=0.97),
        replace(made_up("cluttered-5", 3, error=None), failed=True, reason="It diverged.", images=100),
    ]
    page = report(results)
    row = row_of(page, "`cluttered-5`")
    assert row[2].startswith("10.00") and row[3:5] == ["3", "2"]
    assert "It diverged." in page


def test_runs_of_other_lengths_or_settings_are_rows_of_their_own() -> None:
    other = made_up("multimnist-3", seed=2)
    other.config["training"]["batch"] = 32
    results = [made_up("multimnist-3"), made_up("multimnist-3", images=1_000_000), other]
    assert len(group_results(results)) == 3
    assert "training.batch 32" in report(results)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("task", "digits", "glyphs"), ("model", "glimpses", 12), ("model", "hidden", 1024)],
)
def test_another_task_or_network_stands_in_no_table_of_the_paper(part: str, name: str, value: object) -> None:
    other = made_up("multimnist-3", error=0.0123)
    other.config[part][name] = value
    other.evaluations[0]["glimpses"] = other.config["model"]["glimpses"]
    page = report([other])
    assert "1.23" not in page.partition("## Every run")[0]
    assert "1.23" in page
    assert not is_comparable(other) and is_comparable(made_up("multimnist-3"))


def test_a_run_stopped_by_hand_says_so() -> None:
    page = report([made_up("multimnist-10", ended=False, images=1_000_000, start_from="multimnist-3")])
    assert row_of(page, "`multimnist-10`")[5] == "1 M*"
    assert "Recorded before its end" in page
    assert "Started from the weights multimnist-3, whose own images are not counted" in page


def test_the_best_row_comes_first_and_runs_that_were_not_tested_are_listed_apart() -> None:
    trial = replace(made_up("multimnist-3", error=None, ended=False, images=2_000_000), name="a-trial")
    trial.config["training"]["batch"] = 32
    page = report([made_up("multimnist-3", error=0.2), made_up("multimnist-3", images=1_000_000), trial])
    table, rest = page.split("## Every run")
    rows = [line for line in table.splitlines() if line.startswith("| `multimnist-3` | 3.88 M")]
    assert [row.split("|")[3].split()[0] for row in rows[:2]] == ["8.00", "20.00"]
    assert "batch 32" not in table and "- a-trial: \\* Recorded before its end" in rest and "batch 32" in rest


def test_ablations_are_ordered_by_error_and_the_order_is_compared() -> None:
    errors = {"multimnist-3": 0.1, "multimnist-3-one-routing": 0.12, "multimnist-feedforward": 0.15}
    results = [made_up(name, images=500_000, error=error) for name, error in errors.items()]
    page = report(results)
    section = page[page.index("### 500 k images each") :]
    assert row_of(section, "1 |")[1] == "`multimnist-3`"
    assert row_of(section, "3 |")[1] == "`multimnist-feedforward`"
    assert "The order of the rows is the paper's." in section
    assert row_of(section, "– | `multimnist-recurrent-3`")[3] == "not run"
    swapped = [replace(result, evaluations=[evaluation("multimnist", 0.3 - k / 10, glimpses=3)])
               for k, result in enumerate(results[:2])]  # fmt: skip
    assert "The paper's order is another one: `multimnist-3`, `multimnist-3-one-routing`." in report(swapped)


def test_the_second_test_set_is_shown_beside_the_first() -> None:
    result = made_up("multimnist-3", error=0.08)
    page = report([result.with_evaluation(evaluation("multimnist", 0.05, shift=6, glimpses=3))])
    row = row_of(page, "`multimnist-3` | 3 M")
    assert row[2:6] == ["8.00", "5.00", "4.00", "2.50"]


def test_house_numbers_are_shown_by_length_with_the_remark_on_boxes() -> None:
    lengths = {"1": {"n": 10, "exact_error": 0.1, "digit_error": 0.1}}
    test = evaluation("svhn", 0.2, n=13_068, glimpses=12, lengths=lengths, output_error=0.036)
    page = report([made_up("svhn-12", evaluations=[test])])
    assert row_of(page, "1 | 10")[2:] == ["10.00", "10.00"]
    assert "true boxes" in page and "13,068" in page
    assert 'Of all five outputs, "no digit" included, 3.60 % are wrong' in page


def test_the_paper_is_never_taken_for_ours() -> None:
    page = report([])
    assert row_of(page, "CapsNet")[2] == "–"
    assert row_of(page, "CapsNet")[-2] == "5.2 (quoted)"
    assert "the paper's error, % (not ours)" in page


def test_the_time_to_the_authors_error_is_told() -> None:
    page = report([made_up("multimnist-3", images=1_000_000)])
    assert "No recorded run is there yet" in report([made_up("multimnist-3", start_from="elsewhere")])
    row = row_of(page, "multimnist-3-1M-seed1 | 500,000")
    assert row[2] == "3,600 (by share of images)"


def curves() -> list[Result]:
    result = made_up("multimnist-3")
    for glimpses, error in ((1, 0.5), (2, 0.2), (3, 0.09), (5, 0.07)):
        result = result.with_evaluation(evaluation("multimnist", error, n=2000, glimpses=glimpses))
    return [result, made_up("cluttered-5", validation=[])]


def test_of_several_results_the_best_by_validation_is_drawn_by_glimpses() -> None:
    chosen = curves()[0]
    tests = [
        {**test, "exact_error": 0.01} if test.get("glimpses") == 3 else test for test in chosen.evaluations
    ]
    lucky = replace(chosen, evaluations=tests, validation=[[3_000_000, 0.09]])
    untested = replace(chosen, evaluations=[], validation=[[3_000_000, 0.01]])
    for results in ([chosen, lucky, untested], [untested, lucky, chosen]):
        lines = [line for line in against_glimpses(results).axes[0].lines if len(line.get_xdata()) > 1]
        assert [list(line.get_ydata()) for line in lines] == [[50.0, 20.0, 9.0, pytest.approx(7.0)]]


def test_a_run_that_went_on_is_drawn_from_where_the_one_before_ended() -> None:
    first = replace(made_up("multimnist-3", images=2_000_000), name="first")
    second = replace(made_up("multimnist-10", images=1_000_000), name="second", start_from="first")
    axes = against_images([second], "MultiMNIST", [first, second]).axes[0]
    drawn = [list(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert [2.5, 3.0] in drawn


def test_runs_that_went_on_from_others_are_no_ablations() -> None:
    rows = [made_up("multimnist-3", images=150_000, error=0.22)]
    rows += [made_up("multimnist-3-one-routing", images=150_000, error=0.23)]
    late = made_up("multimnist-3", images=150_000, error=0.05, start_from="first")
    training = {**late.config["training"], "start_from": "first"}
    rows.append(replace(late, name="late", config={**late.config, "training": training}))
    section = report(rows).partition("150 k images each")[2].partition("##")[0]
    assert "22.00" in section and "5.00" not in section


def test_no_note_breaks_a_table() -> None:
    assert markdown_table(["a"], [["one | two\nthree"]]).splitlines()[-1] == "| one \\| two three |"


def test_the_shipped_run_comes_before_the_best_by_validation() -> None:
    other = curves()[0]
    tests = [{**test, "exact_error": 0.5} for test in other.evaluations]
    name = read_config("multimnist-3")[1].record["result"]
    ours = replace(other, evaluations=tests, validation=[[3_000_000, 0.3]], name=name)
    lines = [line for line in against_glimpses([ours, other]).axes[0].lines if len(line.get_xdata()) > 1]
    assert [list(line.get_ydata()) for line in lines] == [[50.0] * 4]


def test_the_page_and_its_plots_are_written_from_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for result in curves():
        write_result(tmp_path / "results", result)
    out = tmp_path / "docs" / "results.md"
    words = ["--table-only", "--results", str(tmp_path / "results"), "--out", str(out)]
    assert cli(["reproduce", "all", *words]) == 0
    page = out.read_text("utf-8")
    assert "(plots/error-against-images-multimnist.svg)" in page
    assert "(plots/error-against-glimpses.svg)" in page
    assert "cluttered.svg" not in page
    drawn = {path.name: path.read_bytes() for path in (out.parent / "plots").iterdir()}
    assert set(drawn) == {"error-against-images-multimnist.svg", "error-against-glimpses.svg"}
    assert cli(["reproduce", "all", *words]) == 0
    assert out.read_text("utf-8") == page
    assert all((out.parent / "plots" / name).read_bytes() == content for name, content in drawn.items())


def test_bad_requests_end_with_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli(["reproduce", "svhn", "--images", "5", "--budget", "2h"]) == 2
    assert "not both" in capsys.readouterr().err
    (tmp_path / "x.json").write_text("{")
    assert cli(["reproduce", "svhn", "--table-only", "--results", str(tmp_path)]) == 1
    assert "x.json is not valid JSON" in capsys.readouterr().err
