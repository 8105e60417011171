"""Whatever a file or a visitor holds: an answer, or a sentence that says what is wrong. Never another exception, a
hang, much memory, or a file written elsewhere.

Each test tries new cases for OCRA_FUZZ_SECONDS (1.5; `make fuzz`: 30). One that fails is made as small
as it gets, and printed.
"""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as some
from PIL import Image
from tiny import tiny_model, tiny_weights

from ocra.data.labels import read_labels
from ocra.data.svhn_archive import read_names, read_structure
from ocra.errors import OcraError
from ocra.images.fitting import prepare
from ocra.images.reading import read_image
from ocra.model.weights import load, read_config
from ocra.presets import ALL_PRESETS
from ocra.training.checkpoint import Checkpoint, Checkpoints, read_experiment

SECONDS = float(os.environ.get("OCRA_FUZZ_SECONDS", 1.5))
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time as Linux can"),
    pytest.mark.timeout(120 + 30 * SECONDS),  # what fails is made smaller, which takes longer
]
FIRST_SEED = int(os.environ.get("OCRA_FUZZ_SEED", 0 if SECONDS < 10 else time.time_ns() % 10**9))
MOST_SECONDS, MOST_BYTES = 10, 2**31
"""What one case may take."""

Property = Callable[[Any], object]


class Watch:
    """Notices files that are opened for writing outside a folder; an audit hook cannot be taken back."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.outside: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.inside is None or event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.symlink"):
            return
        path, writes = arguments[0], event != "open" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if writes and isinstance(path, str) and path != os.devnull:
            place = Path(os.path.abspath(path))
            if self.inside not in (place, *place.parents):
                self.outside.append(str(place))


WATCH = Watch()
sys.addaudithook(WATCH)


class TooLong(BaseException):
    """A case took too much processor time."""


@contextmanager
def limits(folder: Path) -> Iterator[None]:
    """Within the block memory is limited, processor time is, and files outside the folder are watched."""

    def too_long(*_: object) -> None:
        raise TooLong(f"more than {MOST_SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    WATCH.inside, WATCH.outside = folder, []
    try:
        yield
    finally:
        WATCH.inside = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)
    assert not WATCH.outside, f"written outside the folder: {WATCH.outside}"


def fuzz(cases: some.SearchStrategy[Any], holds: Property, folder: Path, *first: Any) -> None:
    """Try the first cases, then others until the time is over."""
    end = time.monotonic() + SECONDS

    def try_one(case: Any) -> None:
        with limits(folder):
            try:
                holds(case)
            except OcraError as error:
                assert len(str(error)) > 10, "no sentence"

    for case in first:
        try_one(case)
    number = FIRST_SEED
    while time.monotonic() < end:
        tried = settings(
            max_examples=25, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )(seed(number)(given(cases)(try_one)))
        tried()
        number += 1


# What is fuzzed: bytes that were valid once, and JSON that was.

JSON_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.sampled_from([10**30, -1, 2**40]) | some.floats()
    | some.text(max_size=20) | some.sampled_from(["\x1b[31m", "\ud800", "../../x", "nan", "²³"]),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@some.composite
def damaged(draw: Callable[..., Any], *originals: bytes) -> bytes:
    """A file with some bytes changed, put in, taken out or cut off."""
    content = bytearray(draw(some.sampled_from(originals)))
    for _ in range(draw(some.integers(0, 6))):
        # Headers, where sizes and kinds stand, are worth more tries than pixels.
        last = min(len(content), draw(some.sampled_from([16, 64, 512, 10**9])))
        place = draw(some.integers(0, max(0, last - 1)))
        new = draw(
            some.sampled_from([b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\x80"]) | some.binary(max_size=8)
        )
        kind = draw(some.sampled_from(["change", "change", "insert", "remove", "cut"]))
        if kind == "cut":
            del content[place:]
        else:
            content[place : place + {"change": len(new), "insert": 0, "remove": 9}[kind]] = new
    return bytes(content)


@some.composite
def altered(draw: Callable[..., Any], original: Any) -> Any:
    """A JSON value with some of what is in it replaced, left out or added, at any depth."""
    if draw(some.integers(0, 30)) == 0:
        return draw(JSON_VALUES)
    value = json.loads(json.dumps(original))
    for _ in range(draw(some.integers(1, 3))):
        inside, parent, key = value, None, None
        while isinstance(inside, dict | list) and inside and (parent is None or draw(some.integers(0, 3))):
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            parent, key = inside, draw(some.sampled_from(keys))
            inside = parent[key]
        if parent is None:
            return draw(JSON_VALUES)
        if draw(some.integers(0, 5)) == 0:
            del parent[key]
        else:
            parent[key] = draw(JSON_VALUES)
    return value


def written(path: Path, value: Any) -> Path:
    """A JSON value, or bytes, in a file."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode("utf-8", "surrogatepass")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


