"""Tasks: pictures made on the fly (MultiMNIST, cluttered), read from archives (SVHN), your own (folder)."""

from ocra.data.cluttered import ClutteredMNIST
from ocra.data.config import TaskConfig
from ocra.data.folder import FolderTask
from ocra.data.multimnist import MultiMNIST
from ocra.data.svhn import SVHN
from ocra.data.task import Annotations, Batch, Task
from ocra.errors import UsageError

__all__ = [
    "SVHN",
    "Annotations",
    "Batch",
    "ClutteredMNIST",
    "FolderTask",
    "MultiMNIST",
    "Task",
    "TaskConfig",
    "make_task",
]


def make_task(config: TaskConfig, split: str, seed: int = 0) -> Task:
    """The task that `config` describes, one split of it, under a seed."""
    if isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise UsageError(f"The seed must be a whole number from 0 to 2**63 - 1, not {seed!r}.")
    if config.name == "multimnist":
        return MultiMNIST(
            config.root, split, config.digits, max_shift=config.max_shift, seed=seed, download=config.download
        )
    if config.name == "cluttered":
        return ClutteredMNIST(
            config.root,
            split,
            config.digits,
            size=config.size,
            objects=config.objects,
            distractors=config.distractors,
            distractor_size=config.distractor_size,
            seed=seed,
            download=config.download,
        )
    if config.name == "svhn":
        training = split == "train"
        return SVHN(
            config.root,
            split,
            augment=config.augment and training,
            extra=config.extra and training,
            channels=config.channels,
            seed=seed,
        )
    if config.name == "folder":
        if config.root is None:
            raise UsageError("A folder task needs its folder (root): the one that holds labels.csv.")
        return FolderTask(
            config.root,
            split,
            image_shape=(config.channels, config.height, config.width),
            class_names=config.class_names,
            augment=config.augment and split == "train",
            seed=seed,
        )
    raise UsageError(f"There is no task '{config.name}'; choose multimnist, cluttered, svhn or folder.")
