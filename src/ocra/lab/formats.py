"""Scanpaths as other programs write them: CSV, MultiMatch TSV, COCO-Search18 and ViSioNS JSON, NPZ."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocra.errors import OcraError
from ocra.files import read_json
from ocra.images.reading import endings

READABLE = (".csv", ".tsv", ".json", ".npz")


@dataclass(frozen=True)
class Fixations:
    """One scanpath: who looked where in which image."""

    image: str
    places: NDArray[np.float64]
    """[fixations, 2] as (x, y) in pixels"""
    subject: str = "model"
    seconds: tuple[float, ...] = ()
    """How long each lasted, where that is known."""


def read_fixations(path: str | Path) -> list[Fixations]:
    """The scanpaths of a file, by its ending.

    .csv: a row for each fixation with image, x, y and perhaps subject. .tsv: start_x, start_y, duration as for
    MultiMatch, one path, its image named by the file. .json: a list of objects with name, subject, X, Y and T in
    milliseconds (COCO-Search18), or objects by image name (ViSioNS). .npz: xs, ys, ns, subjects, files as
    `ocra scanpath` writes them for pysaliency.
    """
    file = Path(path)
    ending = endings(file, READABLE)
    try:
        if ending == ".json":
            found = list(_from_json(read_json(file)))
        elif ending == ".npz":
            with np.load(file, allow_pickle=False) as data:
                found = list(_from_arrays(dict(data)))
        else:
            with open(file, newline="", encoding="utf-8") as lines:
                rows = list(csv.DictReader(lines, delimiter="\t" if ending == ".tsv" else ","))
            found = list(_from_rows(rows, file.stem))
    except OSError as error:
        raise OcraError(f"{file} could not be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OcraError(f"{file} is not a table of scanpaths of this kind: {error}.") from None
    return [path for path in found if len(path.places)]


def _from_json(entries: Any) -> Iterator[Fixations]:
    named = entries.items() if isinstance(entries, dict) else [(entry["name"], entry) for entry in entries]
    for name, entry in named:
        places = np.array([entry["X"], entry["Y"]], dtype=np.float64).T
        seconds = tuple(float(time) / 1000 for time in entry.get("T", ()))
        yield Fixations(str(name), places, str(entry.get("subject", "")), seconds)


def _from_arrays(data: dict[str, Any]) -> Iterator[Fixations]:
    for xs, ys, n, subject in zip(data["xs"], data["ys"], data["ns"], data["subjects"], strict=True):
        there = ~np.isnan(xs)
        yield Fixations(str(data["files"][n]), np.stack([xs[there], ys[there]], axis=1), str(subject))


def _from_rows(rows: Sequence[dict[str, str]], stem: str) -> Iterator[Fixations]:
    paths: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    lasted: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        key = (row.get("image", stem), row.get("subject", "model"))
        x, y = (row["start_x"], row["start_y"]) if "start_x" in row else (row["x"], row["y"])
        paths[key].append((float(x), float(y)))
        if row.get("duration"):
            lasted[key].append(float(row["duration"]))
    for (image, subject), places in paths.items():
        yield Fixations(image, np.array(places), subject, tuple(lasted[image, subject]))


def to_json(paths: Sequence[Fixations], duration: float) -> str:
    """The scanpaths as COCO-Search18 and ViSioNS have them: a list with name, subject, X, Y, T (ms), length."""
    entries = []
    for path in paths:
        seconds = path.seconds or (duration,) * len(path.places)
        if any(math.isnan(time) for time in seconds):
            seconds = (duration,) * len(path.places)
        entries.append(
            {
                "name": path.image,
                "subject": path.subject,
                "X": [round(float(x), 4) for x in path.places[:, 0]],
                "Y": [round(float(y), 4) for y in path.places[:, 1]],
                "T": [round(1000 * time, 3) for time in seconds],
                "length": len(path.places),
            }
        )
    return json.dumps(entries, indent=1) + "\n"
