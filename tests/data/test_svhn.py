"""SVHN: archives in the official format, crops and labels as in the paper's program."""

import io
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from svhn_archive import Number, write_archive, write_structure

from ocra.data import SVHN, make_task
from ocra.data.svhn import class_targets
from ocra.data.svhn_archive import Archive, crop_rectangle, find_archive, prepared_numbers, read_structure
from ocra.errors import OcraError, UsageError

SINGLE = Number([(20, 10, 15, 30, 5)])
UNSORTED = Number([(50, 10, 12, 25, 10), (20, 12, 12, 25, 2), (35, 8, 12, 25, 1)])
LEAVING = Number([(-3, -2, 20, 40, 7), (70, 5, 26, 50, 10)])
SIX = Number([(10 * place, 10, 9, 20, place + 1) for place in range(6)])
FIVE = Number([(10 * place + 5, 10, 9, 20, 9) for place in range(5)])
NUMBERS = [SINGLE, UNSORTED, LEAVING, SIX, FIVE]


def expected_image(number: Number, channels: int) -> np.ndarray:
    """The notes' crop, step by step: cut, pad with black, resize, grey, invert."""
    boxes = np.array([digit[:4] for digit in number.digits])
    left, top = boxes[:, 0].min(), boxes[:, 1].min()
    w, h = (boxes[:, 0] + boxes[:, 2]).max() - left, (boxes[:, 1] + boxes[:, 3]).max() - top
    image = Image.fromarray(number.pixels)
    right = min(image.width, np.ceil(left + 1.2 * w))
    bottom = min(image.height, np.ceil(top + 1.2 * h))
    crop = (int(np.floor(left - 0.1 * w)), int(np.floor(top - 0.1 * h)), int(right), int(bottom))
    small = np.asarray(image.crop(crop).resize((64, 64), Image.Resampling.LANCZOS), dtype=np.float64)
    values = small.transpose(2, 0, 1)
    if channels == 1:
        values = (0.2989 * values[0] + 0.5870 * values[1] + 0.1140 * values[2])[None]
    return (255 - values) / 255


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_and_labels_of_an_official_archive(
    tmp_path: Path, cache: Path, kind: str, channels: int
) -> None:
    write_archive(tmp_path, "test", kind, NUMBERS)
    task = SVHN(root=tmp_path, split="test", channels=channels)
    batch = task.batch(range(len(task)))
    assert batch.sequence is not None
    assert batch.sequence.tolist() == [
        [5, 10, 10, 10, 10],
        [2, 1, 0, 10, 10],
        [7, 0, 10, 10, 10],
        [9, 9, 9, 9, 9],
    ]
    kept = [number for number in NUMBERS if number is not SIX]
    for image, number in zip(batch.images.numpy(), kept, strict=True):
        np.testing.assert_allclose(image, expected_image(number, channels), atol=0.51 / 255)


def test_class_targets_are_presence_and_length() -> None:
    digits = np.array([[5, 10, 10, 10, 10], [2, 1, 0, 10, 10], [9, 9, 9, 9, 9], [1, 2, 3, 1, 10]])
    expected = np.zeros((4, 14))
    expected[0, [5, 10, 11, 12, 13]] = 1
    expected[1, [0, 1, 2, 10, 11]] = 1
    expected[2, 9] = 1
    expected[3, [1, 2, 3, 10]] = 1
    np.testing.assert_array_equal(class_targets(digits).numpy(), expected)


def test_crop_is_padded_left_and_top_and_cut_right_and_bottom(tmp_path: Path) -> None:
    write_structure(tmp_path / "digitStruct.mat", NUMBERS)
    leaving = list(read_structure(tmp_path / "digitStruct.mat"))[2]
    left, top, right, bottom = crop_rectangle(leaving, width=90, height=50)
    assert (left, top) == (-13, -8)
    assert (right, bottom) == (90, 50)


def test_padding_is_white_after_inversion(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "folder", [LEAVING])
    image = SVHN(root=tmp_path, split="test").batch([0]).images[0, 0]
    assert image[:4].min() > 0.95
    assert image[:, :3].min() > 0.95


