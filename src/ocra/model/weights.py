"""Weights on disk: `config.json` and `model.safetensors` in one folder, the layout of the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from ocra.config import ModelConfig
from ocra.errors import OcraError, UsageError
from ocra.files import read_json, write_bytes_atomically, write_text_atomically
from ocra.model.ocra import OCRA

SHIPPED = Path(__file__).parent.parent / "pretrained"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
STORAGE = {"float32": torch.float32, "float16": torch.float16}


def save(
    model: OCRA, folder: str | Path, storage: Literal["float32", "float16"] = "float32", /, **metadata: object
) -> None:
    """Write a model's weights and config into a folder; metadata (JSON values) goes into the config beside it."""
    if storage not in STORAGE:
        raise UsageError(f"storage must be {' or '.join(STORAGE)}, not {storage!r}.")
    if "model" in metadata:
        raise UsageError("'model' is where the network itself is described; give that metadata another name.")
    folder = Path(folder)
    tensors = {
        name: value.detach().to("cpu", STORAGE[storage]).contiguous()
        for name, value in model.state_dict().items()
    }
    _check_finite(tensors, f"The model, stored as {storage},")
    try:
        config = json.dumps(
            {"model": dataclasses.asdict(model.config), **metadata}, indent=2, ensure_ascii=False
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"The metadata of a model must be JSON values: {error}.") from None
    try:
        write_bytes_atomically(folder / WEIGHTS, to_bytes(tensors, metadata={"format": "pt"}))
        write_text_atomically(folder / CONFIG, config + "\n")
    except OSError as error:
        raise OcraError(f"The weights could not be written to {folder}: {error.strerror or error}.") from None


def load(name: str | Path) -> OCRA:
    """The model of a shipped name, of a folder written by `save`, or of a hub name 'user/repository'."""
    return load_with_metadata(name)[0]


def load_with_metadata(name: str | Path) -> tuple[OCRA, dict[str, Any]]:
    """The same model, and all that its config says besides the network (task, class names, figures…)."""
    folder = find(name)
    config = _read_config(folder / CONFIG)
    try:
        model = OCRA(ModelConfig.from_dict(config.pop("model")))
    except OcraError as error:
        raise OcraError(f"{folder / CONFIG} describes no model that can be made. {error}") from None
    tensors = _read_weights(folder / WEIGHTS)
    _check_fit(model.state_dict(), tensors, folder)
    _check_finite(tensors, str(folder / WEIGHTS))
    model.load_state_dict({key: value.float() for key, value in tensors.items()})
    model.metadata = config
    return model.eval(), config


def read_metadata(name: str | Path) -> dict[str, Any]:
    """All that the config of these weights says, without loading them."""
    return _read_config(find(name) / CONFIG)


def stored_as(folder: str | Path) -> str:
    """How the numbers of these weights are stored: float16 or float32."""
    return str(next(iter(_read_weights(Path(folder) / WEIGHTS).values())).dtype).removeprefix("torch.")


def shipped() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def find(name: str | Path) -> Path:
    """The folder of these weights: shipped ones first, then a folder on disk (of a run: its best), then the hub."""
    if str(name) in shipped():
        return SHIPPED / str(name)
    folder = Path(name).expanduser()
    if (folder / "weights" / "best" / CONFIG).is_file():
        return folder / "weights" / "best"
    if (folder / CONFIG).is_file():
        return folder
    if folder.exists():
        raise OcraError(f"{folder} holds no weights: it needs the files {CONFIG} and {WEIGHTS}.")
    parts = str(name).split("/")
    if len(parts) == 2 and all(parts) and not str(name).startswith((".", "~")):
        return _from_hub(str(name))
    known = ", ".join(shipped()) or "none yet"
    raise OcraError(f"There are no weights '{name}': neither a folder nor a shipped name (shipped: {known}).")


def _from_hub(name: str) -> Path:
    """Download the two files of a repository on the Hugging Face hub, or take them from its cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise OcraError(
            f"There is no folder '{name}'. To fetch it from the Hugging Face hub, run: pip install 'ocra-vision[hub]'."
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:  # the hub's own errors share no base class
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OcraError(
            f"'{name}' is no folder here and could not be fetched from the hub: {reason}"
        ) from None


def _read_config(path: Path) -> dict[str, Any]:
    """The parsed config; it has to hold a model."""
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise OcraError(
            f"{path} describes no model: the key 'model' is missing. Was it written by this program?"
        )
    return config


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise OcraError(f"{path} is missing: a folder of weights needs {CONFIG} and {WEIGHTS}.") from None
    except (OSError, SafetensorError) as error:
        raise OcraError(
            f"{path} is broken or no safetensors file ({error}); fetch or write it again."
        ) from None


def _check_finite(tensors: dict[str, Tensor], where: str) -> None:
    """Refuse weights that can give no answer."""
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise OcraError(f"{where} has a '{name}' that is not finite: these weights can give no answer.")


def _check_fit(wanted: dict[str, Tensor], given: dict[str, Tensor], folder: Path) -> None:
    """Refuse weights that do not belong to the config beside them."""
    for name, value in wanted.items():
        if name not in given:
            raise OcraError(f"{folder / WEIGHTS} lacks the tensor '{name}' that {CONFIG} asks for.")
        if given[name].shape != value.shape:
            shapes = f"{list(given[name].shape)} where {CONFIG} asks for {list(value.shape)}"
            raise OcraError(f"{folder / WEIGHTS} has a '{name}' of shape {shapes}.")
    surplus = sorted(set(given) - set(wanted))
    if surplus:
        raise OcraError(f"{folder / WEIGHTS} has a tensor '{surplus[0]}' that {CONFIG} does not know.")
