"""Networks to take away: as one file, ONNX or a PyTorch program, that answers without this package, or on the hub.

A file takes images [batch, channels, height, width] for any batch, makes a fixed number of glimpses, and gives the
tensors of `OUTPUTS` by name. What its answers mean travels in it, see `describe`.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocra.config import NetworkConfig
from ocra.data import ClutteredMNIST, TaskConfig, make_task, task_of_model
from ocra.data.task import NO_DIGIT, DataSource
from ocra.errors import OcraError, UsageError
from ocra.files import write_bytes_atomically
from ocra.images.reading import endings
from ocra.model.deciding import predicted_counts
from ocra.model.network import Network
from ocra.model.ocra import how_often
from ocra.model.trace import Windows
from ocra.model.weights import (
    CARD,
    CONFIG,
    WEIGHTS,
    ModelInfo,
    content_hash,
    load,
    push,
    read_config,
    resolve,
)

FORMATS = (".onnx", ".pt2")
ABOUT = "about.json"
"""The file within a PyTorch program that says what `describe` says."""
OUTPUTS = {
    "scores": "[batch, classes]: of every class, summed over the glimpses",
    "counts": "[batch, classes]: the answer, how often each class is said to occur",
    "digits": f"[batch, digits]: the answer, digit by digit from the left; {NO_DIGIT} stands for none",
    "readout": "[batch, digits, readout classes]: what the digits are the largest of",
    "lengths": "[batch, glimpses, capsules]: length of each object capsule at each glimpse",
    "winners": "[batch, glimpses]: the capsule that was sent to the decoder",
    "windows": "[batch, glimpses, 4]: where each glimpse was read: x and y of the middle, width between the outermost "
    "filters, sigma; pixels, from 0 at the centre of the top left one",
    "write_windows": "[batch, glimpses, 4]: where each glimpse wrote, likewise",
    "glimpses": "[batch, glimpses, channels, rows, columns]: what each glimpse saw",
    "canvas": "[batch, channels, height, width]: the reconstruction",
    "canvases": "[batch, glimpses, channels, height, width]: the reconstruction after each glimpse, not clipped",
}
"""What a file may give, by name; a network gives those that it has."""
LARGE = 1024
"""Numbers from which on a constant is worth storing in 16 bits."""
TOLERANCE = 1e-5
"""How far the scores of a file may be from the network's."""
ROUNDINGS = 10
"""So many times the network's own error of rounding may be between them instead, where that is more."""


@dataclass(frozen=True)
class Export:
    """A file that was written."""

    path: Path
    outputs: dict[str, tuple[int, ...]]
    """The shape of each output for one image."""
    difference: float
    """The largest difference of its scores from the network's, on digits drawn from fonts."""
    rounding: float
    """That of the network's own scores from those in double precision, on the same images."""


def export(
    model: Network | str | os.PathLike[str], out: str | os.PathLike[str], *, glimpses: int | None = None
) -> Export:
    """Write a network as one file: model.onnx for ONNX runtimes, model.pt2 for `torch.export.load`.

    model: a network, or the name or folder of its weights. glimpses: another number than the network's own. The file
    is run and compared with the network before it takes its place.
    """
    kind = endings(out, FORMATS)
    if kind == ".onnx":
        _need_onnx()
    network = model if isinstance(model, Network) else load(os.fspath(model))
    if glimpses is not None and how_often("glimpses", glimpses) != 1 and not network.config.recurrent:
        raise UsageError(f"This network looks once; leave glimpses out instead of asking for {glimpses}.")
    hash = "" if isinstance(model, Network) else content_hash(resolve(os.fspath(model)))
    portable = Portable(network, glimpses)
    about = {**describe(network, portable), "content_hash": hash}
    with _in_a_sentence(type(network).__name__):
        content = (_onnx if kind == ".onnx" else _torch_program)(portable, about)
    images = sample_images(network.config.image_shape, 3)
    run = _run_onnx if kind == ".onnx" else _run_torch_program
    differences = [
        float((run(content, images[:number])["scores"] - portable(images[:number])["scores"]).abs().max())
        for number in (1, 3)
    ]
    exact = Portable(network, glimpses).double()(images.double())["scores"]
    rounding = float((exact - portable(images)["scores"]).abs().max())
    if not max(differences) <= max(TOLERANCE, ROUNDINGS * rounding):
        raise OcraError(
            f"The exported file answers otherwise than the network (scores differ by {max(differences):.1g}) and was "
            "not written. Please report it, with the versions of torch and onnxscript."
        )
    try:
        write_bytes_atomically(out, content)
    except OSError as error:
        raise OcraError(f"{out} could not be written: {error.strerror or error}.") from None
    shapes = {name: tuple(value.shape[1:]) for name, value in portable(images[:1]).items()}
    return Export(Path(out), shapes, max(differences), rounding)


