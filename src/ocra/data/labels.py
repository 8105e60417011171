"""What is in the images of a folder, as people write it down: a labels.csv, a folder for each class, COCO's JSON.

Whatever the format, the result is a list of `LabelledImage`, each in a split. An image may show nothing.
"""

from __future__ import annotations

import csv
import os
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ocra.data.random import name_number, random_bits, uniforms
from ocra.data.task import SPLITS
from ocra.errors import OcraError, UsageError
from ocra.files import read_json
from ocra.images.reading import find_images

TABLE = "labels.csv"
NOTHING = "_none"
"""Among folders that are named for a class, the one of images that show no object."""
HUB = "hf:"
"""How the name of a Hugging Face data set begins."""
HELD_OUT = 0.1
"""Share of the images that validation takes where no split is given, and test as well."""
_SPLIT_OF = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""What people call the splits."""
_SHOWN = 5

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class LabelledImage:
    """An image and what is in it."""

    file: str
    """Its path from the folder on."""
    labels: tuple[str, ...]
    """The class of each object; none for an image that shows nothing."""
    split: str
    where: str
    """Where it is written, as in "labels.csv line 3"."""
    boxes: tuple[Box, ...] | None = None
    """x, y, width and height of each object in pixels of the file, where they are known."""
    content: bytes | None = None
    """The file itself, if it lies in no folder."""


def read_labels(root: str | Path, class_names: tuple[str, ...] | None = None) -> list[LabelledImage]:
    """The images of a folder, or of a Hugging Face data set (hf:NAME), with their labels and splits.

    A folder with a labels.csv is read by that; else by the COCO JSON that lies in it; else each folder in it is a
    class. Bad entries are refused, each named with its place.
    """
    if str(root).startswith(HUB):
        return _in_splits(list(_read_hub(str(root).removeprefix(HUB))), str(root))
    root = Path(root).expanduser()
    if not root.is_dir():
        raise OcraError(f"The folder {root} does not exist.")
    if (root / TABLE).is_file():
        images = _read_table(root, class_names)
    elif annotations := _coco_files(root):
        images = [image for path in annotations for image in _read_coco(root, path)]
    else:
        images = list(_read_class_folders(root))
    if not images:
        raise OcraError(
            f"{root} has no labelled images. It needs a {TABLE} with the columns file,labels; or a folder of images "
            "for each class, named for it; or a COCO file such as annotations.json."
        )
    if class_names is not None:
        unknown = next((name for image in images for name in image.labels if name not in class_names), None)
        if unknown is not None:
            raise OcraError(f"{root}: '{unknown}' is not one of the classes {', '.join(class_names)}.")
    return _in_splits(images, str(root))


def _in_splits(images: list[LabelledImage], root: str) -> list[LabelledImage]:
    """The same images, each in a split: those that are in none by a hash of the name, whatever else is there.

    Next to a given training split, validation or test that are not given are held out of it.
    """
    given = {image.split for image in images} - {""}
    missing = [split for split in ("test", "validation") if split not in given]
    chance = {image.file: _chance(image.file) for image in images if image.split in ("", "train")}
    if len(chance) <= len(missing):  # whoever asks for the split that has none is told
        missing = []
    elif given and missing:
        warnings.warn(
            f"{root} has no {' and no '.join(missing)} images; {HELD_OUT:.0%} of those for training are held out.",
            stacklevel=4,
        )
    moved: dict[str, str] = {}
    for number, split in enumerate(missing, start=1):  # all below a threshold, and at least one
        for file in sorted(chance, key=lambda file: chance[file]):
            if file not in moved and (chance[file] < HELD_OUT * number or split not in moved.values()):
                moved[file] = split
    return [replace(image, split=moved.get(image.file, image.split or "train")) for image in images]


def _chance(file: str) -> float:
    """A number from 0 to 1 that is a hash of a file's name."""
    return float(
        uniforms(random_bits(0, "folder split", np.array([name_number(os.path.normpath(file))]), 1))[0, 0]
    )