def test_parts_are_the_digits_boxes(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "folder", [UNSORTED])
    batch = SVHN(root=tmp_path, split="test").batch([0], annotations=True)
    parts = batch.annotations
    assert parts is not None
    assert parts.classes.tolist() == [[2, 1, 0, -1, -1]]
    assert parts.layers.shape == (1, 5, 1, 64, 64)
    assert (parts.boxes[0, 3:] == 0).all() and (parts.layers[0, 3:] == 0).all()
    # The crop runs from 15 to 71 in x and from 5 to 43 in y.
    x, y, width, height = parts.boxes[0, 0].tolist()
    assert (x, width) == pytest.approx((5 * 64 / 56, 12 * 64 / 56), abs=1)
    assert (y, height) == pytest.approx((7 * 64 / 38, 25 * 64 / 38), abs=1)
    layer = parts.layers[0, 0]
    inside = (slice(None), slice(y, y + height), slice(x, x + width))
    assert torch.equal(layer[inside], batch.images[0][inside])
    assert (layer != 0).sum() == (layer[inside] != 0).sum()


def test_validation_is_held_out_of_train(svhn_root: Path) -> None:
    rows = {split: set(SVHN(root=svhn_root, split=split)._rows.tolist()) for split in ("train", "validation")}
    assert len(rows["validation"]) == 4 and len(rows["train"]) == 36
    assert rows["train"] | rows["validation"] == set(range(40))
    assert set(SVHN(root=svhn_root, split="train", seed=7)._rows.tolist()) == rows["train"]


def test_extra_joins_train(svhn_root: Path) -> None:
    write_archive(svhn_root, "extra", "tar.gz", numbers=15, first_label=6)
    task = SVHN(root=svhn_root, extra=True, augment=False)
    assert len(task) == 36 + 15
    batch = task.batch(range(len(task)))
    extra = SVHN(root=svhn_root, augment=False)
    ours = {image.numpy().tobytes() for image in batch.images}
    assert {image.numpy().tobytes() for image in extra.batch(range(36)).images} <= ours
    assert batch.sequence is not None
    long = prepared_numbers("extra", str(svhn_root)).digits.tolist()
    assert all(row in batch.sequence.tolist() for row in long)


def test_training_images_are_varied_but_keep_their_labels(svhn_root: Path) -> None:
    varied, plain = SVHN(root=svhn_root), SVHN(root=svhn_root, augment=False)
    first, again = varied.batch(range(36)), varied.batch(np.arange(36) + 36)
    exact = plain.batch(range(36))
    assert first.sequence is not None and again.sequence is not None and exact.sequence is not None
    assert torch.equal(first.sequence, exact.sequence)
    assert torch.equal(again.sequence, exact.sequence)
    assert not torch.equal(first.images, again.images)
    assert first.images.min() >= 0 and first.images.max() <= 1
    assert torch.equal(plain.batch(np.arange(36) + 36).images, exact.images)


def test_varied_boxes_follow_their_digits(tmp_path: Path, cache: Path) -> None:
    """A dark digit on bright ground stays in its box however the image is turned."""
    numbers = []
    for length in (1, 2, 3, 4):
        number = Number([(70 + 14 * place, 60, 12, 25, 3) for place in range(length)])
        number.pixels = np.full((150, 200, 3), 230, dtype=np.uint8)
        number.pixels[60:85, 70:82] = 20
        numbers.append(number)
    write_archive(tmp_path, "train", "folder", numbers)
    batch = SVHN(root=tmp_path).batch(range(80), annotations=True)
    assert batch.annotations is not None
    for image, (x, y, width, height) in zip(
        batch.images[:, 0], batch.annotations.boxes[:, 0].tolist(), strict=True
    ):
        ink = (image > (image.max() + image.min()) / 2).nonzero().float()
        centre = torch.tensor([y + height / 2, x + width / 2])
        assert (ink.mean(dim=0) - centre).abs().max() < 1.5


