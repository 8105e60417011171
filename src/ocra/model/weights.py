"""Weights on disk, and what travels with them.

A folder of weights holds `config.json` and `model.safetensors`, the layout of the Hugging Face hub. `config.json` says
how to build the network (its key "model") and what its answers mean (`ModelInfo`). Checkpoints that the paper's
authors publish are imported here too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ocra.config import AnswerRule, Calibration, ModelConfig, NetworkConfig, Preprocessing
from ocra.errors import OcraError, UsageError
from ocra.files import read_json, write_bytes_atomically, write_text_atomically

if TYPE_CHECKING:
    from ocra.model.network import Network
    from ocra.model.ocra import OCRA

SHIPPED = Path(__file__).parent.parent / "pretrained"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
STORAGE = {"float32": torch.float32, "float16": torch.float16}
Storage = Literal["float32", "float16"]


@dataclass(frozen=True)
class ModelInfo:
    """What has to be known about a network, besides its weights, to use it and to say what its answers mean."""

    name: str = ""
    """Of the weights, such as multimnist-3."""
    task: dict[str, Any] = field(default_factory=dict)
    """What it was trained on, as saved: {"name": …, settings}; empty if that is not known."""
    title: str = ""
    """What it does, in a few words."""
    class_names: tuple[str, ...] = ()
    """One for each class."""
    answer: AnswerRule = field(default_factory=AnswerRule)
    """How its scores become an answer."""
    preprocessing: Preprocessing | None = None
    """How a user's own image becomes one of the network's; None for the way of the task."""
    calibration: Calibration | None = None
    """How sure its answers are; None if that was not found out (`ocra calibrate`)."""
    glimpses: int = 1
    """How many it was trained with."""
    masked: bool = False
    """Whether it was trained to reconstruct only what it looked at."""
    record: dict[str, Any] = field(default_factory=dict)
    """All else that was saved: experiment, images seen, validation error, versions, figures."""

    @property
    def task_name(self) -> str:
        """The name of the task; empty if it is not known."""
        return str(self.task.get("name", ""))

    def capsule_names(self, config: NetworkConfig) -> tuple[str, ...]:
        """A name for every object capsule, those of the background too."""
        number = config.background_capsules
        several = [f"background {k + 1}" for k in range(number)]
        return (*self.class_names, *(["background"] if number == 1 else several))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, the record's keys beside the others."""
        own = {**dataclasses.asdict(self), "class_names": list(self.class_names)}
        record = own.pop("record")
        if taken := {"model", *own} & record.keys():
            raise UsageError(
                f"'{min(taken)}' in config.json has a meaning of its own; call it otherwise in the record."
            )
        return {**own, **record}

    @classmethod
    def from_dict(cls, values: dict[str, Any], config: NetworkConfig) -> ModelInfo:
        """What config.json says besides the network; what it leaves open follows from the network's config.

        Files of version 0.1 have neither title, glimpses nor masked, and may have a task's bare name.
        """
        rest = dict(values)

        def take(name: str, default: Any, *kinds: type) -> Any:
            if (value := rest.pop(name, None)) is None:
                return default
            if type(value) not in kinds:
                raise _unusable(name, value)
            return value

        task = take("task", {}, dict, str)
        # Numbers; of the paper's network for house numbers, the last four classes say how short the number is.
        house_numbers = config.readout_digits and config.classes == 14
        usual = [*"0123456789", "<5", "<4", "<3", "<2"] if house_numbers else list(range(config.classes))
        names = tuple(map(str, take("class_names", usual, list, tuple)))
        if len(names) != config.classes:
            raise OcraError(
                f"The model has {config.classes} classes, but {len(names)} class names were saved with it."
            )
        preprocessing = take("preprocessing", None, dict)
        calibration = take("calibration", None, dict)
        loss = rest.get("loss") or {}  # in the files of version 0.1
        if not isinstance(loss, dict):
            raise _unusable("loss", loss)
        usual_mask = "authors" if config.background_capsules else "none"
        return cls(
            name=take("name", "", str),
            task={"name": task} if isinstance(task, str) else task,
            title=take("title", "", str),
            class_names=names,
            answer=_answer_rule(take("answer", None, dict), config),
            preprocessing=preprocessing and _saved(Preprocessing, "preprocessing", preprocessing),
            calibration=calibration and _saved(Calibration, "calibration", calibration),
            glimpses=take("glimpses", config.glimpses, int),
            masked=take("masked", loss.get("reconstruction_mask", usual_mask) != "none", bool),
            record=rest,
        )


def _unusable(name: str, value: Any) -> OcraError:
    return OcraError(f"The config.json of these weights has a '{name}' that cannot be used: {value!r}.")