RAW_JSON = some.binary(max_size=40) | some.sampled_from([b"\xff\xfe", b"null", b'"\\ud800"', b""])
TOO_MUCH = b"[" * 10**5, b'{"a":' * 10**5, b'{"seed": ' + b"9" * 6000 + b"}"
"""Beyond what Python parses; tried once, for nobody wants to see them smaller."""


def images() -> list[bytes]:
    """A small image in each format that can be written here."""
    Image.init()
    grey = Image.fromarray(np.arange(40 * 30, dtype=np.uint16).reshape(30, 40) % 251 * 200)
    colour = Image.fromarray(np.arange(3 * 30 * 40, dtype=np.uint8).reshape(30, 40, 3))
    found = []
    for image, kinds in (
        (colour, ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "PCX")),
        (colour.convert("RGBA"), ("PNG", "TIFF", "WEBP")),
        (colour.convert("P"), ("PNG", "GIF", "TIFF")),
        (grey, ("PNG", "TIFF")),
    ):
        for kind in kinds:
            file = io.BytesIO()
            try:
                image.save(file, kind)
            except (KeyError, OSError):  # a Pillow without that library
                continue
            found.append(file.getvalue())
    return found


def test_image_files(tmp_path: Path) -> None:
    model = tiny_model()

    def holds(content: bytes) -> None:
        seen = prepare(read_image(content, "it"), model.config, model.info.preprocessing or _usual(model))
        assert seen.image.shape == model.config.image_shape and bool(seen.image.isfinite().all())

    fuzz(some.binary(max_size=200) | damaged(*images()), holds, tmp_path)


def _usual(model: Any) -> Any:
    from ocra.data import task_of_model

    return task_of_model(model.info.task, model.config).task.preprocessing


def test_configs_of_experiments(tmp_path: Path) -> None:
    valid = some.sampled_from(sorted(ALL_PRESETS)).flatmap(lambda name: altered(ALL_PRESETS[name].to_dict()))
    fuzz(
        RAW_JSON | valid,
        lambda value: read_experiment(written(tmp_path / "config.json", value)).check(),
        tmp_path,
        *TOO_MUCH,
    )


def test_configs_of_weights(tmp_path: Path) -> None:
    folder = tiny_weights(tmp_path / "weights")
    valid = json.loads((folder / "config.json").read_text())

    def holds(value: Any) -> None:
        written(folder / "config.json", value)
        config, info = read_config(folder)
        info.capsule_names(config)
        load(folder)

    fuzz(RAW_JSON | altered(valid), holds, tmp_path, *TOO_MUCH)


def test_headers_of_weights_and_checkpoints(tmp_path: Path) -> None:
    folder = tiny_weights(tmp_path / "weights")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    whole = (folder / "model.safetensors").read_bytes()
    checkpoints.save(Checkpoint(dict(load(folder).state_dict()), {"images": 32}))
    saved = checkpoints.paths()[0].read_bytes()

    def with_header(content: bytes) -> some.SearchStrategy[bytes]:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])

        def joined(changed: Any) -> bytes:
            text = json.dumps(changed).encode("utf-8", "surrogatepass")
            return struct.pack("<Q", len(text)) + text + content[8 + length :]

        return altered(header).map(joined)

    def holds(case: tuple[bytes, bytes]) -> None:
        checkpoints.paths()[0].write_bytes(case[1])
        with _quietly(), suppress(OcraError):
            checkpoints.load()
        (folder / "model.safetensors").write_bytes(case[0])
        load(folder)

    cases = some.tuples(damaged(whole) | with_header(whole), damaged(saved) | with_header(saved))
    fuzz(cases, holds, tmp_path)


