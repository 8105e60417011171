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
    from .config import ModelConfig as ModelConfig
    from .data import (
        SVHN as SVHN,
    )
    from .data import (
        Batch as Batch,
    )
    from .data import (
        ClutteredMNIST as ClutteredMNIST,
    )
    from .data import (
        FolderTask as FolderTask,
    )
    from .data import (
        MultiMNIST as MultiMNIST,
    )
    from .data import (
        Task as Task,
    )
    from .data import (
        TaskConfig as TaskConfig,
    )
    from .data import (
        make_task as make_task,
    )
    from .errors import OcraError as OcraError
    from .evaluation import evaluate as evaluate
    from .inference import predict as predict
    from .interventions import Lesion as Lesion
    from .losses import LossConfig as LossConfig
    from .model import OCRA as OCRA
    from .presets import PRESETS as PRESETS
    from .presets import Spec as Spec
    from .presets import fit_to_task as fit_to_task
    from .presets import preset as preset
    from .trace import Trace as Trace
    from .trace import Windows as Windows
    from .training.config import TrainingConfig as TrainingConfig
    from .training.start import resume as resume
    from .training.start import train as train
    from .viz import look as look

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
        "make_task",
    ),
    "errors": ("OcraError",),
    "evaluation": ("evaluate",),
    "inference": ("predict",),
    "interventions": ("Lesion",),
    "losses": ("LossConfig",),
    "model": ("OCRA",),
    "presets": ("PRESETS", "Spec", "fit_to_task", "preset"),
    "trace": ("Trace", "Windows"),
    "training.config": ("TrainingConfig",),
    "training.start": ("resume", "train"),
    "viz": ("look",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

try:
    __version__ = version("ocra")
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
