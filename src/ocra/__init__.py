"""OCRA: object-centric recurrent attention.

    import ocra
    model = ocra.OCRA(ocra.preset("multimnist-3").model)
    trace = model(images)

The public names are those of `__init__.pyi`; each is imported when it is first used, so that `import ocra` itself
is quick.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_HOME_OF = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = sorted(_HOME_OF)

try:
    __version__ = version("ocra-vision")
except PackageNotFoundError:  # run from a source folder that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "lab":  # the one part that is used by its own name: ocra.lab.run
        return import_module("ocra.lab")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ocra' has no attribute '{name}'")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
