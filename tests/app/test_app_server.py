"""Ports, addresses and the command."""

import socket

import pytest

from ocra.app.server import address, free_port, known_names
from ocra.cli.app import main
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
        main(["--weights", str(tmp_path / "nowhere")])


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "ocra app --open" in capsys.readouterr().out


def test_page_for_this_machine_answers_to_its_own_names_only(server):
    httpx = pytest.importorskip("httpx")
    port = server.url.rsplit(":", 1)[1]
    for name, status in {"localhost": 200, "127.0.0.1": 200, "evil.example": 400}.items():
        answer = httpx.get(server.url, headers={"Host": f"{name}:{port}"})
        assert answer.status_code == status, name


def test_page_open_to_the_network_answers_to_every_name():
    assert known_names("0.0.0.0") == ["*"]
    assert "evil.example" not in known_names("localhost") and "*" not in known_names("127.0.0.1")
