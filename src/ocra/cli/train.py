"""ocra train: train a preset, a saved config or a task of one's own; resume a run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from ocra.cli.main import parse
from ocra.config import ModelConfig
from ocra.data import MultiMNIST, TaskConfig, task_config
from ocra.errors import OcraError, UsageError
from ocra.losses import LossConfig
from ocra.presets import PRESETS, Experiment, fit_to_task, preset
from ocra.training.config import TrainingConfig
from ocra.training.folder import read_spec

PROGRAM = "ocra train"
FITTED = {
    "model": ("channels", "height", "width", "classes", "readout_digits"),
    "loss": ("normalise_scores",),
}
"""Settings that follow from the task."""


@dataclass(frozen=True)
class Display:
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
class Resume(Display):
    """Continue a run exactly where it stopped. Example: ocra train --resume runs/third"""

    resume: Path = Path()
    """Folder of the run."""


@dataclass(frozen=True)
class Start(Display):
    """Train a preset, or a task of your own, from the first step to evaluated weights.

    Examples:

    ocra train multimnist-3 --training.images 3e6 --seed 3 --out runs/third

    ocra train multimnist-3 --task folder --task.root my-images

    ocra train --resume runs/third
    """

    preset: Positional[str] = ""
    """Experiment to start from; 'ocra presets' lists them."""
    out: Path | None = None
    """Folder for the run. Default: runs/PRESET, with a number if that is taken."""
    resume: Path | None = None
    """Continue the run in this folder exactly where it stopped; takes no other settings."""
    config: Path | None = None
    """Start from the config.json of another run instead of a preset."""
    recipe: Literal["default", "paper"] = "default"
    """Our recipe of training, or the paper's."""
    seed: int = 0
    """Seed of the weights, of the images and of their order."""
    model: Annotated[ModelConfig, arg(help="The network.")] = field(default_factory=ModelConfig)
    task: Annotated[TaskConfig, arg(help="The images.")] = field(default_factory=MultiMNIST.Config)
    loss: Annotated[LossConfig, arg(help="The loss.")] = field(default_factory=LossConfig)
    training: Annotated[TrainingConfig, arg(help="The run.")] = field(default_factory=TrainingConfig)


def main(args: list[str]) -> None:
    """Train, or resume, as these words say."""
    if any(word == "--resume" or word.startswith("--resume=") for word in args):
        _resume(parse(Resume, args, PROGRAM))
        return
    args, task = _named_task(args)
    base = _base(args)
    if task is not None and task != base.task.name:
        base = replace(base, task=task_config(task))
    default = Start(
        seed=base.seed,
        model=base.model,
        task=base.task,
        loss=base.loss,
        training=base.training,
    )
    try:
        chosen = parse(Start, args, PROGRAM, default=default)
        asked = replace(
            base,
            seed=chosen.seed,
            model=chosen.model,
            task=chosen.task,
            loss=chosen.loss,
            training=chosen.training,
        )
    except OcraError as error:  # a config that refused its values
        raise UsageError(str(error)) from None
    if chosen.config is not None and chosen.preset:
        raise UsageError("Give either a preset or --config, not both.")
    if chosen.config is None and chosen.preset != base.name:
        raise UsageError(f"Write the preset first: {PROGRAM} {chosen.preset} …")
    _start(chosen, asked, base)


def _named_task(words: list[str]) -> tuple[list[str], str | None]:
    """The words without `--task NAME`, and that name: which settings there are depends on it."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--task")
    try:
        found, left = finder.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}.") from None
    return left, found.task


def _base(words: list[str]) -> Experiment:
    """The experiment whose values are the defaults of all options: a preset, or a saved config."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument("--config", type=Path)
    finder.add_argument("--recipe", choices=("default", "paper"), default="default")
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
        return read_spec(found.config)
    if named is None and not any(word in ("-h", "--help") for word in words):
        if late := next((word for word in words if word in PRESETS), None):
            raise UsageError(f"Write the preset first: {PROGRAM} {late} …")
        raise UsageError(
            "Say what to train, for example: ocra train multimnist-3 ('ocra presets' lists all)."
        )
    return preset(named or "multimnist-3", found.recipe)


def _start(chosen: Start, asked: Experiment, base: Experiment) -> None:
    from ocra.training.run import train

    experiment = fit_to_task(asked)
    for part, names in FITTED.items():
        for name in names:
            wanted, possible, usual = (getattr(getattr(one, part), name) for one in (asked, experiment, base))
            if wanted not in (possible, usual):
                option = f"--{part}.{name.replace('_', '-')}"
                raise UsageError(f"{option} {wanted} does not fit the task, which asks for {possible}.")
    train(
        experiment,
        chosen.out,
        processes=chosen.processes,
        device=chosen.device,
        quiet=chosen.quiet,
        track=chosen.track,
    )


def _resume(chosen: Resume) -> None:
    from ocra.training.run import resume

    resume(
        chosen.resume,
        processes=chosen.processes,
        device=chosen.device,
        quiet=chosen.quiet,
        track=chosen.track,
    )
