"""Weights on disk, and what travels with them.

A folder of weights holds `config.json` and `model.safetensors`, the layout of the Hugging Face hub. `config.json` says
how to build the network (its key "model") and what its answers mean (`ModelInfo`). Checkpoints that the paper's
authors publish are imported here too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
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

from ocra.config import AnswerRule, ModelConfig, Preprocessing
from ocra.errors import OcraError, UsageError
from ocra.files import read_json, write_bytes_atomically, write_text_atomically

if TYPE_CHECKING:
    from ocra.model.ocra import OCRA

SHIPPED = Path(__file__).parent.parent / "pretrained"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
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

    def capsule_names(self, config: ModelConfig) -> tuple[str, ...]:
        """A name for every object capsule, those of the background too."""
        several = config.background_capsules > 1
        background = (
            f"background {k + 1}" if several else "background" for k in range(config.background_capsules)
        )
        return (*self.class_names, *background)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, the record's keys beside the others."""
        own = {**dataclasses.asdict(self), "class_names": list(self.class_names)}
        del own["record"]
        if taken := {"model", *own} & self.record.keys():
            raise UsageError(
                f"'{min(taken)}' in config.json has a meaning of its own; call it otherwise in the record."
            )
        return {**own, **self.record}

    @classmethod
    def from_dict(cls, values: dict[str, Any], config: ModelConfig) -> ModelInfo:
        """What config.json says besides the network; what it leaves open follows from the network's config.

        Files of version 0.1 have neither title, glimpses nor masked, and may have a task's bare name.
        """
        rest = dict(values)

        def take(name: str, default: Any, *kinds: type) -> Any:
            value = rest.pop(name, None)
            if value is not None and (
                not isinstance(value, kinds) or isinstance(value, bool) != (bool in kinds)
            ):
                raise _unusable(name, value)
            return default if value is None else value

        task = take("task", {}, dict, str)
        names = tuple(map(str, take("class_names", _usual_names(config), list, tuple)))
        if len(names) != config.classes:
            raise OcraError(
                f"The model has {config.classes} classes, but {len(names)} class names were saved with it."
            )
        answer = take("answer", None, dict)
        preprocessing = take("preprocessing", None, dict)
        loss = rest.get("loss") or {}  # in the files of version 0.1
        if not isinstance(loss, dict):
            raise _unusable("loss", loss)
        usual_mask = "authors" if config.background_capsules else "none"
        return cls(
            name=take("name", "", str),
            task={"name": task} if isinstance(task, str) else task,
            title=take("title", "", str),
            class_names=names,
            answer=_usual_answer(config) if answer is None else _saved_answer(answer, config.classes),
            preprocessing=None
            if preprocessing is None
            else _saved(Preprocessing, "preprocessing", preprocessing),
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
    except TypeError:
        raise _unusable(name, values) from None


def _saved_answer(values: dict[str, Any], classes: int) -> AnswerRule:
    """The rule that was saved with a model of so many classes."""
    rule = _saved(AnswerRule, "answer", {"objects": None, **values})
    countable = rule.objects is None or (type(rule.objects) is int and rule.objects >= 1)
    if not countable or not isinstance(rule.repeats, bool):
        raise _unusable("answer", values)
    if rule.objects is not None and not rule.repeats and rule.objects > classes:
        raise _unusable("answer", values)
    return rule


def _usual_answer(config: ModelConfig) -> AnswerRule:
    """The paper's rule for its networks of ten digits: two of them, which repeat among clutter only. Else unknown."""
    if config.classes != 10 or config.readout_digits:
        return AnswerRule(None)
    return AnswerRule(2, repeats=config.background_capsules > 0)


def _usual_names(config: ModelConfig) -> tuple[str, ...]:
    """Numbers; of the paper's network for house numbers, the last four classes say how short the number is."""
    if config.readout_digits and config.classes == 14:
        return (*"0123456789", "<5", "<4", "<3", "<2")
    return tuple(map(str, range(config.classes)))


def save(
    model: OCRA, folder: str | Path, info: ModelInfo | None = None, storage: Storage = "float32"
) -> None:
    """Write a model's weights and config into a folder.

    info: what goes into config.json; by default the model's own, without the record, which is of the weights that it
    was loaded with.
    """
    if storage not in STORAGE:
        raise UsageError(f"storage must be {' or '.join(STORAGE)}, not {storage!r}.")
    folder = Path(folder)
    tensors = {
        name: value.detach().to("cpu", STORAGE[storage]).contiguous()
        for name, value in model.state_dict().items()
    }
    _check_finite(tensors, f"The model, stored as {storage},")
    text = _config_text(model.config, info or dataclasses.replace(model.info, record={}))
    try:
        write_bytes_atomically(folder / WEIGHTS, to_bytes(tensors, metadata={"format": "pt"}))
        write_text_atomically(folder / CONFIG, text)
    except OSError as error:
        raise OcraError(f"The weights could not be written to {folder}: {error.strerror or error}.") from None


def save_info(folder: str | Path, info: ModelInfo) -> None:
    """Write another info beside the weights of a folder."""
    config, _ = _read_config(Path(folder) / CONFIG)
    write_text_atomically(Path(folder) / CONFIG, _config_text(config, info))


def _config_text(config: ModelConfig, info: ModelInfo) -> str:
    ModelInfo.from_dict(info.to_dict(), config)  # refuses what could not be loaded again
    values = {"model": dataclasses.asdict(config), **info.to_dict()}
    try:
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise UsageError(f"What is saved with a model must be JSON values: {error}.") from None


def load(name: str | Path) -> OCRA:
    """The model of these weights, see `resolve`, ready to answer, with its `info`."""
    from ocra.model.ocra import OCRA

    folder = resolve(name)
    config, info = _read_config(folder / CONFIG)
    model = OCRA(config)
    tensors = _read_weights(folder / WEIGHTS)
    _check_fit(model.state_dict(), tensors, folder)
    _check_finite(tensors, str(folder / WEIGHTS))
    model.load_state_dict({key: value.float() for key, value in tensors.items()})
    model.info = info
    return model.eval()


def read_config(name: str | Path) -> tuple[ModelConfig, ModelInfo]:
    """How the network of these weights is built and what is known about it, without loading them."""
    return _read_config(resolve(name) / CONFIG)


def _read_config(path: Path) -> tuple[ModelConfig, ModelInfo]:
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise OcraError(
            f"{path} describes no model: the key 'model' is missing. Was it written by this program?"
        )
    try:
        config = ModelConfig.from_dict(values.pop("model"))
    except OcraError as error:
        raise OcraError(f"{path} describes no model that can be made. {error}") from None
    return config, ModelInfo.from_dict(values, config)


def stored_as(folder: str | Path) -> str:
    """How the numbers of these weights are stored: float16 or float32."""
    return str(next(iter(_read_weights(Path(folder) / WEIGHTS).values())).dtype).removeprefix("torch.")


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
    faults, weights = [], {}
    for name, own in model.state_dict().items():
        theirs = authors_name(name)
        if theirs not in given:
            faults.append(f"{theirs} is missing")
            continue
        value = given.pop(theirs).float()
        if value.shape != own.shape:
            faults.append(f"{theirs} is {list(value.shape)}, not {list(own.shape)}")
        elif not value.isfinite().all():
            faults.append(f"{theirs} holds numbers that are not finite")
        weights[name] = value
    faults += [f"{name} is not part of this preset" for name in sorted(given)]
    if faults:
        raise OcraError(f"{path} does not fit the preset: {'; '.join(faults)}. Is it for another preset?")
    model.load_state_dict(weights)
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
