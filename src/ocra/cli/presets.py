"""ocra presets, import-authors and export: the experiments of the paper, weights from its authors, weights to go."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import arg

from ocra.config import ModelConfig, NetworkConfig
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment
from ocra.files import printable
from ocra.images.reading import endings
from ocra.model import weights
from ocra.presets import OWN_PRESETS, PRESETS
from ocra.presets import preset as find_preset


def presets(
    name: str = "",
    /,
    recipe: Literal["default", "paper"] = "default",
    as_json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """List the experiments of the paper and the baselines, with parameters and their papers' errors, or show one whole.

    Example: ocra presets multimnist-10

    Args:
        name: Show this one whole.
        recipe: With our settings of training, or the paper's.
        as_json: Print JSON.
    """
    listed = [*PRESETS, *(OWN_PRESETS if recipe == "default" else ())]
    chosen = {each: find_preset(each, recipe) for each in ([name] if name else listed)}
    counts = {each: parameter_count(experiment.model) for each, experiment in chosen.items()}
    if as_json:
        shown = [{"parameters": counts[each], **experiment.to_dict()} for each, experiment in chosen.items()]
        print(json.dumps(shown[0] if name else shown, indent=2))
    elif name:
        _show(chosen[name], counts[name])
    else:
        print(f"{'preset':26}{'parameters':>10}  {'paper’s error %':17}what it is")
        for each, experiment in chosen.items():
            print(f"{each:26}{counts[each]:10,}  {experiment.paper_error:17}{experiment.description}")


def parameter_count(config: NetworkConfig) -> int:
    """Trainable parameters of a network, without making them."""
    with torch.device("meta"):
        return config.network(config).parameter_count


def _show(experiment: Experiment, parameters: int) -> None:
    """All options of one experiment, as they are written on the command line of `ocra train`."""
    print(f"{experiment.name}: {experiment.description}.")
    error = f"; exact error in the paper: {experiment.paper_error} %" if experiment.paper_error else ""
    print(f"{parameters:,} parameters{error}.")
    print(f"seed = {experiment.seed}\ninit = {experiment.init}")
    parts = {name: getattr(experiment, name) for name in ("model", "task", "loss", "run")}
    parts |= {f"stages.{number}": stage for number, stage in enumerate(experiment.stages)}
    for name, part in parts.items():
        print()
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            print(f"{name}.{field.name} = {' '.join(map(str, value)) if isinstance(value, tuple) else value}")


def import_authors(checkpoint: Path, /, preset: str, out: Path) -> None:
    """Turn a PyTorch state dict published by the paper's authors into weights of ours.

    Example: ocra import-authors CHECKPOINT.pt --preset multimnist-10 --out authors-10

    Args:
        checkpoint: The authors' file. It is read as plain tensors; no program in it is run.
        preset: The experiment the checkpoint belongs to; 'ocra presets' lists them.
        out: Folder for the weights.
    """
    experiment = find_preset(preset)
    if not isinstance(experiment.model, ModelConfig):
        raise UsageError(f"The authors publish weights of OCRA; {preset} is another network.")
    if (out / "config.json").exists():
        raise OcraError(f"{out} holds weights already; choose another --out.")
    model = weights.import_authors(checkpoint, experiment.model)
    about = {
        "name": experiment.name,
        "title": experiment.description,
        "task": experiment.task.to_dict(),
        "masked": experiment.loss.reconstruction_mask != "none",
        "source": f"imported from the authors' checkpoint {checkpoint.name}",
    }
    model.save_pretrained(out, weights.ModelInfo.from_dict(about, model.config))
    print(f"{out}: {model.parameter_count:,} parameters of {preset}; try: ocra evaluate {out}")


def export(
    weights: str,
    /,
    *,
    onnx: Path | None = None,
    torch: Path | None = None,
    glimpses: int | None = None,
) -> None:
    """Write a network as one file that answers without this package, for a batch of any size.

    The file knows its class names, how its answer is made, how an image is prepared for it, and its licence; it is run
    and compared with the network before it takes its place. ONNX needs pip install 'ocra-vision[onnx]'.

    Example: ocra export multimnist-3 --onnx model.onnx

    Args:
        weights: Name of shipped weights, a folder of weights, the folder of a run, or user/name on the hub.
        onnx: File for ONNX runtimes, in Python, C++, C#, Java or a browser (.onnx).
        torch: File for torch.export.load (.pt2).
        glimpses: Number of glimpses that the file makes. Default: the network's own.
    """
    from ocra.exporting import export as write

    wanted = [(path, ending) for path, ending in ((onnx, ".onnx"), (torch, ".pt2")) if path is not None]
    if not wanted:
        raise UsageError("Say what to write: --onnx model.onnx, --torch model.pt2, or both.")
    for path, ending in wanted:
        endings(path, (ending,))
    for path, _ in wanted:
        made = write(weights, path, glimpses=glimpses)
        size = path.stat().st_size / 1e6
        print(printable(f"{path}: {size:.1f} MB, scores within {made.difference:.0e} of the network's,"))
        print(f"whose own are within {made.rounding:.0e} of those in double precision.")
        print(f"It gives {', '.join(made.outputs)}.")
