"""An exported file answers as the network does, for any batch, and says by itself what its answers mean."""

from __future__ import annotations

import json
import runpy
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_weights

import ocra
from ocra import exporting
from ocra.baselines import RAM, CapsNet, CapsNetConfig, DRAMConfig, RAMConfig
from ocra.baselines.cnn import SmallCNN, SmallCNNConfig
from ocra.baselines.ram import DRAM
from ocra.cli.main import main
from ocra.data import MultiMNIST
from ocra.errors import OcraError, UsageError
from ocra.exporting import Portable, sample_images
from ocra.model.network import Network

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.timeout(900)  # PyTorch's exporters take ten seconds and more on a core of their own
EXAMPLE = Path(__file__).parent.parent / "examples" / "onnx_numpy.py"
KINDS: dict[str, Callable[[], Network]] = {
    "overlapping digits": lambda: tiny_model(glimpses=2),
    "digits among clutter": lambda: tiny_model(glimpses=2, height=40, width=48, background_capsules=1),
    "house numbers": lambda: tiny_model(
        glimpses=2, channels=3, classes=14, readout_digits=2, readout_skip=0, readout_span=1
    ),
    "without attention": lambda: tiny_model(glimpses=2, attention=False, height=24, width=24),
    "a baseline": lambda: SmallCNN(SmallCNNConfig(widths=(4, 6, 8), most=2)).eval(),
    "CapsNet": lambda: CapsNet(
        CapsNetConfig(filters=8, primary_channels=4, capsule_size=8, decoder=(16, 16))
    ).eval(),
    "RAM": lambda: RAM(RAMConfig(height=40, width=48, glimpses=2, scales=2, hidden=16)).eval(),
    "DRAM": lambda: DRAM(
        DRAMConfig(
            height=40, width=48, glimpses=2, scales=2, hidden=16, filters=(4, 4, 8), glimpse_features=16
        )
    ).eval(),
}


def outputs_of(session: onnxruntime.InferenceSession, images: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {"images": images.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_an_onnx_file_answers_as_the_network_for_any_batch(kind: str, tmp_path: Path) -> None:
    network = KINDS[kind]()
    made = ocra.export(network, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    torch.manual_seed(1)
    shape = network.config.image_shape
    for images in (
        torch.rand(1, *shape),
        torch.rand(5, *shape),
        sample_images(shape, 3),
        torch.zeros(2, *shape),
    ):
        assert_same(outputs_of(session, images), Portable(network)(images))
    assert {output.shape[0] for output in session.get_outputs()} == {"batch"}
    assert made.difference <= 1e-5 and made.rounding <= 1e-5


def test_a_file_that_answers_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = exporting._run_torch_program
    for off, refused in ((1e-6, False), (1e-3, True)):
        monkeypatch.setattr(
            exporting,
            "_run_torch_program",
            lambda content, images, off=off: {"scores": run(content, images)["scores"] + off},
        )
        if refused:
            with pytest.raises(OcraError, match="answers otherwise than the network"):
                ocra.export(tiny_model(glimpses=1), tmp_path / "refused.pt2")
        else:
            ocra.export(tiny_model(glimpses=1), tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.slow
def test_the_shipped_network_as_an_onnx_file_recognises_digits_as_it_does(tmp_path: Path) -> None:
    made = ocra.export("multimnist-3", tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    images = MultiMNIST(split="test", digits="glyphs").batch(range(20)).images
    network = ocra.OCRA.from_pretrained("multimnist-3")
    assert_same(outputs_of(session, images), Portable(network)(images))
    assert made.path.stat().st_size < 9e6  # its weights lose nothing in 16 bits


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights and with both files that `ocra export` makes of them."""
    folder = tmp_path_factory.mktemp("exported")
    weights = str(tiny_weights(folder / "weights", glimpses=2))
    words = ["--onnx", str(folder / "model.onnx"), "--torch", str(folder / "model.pt2"), "--glimpses", "1"]
    assert main(["export", weights, *words]) == 0
    return folder


def test_a_pytorch_program_holds_pytorch_s_own_operators_only(files: Path) -> None:
    program = torch.export.load(files / "model.pt2")
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {name.partition(".")[0] for name in called} <= {"aten", "_operator", "<built-in function getitem>"}
    network, images = ocra.OCRA.from_pretrained(files / "weights"), torch.rand(3, 1, 36, 36)
    assert_same(program.module()(images), Portable(network, 1)(images))


def test_both_files_say_what_their_answers_mean(files: Path) -> None:
    session = onnxruntime.InferenceSession(files / "model.onnx", providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map
    extra = {"about.json": ""}
    torch.export.load(files / "model.pt2", extra_files=extra)
    also = json.loads(extra["about.json"])
    assert json.loads(told["class_names"]) == also["class_names"] == list("0123456789")
    assert json.loads(told["answer"]) == also["answer"] == {"objects": 2, "repeats": False}
    assert json.loads(told["preprocessing"])["ink"] == also["preprocessing"]["ink"] == "handwriting"
    assert told["licence"] == also["licence"] == "mit" and len(told["content_hash"]) == 12
    assert json.loads(told["glimpses"]) == also["glimpses"] == 1
    assert list(json.loads(told["outputs"])) == [output.name for output in session.get_outputs()]


def test_no_file_tells_where_it_was_made(files: Path) -> None:
    place = str(Path(ocra.__file__).parent).encode()
    assert place not in (files / "model.onnx").read_bytes()
    with zipfile.ZipFile(files / "model.pt2") as program:
        assert not any(place in program.read(name) for name in program.namelist())


def test_the_example_needs_numpy_and_onnxruntime_alone(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "images.npy", sample_images((1, 36, 36), 2).numpy())
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(files / "model.onnx"), str(tmp_path / "images.npy")])
    for package in ("torch", "ocra"):
        monkeypatch.setitem(sys.modules, package, None)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("image 0: ") and said.count("a window") == 2


def test_what_cannot_be_written_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"must end in .onnx, .pt2"):
        ocra.export("multimnist-3", tmp_path / "model.h5")
    assert main(["export", "multimnist-3"]) == 2
    assert main(["export", "multimnist-3", "--onnx", "model.pt2"]) == 2
    assert "must end in .onnx" in capsys.readouterr().err
    with pytest.raises(UsageError, match="looks once"):
        ocra.export(KINDS["a baseline"](), tmp_path / "model.pt2", glimpses=3)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(OcraError, match=r"need onnxscript: pip install 'ocra-vision\[onnx\]'"):
        ocra.export("multimnist-3", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OcraError, match="could not be written"):
        ocra.export(KINDS["a baseline"](), tmp_path / "file" / "model.pt2")
