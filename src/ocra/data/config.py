"""The description of a task, as saved with a model and shown by the command line."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from ocra.config import check_switches

DIGIT_TASKS: tuple[Literal["multimnist", "cluttered"], ...] = ("multimnist", "cluttered")
"""Tasks made of single digits, of MNIST or of glyphs."""


@dataclass(frozen=True)
class TaskConfig:
    """Which pictures a model learns, and where they come from."""

    name: Literal["multimnist", "cluttered", "svhn", "folder"] = "multimnist"
    """What pictures: two overlapping digits, digits among clutter, house numbers, or your own folder."""
    digits: Literal["mnist", "glyphs"] = "mnist"
    """Where single digits come from: MNIST, or glyphs drawn from fonts (no download)."""
    root: str | None = None
    """Folder with the data. Default: $OCRA_DATA, then the cache folder. A folder task must name its own."""
    download: bool = False
    """Download MNIST where it is missing."""
    max_shift: int = 4
    """multimnist: how far each digit moves from the centre, in pixels (6: the second test set, as CapsNet's)."""
    size: int = 100
    """cluttered: height and width of the picture."""
    objects: int = 2
    """cluttered: number of digits."""
    distractors: int = 6
    """cluttered: number of fragments of other digits."""
    distractor_size: int = 8
    """cluttered: height and width of a fragment."""
    channels: int = 1
    """svhn and folder: 1 for grey, 3 for colour."""
    augment: bool = True
    """svhn and folder: vary the training pictures (shift, scale, rotation, contrast, noise)."""
    extra: bool = False
    """svhn: train on the 'extra' archive as well."""
    height: int = 36
    """folder: height that pictures are resized and padded to."""
    width: int = 36
    """folder: width that pictures are resized and padded to."""
    class_names: tuple[str, ...] | None = None
    """folder: names of the classes, in order. Default: every label in labels.csv, sorted."""

    def __post_init__(self) -> None:
        check_switches(self, "task")


def saved_settings(saved: object, name: str) -> dict[str, Any]:
    """What was saved with weights of the settings of the task of this name, as far as this version knows them.

    saved: whatever stands under "task" in their config.json; only an object of that task has settings.
    """
    if not isinstance(saved, dict) or saved.get("name", name) != name:
        return {}
    known = {field.name for field in fields(TaskConfig)}
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in saved.items()
        if key in known and value is not None
    }
