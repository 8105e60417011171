"""Writes small SVHN archives as the official ones are: a MATLAB 7.3 file of boxes beside the pictures."""

import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

FIELDS = ("left", "top", "width", "height", "label")


@dataclass
class Number:
    """A picture and its digits as stored: (left, top, width, height, label), 10 for a zero."""

    digits: list[tuple[float, float, float, float, int]]
    size: tuple[int, int] = (90, 50)
    pixels: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        values = np.random.default_rng(len(self.digits)).integers(0, 256, (5, 9, 3), dtype=np.uint8)
        picture = Image.fromarray(values).resize(self.size, Image.Resampling.BICUBIC)
        self.pixels = np.asarray(picture)


def plain_numbers(count: int, first_label: int = 1) -> list[Number]:
    """Numbers of one to five digits, side by side."""
    numbers = []
    for position in range(count):
        length = position % 5 + 1
        labels = [(first_label + position + place) % 10 + 1 for place in range(length)]
        numbers.append(Number([(10 + 14 * place, 12, 12, 25, label) for place, label in enumerate(labels)]))
    return numbers


def write_structure(path: Path, numbers: list[Number]) -> None:
    """digitStruct.mat: a single digit's fields are numbers, several digits' are references to numbers."""
    with h5py.File(path, "w") as file:
        pool = file.create_group("#refs#")
        names, boxes = [], []

        def keep(values: np.ndarray) -> h5py.Reference:
            return pool.create_dataset(str(len(pool)), data=values).ref

        for position, number in enumerate(numbers, start=1):
            names.append(keep(np.array([[ord(letter)] for letter in f"{position}.png"], dtype=np.uint16)))
            group = pool.create_group(f"box{position}")
            for column, name in enumerate(FIELDS):
                values = [np.array([[digit[column]]], dtype=np.float64) for digit in number.digits]
                if len(values) == 1:
                    group.create_dataset(name, data=values[0])
                else:
                    references = np.array([[keep(value)] for value in values], dtype=h5py.ref_dtype)
                    group.create_dataset(name, data=references, dtype=h5py.ref_dtype)
            boxes.append(group.ref)
        for name, references in (("name", names), ("bbox", boxes)):
            column = np.array([[reference] for reference in references], dtype=h5py.ref_dtype)
            file.create_dataset(f"digitStruct/{name}", data=column, dtype=h5py.ref_dtype)


def write_archive(
    root: Path, part: str, kind: str, numbers: list[Number] | int = 12, first_label: int = 1
) -> list[Number]:
    """Write root/part (kind "folder"), root/part.tar or root/part.tar.gz, and return what is in it."""
    if isinstance(numbers, int):
        numbers = plain_numbers(numbers, first_label)
    folder = root / part
    folder.mkdir(parents=True)
    for position, number in enumerate(numbers, start=1):
        Image.fromarray(number.pixels).save(folder / f"{position}.png")
    write_structure(folder / "digitStruct.mat", numbers)
    if kind != "folder":
        with tarfile.open(root / f"{part}.{kind}", "w:gz" if kind == "tar.gz" else "w") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, f"{part}/{path.name}")
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    return numbers