class Portable(nn.Module):
    """A network as a function of images alone that gives tensors by name; a copy, on the CPU, ready to answer."""

    def __init__(self, network: Network, glimpses: int | None = None) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu().float().eval().requires_grad_(False)
        self.options = {} if glimpses is None or not network.config.recurrent else {"glimpses": glimpses}
        found = self._outputs(torch.rand(1, *network.config.image_shape))
        # A network that reconstructs nothing has a canvas that is not a number anywhere.
        self.names = [name for name, value in found.items() if not value.isnan().all()]

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Those of `OUTPUTS` that the network has, for images [batch, channels, height, width]."""
        found = self._outputs(images)
        return {name: found[name] for name in self.names}

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        config, answer = self.network.config, self.network.info.answer
        with self.network.as_used():
            trace = self.network(images, record=True, **self.options)
        found = {
            "scores": trace.scores,
            "counts": predicted_counts(trace.scores, answer).long() if trace.readout is None else None,
            "digits": None if trace.readout is None else trace.readout.argmax(2),
            "readout": trace.readout,
            "lengths": trace.capsule_lengths,
            "winners": trace.winners,
            "windows": _as_numbers(trace.read_windows, config.glimpse_size),
            "write_windows": _as_numbers(trace.write_windows, config.write_size),
            "glimpses": trace.glimpses,
            "canvas": trace.canvas,
            "canvases": trace.canvases,
        }
        return {name: value for name, value in found.items() if value is not None}


def _as_numbers(windows: Windows | None, size: int) -> Tensor | None:
    """x, y, width and sigma of each window: [batch, glimpses, 4]."""
    if windows is None:
        return None
    return torch.cat([windows.center, windows.width(size)[..., None], windows.sigma[..., None]], 2)


def describe(network: Network, portable: Portable) -> dict[str, Any]:
    """What somebody who has only the file must know, as JSON values."""
    config, info = network.config, network.info
    task = _task(info, config)
    source = DataSource() if task is None else task.source
    preprocessing = info.preprocessing or (None if task is None else task.task.preprocessing)
    try:
        made_by = f"ocra-vision {version('ocra-vision')}"
    except PackageNotFoundError:
        made_by = "ocra-vision"
    return {
        "name": info.name,
        "title": info.title,
        "task": info.task_name,
        "class_names": list(info.class_names),
        "capsule_names": list(info.capsule_names(config)),
        "answer": asdict(info.answer),
        "preprocessing": None if preprocessing is None else asdict(preprocessing),
        "image_shape": list(config.image_shape),
        "image_values": "float32 from 0 to 1",
        "glimpses": portable.options.get("glimpses", config.glimpses),
        "outputs": {name: OUTPUTS[name] for name in portable.names},
        "licence": source.licence,
        "terms": source.terms,
        "made_by": made_by,
    }


def _task(info: ModelInfo, config: NetworkConfig) -> TaskConfig | None:
    """What a network was trained on; None for a task of somebody else's module, which is not imported for weights."""
    try:
        return task_of_model(info.task, config)
    except OcraError:
        return None


def push_to_hub(model: Network | str | os.PathLike[str], name: str, *, private: bool = False) -> str:
    """Put weights into the repository 'user/name' on the Hugging Face hub, with a card; returns its address.

    model: a network, or the name or folder of its weights, which go there as they are; a README.md beside them is their
    card. `OCRA.from_pretrained("user/name")` loads them again.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UsageError(f"A repository on the hub is called user/name, not '{name}'.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if isinstance(model, Network):
            model.save_pretrained(folder)
        else:
            for path in map(resolve(os.fspath(model)).joinpath, (CONFIG, WEIGHTS, CARD)):
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)
        if not (folder / CARD).is_file():
            config, info = read_config(folder)
            (folder / CARD).write_text(model_card(name, info, _task(info, config)), "utf-8")
        return push(folder, name, private)


def model_card(name: str, info: ModelInfo, task: TaskConfig | None) -> str:
    """The card of weights that were not released with the package, for the repository 'user/name'."""
    source = DataSource() if task is None else task.source
    classes, objects = ", ".join(info.class_names), info.answer.objects
    answer = "as many objects as its scores say" if objects is None else f"always {objects} in an image"
    data = info.task_name if task is None else f"{task.about} {source.splits}"
    test = info.record.get("test")
    return f"""{card_front(name, info.title, task, test if isinstance(test, dict) else None)}

# {info.name or name}

{info.title or "A network that recognises objects"}. It names {answer}, of the classes {classes}.

```python
import ocra

model = ocra.OCRA.from_pretrained("{name}")
print(ocra.predict(model, "image.png"))
```

## Data

{data.strip() or "Not recorded."}

