"""Tasks: made on the fly (MNIST, MultiMNIST, cluttered, same-different), from archives (SVHN), your own (folder)."""

from typing import Any

from ocra.config import NetworkConfig
from ocra.data.composed import MNIST, AnyDigits, ClutteredMNIST, MultiMNIST
from ocra.data.folder import FolderTask
from ocra.data.same_different import SameDifferent
from ocra.data.svhn import SVHN
from ocra.data.task import (
    Annotations,
    Batch,
    Task,
    TaskConfig,
    get_task,
    make_task,
    register_task,
    task_config,
    task_names,
)

__all__ = [
    "MNIST",
    "SVHN",
    "Annotations",
    "AnyDigits",
    "Batch",
    "ClutteredMNIST",
    "FolderTask",
    "MultiMNIST",
    "SameDifferent",
    "Task",
    "TaskConfig",
    "get_task",
    "likely_task",
    "make_task",
    "register_task",
    "task_config",
    "task_names",
    "task_of_model",
]


def likely_task(config: NetworkConfig) -> type[Task]:
    """The task of a network that nothing was saved with, by the shape of the network."""
    if config.readout_digits:
        return SVHN
    if config.background_capsules:
        return ClutteredMNIST
    return MultiMNIST if config.classes == 10 else FolderTask


def task_of_model(saved: dict[str, Any], config: NetworkConfig, name: str | None = None) -> TaskConfig:
    """The task a network was trained on, or the one of this name, in the network's image size if it makes any size.

    saved: its settings as they were saved with the weights, for which no module is imported; empty where nothing was.
    """
    if name:
        get_task(name)  # imports what the user, and not a file, has named
    name = name or saved.get("name") or likely_task(config).name
    own = saved if saved.get("name", name) == name else {}
    return task_config({**own, "name": name}, from_weights=True).fitted_to(config.image_shape)
