"""The image of an index is the same in whatever batch, order or process it is made."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ocra.data import SVHN, AnyDigits, ClutteredMNIST, FolderTask, MultiMNIST, Task
from ocra.data.random import integers, permutation, random_bits, uniforms

INDICES = [7, 0, 10**9, 3, 131, 2**40, 5, 64, 65, 66, 67]


def make_all(folder: Path) -> dict[str, Task]:
    return {
        "multimnist": MultiMNIST(digits="glyphs", seed=5),
        "cluttered": ClutteredMNIST(digits="glyphs", seed=5),
        "digits-any": AnyDigits(digits="glyphs", seed=5),
        "nuisance": MultiMNIST(digits="glyphs", seed=5, nuisance=0.8),
        "svhn": SVHN(root=folder / "svhn", seed=5),
        "own": FolderTask(root=folder / "own", seed=5),
    }


def fingerprint(task: Task) -> str:
    batch = task.batch(INDICES)
    return hashlib.sha256(batch.images.numpy().tobytes() + batch.counts.numpy().tobytes()).hexdigest()


@pytest.fixture
def folder(svhn_root: Path, tmp_path: Path) -> Path:
    from test_folder_task import write_folder

    write_folder(tmp_path / "own")
    return tmp_path


@pytest.mark.parametrize("name", ["multimnist", "cluttered", "digits-any", "nuisance", "svhn", "own"])
def test_batch_size_and_order_do_not_matter(name: str, folder: Path) -> None:
    task = make_all(folder)[name]
    whole = task.batch(INDICES)
    one_by_one = torch.cat([task.batch([index]).images for index in INDICES])
    backwards = task.batch(INDICES[::-1])
    assert torch.equal(whole.images, one_by_one)
    assert torch.equal(whole.images, backwards.images.flip(0))
    assert torch.equal(whole.counts, backwards.counts.flip(0))


def test_asking_for_parts_changes_no_image(folder: Path) -> None:
    for task in make_all(folder).values():
        assert torch.equal(task.batch(INDICES).images, task.batch(INDICES, annotations=True).images)


def test_another_process_makes_the_same_images(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "import test_repeatability as t\n"
        "for name, task in t.make_all(Path(sys.argv[2])).items(): print(name, t.fingerprint(task))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "77"}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert answer.returncode == 0, answer.stderr
    expected = {name: fingerprint(task) for name, task in make_all(folder).items()}
    assert dict(line.split() for line in answer.stdout.splitlines()) == expected


RECORDED = ["317f9f4e546a0f1e", "0bc05616daa2fcf9", "f99696a777b227ed", "a4418de05f655a96"]
RECORDED_PERMUTATION = [7, 9, 6, 8, 0, 1, 2, 5, 3, 4]


def test_random_numbers_never_change() -> None:
    """Test sets are fixed by seed, so these words are part of the interface."""
    bits = random_bits(0, "multimnist test", np.array([0, 12345]), 2)
    assert [f"{word:016x}" for word in bits.reshape(-1).tolist()] == RECORDED
    assert permutation(0, "mnist validation", 10).tolist() == RECORDED_PERMUTATION


def test_random_numbers_are_uniform_and_independent() -> None:
    bits = random_bits(1, "test", np.arange(20_000), 4)
    chance = uniforms(bits)
    assert np.abs(chance.mean(axis=0) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(chance.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(chance[:-1, 0], chance[1:, 0])[0, 1]) < 0.03
    assert set(np.unique(integers(bits, 3))) == {0, 1, 2}
    assert len(np.unique(bits)) == bits.size
