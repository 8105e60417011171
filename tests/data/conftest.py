"""Data for the tests of the tasks: glyphs and small archives, and the real sets where OCRA_DATA has them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from svhn_archive import write_archive


def _data_folder(name: str) -> Path | None:
    folder = Path(os.environ.get("OCRA_DATA", "")) / name
    return folder if os.environ.get("OCRA_DATA") and folder.is_dir() else None


@pytest.fixture(scope="session")
def digits() -> str:
    """The source of digits: the real ones where they are."""
    return "mnist" if _data_folder("mnist") else "glyphs"


@pytest.fixture
def real_mnist() -> Path:
    folder = _data_folder("mnist")
    if folder is None:
        pytest.skip("the real MNIST is needed: set OCRA_DATA to a folder that holds mnist/")
    return folder


@pytest.fixture
def real_svhn() -> Path:
    folder = _data_folder("svhn")
    if folder is None or not (folder / "test.tar.gz").is_file():
        pytest.skip("the real SVHN is needed: set OCRA_DATA to a folder that holds svhn/train.tar.gz")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("OCRA_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"


@pytest.fixture
def svhn_root(tmp_path: Path, cache: Path) -> Path:
    """Small train and test archives in the official format."""
    write_archive(tmp_path / "svhn", "train", "tar.gz", numbers=40)
    write_archive(tmp_path / "svhn", "test", "tar.gz", numbers=12, first_label=3)
    return tmp_path / "svhn"
