"""README and docs: links lead somewhere, code runs, commands and names exist, tables are what the program writes."""

import contextlib
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import ocra
from ocra.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "LICENSES").glob("*.md"))]
# The history of experiments and the generated pages name options and runs of their day.
CURRENT = [
    page for page in PAGES if page.name not in ("CHANGELOG.md", "notebook.md", "results.md", "runs.md")
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_current_page = pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_current_page
def test_every_python_block_is_valid_and_uses_names_that_exist(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")
        for name in re.findall(r"\bocra\.(\w+)", block):
            assert hasattr(ocra, name), name
        for module, names in re.findall(r"^from (ocra[\w.]*) import ([\w, ]+)$", block, flags=re.M):
            for name in names.split(", "):
                assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", ["interventions.md", "tasks.md"])
def test_python_blocks_run_one_after_the_other(page: str) -> None:
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks(ROOT / "docs" / page, "python"):
            # Digits drawn from fonts, so that no data set is needed.
            exec(block.replace('split="test"', 'split="test", digits="glyphs"'), names)


def command_lines(page: Path) -> list[list[str]]:
    """Every `ocra …` of a page, in code blocks and in backticks, as words."""
    text = page.read_text("utf-8")
    inline = re.findall(r"`(ocra [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    in_blocks = [
        line for block in blocks(page, "sh") for line in block.splitlines() if line.startswith("ocra ")
    ]
    return [shlex.split(line.replace("\n", " "), comments=True) for line in [*inline, *in_blocks]]


@cache
def options_of(words: tuple[str, ...]) -> set[str]:
    """The options that a command's help knows."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return set(re.findall(r"--[a-z][\w.-]*", said.getvalue()))


@each_current_page
def test_every_command_exists_and_knows_the_options_it_is_given(page: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    for words in command_lines(page):
        if words[1].startswith("-"):
            continue
        command, given = words[1], [word for word in words if word.startswith("--") and word != "--help"]
        assert command in COMMANDS, command
        # The options of `train` follow from its preset and its task.
        words_before = ("multimnist-3",) if command == "train" else ()
        task = words[words.index("--task") + 1 : words.index("--task") + 2] if "--task" in words else []
        if command == "train" and (task == ["folder"] or "my-images" in words):
            words_before += ("--task", "folder")
        if command == "lab" or words[1:3] in (["scanpath", "compare"], ["scanpath", "convert"]):
            words_before = (words[2],)
        if given:
            assert not set(given) - options_of((command, *words_before)), words


def test_every_function_that_paper_to_code_names_exists() -> None:
    text = (ROOT / "docs" / "paper-to-code.md").read_text("utf-8").partition("## Where the paper")[0]
    for module, *path in (name.split(".") for name in re.findall(r"`(\w+(?:\.\w+)+)`", text)):
        if path == ["py"]:
            continue
        home = "ocra" if module in ("losses", "metrics") else "ocra.model"
        found: object = importlib.import_module(f"{home}.{module}")
        for part in path:
            found = getattr(found, part)


def test_paper_to_code_gives_options_weights_of_reconstruction_and_numbers_of_parameters() -> None:
    text = (ROOT / "docs" / "paper-to-code.md").read_text("utf-8")
    for part, name in re.findall(r"`(loss|model)\.([a-z_]+)`", text):
        assert hasattr(getattr(ocra.preset("cluttered-5"), part), name), name
    rows = re.findall(r"^\| ([a-z]+-\d+)[a-z ]* \| (\d+) \| (.+) \|$", text, flags=re.M)
    assert len(rows) == 5
    for name, papers, ours in rows:
        assert float(papers) == ocra.preset(name, "paper").stages[0].reconstruction
        weights = [stage.reconstruction for stage in ocra.preset(name).stages]
        ends = [value if isinstance(value, tuple) else (value, value) for value in weights]
        start, end = ends[0][0], ends[-1][1]
        changing = "falling" if end < start else "rising"
        assert ours == (f"{start:g}" if start == end else f"{start:g}, {changing} to {end:g}")
    for name in (
        "multimnist-3",
        "multimnist-recurrent-3",
        "multimnist-feedforward",
        "cluttered-5",
        "svhn-12",
    ):
        with torch.device("meta"):
            assert f"| {ocra.OCRA(ocra.preset(name).model).parameter_count:,} |" in text


def test_the_page_on_architecture_has_a_line_for_every_folder_and_module() -> None:
    rows = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    parts = [
        path
        for path in (ROOT / "src" / "ocra").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]
    names = {path.name if path.is_file() else f"{path.name}/" for path in parts} - {
        "__init__.py",
        "__main__.py",
    }
    assert not {name for name in names if f"`{name}`" not in rows}


def test_the_readme_names_both_make_targets_first() -> None:
    targets = [shlex.split(line, comments=True) for line in blocks(ROOT / "README.md", "sh")[0].splitlines()]
    assert targets == [["make", "demo"], ["make", "test"]]


def test_nobody_is_told_to_install_the_stranger_called_ocra() -> None:
    sources = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    for path in sources:
        assert not re.search(r"pip install '?ocra(?!-vision)", path.read_text("utf-8")), path.name


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text("utf-8"), flags=re.M)
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version[1]} (" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_recorded_results_are_valid_json_without_machine_paths() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        text = path.read_text("utf-8")
        json.loads(text)
        assert not re.search(r'"/(home|root|tmp|work)/', text), path.name


def test_the_documentation_site_builds_with_all_links_whole(tmp_path, monkeypatch) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra docs)")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    api = (tmp_path / "api.html").read_text("utf-8")
    for name in ("OCRA", "predict", "evaluate", "Trace", "Stage", "Scenes"):
        assert re.search(rf'id="ocra\.[\w.]*\b{name}"', api), name
    pages = [page.read_text("utf-8") for page in tmp_path.rglob("*.html")]
    fetched = {
        url for page in pages for url in re.findall(r'<(?:script|img)[^>]* src="(https?://[^"]+)', page)
    }
    fetched |= {
        url for page in pages for url in re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="(http[^"]+)', page)
    }
    assert not fetched, "the site is to be read without a network"