@contextmanager
def _quietly() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_tables_of_labels(tmp_path: Path) -> None:
    for name in ("1.png", "2.png", "=x.png"):
        Image.new("L", (12, 12)).save(tmp_path / name)
    cell = some.text(max_size=12) | some.sampled_from(
        ["1.png", "./1.png", "2.png", "=x.png", "../1.png", "/etc/passwd", "cat", "cat dog", "train", "test", "\x00",
         '"', "a" * 500]
    )  # fmt: skip
    table = some.lists(some.lists(cell, min_size=1, max_size=4).map(",".join), max_size=6).map("\n".join)
    text = some.sampled_from(["file,labels\n", "file,labels,split\n", ""]).flatmap(
        lambda head: table.map(lambda rows: (head + rows).encode("utf-8", "surrogatepass"))
    )

    def holds(content: bytes) -> None:
        (tmp_path / "labels.csv").write_bytes(content)
        with _quietly():
            assert all((tmp_path / image.file).is_file() for image in read_labels(tmp_path))

    fuzz(text | some.binary(max_size=60), holds, tmp_path)


def test_coco_files(tmp_path: Path) -> None:
    Image.new("L", (12, 12)).save(tmp_path / "1.png")
    valid = {
        "images": [{"id": 1, "file_name": "1.png", "width": 12, "height": 12}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "iscrowd": 0}],
    }

    def holds(value: Any) -> None:
        written(tmp_path / "annotations.json", value)
        with _quietly():
            read_labels(tmp_path)

    fuzz(RAW_JSON | altered(valid), holds, tmp_path, *TOO_MUCH)


def test_files_of_digit_boxes(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent / "data"))
    from svhn_archive import plain_numbers, write_structure

    path = tmp_path / "digitStruct.mat"
    write_structure(path, plain_numbers(3))
    valid = path.read_bytes()

    def holds(content: bytes) -> None:
        path.write_bytes(content)
        assert all(isinstance(name, str) for name in read_names(path))
        assert all(len(number.digits) == len(number.boxes) for number in read_structure(path))

    fuzz(some.binary(max_size=100) | damaged(valid), holds, tmp_path)


def test_what_a_visitor_may_send(tmp_path: Path) -> None:
    """The events of the page's scripts carry any JSON; its controls any text, number or nothing."""
    from ocra.app import studio as app

    names, number = ["one", "two", "three", ""], some.none() | some.floats() | some.integers(-3, 10**30)
    studio = app.Studio({name: tiny_model(seed) for seed, name in enumerate(("one", "two"))})
    url = "data:image/png;base64,"
    drawings = damaged(images()[0]).map(lambda content: url + base64.b64encode(content).decode())
    window = altered({"step": 1, "x": 4.0, "y": 5.5, "width": 12})
    choices = some.builds(
        app.Choice, some.sampled_from(names), number, some.booleans(), some.sampled_from(names), number
    )
    picks = some.sampled_from(["this", "next", "any"])
    keys = ("model", "with", "image", "window", "lesion", "glimpses", "until", "routings", "only")
    queries = some.lists(
        some.tuples(some.sampled_from(keys), some.text(max_size=9) | number.map(str)), max_size=5
    )
    acts = (
        some.tuples(some.just("open"), queries.map(urlencode) | some.text(max_size=20)),
        some.tuples(some.just("draw"), drawings | JSON_VALUES),
        some.tuples(some.just("force"), some.lists(window, max_size=3) | JSON_VALUES),
        some.tuples(some.just("upload"), JSON_VALUES, JSON_VALUES),
        some.tuples(
            some.just("test"), some.builds(app.Request, some.sampled_from(["mnist", "x"]), number, picks)
        ),
    )
    usual = app.Choice("one", 2, False, "two", 2)
    drawn = studio.draw(app.Session(), url + base64.b64encode(images()[0]).decode(), usual)

    def holds(case: tuple[app.Choice, tuple[Any, ...], Any]) -> None:
        choice, (act, *what), more = case
        if act == "open":  # the address
            studio.open(*what)
            return
        options = {"force": {"turn": more}, "upload": {"problem": more}}.get(act, {})
        told = getattr(studio, act)(drawn.session, *what, choice=choice, **options)
        assert "should not have" not in (told.notice or ""), told.notice

    fuzz(some.tuples(choices, some.one_of(*acts), JSON_VALUES), holds, tmp_path)
