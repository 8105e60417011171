"""Import of the authors' checkpoints."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ocra.cli.main import main
from ocra.errors import OcraError
from ocra.model.ocra import OCRA
from ocra.model.weights import authors_name, import_authors
from ocra.presets import preset


def authors_checkpoint(name: str) -> dict[str, Tensor]:
    """A state dict with the names and shapes that the authors' program gives a preset, made of its layers."""
    config = preset(name).model
    latent = config.object_capsules * 16
    layers: dict[str, nn.Module] = {
        "bb_conv1": nn.Conv2d(1, config.filters, 5),
        "bb_conv2": nn.Conv2d(config.filters, config.filters, 3),
        "encoder": nn.LSTMCell(config.features, 512),
        "z_linear": nn.Linear(512, 320),
        "decoder": nn.LSTMCell(latent, 512),
        "write_linear": nn.Linear(512, 324),
        "read_attention_linear": nn.Linear(512, 4),
        "write_attention_linear": nn.Linear(512, 4),
        **{f"digits_readout_{k}": nn.Linear(28, 11) for k in range(config.readout_digits)},
    }
    state = {f"{layer}.{key}": value for layer in layers for key, value in layers[layer].state_dict().items()}
    if config.capsules:
        state["objectcaps_layer.weight"] = torch.randn(config.object_capsules, 40, 16, 8)
    else:
        dense = {
            "fc_linear": nn.Linear(320, latent),
            "output_linear": nn.Linear(latent, config.object_capsules),
        }
        state |= {
            f"{layer}.{key}": value for layer in dense for key, value in dense[layer].state_dict().items()
        }
    return state


@pytest.mark.parametrize(
    "name", ["multimnist-3", "multimnist-10", "cluttered-5", "svhn-12", "multimnist-3-no-capsules"]
)
def test_every_tensor_of_a_checkpoint_finds_its_place(name: str, tmp_path: Path) -> None:
    state = authors_checkpoint(name)
    torch.save(state, tmp_path / "authors.pt")
    model = import_authors(tmp_path / "authors.pt", preset(name).model)
    assert sorted(map(authors_name, model.state_dict())) == sorted(state)
    assert all(torch.equal(value, state[authors_name(key)]) for key, value in model.state_dict().items())


def test_the_command_writes_weights_that_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": authors_checkpoint("multimnist-10")}, tmp_path / "authors.pt")
    words = ["import-authors", str(tmp_path / "authors.pt"), "--preset", "multimnist-10"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    model = OCRA.from_pretrained(tmp_path / "out")
    assert model.config.glimpses == 10 and model.info.task_name == "multimnist"
    assert "3,877,356 parameters" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    assert "holds weights already" in capsys.readouterr().err


def test_everything_that_does_not_fit_is_said(tmp_path: Path) -> None:
    state = authors_checkpoint("multimnist-3")
    del state["z_linear.bias"]
    state["encoder.weight_ih"] = torch.zeros(3, 3)
    state["decoder.bias_ih"][0] = torch.nan
    state["lost"] = torch.zeros(1)
    torch.save(state, tmp_path / "authors.pt")
    with pytest.raises(OcraError) as refusal:
        import_authors(tmp_path / "authors.pt", preset("multimnist-3").model)
    for part in (
        "z_linear.bias is missing",
        "encoder.weight_ih is [3, 3], not [2048, 512]",
        "decoder.bias_ih holds numbers that are not finite",
        "lost is not part of the network",
    ):
        assert part in str(refusal.value)


def test_a_file_that_could_run_a_program_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    for file in ("evil.pt", "evil.pkl"):
        with pytest.raises(OcraError, match="could run a program"):
            import_authors(tmp_path / file, preset("multimnist-3").model)
    assert not (tmp_path / "harm").exists()


def test_files_that_are_no_checkpoints_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    for file in ("text.pt", "empty.pt", "list.pt", "missing.pt"):
        with pytest.raises(OcraError, match=file):
            import_authors(tmp_path / file, preset("multimnist-3").model)