def _read_table(root: Path, class_names: tuple[str, ...] | None) -> list[LabelledImage]:
    """The rows of labels.csv: columns file, labels (separated by spaces, may be empty) and, if given, split."""
    path = root / TABLE
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = [column.strip().lower() for column in next(lines, [])]
            if header not in (["file", "labels"], ["file", "labels", "split"]):
                raise OcraError(
                    f"{path} line 1 must be `file,labels` or `file,labels,split`, not `{','.join(header)}`."
                )
            table = [(lines.line_num, [cell.strip() for cell in cells]) for cells in lines if any(cells)]
    except UnicodeDecodeError:
        raise OcraError(f"{path} is not in UTF-8; save it as a CSV table in UTF-8.") from None
    except (OSError, csv.Error) as error:
        raise OcraError(f"{path} cannot be read as a table in UTF-8: {error}.") from error
    images, faults, seen = [], [], dict[str, int]()
    for line, cells in table:
        if fault := _fault(root, cells, len(header), class_names, seen):
            faults.append(f"line {line}: {fault}")
            continue
        seen[os.path.normpath(cells[0])] = line  # ./1.png is 1.png, and must not be in two splits
        split = cells[2].lower() if len(header) == 3 else ""
        images.append(LabelledImage(cells[0], _words(cells[1]), split, f"{path} line {line}"))
    _refuse(path, faults)
    if not images:
        raise OcraError(f"{path} lists no images.")
    return images


def _refuse(path: Path, faults: list[str]) -> None:
    """Name what is wrong with a file of labels, if anything is: the first few and how many more."""
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise OcraError(f"{path} has bad entries. " + "; ".join(faults[:_SHOWN] + more) + ".")


def _fault(
    root: Path, cells: list[str], columns: int, class_names: tuple[str, ...] | None, seen: dict[str, int]
) -> str | None:
    """What is wrong with a row, if anything."""
    if len(cells) != columns:
        return f"{len(cells)} cells instead of {columns}"
    file, labels = cells[:2]
    if not file:
        return "no file"
    if (name := os.path.normpath(file)) in seen:
        return f"'{file}' is on line {seen[name]} already"
    if not os.path.isfile(root / file):
        return f"there is no file '{file}'"
    if class_names and (unknown := [label for label in _words(labels) if label not in class_names]):
        return f"'{unknown[0]}' is not one of the classes {', '.join(class_names)}"
    if not class_names and ("," in labels or ";" in labels):
        return f"labels are separated by spaces, not as in '{labels}'"
    if columns == 3 and cells[2].lower() not in SPLITS:
        return f"'{cells[2]}' is not a split ({', '.join(SPLITS)})"
    return None


def _words(cell: str) -> tuple[str, ...]:
    """The labels of a cell; an é is the same however it was typed."""
    return tuple(unicodedata.normalize("NFC", cell).split())


def _read_class_folders(root: Path) -> Iterator[LabelledImage]:
    """Each image is of the class its folder is named for; above them there may be folders train, val and test."""
    inside = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    splits = {path: _SPLIT_OF.get(path.name.lower(), "") for path in inside}
    if not (inside and all(splits.values())):
        splits = {root: ""}
    for top, split in splits.items():
        for folder in sorted(
            path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")
        ):
            label = unicodedata.normalize("NFC", folder.name)
            for path in find_images([str(folder)]):
                if path != str(folder):  # which stands for a folder without images
                    labels = () if label == NOTHING else (label,)
                    yield LabelledImage(os.path.relpath(path, root), labels, split, path)


def _coco_files(root: Path) -> list[Path]:
    """The COCO files of a folder: in it, in `annotations`, or in a folder for each split."""
    places = [
        root,
        root / "annotations",
        *(path for path in sorted(root.iterdir()) if path.name.lower() in _SPLIT_OF),
    ]
    found = [path for place in places if place.is_dir() for path in sorted(place.glob("*.json"))]
    return [
        path for path in found if "annotation" in path.stem or "instances" in path.stem or "coco" in path.stem
    ]


