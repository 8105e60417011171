"""What tests need and may not find here: each need is skipped in one way and summed up in one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ocra.data.digits import find_mnist
from ocra.data.svhn_archive import find_archive
from ocra.errors import OcraError


def _found(find: Callable[[], Any]) -> bool:
    try:
        find()
    except OcraError:
        return False
    return True


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "mnist": (lambda: _found(find_mnist), "MNIST: run `ocra data fetch mnist` or set OCRA_DATA"),
    "svhn": (
        lambda: _found(lambda: find_archive("train")) and _found(lambda: find_archive("test")),
        "SVHN: run `ocra data fetch svhn` or set OCRA_DATA",
    ),
    "gradio": (lambda: _installed("gradio"), "Gradio: pip install 'ocra-vision[app]'"),
    "httpx": (lambda: _installed("httpx"), "httpx: pip install httpx"),
    "playwright": (lambda: _installed("playwright"), "Playwright: pip install playwright"),
    "chromium": (
        lambda: any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
        "Chromium: install Debian's package chromium",
    ),
    "ray": (lambda: _installed("ray"), "Ray: pip install 'ocra-vision[ray]'"),
    "cuda": (torch.cuda.is_available, "a CUDA device"),
    "posix": (lambda: os.name != "nt", "POSIX processes and signals"),
    "locks": (lambda: Path("/proc/locks").is_file(), "/proc/locks, by which the worker of a run is found"),
}
"""What a test may need: whether it is here, and what to do about it."""


def _require(*needs: str) -> None:
    for need in needs:
        here, what = NEEDS[need]
        if not here():
            pytest.skip(f"needs {what}")


def pytest_configure(config: pytest.Config) -> None:
    # Ctrl-C is to be heard also where the tests were started in the background, which ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers", "needs(*names): skipped where one of these (NEEDS in tests/conftest.py) is missing"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        _require(*marker.args)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line for each reason to skip, in place of one for each place in a file."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    for reason, count in sorted(reasons.items()):
        text = reason.removeprefix("needs ")
        terminalreporter.write_line(f"skipped: {count} {'test needs' if count == 1 else 'tests need'} {text}")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """All tests of the module compute in one thread, which is faster for models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def require() -> Callable[..., None]:
    """Skip unless all of these needs (names in NEEDS) are met."""
    return _require


@pytest.fixture(scope="session")
def digits() -> str:
    """The source of digits: the real ones where they are."""
    return "mnist" if _found(find_mnist) else "glyphs"


@pytest.fixture
def real_mnist() -> Path:
    """The folder of the real MNIST, in OCRA_DATA or in the cache."""
    _require("mnist")
    return next(iter(find_mnist().values())).parent


@pytest.fixture
def real_svhn() -> Path:
    """The folder of the real SVHN, in OCRA_DATA or in the cache."""
    _require("svhn")
    return find_archive("train").path.parent
