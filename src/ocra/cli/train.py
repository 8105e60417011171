"""ocra train: train a preset, a saved config or a task of one's own; resume a run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from ocra.cli.main import parse
from ocra.config import ModelConfig
from ocra.data.labels import HUB
from ocra.data.task import get_task
from ocra.errors import OcraError, UsageError
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.losses import LossConfig
from ocra.presets import ALL_PRESETS, own_experiment, preset
from ocra.training.checkpoint import read_experiment

PROGRAM = "ocra train"
NAMES = tuple(ALL_PRESETS)
FITTED = {
    "model": ("channels", "height", "width", "classes", "readout_digits"),
    "loss": ("normalise_scores",),
}
"""Settings that follow from the task."""


@dataclass(frozen=True)
class Execution:
    """How a run is carried out and shown; changes nothing about its result."""

    processes: int = 0
    """Processes that share each batch. 0: one for each core or GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    quiet: bool = False
    """Show nothing."""
    track: Literal["tensorboard"] | None = None
    """Also write event files for TensorBoard."""


@dataclass(frozen=True)
class Resume(Execution):
    """Continue a run exactly where it stopped. Example: ocra train --resume runs/third"""

    resume: Path = Path()
    """Folder of the run."""


@dataclass(frozen=True)
class Start(Execution):
    """Train a preset, a folder of your own images, or a task of your own, to evaluated weights.

    A folder of images holds a labels.csv (columns file,labels), or a folder for each class, or a COCO file. Its recipe
    is chosen from the images and shown first.

    Examples:

    ocra train multimnist-3 --images 3e6 --seed 3 --out runs/third

    ocra train my-images

    ocra train multimnist-3 --stages.1.lr 3e-3 0 --stages.1.reconstruction 5

    ocra train --resume runs/third
    """

    preset: Positional[str] = ""
    """Experiment to start from ('ocra presets' lists them), or a folder of your own images."""
    out: Path | None = None
    """Folder for the run. Default: runs/PRESET, with a number if that is taken."""
    resume: Path | None = None
    """Continue the run in this folder exactly where it stopped; takes no other settings."""
    config: Path | None = None
    """Start from the config.json of another run instead of a preset."""
    recipe: Literal["default", "paper"] = "default"
    """Our recipe of training, or the paper's."""
    other_task: Annotated[str | None, arg(name="task")] = None
    """Another task than the preset's: its name, or a class of your own as package.module:Class."""
    compare: bool = True
    """Own images: train a plain small CNN for the same CPU time as well, and report its error beside."""
    images: int | None = None
    """Make all stages longer or shorter, so many images in all."""
    seed: int = 0
    """Seed of the weights, of the images and of their order."""
    init: Literal["ours", "paper"] = "ours"
    """Random weights at the start: ours, or the paper's."""
    model: Annotated[ModelConfig, arg(help="The network.")] = field(default_factory=ModelConfig)
    loss: Annotated[LossConfig, arg(help="The loss.")] = field(default_factory=LossConfig)
    stages: Annotated[tuple[Stage, ...], arg(help="The stages of training.")] = (Stage(),)
    run: Annotated[RunConfig, arg(help="How the run is watched and saved.")] = field(
        default_factory=RunConfig
    )


def main(args: list[str]) -> None:
    """Train, or resume, as these words say."""
    from ocra.training.own_images import train_folder
    from ocra.training.run import resume, train

    if any(word == "--resume" or word.startswith("--resume=") for word in args):
        asked = parse(Resume, args, PROGRAM)
        resume(asked.resume, **_execution(asked))
        return
    base = _base(args)
    try:
        chosen, experiment = _chosen(args, base)
    except OcraError as error:  # a config that refused its values
        raise UsageError(str(error)) from None
    folder = chosen.preset if _is_folder(args[0]) else None
    if chosen.config is None and chosen.preset not in (base.name, folder):
        raise UsageError(f"Write the preset first: {PROGRAM} {chosen.preset} …")
    experiment = _fitted(experiment, base)
    if folder is None:
        train(experiment, chosen.out, **_execution(chosen))
    else:
        train_folder(folder, chosen.out, experiment=experiment, compare=chosen.compare, **_execution(chosen))


