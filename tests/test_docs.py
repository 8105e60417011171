"""What README and docs point to is there, and their tables are what the program writes."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

from ocra.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_named_exists(page: Path) -> None:
    # Commands stand in backticks or at the start of a line of a code block.
    lines = re.findall(r"(?:`|^)(?:\$ )?ocra ([a-z-]+)", page.read_text("utf-8"), flags=re.M)
    assert set(lines) <= set(COMMANDS)


def test_readme_holds_the_tables_the_program_writes() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.README.read_text("utf-8")
    assert module.filled(text) == text


def test_the_readme_names_both_make_targets_first() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    first_block = re.search(r"```sh\n(.*?)```", text, flags=re.S)
    assert first_block is not None
    targets = [shlex.split(line, comments=True) for line in first_block[1].splitlines()]
    assert targets == [["make", "demo"], ["make", "test"]]


def test_recorded_results_are_valid_json_without_machine_paths() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        text = path.read_text("utf-8")
        json.loads(text)
        assert not re.search(r'"/(home|root|tmp|work)/', text), path.name
