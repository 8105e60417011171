"""The layers of the package: imports point down only, and nobody imports the command line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ocra

PACKAGE = Path(ocra.__file__).parent
LAYERS = (
    ("errors", "files"),
    ("config",),
    ("images",),  # a user's file as an array: a folder of one's own is read by it
    ("model", "data"),
    ("losses", "metrics"),
    ("baselines",),
    ("experiment",),
    ("presets",),
    ("evaluation", "prediction"),
    ("training",),
    ("viz", "lab", "exporting"),
    ("reproduce", "app", "benchmark"),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
NEIGHBOURS = {("prediction", "evaluation"), ("evaluation", "prediction"), ("metrics", "losses"), ("files", "errors"),
              ("lab", "viz"), ("viz", "lab"), ("reproduce", "benchmark")}  # fmt: skip
"""Pairs within one layer of which the first may import the second."""


def part_of(path: Path) -> str:
    """The folder or top module that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports() -> list[tuple[str, str, str]]:
    """Who imports whom: importing file, its part, imported part. What is only for the type checker counts too."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0 or path.name == "__init__.py", f"{path}: imports are absolute"
                names = [node.module or ""]
                if node.module == "ocra":
                    names = [f"ocra.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                target = name.split(".")
                if target[0] == "ocra" and len(target) > 1 and target[1] in LEVEL:
                    found.append((str(path.relative_to(PACKAGE)), part_of(path), target[1]))
    return found


def test_every_part_has_its_layer() -> None:
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert parts == set(LEVEL)


@pytest.mark.parametrize("part", LEVEL)
def test_imports_point_down(part: str) -> None:
    wrong = [
        f"{file} imports {target}"
        for file, source, target in imports()
        if source == part
        and target != part
        and LEVEL[target] >= LEVEL[part]
        and (part, target) not in NEIGHBOURS
    ]
    assert not wrong


def test_nobody_imports_the_command_line() -> None:
    assert not [
        file for file, source, target in imports() if target == "cli" and source not in ("cli", "__main__")
    ]