def _saved(kind: type[Any], name: str, values: dict[str, Any]) -> Any:
    """A dataclass from what was saved of it."""
    try:
        return kind(**values)
    except (TypeError, OcraError):
        raise _unusable(name, values) from None


def _answer_rule(values: dict[str, Any] | None, config: NetworkConfig) -> AnswerRule:
    """The rule that was saved; else the paper's for its networks of ten digits, two that repeat among clutter only."""
    if values is None:
        digits = config.classes == 10 and not config.readout_digits
        return AnswerRule(2, repeats=config.background_capsules > 0) if digits else AnswerRule(None)
    rule = _saved(AnswerRule, "answer", {"objects": None, **values})
    most = math.inf if rule.repeats else config.classes
    countable = rule.objects is None or (type(rule.objects) is int and 1 <= rule.objects <= most)
    if not countable or not isinstance(rule.repeats, bool):
        raise _unusable("answer", values)
    return rule


def save(
    model: Network, folder: str | Path, info: ModelInfo | None = None, storage: Storage = "float32"
) -> None:
    """Write a model's weights and config into a folder.

    info: what goes into config.json; by default the model's own, without the record, which is of the weights that it
    was loaded with.
    """
    if storage not in STORAGE:
        raise UsageError(f"storage must be {' or '.join(STORAGE)}, not {storage!r}.")
    folder = Path(folder)
    tensors = {
        name: value.detach()
        .to("cpu", STORAGE[storage] if value.is_floating_point() else value.dtype)
        .contiguous()
        for name, value in model.state_dict().items()
    }
    if faults := _faults(tensors, tensors):  # numbers that are not finite, or not any more in 16 bits
        raise OcraError(f"The model, stored as {storage}, can give no answer: {faults[0]}.")
    told = (info or dataclasses.replace(model.info, record={})).to_dict()
    ModelInfo.from_dict(told, model.config)  # refuses what could not be loaded again
    try:
        text = json.dumps({"model": model.config.to_dict(), **told}, indent=2, ensure_ascii=False)
        write_bytes_atomically(folder / WEIGHTS, to_bytes(tensors, metadata={"format": "pt"}))
        write_text_atomically(folder / CONFIG, text + "\n")
    except (TypeError, ValueError) as error:
        raise UsageError(f"What is saved with a model must be JSON values: {error}.") from None
    except OSError as error:
        raise OcraError(f"The weights could not be written to {folder}: {error.strerror or error}.") from None


def save_info(folder: str | Path, info: ModelInfo) -> None:
    """Write another config.json beside the weights of a folder, which stay as they are."""
    path = Path(folder) / CONFIG
    config, _ = _read_config(path)
    told = info.to_dict()
    ModelInfo.from_dict(told, config)  # refuses what could not be loaded again
    try:
        text = json.dumps({"model": config.to_dict(), **told}, indent=2, ensure_ascii=False)
        write_text_atomically(path, text + "\n")
    except OSError as error:
        raise OcraError(f"{path} could not be written: {error.strerror or error}.") from None