@pytest.mark.parametrize("augment", [True, False])
def test_a_single_object_is_one_digit_of_the_number(augment: bool, tmp_path: Path, cache: Path) -> None:
    """Three bright bars of different heights: an image of one shows that one, in its box, with its label."""
    number = Number([(70 + 30 * place, 60, 12, 30, place + 1) for place in range(3)])
    number.pixels = np.full((150, 200, 3), 20, dtype=np.uint8)
    for place in range(3):
        number.pixels[60 : 90 - 10 * place, 70 + 30 * place : 82 + 30 * place] = 230
    write_archive(tmp_path, "train", "folder", [number])
    task = SVHN(root=tmp_path, augment=augment)
    batch = task.batch(range(60), annotations=True, single_objects=1.0)
    mixed = task.batch(range(60), single_objects=0.5)
    assert batch.sequence is not None and mixed.sequence is not None and batch.annotations is not None
    assert (batch.sequence[:, 1:] == 10).all() and batch.counts[:, 10:].all()
    assert set(batch.sequence[:, 0].tolist()) == {1, 2, 3}
    ink = (batch.images[:, 0] < 0.5).float().mean(dim=(1, 2))
    shown = [ink[batch.sequence[:, 0] == digit].mean() for digit in (1, 2, 3)]
    assert shown[0] > 1.3 * shown[1] > 1.3**2 * shown[2]
    x, y, width, height = batch.annotations.boxes[:, 0].float().mean(dim=0).tolist()
    assert width > 35 and height > 35 and 0 < x < 15 and 0 < y < 15
    assert (batch.annotations.classes[:, 0] == batch.sequence[:, 0]).all() and (
        batch.annotations.classes[:, 1:] == -1
    ).all()
    alone = mixed.sequence[:, 1] == 10
    assert 15 < int(alone.sum()) < 45
    assert torch.equal(mixed.images[alone], batch.images[alone])
    assert torch.equal(mixed.images[~alone], task.batch(range(60)).images[~alone])
    write_archive(tmp_path, "test", "folder", [number])
    assert set(
        SVHN(root=tmp_path, split="test").batch([0] * 3, single_objects=1.0).counts[:, 13].tolist()
    ) == {1.0}


def test_second_start_reads_the_cache(svhn_root: Path, cache: Path) -> None:
    first = SVHN(root=svhn_root, split="test").batch(range(5)).images
    archive = svhn_root / "test.tar.gz"
    os.utime(archive, (0, 0))  # a copy of an archive is the same archive
    prepared_numbers.cache_clear()
    made = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert torch.equal(SVHN(root=svhn_root, split="test").batch(range(5)).images, first)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")} == made
    archive.unlink()
    prepared_numbers.cache_clear()
    write_archive(svhn_root, "test", "tar.gz", numbers=9)
    assert len(SVHN(root=svhn_root, split="test")) == 9


def test_interrupted_preparation_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "tar.gz", NUMBERS)
    archive = tmp_path / "test.tar.gz"
    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(OcraError, match=r"test\.tar\.gz is broken"):
        SVHN(root=tmp_path, split="test")
    assert not list((cache / "svhn").iterdir())


def test_what_killed_preparations_left_is_deleted(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "tar.gz", NUMBERS)
    old, young = (cache / "svhn" / f".preparing-{name}" for name in ("old", "young"))
    for folder in (old, young):
        (folder / "made").mkdir(parents=True)
    os.utime(old, (0, 0))
    SVHN(root=tmp_path, split="test")
    assert young.is_dir() and not old.exists()


