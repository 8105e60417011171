"""One tiny run that several tests look at, and one thread: these networks are small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fabricated import TINY

from ocra.reproduce.runner import carry_out


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has finished; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert carry_out(TINY, folder, processes=1, quiet=True) == ""
    return folder