def load(name: str | Path) -> Network:
    """The model of these weights, see `resolve`, ready to answer, with its `info`."""
    folder = resolve(name)
    config, info = _read_config(folder / CONFIG)
    tensors = _read_weights(folder / WEIGHTS)
    if faults := _faults(_shapes(config, folder / CONFIG), tensors):
        raise OcraError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {faults[0]}.")
    model: Network = config.network(config)
    model.load_state_dict(
        {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    )
    model.info = info
    return model.eval()


class _Unfilled(TorchFunctionMode):
    """Within it tensors are neither filled nor scaled: without memory there is nothing to fill.

    PyTorch would come to the same end, but has to load its compiler for that, which takes a second.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if function in (torch.rand, torch.randn):
            function = torch.empty
        elif name.endswith("_") and not name.startswith("__"):
            return args[0] if args else kwargs["tensor"]
        elif name in ("mul", "__mul__", "__rmul__") and isinstance(args[1], int | float):
            return args[0]
        return function(*args, **(kwargs or {}))


def _shapes(config: NetworkConfig, path: Path) -> dict[str, Tensor]:
    """The tensors of a network without their memory: a config may ask for more than there is."""
    try:
        with torch.device("meta"), _Unfilled():
            return config.network(config).state_dict()
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OcraError(f"{path} describes no network that can be made ({reason}).") from None


def read_config(name: str | Path) -> tuple[NetworkConfig, ModelInfo]:
    """How the network of these weights is built and what is known about it, without loading them."""
    return _read_config(resolve(name) / CONFIG)


def _read_config(path: Path) -> tuple[NetworkConfig, ModelInfo]:
    from ocra.model.network import model_config

    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise OcraError(
            f"{path} describes no model: the key 'model' is missing. Was it written by this program?"
        )
    try:
        config = model_config(values.pop("model"), from_weights=True)
    except OcraError as error:
        raise OcraError(f"{path} describes no model that can be made. {error}") from None
    return config, ModelInfo.from_dict(values, config)


def content_hash(folder: str | Path) -> str:
    """By what weights are known whatever they are called: 12 hex digits.

    The beginning of the SHA-256 of the tensors' names, types, shapes and bytes as stored; config.json has no part in
    it.
    """
    digest = hashlib.sha256()
    for name, value in sorted(_read_weights(Path(folder) / WEIGHTS).items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def shipped() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def resolve(name: str | Path) -> Path:
    """The folder of weights: shipped ones by their name, a folder on disk (of a run: its best), or 'user/repository'
    on the hub. 'NAME@HASH' refuses any other content than the one of that hash, see `content_hash`."""
    plain, _, wanted = str(name).rpartition("@")
    if not plain or not re.fullmatch("[0-9a-f]{6,12}", wanted) or Path(name).expanduser().exists():
        return _find(str(name))
    folder = _find(plain)
    if not (found := content_hash(folder)).startswith(wanted):
        raise OcraError(
            f"The weights {plain} are others than those asked for: their content has the hash {found}, not {wanted}."
        )
    return folder


def _find(name: str) -> Path:
    if name in shipped():
        return SHIPPED / name
    folder = Path(name).expanduser()
    if (folder / "weights" / "best" / CONFIG).is_file():
        return folder / "weights" / "best"
    if (folder / CONFIG).is_file():
        return folder
    if folder.exists():
        raise OcraError(f"{folder} holds no weights: it needs the files {CONFIG} and {WEIGHTS}.")
    parts = name.split("/")
    if len(parts) == 2 and all(parts) and not name.startswith((".", "~")):
        return _from_hub(name)
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


def push(folder: str | Path, name: str, private: bool = False) -> str:
    """Put the weights of a folder, with their card, into the repository 'user/name' on the hub; returns its address.

    The user is the one that `hf auth login`, or the variable HF_TOKEN, says.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise OcraError(
            "To put weights on the Hugging Face hub, run: pip install 'ocra-vision[hub]'."
        ) from None
    hub = HfApi(library_name="ocra")
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=[CONFIG, WEIGHTS, CARD],
            commit_message="Add weights",
        )
    except Exception as error:  # the hub's own errors share no base class
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OcraError(
            f"'{name}' could not be written to the hub: {reason} Are you logged in (hf auth login)?"
        ) from None
    return f"{hub.endpoint}/{name}"


def _read_weights(path: Path) -> dict[str, Tensor]:
    if path.exists() and not path.is_file():  # opening a pipe would wait for ever
        raise OcraError(f"{path} is no ordinary file.")
    try:
        return load_file(path)
    except FileNotFoundError:
        raise OcraError(f"{path} is missing: a folder of weights needs {CONFIG} and {WEIGHTS}.") from None
    except (OSError, SafetensorError) as error:
        raise OcraError(
            f"{path} is broken or no safetensors file ({error}); fetch or write it again."
        ) from None


def _faults(wanted: dict[str, Tensor], given: dict[str, Tensor]) -> list[str]:
    """What keeps the given tensors from being weights of the network that wants these."""
    faults = []
    for name, value in wanted.items():
        if name not in given:
            faults.append(f"{name} is missing")
        elif given[name].shape != value.shape:
            faults.append(f"{name} is {list(given[name].shape)}, not {list(value.shape)}")
        elif not given[name].isfinite().all():
            faults.append(f"{name} holds numbers that are not finite")
    return faults + [f"{name} is not part of the network" for name in sorted(given.keys() - wanted.keys())]


AUTHORS_LAYERS = {
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
}
"""Our name of each layer → the authors' name of it; that of a readout, readouts.K, is digits_readout_K."""


def authors_name(name: str) -> str:
    """The authors' name of a parameter of ours."""
    layer, _, kind = name.rpartition(".")
    return f"{AUTHORS_LAYERS.get(layer) or layer.replace('readouts.', 'digits_readout_')}.{kind}"


def import_authors(path: str | Path, config: ModelConfig) -> OCRA:
    """A model of ours with the weights of an authors' checkpoint; what does not fit is named, all of it."""
    from ocra.model.ocra import OCRA

    given = _read_authors(path)
    model = OCRA(config)
    own = model.state_dict()
    if faults := _faults({authors_name(name): value for name, value in own.items()}, given):
        raise OcraError(f"{path} does not fit the preset: {'; '.join(faults)}. Is it for another preset?")
    model.load_state_dict({name: given[authors_name(name)].float() for name in own})
    return model.eval()


def _read_authors(path: str | Path) -> dict[str, Tensor]:
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
