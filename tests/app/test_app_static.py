"""The page without a server behind it: in a browser the network answers as it does in Python."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import torch
from visitors import STROKES, save_model

from ocra import OCRA
from ocra.app import static_page
from ocra.cli.main import main
from ocra.data.download import npm_files
from ocra.errors import OcraError, UsageError
from ocra.exporting import Portable

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.timeout(900)  # an export and a browser on a busy machine
LOOK = """() => new Promise((done) =>
    document.addEventListener("ocra-looked", ({detail}) => done(detail), {once: true}))"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("weights") / "two", 4, glimpses=2)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of onnxruntime-web, fetched once."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm client to fetch onnxruntime-web with")
    folder = tmp_path_factory.mktemp("runtime")
    names = list(static_page.RUNTIME.values())
    try:
        contents = npm_files(static_page.RUNTIME_PACKAGE, [f"package/dist/{name}" for name in names], "")
    except OcraError as error:
        pytest.skip(f"onnxruntime-web cannot be fetched: {error}")
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def address(network: str, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page below a path of a plain web server."""
    root = tmp_path_factory.mktemp("site")
    words = [
        "app",
        "--static",
        str(root / "some" / "place"),
        "--weights",
        network,
        "--onnxruntime",
        str(runtime),
    ]
    assert main(words) == 0
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/some/place/"
        server.shutdown()


def test_a_drawing_is_answered_in_the_browser_as_in_python(browser: Any, address: str, network: str) -> None:
    hosts, errors = set(), []
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.set_default_timeout(120_000)
    page.on("request", lambda request: hosts.add(urlparse(request.url).hostname))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(address)
    page.locator("body[data-ready]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate(f"window.looked = ({LOOK})(); 0")
    box = page.locator("#pad").bounding_box()
    for stroke in STROKES:
        for k, (x, y) in enumerate(stroke):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
            if k == 0:
                page.mouse.down()
        page.mouse.up()
    drawn = page.evaluate("window.looked")
    page.locator("#play").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("End")  # on the slider: the last glimpse
    answer, said, finished, limits = (
        page.locator(f"#{name}").inner_text() for name in ("answer", "said", "finished", "limits")
    )
    page.evaluate(f"window.looked = ({LOOK})(); 0")
    page.locator("#examples button").nth(1).press("Enter")
    example = page.evaluate("window.looked")
    page.close()
    assert not errors and hosts == {"127.0.0.1"}
    model = OCRA.from_pretrained(network)
    for look in (drawn, example):
        image = torch.tensor(look["image"]).view(1, 1, 36, 36)
        assert image.max() > 0.9 and 0.02 < image.mean() < 0.5
        for name, value in Portable(model)(image).items():
            torch.testing.assert_close(
                torch.tensor(look["outputs"][name], dtype=value.dtype), value.flatten(), rtol=1e-4, atol=1e-4
            )
    counts = drawn["outputs"]["counts"]
    assert answer.split() == [str(k) for k, times in enumerate(counts) for _ in range(times)]
    assert said.startswith("Glimpse 2: ") and finished == "Answer"
    assert limits.startswith("It always names two different digits")


def test_a_page_that_cannot_be_made_is_refused_in_a_sentence(network: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="svhn-12 is none of them"):
        static_page.write_page(tmp_path / "page", "svhn-12")
    with pytest.raises(OcraError, match="does not hold onnxruntime-web"):
        static_page.write_page(tmp_path / "page", network, tmp_path)
    single = save_model(tmp_path / "one", 5, "mnist", height=28, width=28)
    with pytest.raises(OcraError, match="does not hold onnxruntime-web"):  # and not for what it looks at
        static_page.write_page(tmp_path / "page", single, tmp_path)
    assert not (tmp_path / "page").exists()


def test_without_npm_the_user_is_told_to_name_a_folder(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OcraError, match="name the folder with --onnxruntime"):
        static_page.write_page(tmp_path / "page", network)
