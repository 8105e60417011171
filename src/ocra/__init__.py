"""OCRA: object-centric recurrent attention.

    import ocra
    model = ocra.OCRA(ocra.preset("multimnist-3").model)
    trace = model(images)

Names are imported when they are first used, so that `import ocra` itself is quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocra.config import ModelConfig as ModelConfig
    from ocra.data import SVHN as SVHN
    from ocra.data import Batch as Batch
    from ocra.data import ClutteredMNIST as ClutteredMNIST
    from ocra.data import FolderTask as FolderTask
    from ocra.data import MultiMNIST as MultiMNIST
    from ocra.data import Task as Task
    from ocra.data import TaskConfig as TaskConfig
    from ocra.data import get_task as get_task
    from ocra.data import make_task as make_task
    from ocra.data import register_task as register_task
    from ocra.data import task_config as task_config
    from ocra.errors import OcraError as OcraError
    from ocra.evaluation import evaluate as evaluate
    from ocra.lab.scanpaths import scanpath as scanpath
    from ocra.losses import LossConfig as LossConfig
    from ocra.model.interventions import Lesion as Lesion
    from ocra.model.ocra import OCRA as OCRA
    from ocra.model.trace import Trace as Trace
    from ocra.model.trace import Windows as Windows
    from ocra.prediction import predict as predict
    from ocra.presets import PRESETS as PRESETS
    from ocra.presets import Experiment as Experiment
    from ocra.presets import fit_to_task as fit_to_task
    from ocra.presets import preset as preset
    from ocra.training.config import TrainingConfig as TrainingConfig
    from ocra.training.run import resume as resume
    from ocra.training.run import train as train
    from ocra.viz import look as look
    from ocra.viz.report import report as report

_HOMES = {
    "config": ("ModelConfig",),
    "data": (
        "SVHN",
        "Batch",
        "ClutteredMNIST",
        "FolderTask",
        "MultiMNIST",
        "Task",
        "TaskConfig",
        "get_task",
        "make_task",
        "register_task",
        "task_config",
    ),
    "errors": ("OcraError",),
    "evaluation": ("evaluate",),
    "prediction": ("predict",),
    "model.interventions": ("Lesion",),
    "lab.scanpaths": ("scanpath",),
    "losses": ("LossConfig",),
    "model.ocra": ("OCRA",),
    "presets": ("PRESETS", "Experiment", "fit_to_task", "preset"),
    "model.trace": ("Trace", "Windows"),
    "training.config": ("TrainingConfig",),
    "training.run": ("resume", "train"),
    "viz": ("look",),
    "viz.report": ("report",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

try:
    __version__ = version("ocra-vision")
except PackageNotFoundError:  # run from a source folder that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ocra' has no attribute '{name}'")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