## Licence

{source.terms}
"""


def card_front(name: str, title: str, task: TaskConfig | None, test: Mapping[str, Any] | None) -> str:
    """The keys that the hub reads at the top of a card; JSON values are YAML.

    test: what was measured, {"error": the exact error, "n": on how many images}.
    """
    source = DataSource() if task is None else task.source
    keys: dict[str, Any] = {
        "library_name": "ocra",
        "pipeline_tag": "image-classification",
        "license": source.licence,
        "tags": ["ocra", "capsules", "attention", "glimpses"],
    }
    if source.on_hub:
        keys["datasets"] = list(source.on_hub)
    if task is not None and test and isinstance(test.get("error"), int | float):
        exact = {"type": "exact_match", "name": "Exact match", "value": round(1 - test["error"], 4)}
        images = {
            "name": task.task.title or task.name,
            "type": (*source.on_hub, task.name)[0],
            "split": "test",
        }
        about = {"type": "image-classification", "name": title or "Recognising objects"}
        keys["metrics"] = ["exact_match"]
        keys["model-index"] = [
            {"name": name, "results": [{"task": about, "dataset": images, "metrics": [exact]}]}
        ]
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())
    return "\n".join(["---", *lines, "---"])


def sample_images(image_shape: tuple[int, int, int], number: int) -> Tensor:
    """Digits drawn from fonts among clutter, as images of any shape: float32 [number, channels, height, width]."""
    channels, height, width = image_shape
    drawn = make_task(ClutteredMNIST.Config(digits="glyphs"), "test").batch(range(number)).images
    return F.interpolate(drawn, (height, width), mode="bilinear").expand(-1, channels, -1, -1).contiguous()


def _program(portable: Portable) -> torch.export.ExportedProgram:
    """The network as a graph of PyTorch's own operators, for any batch."""
    images = torch.rand(2, *portable.network.config.image_shape)
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad():
        program = torch.export.export(portable, (images,), dynamic_shapes={"images": {0: batch}})
    for node in program.graph.nodes:  # where in whose files each came from is nobody's concern
        node.meta.pop("stack_trace", None)
    return program


def _torch_program(portable: Portable, about: dict[str, Any]) -> bytes:
    """The bytes of a .pt2 file."""
    content = io.BytesIO()
    torch.export.save(_program(portable), content, extra_files={ABOUT: json.dumps(about, ensure_ascii=False)})
    return content.getvalue()


def _run_torch_program(content: bytes, images: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.export.load(io.BytesIO(content)).module()(images)
    return found


def _onnx(portable: Portable, about: dict[str, Any]) -> bytes:
    """The bytes of a .onnx file."""
    made = torch.onnx.export(
        _program(portable), dynamo=True, verbose=False, input_names=["images"], output_names=portable.names
    )
    assert made is not None
    model = made.model_proto
    del model.graph.value_info[:], model.graph.metadata_props[:], model.functions[:]
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        part.ClearField("metadata_props")
        part.doc_string = ""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    _store_in_16_bits(model.graph)
    model.producer_name, model.doc_string = "ocra", about["title"]
    del model.metadata_props[:]
    for name, value in about.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        model.metadata_props.add(key=name, value=text)
    content: bytes = model.SerializeToString()
    return content


def _store_in_16_bits(graph: Any) -> None:
    """Halve the large constants of an ONNX graph that lose nothing by it; runtimes widen them once, when they load.

    Shipped weights are stored so in the package as well.
    """
    from onnx import TensorProto, helper, numpy_helper

    for constant in graph.initializer:
        if constant.data_type != TensorProto.FLOAT or int(np.prod(constant.dims)) < LARGE:
            continue
        values = numpy_helper.to_array(constant)
        with np.errstate(over="ignore"):
            short = values.astype(np.float16)
        if not np.array_equal(short.astype(np.float32), values):
            continue
        name = constant.name
        constant.CopyFrom(numpy_helper.from_array(short, f"{name}_16"))
        graph.node.insert(0, helper.make_node("Cast", [f"{name}_16"], [name], to=TensorProto.FLOAT))


def _run_onnx(content: bytes, images: Tensor) -> dict[str, Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {"images": images.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def _need_onnx() -> None:
    """Refuse before the work is done."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise OcraError(f"ONNX files need {' and '.join(missing)}: pip install 'ocra-vision[onnx]'.")


@contextmanager
def _in_a_sentence(network: str) -> Iterator[None]:
    """Within it PyTorch's exporters are quiet, and what they cannot do is said in a sentence."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (RuntimeError, ValueError, NotImplementedError) as error:  # of which theirs are subclasses
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OcraError(f"PyTorch cannot export a network of the kind {network}: {reason}") from error
    finally:
        logger.setLevel(level)
