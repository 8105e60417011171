"""Weights on the Hugging Face hub, against a stand-in for its HTTP answers on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model, tiny_weights

import ocra
from ocra.data import MultiMNIST
from ocra.errors import UsageError
from ocra.exporting import model_card
from ocra.model.weights import SHIPPED, ModelInfo, shipped

hub = pytest.importorskip("huggingface_hub")
COMMIT = "0" * 40
PROGRAM = """
import sys, torch, ocra
model = ocra.OCRA.from_pretrained(sys.argv[1])
print(ocra.push_to_hub(sys.argv[1], "lab/tiny"))
print(model.push_to_hub("lab/other", private=True))
images = torch.rand(2, 1, 36, 36)
for name in ("lab/tiny", "lab/other"):
    again = ocra.OCRA.from_pretrained(name)
    assert torch.equal(again(images).scores, model(images).scores)
    assert again.info.class_names == model.info.class_names
try:
    ocra.OCRA.from_pretrained("lab/absent")
except ocra.OcraError as error:
    print(error)
"""


class StandIn(BaseHTTPRequestHandler):
    """The answers of the hub that its client asks for when weights are uploaded and downloaded."""

    repos: dict[str, dict[str, bytes]]
    asked: list[str]
    private: set[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_stand_in":
            return self.answer({"error": "Invalid username or password."}, 401)
        parts = self.path.partition("?")[0].split("/")
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            self.repos[name] = {"pytorch_model.bin": b"not to be read"}
            if "private" in (wanted.get("visibility"), wanted.get("private") and "private"):
                self.private.add(name)
            return self.answer({"url": f"http://{self.headers['Host']}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "preupload" in parts:
            files = json.loads(body)["files"]
            return self.answer(
                {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
                    ]
                }
            )
        for line in map(json.loads, body.splitlines()):  # a commit
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.repos["/".join(parts[3:5])][line["value"]["path"]] = content
        address = f"http://{self.headers['Host']}/{'/'.join(parts[3:5])}/commit/{COMMIT}"
        self.answer({"commitUrl": address, "commitOid": COMMIT})

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        parts = self.path.partition("?")[0].split("/")
        api = parts[1] == "api"
        name = "/".join(parts[3:5] if api else parts[1:3])
        if name not in self.repos:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        files = self.repos[name]
        if api and "tree" in parts:
            listed = [{"type": "file", "path": k, "size": len(v), "oid": oid(v)} for k, v in files.items()]
            return self.answer(listed)
        if api:
            siblings = [{"rfilename": path} for path in files]
            return self.answer({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})
        self.send(files["/".join(parts[5:])])

    do_HEAD = do_GET

    def answer(self, value: Any, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status)

    def send(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{oid(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    StandIn.repos, StandIn.asked, StandIn.private = {}, [], set()
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_weights_that_were_pushed_are_loaded_again(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    folder = tiny_weights(tmp_path / "weights", glimpses=2)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    settings = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_stand_in", "HF_HOME": str(tmp_path / "hub")}
    quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, env={**os.environ, **settings, **quiet}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second, absent = done.stdout.splitlines()
    assert (first, second) == (f"{address}/lab/tiny", f"{address}/lab/other")
    assert absent.startswith("'lab/absent' is no folder here and could not be fetched from the hub")
    assert StandIn.private == {"lab/other"}
    for name in ("config.json", "model.safetensors"):
        assert StandIn.repos["lab/tiny"][name] == (folder / name).read_bytes()
    assert b'from_pretrained("lab/tiny")' in StandIn.repos["lab/tiny"]["README.md"]
    assert not [asked for asked in StandIn.asked if asked.startswith("GET") and "pytorch_model.bin" in asked]


def test_a_name_that_is_none_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UsageError, match="is called user/name, not 'mine'"):
        ocra.push_to_hub(tiny_model(), "mine")


def test_a_card_has_the_keys_that_the_hub_reads() -> None:
    task = MultiMNIST.Config()
    values = {
        "name": "mine",
        "title": "Two: digits",
        "task": task.to_dict(),
        "test": {"error": 0.25, "n": 100},
    }
    info = ModelInfo.from_dict(values, ocra.ModelConfig())
    card = hub.ModelCard(model_card("lab/mine", info, task)).data
    assert (card.library_name, card.pipeline_tag, card.license) == (
        "ocra",
        "image-classification",
        "cc-by-sa-3.0",
    )
    assert card.datasets == ["ylecun/mnist"] and card.metrics == ["exact_match"]
    (result,) = card.eval_results
    assert (result.metric_type, result.metric_value) == ("exact_match", 0.75)
    assert (result.dataset_type, result.dataset_split) == ("ylecun/mnist", "test")


@pytest.mark.parametrize("name", shipped())
def test_the_card_of_shipped_weights_has_them_too(name: str) -> None:
    card = hub.ModelCard((SHIPPED / name / "README.md").read_text("utf-8")).data
    assert card.pipeline_tag == "image-classification" and card.license and card.datasets
    assert 0.5 < card.eval_results[0].metric_value < 1
