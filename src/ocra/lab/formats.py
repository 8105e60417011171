"""Scanpaths as other programs write them: CSV, MultiMatch TSV, COCO-Search18 and ViSioNS JSON, pysaliency HDF5, NPZ."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocra.errors import OcraError, UsageError
from ocra.files import atomic_path, read_json, rows_to_csv, write_text_atomically
from ocra.images.reading import endings

HDF5 = (".hdf5", ".h5")
READABLE = (".csv", ".tsv", ".json", ".npz", *HDF5)
SCANPATHS = b"Scanpaths"
"""How pysaliency marks the HDF5 files of its class of that name."""
DURATION = 0.25
"""Seconds that a glimpse is said to last where a table needs a time: a common mean of human fixations."""


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
    milliseconds (COCO-Search18), or objects by image name (ViSioNS). .hdf5, .h5: `Scanpaths` or `ScanpathFixations` of
    pysaliency 0.3. .npz: xs, ys, ns, subjects, files as `write_fixations` makes them for pysaliency 0.2.
    """
    file = Path(path)
    ending = endings(file, READABLE)
    try:
        if ending == ".json":
            found = list(_from_json(read_json(file)))
        elif ending == ".npz":
            with np.load(file, allow_pickle=False) as data:
                found = list(_from_arrays(dict(data)))
        elif ending in HDF5:
            found = list(_from_hdf5(file))
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
    # Without names, a single subject is the model.
    names = data.get("subject_names", None if data["subjects"].any() else ["model"])
    for xs, ys, n, subject in zip(data["xs"], data["ys"], data["ns"], data["subjects"], strict=True):
        there = ~np.isnan(xs)
        who = str(subject if names is None else names[subject])
        yield Fixations(str(data["files"][n]), np.stack([xs[there], ys[there]], axis=1), who)


def _from_hdf5(file: Path) -> Iterator[Fixations]:
    """What pysaliency's `Scanpaths.to_hdf5` wrote; images go by their number where the file does not name them."""
    import h5py

    with h5py.File(file) as data:
        group = data.get("scanpaths", data)
        kind = group.attrs.get("type", b"")
        if (kind if isinstance(kind, bytes) else str(kind).encode()) != SCANPATHS:
            raise ValueError("it does not hold pysaliency's Scanpaths")
        xs, ys, n, lengths = (group[name][...] for name in ("xs", "ys", "n", "lengths"))
        of_paths = {name: values[...].tolist() for name, values in group["scanpath_attributes"].items()}
        durations = group["fixation_attributes"].get("durations")
        lasted = None if durations is None else durations[...]
    images = of_paths.get("image", n.tolist())
    subjects = of_paths.get("subject_name", of_paths.get("subject", [""] * len(n)))
    for k, steps in enumerate(lengths.tolist()):
        image, subject = (x.decode() if isinstance(x, bytes) else str(x) for x in (images[k], subjects[k]))
        seconds = () if lasted is None else tuple(map(float, lasted[k, :steps]))
        yield Fixations(image, np.stack([xs[k, :steps], ys[k, :steps]], axis=1), subject, seconds)


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


def write_fixations(
    paths: Sequence[Fixations],
    out: str | os.PathLike[str],
    duration: float = DURATION,
    **arrays: NDArray[Any],
) -> list[Path]:
    """Write scanpaths by the ending of `out`, as `read_fixations` reads them; returns the files written.

    .tsv, which holds one path, gives a file for each. duration: seconds that a fixation is said to have lasted where
    that is not known; .csv then leaves it out. arrays: further ones for .npz.
    """
    ending, target = endings(out, READABLE), Path(out)
    if not 0 < duration < math.inf:
        raise UsageError(f"The duration must be a number of seconds above 0, not {duration}.")
    try:
        if ending == ".npz":
            every: dict[str, Any] = {**_arrays(paths, duration), **arrays}
            with atomic_path(target) as temporary:
                np.savez(temporary, **every)
            return [target]
        if ending in HDF5:
            with atomic_path(target) as temporary:
                _write_hdf5(temporary, _arrays(paths, duration), paths, duration)
            return [target]
        if ending in (".csv", ".json"):
            write_text_atomically(target, _csv(paths) if ending == ".csv" else _json(paths, duration))
            return [target]
        files = [target] if len(paths) == 1 else _numbered(paths, target)
        for path, file in zip(paths, files, strict=True):
            write_text_atomically(file, _tsv(path, duration))
        return files
    except OSError as error:
        raise OcraError(f"{out} could not be written: {error.strerror or error}.") from None


def decimals(value: float) -> str:
    """Four decimals at most; empty where there is no number."""
    return "" if math.isnan(value) else f"{value:.4f}".rstrip("0").rstrip(".")


def _lasted(path: Fixations, duration: float) -> tuple[float, ...]:
    """Seconds of each fixation: those known, or the same for all."""
    known = len(path.seconds) == len(path.places) and not any(map(math.isnan, path.seconds))
    return path.seconds if known else (duration,) * len(path.places)


