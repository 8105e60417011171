"""The folder spaces/ is a Hugging Face Space that shows the page."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from ocra.app import server

ROOT = Path(__file__).resolve().parents[2]
SPACE = ROOT / "spaces"


def test_its_program_builds_the_page_where_a_space_is_expected_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradio = pytest.importorskip("gradio")
    launched: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(gradio.Blocks, "launch", lambda self, **options: launched.append((self, options)))
    monkeypatch.setattr(server, "free_port", lambda host, port: port)
    monkeypatch.setattr(server, "_set_environment", lambda folder: None)
    monkeypatch.setattr(server, "_wait", lambda: None)
    runpy.run_path(str(SPACE / "app.py"), run_name="__main__")
    ((page, options),) = launched
    assert (options["server_name"], options["server_port"]) == ("0.0.0.0", 7860)
    assert "Draw" in str(page.get_config_file())


def test_its_card_asks_for_the_gradio_that_the_tests_pass_with() -> None:
    yaml = pytest.importorskip("yaml")
    front = yaml.safe_load((SPACE / "README.md").read_text("utf-8").split("---")[1])
    assert front["sdk"] == "gradio" and (SPACE / front["app_file"]).is_file()
    assert f"gradio=={front['sdk_version']}" in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len(front["short_description"]) <= 60
    assert "ocra-vision[app]" in (SPACE / "requirements.txt").read_text("utf-8").splitlines()
