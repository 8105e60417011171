"""The pages of docs/lab are of the shipped weights, and their sentences say what their tables say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ocra.lab import EXPERIMENTS
from ocra.model.weights import content_hash, resolve

FOLDER = Path(__file__).resolve().parents[2] / "docs/lab"
PAGES = [FOLDER / f"{name}.md" for name in EXPERIMENTS if name != "same-different"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def making():
    spec = importlib.util.spec_from_file_location("make_pages", FOLDER / "make_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each_page
def test_a_page_is_of_the_shipped_weights(page):
    """Fails after weights were replaced: `python docs/lab/make_pages.py` runs the pages' commands again."""
    named = re.findall(r"`([\w-]+)@(\w+)`", page.read_text("utf-8"))
    assert named
    for name, known in named:
        assert content_hash(resolve(name)) == known, name


@each_page
def test_a_page_has_the_experiments_question_and_the_human_finding(page):
    kind, text = EXPERIMENTS[page.stem], " ".join(page.read_text("utf-8").split())
    for said in (kind.title, kind.question, kind.beside, "**Method.**", "**Result.**"):
        assert said in text
    assert re.search(r"\b(19|20)\d\d\b", kind.beside)  # of its source


@pytest.mark.parametrize("page", [*PAGES, FOLDER / "README.md"], ids=lambda page: page.stem)
def test_figures_in_sentences_are_those_of_the_tables(page, making):
    text = page.read_text("utf-8")
    assert making.filled(text) == text
    assert not re.findall(r"^<!--=", text, flags=re.M)  # there it would end the paragraph


def test_the_comparison_with_people_is_of_the_shipped_weights():
    """Fails after weights were replaced: `python docs/lab/make_pages.py --people mnist.json` compares again."""
    name, known = re.findall(r"\| `([\w-]+)@(\w+)` against", (FOLDER / "README.md").read_text("utf-8"))[0]
    assert content_hash(resolve(name)) == known


def test_every_figure_of_a_page_is_filled_in(making):
    table = "| model | x | measure | mean |\n| --- | --- | --- | --- |\n| a | 1 | exact error | 0.081 |\n"
    table += "| a | 1 | glimpses to decision | 2.512 |\n"
    said = "It errs in <!--=a; exact error-->?<!--/--> and takes <!--=glimpses to decision-->?<!--/-->.\n\n"
    assert re.sub(r"<!--.*?-->", "", making.filled(said + table)).startswith(
        "It errs in 8.1 % and takes 2.5."
    )
    with pytest.raises(SystemExit, match="2 rows"):
        making.filled("<!--=a; 1-->?<!--/-->\n\n" + table)
