"""The page served, with small models, by a process of its own to a real Chromium."""

import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from visitors import Visitor, save_model

from ocra.app.looking import load_models
from ocra.model.ocra import OCRA

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
CLOSED_STREAM = "AbortError: signal is aborted without reason"
"""What Gradio's own client says now and then when it closes its stream of answers, as at the end of a visit."""
# Serves the page, and notes every address outside this machine that the process tries to reach.
PROGRAM = """
import socket, sys
connect = socket.socket.connect
def watched(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        open(sys.argv[1], "a").write(f"{address}\\n")
    return connect(self, address)
socket.socket.connect = watched
import time, torch
from pathlib import Path
from ocra.data import MultiMNIST, register_task
torch.set_num_threads(1)
@register_task("slow")
class Slow(MultiMNIST):
    title = "Slow digits"
    def __init__(self, *args, **settings):
        while not Path(sys.argv[1] + ".read").exists():
            time.sleep(0.05)
        super().__init__(*args, **settings)
from ocra.cli.main import run
run("app", sys.argv[2:])
"""


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models for overlapping digits, the second with five glimpses, and between them one for clutter."""
    folder = tmp_path_factory.mktemp("weights")
    return [
        save_model(folder / "three", 1),
        save_model(folder / "clutter", 3, "cluttered", height=100, width=100),
        save_model(folder / "five", 2, glimpses=5),
    ]


@pytest.fixture(scope="session")
def models(weights: list[str]) -> dict[str, OCRA]:
    return load_models(weights)


@dataclass(frozen=True)
class Server:
    """A page being served."""

    url: str
    temporary: Path
    """The only folder its process may put temporary files in."""
    foreign: Path
    """Names every address outside this machine that its process tried to reach."""

    def let_slow_task_be_read(self) -> None:
        """The images of the task "slow" can be had from now on."""
        Path(f"{self.foreign}.read").touch()


@pytest.fixture(scope="session")
def server(
    weights: list[str], tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> Iterator[Server]:
    require("gradio", "httpx")
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
    assert not list(folder.glob("ocra-app-*")), "the temporary folder outlived the server"


def _wait_for_url(process: subprocess.Popen[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()
    seen = []
    while not (seen and "http://" in seen[-1]):
        try:
            seen.append(lines.get(timeout=180))
        except queue.Empty:
            raise AssertionError(f"the server did not start: {''.join(seen)}") from None
    return "http://" + seen[-1].split("http://")[1].split()[0]


@pytest.fixture(scope="session")
def browser(require: Callable[..., None]) -> Iterator[object]:
    require("playwright", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, server) -> Iterator[Callable[..., Visitor]]:
    visitors: list[Visitor] = []

    def arrive(**options: object) -> Visitor:
        visitors.append(Visitor(browser, server.url, **{"reduced_motion": "reduce", **options}))
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        visitor.context.close()
        assert set(visitor.errors) <= {CLOSED_STREAM}, "errors in the browser's console"
        assert visitor.hosts <= {"127.0.0.1", ""}, "requests to other machines"
