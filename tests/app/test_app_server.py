"""Ports, addresses and the command."""

import socket
import time

import pytest

from ocra.app.server import address, free_port, known_names
from ocra.app.uploads import KEPT_SECONDS, MB, Uploads
from ocra.cli.main import run
from ocra.errors import OcraError, UsageError


def test_port_in_use_is_refused_if_asked_for_and_passed_over_if_not():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OcraError, match=f"port {port}"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", None) >= 7860


@pytest.mark.parametrize("port", [-1, 70_000])
def test_impossible_port_is_refused(port):
    with pytest.raises(OcraError, match=str(port)):
        free_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
@pytest.mark.parametrize("port", [7860, None])
def test_address_that_is_not_of_this_machine_is_refused(host, port):
    with pytest.raises(UsageError, match=f"no address '{host}'"):
        free_port(host, port)


def test_page_open_to_the_network_is_still_at_this_machine():
    assert address("0.0.0.0", 7860) == "http://127.0.0.1:7860"
    assert address("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert address("::1", 80) == "http://[::1]:80"


def test_weights_that_are_not_there_are_named(tmp_path):
    with pytest.raises(OcraError, match="nowhere"):
        run("app", ["--weights", str(tmp_path / "nowhere")])


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        run("app", ["--help"])
    assert ended.value.code == 0
    assert "ocra app --open" in capsys.readouterr().out


def test_page_for_this_machine_answers_to_its_own_names_only(server):
    import httpx

    port = server.url.rsplit(":", 1)[1]
    for name, status in {"localhost": 200, "127.0.0.1": 200, "evil.example": 400}.items():
        answer = httpx.get(server.url, headers={"Host": f"{name}:{port}"})
        assert answer.status_code == status, name


def test_page_open_to_the_network_answers_to_every_name():
    assert known_names("0.0.0.0") == ["*"]
    assert "evil.example" not in known_names("localhost") and "*" not in known_names("127.0.0.1")


def test_each_upload_is_taken_once():
    uploads = Uploads()
    tokens = [uploads.reserve(visitor, 3) for visitor in ("a", "b")]
    for token in tokens:
        uploads.fill(token, b"abc")
    assert [uploads.take(token) for token in tokens] == [b"abc", b"abc"]
    for token in (*tokens, "never heard of"):
        with pytest.raises(OcraError, match="choose it again"):
            uploads.take(token)


def test_uploads_have_a_quota_for_each_visitor_and_for_all(monkeypatch):
    uploads = Uploads()
    tokens = [uploads.reserve("a", 10 * MB) for _ in range(3)]
    with pytest.raises(OcraError, match="in a minute"):
        uploads.reserve("a", 1)
    for visitor in "bcd":
        for _ in range(2):
            uploads.reserve(visitor, 10 * MB)
    uploads.reserve("e", 10 * MB)
    with pytest.raises(OcraError, match="in a minute"):
        uploads.reserve("f", 1)
    uploads.drop(tokens[0])
    uploads.reserve("f", 10 * MB)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * KEPT_SECONDS)
    uploads.reserve("g", 10 * MB)
    for size in (0, -1, 10 * MB + 1):
        with pytest.raises(OcraError, match="larger than 10 MB"):
            uploads.reserve("a", size)


def test_files_are_taken_from_the_page_only_and_never_written(server):
    import httpx

    header = {"x-ocra-upload": "1"}
    files = {"files": ("secret.png", b"content")}
    assert httpx.post(f"{server.url}/gradio_api/upload", files=files).status_code == 403
    assert httpx.post(f"{server.url}/ocra/upload", content=b"content").status_code == 403
    assert httpx.post(f"{server.url}/ocra/upload", content=b"", headers=header).status_code == 413
    taken = httpx.post(f"{server.url}/ocra/upload", content=b"content", headers=header)
    assert taken.status_code == 200 and len(taken.text) > 16
    assert not [
        path for path in server.temporary.rglob("*") if path.is_file() and b"content" in path.read_bytes()
    ]
