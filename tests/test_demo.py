"""The demo works with and without MNIST at hand."""

from pathlib import Path

import pytest
from PIL import Image

from ocra import OCRA, ModelConfig
from ocra.cli.main import main
from ocra.data.digits import digit_pool


def test_the_demo_shows_digits_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--weights", "svhn-12"]) == 2
    assert "not svhn; try: ocra look --task svhn" in capsys.readouterr().err


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    OCRA(ModelConfig(glimpses=2, hidden=16, primary_capsules=4)).save_pretrained(folder)
    return folder


def test_without_mnist_the_demo_goes_on_with_glyphs_and_says_so(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OCRA_DATA", raising=False)
    monkeypatch.setenv("OCRA_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", "")  # no npm either
    monkeypatch.setattr("ocra.data.download.MNIST_MIRRORS", ("file:///nowhere/",))
    digit_pool.cache_clear()  # a test before this one may have used MNIST
    out = tmp_path / "demo"
    assert main(["demo", "--weights", str(weights), "--images", "20", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "drawn from fonts" in said and "Of 20 test images" in said
    for name in ("look.png", "look.gif", "grid.png"):
        with Image.open(out / name) as picture:
            assert min(picture.size) > 100


def test_the_demo_shows_clutter_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ocra.data.download.MNIST_MIRRORS", ("file:///nowhere/",))
    monkeypatch.setenv("PATH", "")
    out = tmp_path / "demo"
    assert main(["demo", "--weights", "cluttered-5", "--images", "20", "--out", str(out)]) == 0
    assert "5 glimpses" in (said := capsys.readouterr().out) and "among clutter" in said
    assert (out / "look.png").stat().st_size > 10_000
