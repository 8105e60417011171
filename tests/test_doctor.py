"""ocra doctor says what this machine lacks, and never fails itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ocra.cli import doctor
from ocra.cli.main import main
from ocra.model import weights
from ocra.training import run


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement of bfloat16, which starts a process, has a test of its own."""
    monkeypatch.setattr(run, "bf16_gain", lambda device: 2.0)


def found(name: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.name == name)


def test_a_good_machine_is_usable_and_json_says_the_same_as_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"ocra", "processor", "bfloat16", "packages", "weights", "cache"} <= {
        each["name"] for each in findings
    }
    assert all(each["detail"] in text and each["state"] in ("ok", "missing") for each in findings)
    assert "Everything that OCRA needs is here." in text


def test_changed_weights_are_broken_and_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mnist-6", "multimnist-3"):
        shutil.copytree(weights.SHIPPED / name, tmp_path / name)
    changed = tmp_path / "mnist-6" / weights.WEIGHTS
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    (tmp_path / "multimnist-3" / weights.WEIGHTS).write_bytes(b"cut off")
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "changed since they were released" in said.out and "broken or no safetensors file" in said.out
    assert "broken: weights mnist-6, weights multimnist-3" in said.err and "Traceback" not in said.err


def test_shipped_weights_are_those_of_their_release() -> None:
    for name in weights.shipped():
        told = json.loads((weights.SHIPPED / name / "check.json").read_text())
        assert told["content"] == weights.content_hash(weights.SHIPPED / name)


def test_data_that_is_missing_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRA_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("OCRA_CACHE", str(tmp_path / "not" / "made" / "yet"))
    assert found("MNIST").state == found("SVHN").state == "missing"
    assert "ocra data fetch mnist" in found("MNIST").advice and found("cache").state == "ok"


def test_a_package_that_is_missing_or_old_is_broken_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = ["h5py>=900.1", "no-such-package>=1", "numpy>=1.26", 'gradio>=6; extra == "app"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    assert found("h5py").advice == "pip install 'h5py>=900.1'" and "older than 900.1" in found("h5py").detail
    assert found("no-such-package").state == "broken" and "numpy" in found("packages").detail


def test_a_check_that_fails_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("it is gone")

    monkeypatch.setattr(Path, "cwd", fail)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert found("disk").state == "broken" and "it is gone" in found("disk").detail
    assert found("compiler").state == "missing" and found("weights").state == "ok"


def test_an_environment_that_cannot_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ModuleSpec("torch", None, origin="/a place/torch/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: place)
    assert found("compiler").state == "missing" and "has a space (/a place/torch" in found("compiler").detail


def test_a_home_folder_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert doctor._shown(Path("/home/somebody/data")) == "~/data" and doctor._shown(Path("/data")) == "/data"
