"""Data for the tests of the tasks: small archives, and a cache of each test's own."""

from pathlib import Path

import pytest
from svhn_archive import write_archive


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("OCRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def svhn_root(tmp_path: Path, cache: Path) -> Path:
    """Small train and test archives in the official format."""
    write_archive(tmp_path / "svhn", "train", "tar.gz", numbers=40)
    write_archive(tmp_path / "svhn", "test", "tar.gz", numbers=12, first_label=3)
    return tmp_path / "svhn"