def _is_folder(word: str) -> bool:
    """Whether a word names one's own images and no preset."""
    return word not in NAMES and (word.startswith(HUB) or Path(word).expanduser().is_dir())


def _execution(chosen: Execution) -> dict[str, Any]:
    return {name: getattr(chosen, name) for name in ("processes", "device", "quiet", "track")}


def _base(words: list[str]) -> Experiment:
    """The experiment whose values are the defaults of all options: that of a preset, a folder or a saved config."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", type=Path)
    finder.add_argument("--recipe", choices=("default", "paper"), default="default")
    finder.add_argument("--task")
    try:
        found, _ = finder.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}.") from None
    named = words[0] if words and not words[0].startswith("-") else None
    if found.config is not None:
        if named is not None:
            raise UsageError("Give either a preset or --config, not both.")
        if found.recipe != "default":
            raise UsageError("--recipe is for presets; a config holds its own recipe.")
        base = read_experiment(found.config)
    elif named is None and not any(word in ("-h", "--help") for word in words):
        if late := next((word for word in words if word in NAMES), None):
            raise UsageError(f"Write the preset first: {PROGRAM} {late} …")
        raise UsageError(
            "Say what to train: a folder of your images, or a preset such as multimnist-3 ('ocra presets' lists all)."
        )
    elif named is not None and _is_folder(named):
        from ocra.training.own_images import folder_experiment

        if found.recipe != "default":
            raise UsageError("--recipe is for presets; the recipe of a folder is chosen from its images.")
        if found.task is not None:
            raise UsageError("A folder of images is a task by itself; leave out --task.")
        base = folder_experiment(named)
    elif named is not None and named not in NAMES:
        raise UsageError(
            f"There is no preset '{named}' and no folder of images of that name; the presets are {', '.join(NAMES)}."
        )
    else:
        base = preset(named or "multimnist-3", found.recipe)
    if found.task is not None and get_task(found.task) is not base.task.task:
        base = replace(base, task=get_task(found.task).Config())
    return base


def _chosen(args: list[str], base: Experiment) -> tuple[Start, Experiment]:
    """What the words say, with the settings of the task and of the network, and the experiment they ask for."""
    kind = make_dataclass(
        "Start",
        [
            ("model", Annotated[type(base.model), arg(help="The network.")], base.model),
            ("task", Annotated[type(base.task), arg(help="The images.")], base.task),
        ],
        bases=(Start,),
        frozen=True,
        namespace={"__doc__": Start.__doc__},
    )
    default = kind(
        seed=base.seed, init=base.init, model=base.model, loss=base.loss, stages=base.stages, run=base.run,
        task=base.task,
    )  # fmt: skip
    chosen: Any = parse(kind, args, PROGRAM, default=default)
    experiment = replace(
        base, seed=chosen.seed, init=chosen.init, model=chosen.model, task=chosen.task, loss=chosen.loss,
        stages=chosen.stages, run=chosen.run,
    )  # fmt: skip
    if chosen.images is not None:
        if chosen.images < 1:
            raise UsageError(f"--images must be at least 1, not {chosen.images}.")
        experiment = experiment.scaled(chosen.images)
    return chosen, experiment


def _fitted(asked: Experiment, base: Experiment) -> Experiment:
    """The experiment made to fit its task; what was asked for and does not fit is refused."""
    experiment = asked.fitted()
    for part, names in FITTED.items():
        for name in names:
            parts = [getattr(one, part) for one in (asked, experiment, base)]
            wanted, possible, usual = (getattr(each, name, None) for each in parts)
            if wanted not in (possible, usual):
                option = f"--{part}.{name.replace('_', '-')}"
                raise UsageError(f"{option} {wanted} does not fit the task, which asks for {possible}.")
    return own_experiment(experiment)
