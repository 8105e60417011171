"""The pages of results and the plots, from made-up records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import a_test, made_up

from ocra.cli.main import main as cli
from ocra.errors import OcraError
from ocra.model.weights import read_config
from ocra.presets import PRESETS
from ocra.reproduce.plots import against_glimpses, against_images
from ocra.reproduce.records import Record, write_record
from ocra.reproduce.tables import current, filled, hours, markdown_table, millions, results_page, runs_page


def row_of(page: str, start: str) -> list[str]:
    """The cells of the first table row that starts like this."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_without_records_every_row_is_there_and_says_not_run() -> None:
    page = results_page([])
    for name, experiment in PRESETS.items():
        row = row_of(page, f"`{name}`")
        assert "not run" in row and experiment.paper_error in row
    assert "None is recorded yet" in runs_page([])


def test_several_seeds_give_mean_and_standard_deviation() -> None:
    errors = {1: 0.07, 2: 0.08, 3: 0.09}
    page = results_page([made_up("multimnist-3", seed, error=error) for seed, error in errors.items()])
    row = row_of(page, "`multimnist-3`")
    assert row[1:7] == ["3.88 M", "**8.00** ± 1.00", "10,000", "3 M in 1 run, 3 seeds", "2.0", "no"]
    assert row[7:] == ["7.24 ± 0.11", "150 M"]


def test_a_single_run_gives_its_interval() -> None:
    row = row_of(results_page([made_up("svhn-12", error=0.1)]), "`svhn-12`")
    assert row[2] == "**10.00** (9.43 to 10.60)" and row[6] == "by boxes"  # the preset supervises attention


def test_failed_runs_are_counted_and_not_averaged() -> None:
    records = [
        made_up("cluttered-5", 1, error=0.1),
        made_up("cluttered-5", 2, error=0.97),
        made_up("cluttered-5", 3, error=None, status="failed", notes="It diverged."),
    ]
    assert row_of(results_page(records), "`cluttered-5`")[2] == "**10.00** (9.43 to 10.60); 2 of 3 failed"
    assert row_of(results_page(records[2:]), "`cluttered-5`")[2] == "1 of 1 failed"
    assert "It diverged." in runs_page(records)


def test_the_best_by_validation_stands_for_a_row_and_not_the_best_by_its_test() -> None:
    chosen = made_up("cluttered-7", error=0.1, name="chosen")
    lucky = made_up("cluttered-7", images=1_000_000, error=0.09, curve=[(1, None, 0.2)], name="lucky")
    untested = made_up("cluttered-7", images=2_000_000, error=None, curve=[(1, None, 0.01)], name="untested")
    for records in ([chosen, lucky, untested], [untested, lucky, chosen]):
        assert current("cluttered-7", records) == [chosen]


def test_the_shipped_run_comes_before_the_best_by_validation() -> None:
    name = read_config("multimnist-3")[1].record["result"]
    ours = made_up("multimnist-3", error=0.5, name=name)
    assert current("multimnist-3", [made_up("multimnist-3", images=5), ours])[0] is ours


@pytest.mark.parametrize("changed", ["task.digits", "model.glimpses", "model.hidden"])
def test_another_task_or_network_stands_in_no_table_of_the_paper(changed: str) -> None:
    other = made_up("multimnist-3", error=0.0123, changes={changed: "another"})
    assert "1.23" not in results_page([other]) and "1.23" in runs_page([other])
    assert f"Not as in its preset at the time: {changed} another." in runs_page([other])


def test_a_row_says_from_which_runs_its_weights_come() -> None:
    first = made_up("multimnist-3", name="first")
    second = made_up("multimnist-10", name="second", init_from="first@0123456789ab", status="stopped")
    page = results_page([first, second])
    assert row_of(page, "`multimnist-10`")[4:6] == ["6 M in 2 runs", "4.0"]
    assert "from `first@0123456789ab`" in page and "Stopped at 3 M of 3 M images" in page


def test_ablations_are_ordered_by_error_and_the_order_is_compared() -> None:
    errors = {"multimnist-3": 0.1, "multimnist-3-one-routing": 0.12, "multimnist-feedforward": 0.15}
    records = [made_up(name, images=500_000, error=error) for name, error in errors.items()]
    late = made_up("multimnist-recurrent-3", images=500_000, error=0.05, init_from="first")

    def section(records: list[Record]) -> str:
        return results_page(records).partition("## Ablations")[2].partition("\n## ")[0]

    page = section([*records, late, made_up("multimnist-3", error=0.01)])
    rows = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    assert rows[:3] == list(errors) and "500 k images each" in page
    assert row_of(page, "`multimnist-recurrent-3`")[2] == "not run"  # one that was fine-tuned is no ablation
    assert "The order of the rows is the paper's." in page
    swapped = [replace(records[0], figures=[a_test(0.3)]), records[1]]
    assert "another one: `multimnist-3`, `multimnist-3-one-routing`." in section(swapped)


