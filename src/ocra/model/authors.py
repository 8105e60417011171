"""Import of the checkpoints that the paper's authors publish: PyTorch state dicts with names of their own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocra.config import ModelConfig
from ocra.errors import OcraError
from ocra.model.ocra import OCRA


def authors_names(config: ModelConfig) -> dict[str, str]:
    """Our name of each parameter of a model → the authors' name of it."""
    layers = {
        "convolution1": "bb_conv1",
        "convolution2": "bb_conv2",
        "encoder": "encoder",
        "primary": "z_linear",
        "object_capsules": "objectcaps_layer",
        "dense": "fc_linear",
        "classify": "output_linear",
        "decoder": "decoder",
        "write_patch": "write_linear",
        "read_attention": "read_attention_linear",
        "write_attention": "write_attention_linear",
        **{f"readouts.{k}": f"digits_readout_{k}" for k in range(config.readout_digits)},
    }
    with torch.device("meta"):
        names = OCRA(config).state_dict()
    return {name: _renamed(name, layers) for name in names}


def _renamed(name: str, layers: dict[str, str]) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{layers[layer]}.{kind}"


def read_authors_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a checkpoint file; nothing in the file is executed."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise OcraError(f"There is no file {path}.") from None
    except pickle.UnpicklingError:
        raise OcraError(
            f"{path} holds more than weights, or is no PyTorch file, and is not opened: it could run a program. "
            "Save its state_dict() alone."
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = f"{type(error).__name__} {(str(error).splitlines() or [''])[0]}".strip().rstrip(".")
        raise OcraError(f"{path} is no file that torch.save wrote, or is broken ({reason}).") from None
    for key in ("state_dict", "model_state_dict", "model"):  # some programs wrap it
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise OcraError(f"{path} holds no state dict: a dictionary of names and tensors.")
    # Models that were trained on several GPUs have this prefix.
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def import_authors(path: str | Path, config: ModelConfig) -> OCRA:
    """A model of ours with the authors' weights; what does not fit is named, all of it."""
    given = read_authors_checkpoint(path)
    model = OCRA(config)
    ours = model.state_dict()
    faults, weights = [], {}
    for name, theirs in authors_names(config).items():
        if theirs not in given:
            faults.append(f"{theirs} is missing")
            continue
        value = given.pop(theirs).float()
        if value.shape != ours[name].shape:
            faults.append(f"{theirs} is {list(value.shape)}, not {list(ours[name].shape)}")
        elif not value.isfinite().all():
            faults.append(f"{theirs} holds numbers that are not finite")
        weights[name] = value
    faults += [f"{name} is not part of this preset" for name in sorted(given)]
    if faults:
        raise OcraError(f"{path} does not fit the preset: {'; '.join(faults)}. Is it for another preset?")
    model.load_state_dict(weights)
    return model.eval()
