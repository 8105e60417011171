"""The page about a run: complete, alone, and honest about what is missing."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tiny import SMALL

import ocra
from ocra.cli.main import run as run_command
from ocra.errors import OcraError, UsageError
from ocra.losses import Losses
from ocra.viz.curves import Curve, draw_curves
from ocra.viz.report import LOSS_NAMES


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a very short run on glyph digits."""
    folder = tmp_path_factory.mktemp("runs") / "a <run>"
    experiment = ocra.preset("multimnist-3")
    experiment = replace(
        experiment,
        model=replace(experiment.model, glimpses=2, **SMALL),
        task=ocra.MultiMNIST.Config(digits="glyphs"),
        stages=(ocra.Stage(48, batch_size=16), ocra.Stage(48, batch_size=16, cross_entropy=0.5)),
        run=ocra.RunConfig(
            compile=False, report_every_images=16, validate_every_images=48, validate_images=16, test_images=32
        ),
    )  # fmt: skip
    ocra.train(experiment, out=folder, processes=1, quiet=True)
    return folder


@pytest.fixture(scope="module")
def text(run):
    out = run.parent / "report.html"
    run_command("report", [str(run), "--out", str(out), "--images", "64"])
    return out.read_text("utf-8")


class Tags(HTMLParser):
    """Checks that every element is closed and gathers ids and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self._gather(attrs)

    def handle_startendtag(self, tag, attrs):
        self._gather(attrs)

    def _gather(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_network(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert all(address.startswith(("#", "data:image/png")) for address in tags.addresses)
    assert not re.search(r"@import|url\(\s*['\"]?http|<script", text)


def test_all_parts_are_there(text):
    for title in (
        "Curves",
        "Final figures",
        "Samples",
        "Scanpaths",
        "Config",
        "test error",
        "stage 2",
        "7.24 ± 0.11",
    ):
        assert title in text
    assert text.count("<svg") == 5 and text.count("data:image/png") >= 3
    assert "Best weights on 64 test images" in text and 'class="heat"' in text
    assert "a &lt;run&gt;" in text and "<run>" not in text


def test_every_loss_in_the_log_has_a_curve():
    assert tuple(LOSS_NAMES) == ("loss", *Losses._fields[1:])


def test_the_papers_error_stands_in_the_curve_of_errors(text):
    assert "Image-level error; shaded: 95 % interval" in text and "the paper: 7.24 %" in text


def test_lines_take_the_colours_of_the_page(text):
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--ocra-right)" in drawings and "#0072b2" not in drawings.lower()


def test_a_run_that_goes_on_gets_a_page_too(run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "log.jsonl"):
        (folder / name).write_text((run / name).read_text("utf-8"), "utf-8")
    run_command("report", [str(folder), "--out", str(tmp_path / "r.html")])
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "not finished" in text and "Final figures" not in text


def test_data_that_is_missing_costs_only_what_needs_it(run, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    config = json.loads((run / "config.json").read_text("utf-8"))
    config["task"].update(digits="mnist", root=str(tmp_path / "nowhere"))
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "log.jsonl").write_text((run / "log.jsonl").read_text("utf-8"), "utf-8")
    (folder / "weights").symlink_to(run / "weights")
    run_command("report", [str(folder), "--out", str(tmp_path / "r.html")])
    assert "They could not be shown" in (tmp_path / "r.html").read_text("utf-8")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(OcraError, match="holds no run"):
        run_command("report", [str(tmp_path), "--out", str(tmp_path / "r.html")])
    with pytest.raises(UsageError):
        run_command("report", [str(tmp_path), "--out", str(tmp_path / "r.pdf")])


def test_the_error_is_drawn_with_its_interval_and_the_papers_figure_across() -> None:
    points, intervals = [(0, 0.5), (10, 0.2)], [(0.4, 0.6), (0.15, 0.25)]
    figure = draw_curves(
        [Curve("validation", points, intervals=intervals)], percent=True, quoted=("the paper", 0.07)
    )
    (axes,) = figure.axes
    (band,) = axes.collections
    assert {0.4, 0.6, 0.15, 0.25} <= set(band.get_paths()[0].vertices[:, 1])
    assert list(axes.lines[-1].get_ydata()) == [0.07, 0.07]
    assert {tick.get_fontsize() for tick in axes.get_xticklabels()} == {10}


def test_a_curve_that_falls_to_zero_keeps_its_name_on_a_logarithmic_axis() -> None:
    curves = [
        Curve("supervision", [(1.0, 0.5), (2.0, 0.1), (3.0, 0.0)]),
        Curve("total", [(1.0, 2.0), (2.0, 1.0), (3.0, 0.5)]),
    ]
    figure = draw_curves(curves, logarithmic=True)
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "0.1" in ticks and not any("$" in tick for tick in ticks)
    heights = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts}
    assert heights.keys() == {"supervision", "total"} and all(
        -0.1 < height < 1.1 for height in heights.values()
    )