def test_the_second_test_set_is_shown_beside_the_first() -> None:
    page = results_page([made_up("multimnist-3").with_figure(a_test(0.05, max_shift=6))])
    assert row_of(page, "`multimnist-3` | max_shift 6")[3] == "5.00"


def test_house_numbers_are_shown_by_length() -> None:
    lengths = {"1": {"n": 10, "exact_error": 0.1, "digit_error": 0.1}}
    test = a_test(0.2, 13_068, "svhn", glimpses=12, lengths=lengths, output_error=0.036)
    page = results_page([made_up("svhn-12", figures=[test])])
    assert row_of(page, "1 | 10")[2:] == ["10.00", "10.00"]
    assert 'Of all outputs, "no digit" included, 3.60 % are wrong' in page


def test_the_time_to_the_authors_error_is_told() -> None:
    page = results_page([made_up("multimnist-3", images=1_000_000)])
    assert row_of(page, "multimnist-3-1M-seed1 | 500,000")[2] == "3,600"
    assert "Time to" not in results_page([made_up("multimnist-3", init_from="elsewhere")])


def test_numbers_are_short_and_no_note_breaks_a_table() -> None:
    assert [millions(count) for count in (640, 150_000, 1_250_000)] == ["640", "150 k", "1.25 M"]
    assert [hours(seconds) for seconds in (1, 360, 5_400, 90_000)] == ["< 0.01", "0.10", "1.5", "25"]
    assert markdown_table("a", [["one | two\nthree"]]).splitlines()[-1] == "| one \\| two three |"


def test_blocks_are_written_between_their_markers_only() -> None:
    page = "a\n<!-- speed: how -->\nold\n<!-- end of speed -->\nb"
    assert filled(page, {"speed": "new"}) == page.replace("old", "new")
    with pytest.raises(OcraError, match="block 'speed'"):
        filled(page, {})


def with_glimpses(record: Record) -> Record:
    for glimpses, error in ((1, 0.5), (2, 0.2), (3, 0.09), (5, 0.07)):
        record = record.with_figure(a_test(error, n=2000, glimpses=glimpses))
    return record


def test_errors_are_drawn_by_glimpses() -> None:
    axes = against_glimpses([with_glimpses(made_up("multimnist-3"))]).axes[0]
    lines = [line for line in axes.lines if len(list(line.get_xdata())) > 1]
    assert [list(line.get_ydata()) for line in lines] == [[50.0, 20.0, 9.0, pytest.approx(7.0)]]


def test_a_fine_tuned_run_is_drawn_from_where_the_one_before_ended() -> None:
    first = made_up("multimnist-3", images=2_000_000, name="first")
    second = made_up("multimnist-10", images=1_000_000, name="second", init_from="first")
    axes = against_images([second], "MultiMNIST", [first, second]).axes[0]
    assert [2.5, 3.0] in [list(line.get_xdata()) for line in axes.lines]


def test_pages_and_plots_are_written_from_files_alone_and_always_alike(tmp_path: Path) -> None:
    write_record(tmp_path / "results", with_glimpses(made_up("multimnist-3")))
    write_record(tmp_path / "results", made_up("cluttered-5", curve=[]))
    out = tmp_path / "docs"
    words = ["reproduce", "all", "--tables-only", "--results", str(tmp_path / "results"), "--out", str(out)]
    contents = []
    for _ in range(2):
        assert cli(words) == 0
        contents.append({path.name: path.read_bytes() for path in out.rglob("*.*")})
    assert contents[0] == contents[1]
    plots = {"error-against-images-multimnist.svg", "error-against-glimpses.svg", "time-to-error.svg"}
    assert set(contents[0]) == {"results.md", "runs.md", *plots}
    assert all(f"(plots/{name})" in (out / "results.md").read_text("utf-8") for name in plots)


def test_bad_requests_end_with_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli(["reproduce", "svhn", "--images", "5", "--budget", "2h"]) == 2
    assert "not both" in capsys.readouterr().err
    assert cli(["reproduce", "svhn", "--tables-only", "--results", str(tmp_path)]) == 2
    assert "no records in" in capsys.readouterr().err
    (tmp_path / "x.json").write_text("{")
    assert cli(["reproduce", "svhn", "--tables-only", "--results", str(tmp_path)]) == 1
    assert "not valid JSON" in capsys.readouterr().err
