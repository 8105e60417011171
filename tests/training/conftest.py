"""What all tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import LONGER, run, write_config

import ocra


@pytest.fixture(autouse=True, scope="module")
def _all_in_one_thread(one_thread: None) -> None:
    """Models this small are slower with more threads."""


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a run that lasts long enough to be disturbed."""
    return write_config(tmp_path_factory.mktemp("config") / "longer.json", LONGER)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run by one process, never stopped."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    ocra.train(LONGER, folder, processes=1, quiet=True)
    return folder


@pytest.fixture(scope="session")
def pair(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run by two processes which the program started itself, never stopped."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    code, _, err = run("train", "--config", config, "--out", folder, "--processes", 2, "--quiet")
    assert code == 0, err
    return folder