def _read_coco(root: Path, path: Path) -> list[LabelledImage]:
    """The images of a COCO file with the classes and boxes of their objects; those of crowds are left out."""
    coco = read_json(path)
    try:
        names = {item["id"]: unicodedata.normalize("NFC", str(item["name"])) for item in coco["categories"]}
        objects: dict[Any, list[tuple[str, Box]]] = {item["id"]: [] for item in coco["images"]}
        for item in coco["annotations"]:
            if not item.get("iscrowd"):
                x, y, width, height = map(float, item["bbox"])
                objects[item["image_id"]].append((names[item["category_id"]], (x, y, width, height)))
        listed = [(str(item["file_name"]), objects[item["id"]]) for item in coco["images"]]
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise OcraError(
            f"{path} cannot be read as a COCO file with images, categories and annotations ({reason})."
        ) from None
    words = [path.parent.name.lower(), *path.stem.lower().replace("-", "_").split("_")]
    split = next((_SPLIT_OF[part] for word in words if (part := word.rstrip("0123456789")) in _SPLIT_OF), "")
    folders = [path.parent, *(top / word for top in (root, root / "images") for word in ("", *words))]
    images, faults = [], []
    for file, found in listed:
        place = next((folder / file for folder in folders if os.path.isfile(folder / file)), None)
        if place is None:
            faults.append(f"there is no file '{file}'")
            continue
        labels, boxes = (tuple(column) for column in zip(*found, strict=True)) if found else ((), ())
        images.append(LabelledImage(os.path.relpath(place, root), labels, split, f"{path}: {file}", boxes))
    twice = [file for file, times in Counter(image.file for image in images).items() if times > 1]
    _refuse(path, faults + [f"'{file}' is listed twice" for file in twice])
    return images


def _read_hub(name: str) -> Iterator[LabelledImage]:
    """A Hugging Face data set, saved in a folder or by its name: a column of images, one of labels or of objects."""
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(
            "Data sets of Hugging Face need the package datasets: pip install datasets."
        ) from None
    try:
        opened = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    except Exception as error:  # of many kinds: no such data set, no network, no right to see it
        raise OcraError(f"The Hugging Face data set {name} cannot be opened: {error}") from error
    parts = opened if hasattr(opened, "keys") else {"": opened}
    for part, rows in parts.items():
        split = _SPLIT_OF.get(str(part).lower(), "")
        columns = rows.features
        image = next((key for key in ("image", "img") if key in columns), None)
        label = next((key for key in ("objects", "labels", "label") if key in columns), None)
        if image is None or label is None:
            raise OcraError(
                f"The data set {name} needs a column image and one of label, labels or objects; it has "
                f"{', '.join(columns)}."
            )
        rows = rows.cast_column(image, datasets.Image(decode=False))
        for number, row in enumerate(rows):
            labels, boxes = _hub_labels(columns[label], row[label])
            content = row[image]["bytes"] or Path(row[image]["path"]).read_bytes()
            where = f"{name} {part} {number}".replace("  ", " ")
            yield LabelledImage(where, labels, split, where, boxes, content)


def _hub_labels(feature: Any, value: Any) -> tuple[tuple[str, ...], tuple[Box, ...] | None]:
    """The names of one row's classes, and its boxes where there are objects with category and bbox."""
    if isinstance(value, dict):
        feature = feature["category"] if isinstance(feature, dict) else feature.feature["category"]
        labels, _ = _hub_labels(feature, value["category"])
        return labels, tuple((float(x), float(y), float(w), float(h)) for x, y, w, h in value["bbox"])
    numbers = value if isinstance(value, list) else [value]
    while not hasattr(feature, "int2str") and hasattr(feature, "feature"):
        feature = feature.feature
    name = feature.int2str if hasattr(feature, "int2str") else str
    return tuple(name(number) if isinstance(number, int) else str(number) for number in numbers), None
