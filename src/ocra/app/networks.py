"""The networks a visitor can choose from, loaded when first chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from ocra.config import ModelConfig
from ocra.data import TaskConfig, task_config, task_of_model
from ocra.errors import OcraError
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo, read_config, shipped

MOST_GLIMPSES = 20


@dataclass(frozen=True)
class Network:
    """A model with its name and what has to be known to use it."""

    name: str
    model: OCRA
    task: TaskConfig
    """The task it was trained on."""

    @property
    def info(self) -> ModelInfo:
        """What is known about the model."""
        return self.model.info

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""
        return self.model.config

    @property
    def most_glimpses(self) -> int:
        """How many glimpses a visitor may ask for."""
        return max(MOST_GLIMPSES, self.config.glimpses) if self.config.recurrent else 1


class Networks:
    """Networks by the name shown on the page."""

    def __init__(self, weights: Iterable[str] = ()) -> None:
        """weights: shipped names or folders; none for all that are shipped."""
        sources = list(weights) or shipped()
        if not sources:
            raise OcraError("No weights come with this version; name a folder of weights with --weights.")
        self._sources = dict(zip(_short_names(sources), sources, strict=True))
        self._loaded: dict[str, Network] = {}
        self._lock = Lock()

    @property
    def names(self) -> list[str]:
        """The names, in the order given."""
        return list(self._sources)

    def __getitem__(self, name: str) -> Network:
        """The network of this name; what cannot be loaded raises OcraError."""
        if name not in self._sources:
            raise OcraError(f"There is no model '{name}' on this page.")
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = _load(name, self._sources[name])
            return self._loaded[name]

    def companion(self, name: str) -> str | None:
        """The next network of the same task and image size, which is the fairest to compare with, if any."""
        own, kind = self.names.index(name), _kind(self._sources[name])
        others = self.names[own + 1 :] + self.names[:own]
        return next((other for other in others if kind and _kind(self._sources[other]) == kind), None)


def _kind(source: str) -> tuple[object, ...] | None:
    """Task and image shape of weights; None for those that would have to be fetched or are broken."""
    if source not in shipped() and not Path(source).expanduser().is_dir():
        return None
    try:
        config, info = read_config(source)
    except OcraError:
        return None
    return (info.task_name, *config.image_shape)


def _load(name: str, source: str) -> Network:
    model = OCRA.from_pretrained(source)
    return Network(name, model, _task_config(model))


def _task_config(model: OCRA) -> TaskConfig:
    """The task as saved with the weights, or the likely one; a folder of another machine is forgotten."""
    values = task_of_model(model.info.task, model.config).to_dict()
    if not (values.get("root") and Path(values["root"]).is_dir()):
        values["root"] = None
    return task_config({**values, "download": False})


def _short_names(sources: list[str]) -> list[str]:
    """As much of the end of each path as tells the sources apart: runs/a/weights/best → a/weights/best."""
    parts = [Path(source).expanduser().parts or (source,) for source in sources]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = 1
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        if own[-1] in ("best", "last") and length < 3:  # the end of a run's path says nothing by itself
            length = min(3, len(own))
        names.append("/".join(own[-length:]))
    return [f"{name} ({k + 1})" if names.count(name) > 1 else name for k, name in enumerate(names)]
