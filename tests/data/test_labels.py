"""What is in the images of a folder, in each way that people write it down."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from ocra.data import FolderTask
from ocra.data.labels import read_labels
from ocra.errors import OcraError, UsageError


def save_image(path: Path, value: int = 100, size: tuple[int, int] = (40, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value % 256, 0, 50)).save(path)
    return path


def write_coco(root: Path, name: str = "annotations.json", **changes: Any) -> Path:
    """Two images, one with a cup at the left and a red pen at the right, one empty; and one with a cup only."""
    for number in range(3):
        save_image(root / f"{number}.png", number)
    coco = {
        "images": [{"id": 10 + number, "file_name": f"{number}.png"} for number in range(3)],
        "categories": [{"id": 1, "name": "cup"}, {"id": 7, "name": "red pen"}],
        "annotations": [
            {"image_id": 10, "category_id": 1, "bbox": [0, 4, 10, 10]},
            {"image_id": 10, "category_id": 7, "bbox": [30, 0, 10, 20]},
            {"image_id": 12, "category_id": 1, "bbox": [2, 2, 4, 4]},
            {"image_id": 12, "category_id": 7, "bbox": [0, 0, 40, 20], "iscrowd": 1},
        ],
        **changes,
    }
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(coco))
    return root


def test_an_image_without_labels_shows_nothing(tmp_path: Path) -> None:
    save_image(tmp_path / "0.png")
    save_image(tmp_path / "1.png")
    (tmp_path / "labels.csv").write_text("file,labels,split\n0.png,,test\n1.png,cat cat,test\n")
    assert [image.labels for image in read_labels(tmp_path)] == [(), ("cat", "cat")]
    assert FolderTask(root=tmp_path, split="test").batch([0, 1]).counts.tolist() == [[0], [2]]


def test_each_folder_is_a_class(tmp_path: Path) -> None:
    for name in ("a cat", "dog", "_none"):
        for number in range(4):
            save_image(tmp_path / name / "deep" / f"{number}.png", number)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    labels = {image.file: image.labels for image in read_labels(tmp_path)}
    assert len(labels) == 12
    assert labels["a cat/deep/3.png"] == ("a cat",) and labels["_none/deep/0.png"] == ()


def test_folders_above_the_classes_are_splits(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for name in ("cat", "dog"):
            save_image(tmp_path / split / name / "1.png")
    assert [(image.labels, image.split) for image in read_labels(tmp_path)] == [
        (("cat",), "test"), (("dog",), "test"), (("cat",), "train"), (("dog",), "train"), (("cat",), "validation"),
        (("dog",), "validation"),
    ]  # fmt: skip


def test_coco_boxes_become_annotations(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    task = FolderTask(root=root, height=20, width=20, augment=False, split="train")
    assert task.class_names == ("cup", "red pen")
    by_file = {
        file: (task, number)
        for task in (FolderTask(root=root, height=20, width=20, augment=False, split=split)
                     for split in ("train", "validation", "test"))
        for number, file in enumerate(task.files)
    }  # fmt: skip
    task, number = by_file["0.png"]
    batch = task.batch([number], annotations=True)
    assert batch.counts.tolist() == [[1, 1]] and batch.annotations is not None
    assert batch.annotations.classes.tolist() == [[0, 1]]
    assert batch.annotations.boxes.tolist() == [
        [[0, 7, 5, 5], [15, 5, 5, 10]]
    ]  # half the size, five pixels down
    assert torch.equal(batch.annotations.layers[0, 1, :, 5:15, 15:], batch.images[0, :, 5:15, 15:])
    assert batch.annotations.layers[0, 1, :, :, :15].sum() == 0
    task, number = by_file["1.png"]
    empty = task.batch([number], annotations=True)
    assert empty.counts.tolist() == [[0, 0]] and empty.annotations is not None
    assert empty.annotations.classes.tolist() == [[-1, -1]]


def test_boxes_move_with_a_mirrored_image(tmp_path: Path) -> None:
    task = FolderTask(root=write_coco(tmp_path), height=20, width=40, augment=False, flip=True)
    plain = FolderTask(root=tmp_path, height=20, width=40, augment=False)
    row = max(range(len(task)), key=lambda number: plain.batch([number]).counts.sum())
    seen = {
        str(task.batch([row + k * len(task)], annotations=True).annotations.boxes[0, 0].tolist())  # type: ignore[union-attr]
        for k in range(20)
    }
    x, y, width, height = plain.batch([row], annotations=True).annotations.boxes[0, 0].tolist()  # type: ignore[union-attr]
    assert seen == {str([x, y, width, height]), str([40 - x - width, y, width, height])}


@pytest.mark.parametrize("name", ["annotations/instances_train2017.json", "train/_annotations.coco.json"])
def test_the_name_of_a_coco_file_says_the_split(tmp_path: Path, name: str) -> None:
    write_coco(tmp_path, name)
    write_coco(tmp_path, name.replace("train", "valid"))
    with pytest.warns(UserWarning, match="no test images"):
        splits = {image.split for image in read_labels(tmp_path)}
    assert splits == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [{"id": 10, "file_name": "gone.png"}], "annotations": []}, "there is no file 'gone.png'"),
        ({"annotations": [{"image_id": 99, "category_id": 1, "bbox": [0, 0, 1, 1]}]}, "COCO file .*99"),
        ({"annotations": [{"image_id": 10, "category_id": 1}]}, "COCO file .*bbox"),
        ({"images": 2 * [{"id": 10, "file_name": "0.png"}], "annotations": []}, "'0.png' is listed twice"),
    ],
)
def test_a_bad_coco_file_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OcraError, match=words):
        read_labels(write_coco(tmp_path, **changes))


@pytest.mark.parametrize("folder", [".", "empty"])
def test_a_folder_without_images_says_what_is_needed(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OcraError, match=r"has no labelled images\. It needs a labels\.csv"):
        read_labels(tmp_path / folder)
    with pytest.raises(OcraError, match="does not exist"):
        read_labels(tmp_path / "gone")


def test_a_split_that_is_missing_is_held_out(tmp_path: Path) -> None:
    for number in range(40):
        save_image(tmp_path / ("train" if number < 30 else "test") / "cat" / f"{number}.png", number)
    with pytest.warns(UserWarning, match="no validation images; 10% of those for training"):
        images = read_labels(tmp_path)
    assert sum(image.split == "test" for image in images) == 10
    assert sum(image.split == "validation" for image in images) >= 1


def test_three_images_are_one_for_each_split(tmp_path: Path) -> None:
    for number in range(3):
        save_image(tmp_path / "cat" / f"{number}.png", number)
    assert sorted(image.split for image in read_labels(tmp_path)) == ["test", "train", "validation"]


def test_one_image_is_too_few(tmp_path: Path) -> None:
    save_image(tmp_path / "cat" / "1.png")
    with pytest.raises(OcraError, match=r"in the validation split\. Add more images \(there are 1\)"):
        FolderTask(root=tmp_path, split="validation")


def test_a_data_set_of_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    Image.fromarray(np.full((20, 20), 200, dtype=np.uint8)).save(content, "PNG")
    row = {"image": {"bytes": content.getvalue(), "path": None}, "label": 1}

    class Rows(list[dict[str, Any]]):
        features: ClassVar[dict[str, Any]] = {
            "image": None,
            "label": SimpleNamespace(int2str=["cat", "dog"].__getitem__),
        }

        def cast_column(self, *_: Any) -> Rows:
            return self

    module = ModuleType("datasets")
    module.Image = lambda decode: None  # type: ignore[attr-defined]
    module.load_dataset = lambda name: {"train": Rows([row, {**row, "label": 0}]), "test": Rows([row])}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    task = FolderTask(root="hf:somebody/pets", split="test")
    assert len(task) == 1 and task.class_names == ("cat", "dog")
    assert task.batch([0]).counts.tolist() == [[0, 1]]


def png(tone: int) -> dict[str, Any]:
    """An image as a row of a Hugging Face data set holds it."""
    content = io.BytesIO()
    Image.fromarray(np.full((20, 30), tone, dtype=np.uint8)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


@pytest.mark.parametrize("column", ["label", "labels", "objects"])
def test_a_data_set_saved_by_the_real_library_is_read(tmp_path: Path, column: str) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["cat", "dog"])
    kind, values = {
        "label": (names, [1, 0]),
        "labels": (datasets.Sequence(names), [[1, 1], []]),
        "objects": (
            datasets.Sequence(
                {"category": names, "bbox": datasets.Sequence(datasets.Value("float32"), length=4)}
            ),
            [{"category": [1, 1], "bbox": [[1, 2, 3, 4], [5, 6, 7, 8]]}, {"category": [], "bbox": []}],
        ),
    }[column]
    rows = {"image": [png(40), png(90)], column: values}
    made = datasets.Dataset.from_dict(
        rows, features=datasets.Features({"image": datasets.Image(), column: kind})
    )
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "saved")
    found = [image for image in read_labels(f"hf:{tmp_path / 'saved'}") if image.split == "test"]
    expected = [("dog",), ("cat",)] if column == "label" else [("dog", "dog"), ()]
    assert [image.labels for image in found] == expected
    assert found[0].boxes == (((1, 2, 3, 4), (5, 6, 7, 8)) if column == "objects" else None)
    task = FolderTask(root=f"hf:{tmp_path / 'saved'}", split="test", height=20, width=30)
    assert (255 * task.batch([0, 1]).images.mean((1, 2, 3))).round().tolist() == [40, 90]


def test_a_folder_that_is_no_data_set_of_the_hub_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(OcraError, match=r"data set .* cannot be opened"):
        read_labels(f"hf:{tmp_path}")


def test_without_the_package_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match="pip install datasets"):
        read_labels("hf:somebody/pets")