def test_a_full_disk_is_not_taken_for_a_broken_archive(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path, "test", "tar.gz")
    with pytest.raises(OSError, match="No space left"):
        Archive(tmp_path / "test.tar.gz").copy_structure(Path("/dev/full"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OcraError, match="has room for 0 MB, but SVHN needs"):
        SVHN(root=tmp_path, split="test")
    assert list((cache / "svhn").iterdir()) == []


def test_missing_image_is_named(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "folder", NUMBERS)
    (tmp_path / "test" / "2.png").unlink()
    with pytest.raises(OcraError, match=r"lacks 1 of its images, such as 2\.png"):
        SVHN(root=tmp_path, split="test")


def test_unreadable_image_is_named(tmp_path: Path, cache: Path) -> None:
    write_archive(tmp_path, "test", "folder", NUMBERS)
    (tmp_path / "test" / "2.png").write_bytes(b"nothing")
    with pytest.raises(OcraError, match=r"2\.png cannot be read as an image"):
        SVHN(root=tmp_path, split="test")


def test_archive_of_format_2_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "digitStruct.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    with pytest.raises(OcraError, match=r"cannot be read as SVHN's file of digit boxes"):
        SVHN(root=tmp_path, split="test")


def test_missing_archive_says_where_to_get_it(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(OcraError, match=r"train\.tar\.gz was not found .*ufldl\.stanford\.edu"):
        SVHN(root=tmp_path)


def test_impossible_options_are_refused(svhn_root: Path) -> None:
    with pytest.raises(UsageError, match="channels is 2"):
        SVHN(root=svhn_root, channels=2)


def test_config_makes_svhn_with_variation_for_train_only(svhn_root: Path) -> None:
    config = SVHN.Config(root=svhn_root)
    train, test = make_task(config, "train"), make_task(config, "test")
    assert isinstance(train, SVHN) and isinstance(test, SVHN)
    assert train.augment and not test.augment
    assert len(train.class_names) == 14


def test_varied_images_are_made_faster_than_any_model_uses_them(svhn_root: Path) -> None:
    task = SVHN(root=svhn_root)
    speeds = []
    for attempt in range(3):
        start = time.process_time()
        for number in range(4):
            task.batch(np.arange(128) + 128 * (number + 4 * attempt))
        speeds.append(512 / (time.process_time() - start))
    assert max(speeds) > 1_000


@pytest.fixture
def real_structure(real_svhn: Path, tmp_path: Path) -> Path:
    find_archive("train", real_svhn).copy_structure(tmp_path / "digitStruct.mat")
    return tmp_path / "digitStruct.mat"


def test_labels_of_the_real_train_set(real_structure: Path) -> None:
    def digits(number: int) -> tuple[int, ...]:
        (found,) = read_structure(real_structure, slice(number - 1, number))
        assert found.file == f"{number}.png"
        return found.digits

    assert digits(1) == (1, 9)
    assert digits(262) == (1, 2, 4), "stored as 2, 4, 1"
    assert digits(16278) == (2, 6, 2, 0), "stored as 2, 0, 2, 6"
    assert len(digits(29930)) == 6
    first = list(read_structure(real_structure, slice(0, 1500)))
    lengths = np.bincount([len(number.digits) for number in first], minlength=6) / 1500
    assert lengths[2] == pytest.approx(0.5, abs=0.08)


def test_real_test_images_are_read(real_svhn: Path) -> None:
    archive = find_archive("test", real_svhn)
    with tempfile.TemporaryDirectory() as folder:
        archive.copy_structure(Path(folder) / "digitStruct.mat")
        numbers = {
            number.file: number for number in read_structure(Path(folder) / "digitStruct.mat", slice(0, 200))
        }
    assert numbers["2.png"].digits == (2, 1, 0)
    seen = 0
    for name, content in archive.contents(".png"):
        if name in numbers:
            image = Image.open(io.BytesIO(content))
            left, top, right, bottom = crop_rectangle(numbers[name], image.width, image.height)
            assert left < right <= image.width and top < bottom <= image.height
            seen += 1
        if seen == 20:
            break


@pytest.mark.slow
def test_real_test_set_is_whole(real_svhn: Path) -> None:
    """Uses the ordinary cache folder, so only its first run takes long."""
    task = SVHN(root=real_svhn, split="test")
    assert len(task) == 13_068
    sequence = task.batch(range(len(task))).sequence
    assert sequence is not None
    lengths = np.bincount((sequence != 10).sum(dim=1).numpy(), minlength=6)
    assert lengths[1:].tolist() == LENGTHS


LENGTHS = [2483, 8356, 2081, 146, 2]
"""How many numbers of the official test set have one to five digits."""
