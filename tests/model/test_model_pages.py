"""The pages about the model say what is so: names exist, examples run, numbers are right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from model_variants import PAPER

from ocra.model.ocra import OCRA

ROOT = Path(__file__).parents[2]
PAPER_TO_CODE = ROOT / "docs" / "paper-to-code.md"
OF_MODEL = ("reference", "ocra", "attention", "capsules", "kernels")
MODULES = "|".join((*OF_MODEL, "losses", "guidance", "metrics"))


def test_every_function_of_the_paper_to_code_page_exists() -> None:
    named = re.findall(rf"`((?:{MODULES})\.[A-Za-z_.]+)`", PAPER_TO_CODE.read_text())
    named = [name for name in named if not name.endswith(".py")]
    assert len(named) > 40
    for name in named:
        module, *path = name.split(".")
        found = importlib.import_module(f"ocra.model.{module}" if module in OF_MODEL else f"ocra.{module}")
        for part in path:
            assert hasattr(found, part), f"the page names {name}, which does not exist"
            found = getattr(found, part)


def test_every_option_of_the_paper_to_code_page_exists() -> None:
    from ocra.presets import preset

    options = re.findall(r"`((?:loss|model)\.[a-z_]+)`", PAPER_TO_CODE.read_text())
    assert "loss.normalise_scores" in options and "model.rectify_writes" in options
    for option in options:
        part, name = option.split(".")
        if name != "py":
            assert hasattr(getattr(preset("cluttered-5"), part), name), option


@pytest.mark.parametrize(
    "name", ["multimnist-3", "multimnist-recurrent-3", "multimnist-feedforward", "svhn-12"]
)
def test_the_page_gives_the_numbers_of_parameters(name: str) -> None:
    with torch.device("meta"):
        assert f"{OCRA(PAPER[name]).parameter_count:,}" in PAPER_TO_CODE.read_text()


def test_the_page_gives_the_weights_of_reconstruction() -> None:
    from ocra.presets import preset

    rows = re.findall(
        r"^\| ([a-z]+-\d+)[a-z ]* \| (\d+) \| (.+) \|$", PAPER_TO_CODE.read_text(), re.MULTILINE
    )
    assert [name for name, *_ in rows] == [
        "multimnist-3",
        "multimnist-10",
        "cluttered-5",
        "cluttered-7",
        "svhn-12",
    ]
    for name, papers, ours in rows:
        loss, end = preset(name).loss, preset(name).training.reconstruction_end
        assert float(papers) == preset(name, "paper").loss.reconstruction_weight
        weight = f"{loss.reconstruction_weight:g}"
        assert ours == (weight if end == 1 else f"{weight}, falling to {loss.reconstruction_weight * end:g}")


def test_the_examples_of_the_interventions_page_run() -> None:
    page = (ROOT / "docs" / "interventions.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) >= 4
    exec("\n".join(examples), {"__name__": "examples"})


def test_the_citation_names_the_version_of_the_package() -> None:
    pattern = re.compile(r'^version\s*[:=]\s*"?([0-9.]+)"?$', re.MULTILINE)
    cited, packaged = ((ROOT / name).read_text() for name in ("CITATION.cff", "pyproject.toml"))
    assert pattern.findall(cited) == pattern.findall(packaged)
