"""Small saved models, and the page served by a process of its own to a real Chromium."""

import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest
import torch

from ocra.app.networks import Networks
from ocra.config import ModelConfig
from ocra.model import OCRA

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
SMALL = {"filters": 4, "hidden": 32, "primary_capsules": 8, "primary_size": 4, "capsule_size": 4}
# Serves the page, and notes every address outside this machine that the process tries to reach.
PROGRAM = """
import socket, sys
connect = socket.socket.connect
def watched(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        open(sys.argv[1], "a").write(f"{address}\\n")
    return connect(self, address)
socket.socket.connect = watched
import torch
torch.set_num_threads(1)
from ocra.commands.app import main
main(sys.argv[2:])
"""


STROKES = [
    [(0.2, 0.3), (0.4, 0.2), (0.4, 0.45), (0.3, 0.5), (0.45, 0.55), (0.4, 0.8), (0.2, 0.75)],
    [(0.5, 0.2), (0.8, 0.2), (0.6, 0.8)],
]

MEASURE_WINDOW = """async (look) => {
    const [window, picture] = [".window", ".picture"].map((name) => look.querySelector(name));
    await Promise.all(window.getAnimations().map((animation) => animation.finished));
    const [inner, outer] = [window, picture].map((element) => element.getBoundingClientRect());
    const scale = look.dataset.w / outer.width;
    const [left, top] = [inner.left - outer.left, inner.top - outer.top];
    return {x: (left + inner.width / 2) * scale - 0.5, y: (top + inner.height / 2) * scale - 0.5,
            width: inner.width * scale};
}"""


def save_model(
    folder: Path,
    seed: int,
    task: str = "multimnist",
    names: list[str] | None = None,
    root: Path | None = None,
    **options: object,
) -> str:
    """Write a small untrained model and return its folder."""
    torch.manual_seed(seed)
    model = OCRA(ModelConfig(**{**SMALL, **options}))
    if model.config.attention:
        with torch.no_grad():  # windows that differ from step to step, as trained ones do
            model.read_attention.weight.mul_(40)
            model.read_attention.bias.copy_(torch.tensor([0.2, -0.1, 0.0, -0.5]))
    saved = {"name": task, "root": root and str(root), "class_names": names}
    model.save_pretrained(folder, task=saved, class_names=names)
    return str(folder)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models for overlapping digits, the second with five glimpses, and between them one for clutter."""
    folder = tmp_path_factory.mktemp("weights")
    return [
        save_model(folder / "three", 1),
        save_model(folder / "clutter", 3, "cluttered", height=100, width=100),
        save_model(folder / "five", 2, glimpses=5),
    ]


@pytest.fixture
def networks(weights: list[str]) -> Networks:
    return Networks(weights)


@dataclass(frozen=True)
class Server:
    """A page being served."""

    url: str
    temporary: Path
    """The only folder its process may put temporary files in."""
    foreign: Path
    """Names every address outside this machine that its process tried to reach."""


@pytest.fixture(scope="session")
def server(weights: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'ocra[app]'")
    folder = tmp_path_factory.mktemp("server")
    environment = {key: value for key, value in os.environ.items() if key != "OCRA_DATA"}
    environment |= {"OCRA_CACHE": str(folder / "cache"), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", PROGRAM, str(folder / "foreign"), "--port", "0", "--weights", *weights]
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Server(_wait_for_url(process), folder, folder / "foreign")
    finally:
        process.terminate()
        process.wait(20)
    assert not list(folder.glob("ocra-app-*")), "the folder of uploads outlived the server"


def _wait_for_url(process: subprocess.Popen[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()
    seen = []
    while not (seen and "http://" in seen[-1]):
        try:
            seen.append(lines.get(timeout=60))
        except queue.Empty:
            raise AssertionError(f"the server did not start: {''.join(seen)}") from None
    return "http://" + seen[-1].split("http://")[1].split()[0]


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium was found: install Debian's package chromium")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield chromium
        chromium.close()


class Visitor:
    """One browser context with its page, and everything that went wrong in it."""

    def __init__(self, browser, url: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlparse(request.url).hostname or ""))
        self.page.goto(url)
        self.page.wait_for_selector(".look")

    def draw(self, strokes: list = STROKES) -> None:
        box = self.page.locator(".ocra-pad canvas").bounding_box()
        for stroke in strokes:
            places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
            self.page.mouse.move(*places[0])
            self.page.mouse.down()
            for place in places[1:]:
                self.page.mouse.move(*place, steps=3)
            self.page.mouse.up()

    def wait_for_subject(self, title: str) -> None:
        self.page.locator(".transport .subject", has_text=title).wait_for()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def window(self) -> dict[str, float]:
        """The current window in pixels of the model's image, from the place it has on the screen."""
        return self.page.locator(".look").first.evaluate(MEASURE_WINDOW)


@pytest.fixture
def visit(browser, server) -> Iterator[Callable[..., Visitor]]:
    visitors: list[Visitor] = []

    def arrive(**options: object) -> Visitor:
        visitors.append(Visitor(browser, server.url, **{"reduced_motion": "reduce", **options}))
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.context.close()
        assert visitor.errors == [], "errors in the browser's console"
        assert visitor.hosts <= {"127.0.0.1", ""}, "requests to other machines"