def _csv(paths: Sequence[Fixations]) -> str:
    """A row for each fixation: image, subject, step, x, y, and how long it lasted where all are known."""
    timed = all(len(path.seconds) == len(path.places) for path in paths)
    return rows_to_csv(
        [
            {"image": path.image, "subject": path.subject, "step": step, "x": decimals(x), "y": decimals(y)}
            | ({"duration": decimals(path.seconds[step - 1])} if timed else {})
            for path in paths
            for step, (x, y) in enumerate(path.places.tolist(), start=1)
        ]
    )


def _tsv(path: Fixations, duration: float) -> str:
    """One scanpath for MultiMatch: start_x, start_y in pixels, duration in seconds."""
    rows = [
        f"{decimals(x)}\t{decimals(y)}\t{time:g}"
        for (x, y), time in zip(path.places.tolist(), _lasted(path, duration), strict=True)
    ]
    return "\n".join(["start_x\tstart_y\tduration", *rows]) + "\n"


def _json(paths: Sequence[Fixations], duration: float) -> str:
    """As COCO-Search18 and ViSioNS have it: a list with name, subject, X, Y, T in milliseconds, length."""
    entries = [
        {
            "name": path.image,
            "subject": path.subject,
            "X": [round(x, 4) for x in path.places[:, 0].tolist()],
            "Y": [round(y, 4) for y in path.places[:, 1].tolist()],
            "T": [round(1000 * time, 3) for time in _lasted(path, duration)],
            "length": len(path.places),
        }
        for path in paths
    ]
    return json.dumps(entries, indent=1) + "\n"


def _arrays(paths: Sequence[Fixations], duration: float) -> dict[str, NDArray[Any]]:
    """Arrays under the names that pysaliency uses, and the names of images and subjects.

    xs, ys, ts [scanpaths, fixations]: place in pixels, onset in seconds, NaN after the last; ns and subjects
    [scanpaths]: number of the image in `files`, of the subject in `subject_names`, which the model alone does not need.
    """
    files = list(dict.fromkeys(path.image for path in paths))
    subjects = list(dict.fromkeys(path.subject for path in paths))
    xs, ys, ts = np.full((3, len(paths), max((len(path.places) for path in paths), default=0)), np.nan)
    for k, path in enumerate(paths):
        steps = len(path.places)
        xs[k, :steps], ys[k, :steps] = path.places.T
        ts[k, :steps] = np.cumsum((0.0, *_lasted(path, duration)[:-1]))[:steps]
    named = {} if subjects in ([], ["model"]) else {"subject_names": np.array(subjects, dtype=np.str_)}
    return {
        "xs": xs,
        "ys": ys,
        "ts": ts,
        "ns": np.array([files.index(path.image) for path in paths], dtype=np.int64),
        "subjects": np.array([subjects.index(path.subject) for path in paths], dtype=np.int64),
        "files": np.array(files, dtype=np.str_),
        **named,
    }


def _write_hdf5(
    file: Path, arrays: dict[str, NDArray[Any]], paths: Sequence[Fixations], duration: float
) -> None:
    """A file that pysaliency 0.3 reads with `Scanpaths.read_hdf5`, with the names of images and subjects in it.

    Scanpath attributes: subject (a number), subject_name, image. Fixation attributes, in seconds: ts, the onset, and
    durations.
    """
    import h5py

    durations = np.full(arrays["xs"].shape, np.nan)
    for k, path in enumerate(paths):
        durations[k, : len(path.places)] = _lasted(path, duration)
    of_paths = {
        "image": [path.image for path in paths],
        "subject": arrays["subjects"],
        "subject_name": [path.subject for path in paths],
    }
    of_fixations = {"durations": durations, "ts": arrays["ts"]}
    with h5py.File(file, "w") as target:
        target.attrs["type"], target.attrs["version"] = np.bytes_(SCANPATHS), np.bytes_(b"1.0")
        mapping = json.dumps({"durations": "duration", "ts": "t"})
        target.attrs["attribute_mapping"] = np.bytes_(mapping.encode())
        lengths = np.array([len(path.places) for path in paths], dtype=np.int64)
        base = {"xs": arrays["xs"], "ys": arrays["ys"], "n": arrays["ns"], "lengths": lengths}
        for name, values in base.items():
            target.create_dataset(name, data=values)
        for kind, attributes in (("scanpath_attributes", of_paths), ("fixation_attributes", of_fixations)):
            group = target.create_group(kind)
            group.attrs["__attributes__"] = np.bytes_(json.dumps(sorted(attributes)).encode())
            for name, entries in attributes.items():
                text = h5py.string_dtype() if isinstance(entries, list) else None
                group.create_dataset(name, data=entries, dtype=text)


def _numbered(paths: Sequence[Fixations], out: Path) -> list[Path]:
    """A file name for each scanpath, made of the image's name, each only once."""
    names: list[Path] = []
    for path in paths:
        stem = re.sub(r"[^\w.-]+", "-", Path(path.image).stem).strip("-.") or "image"
        name, times = out.with_name(f"{out.stem}-{stem}{out.suffix}"), 1
        while name in names:
            times += 1
            name = out.with_name(f"{out.stem}-{stem}-{times}{out.suffix}")
        names.append(name)
    return names
