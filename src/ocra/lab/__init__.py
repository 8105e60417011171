"""Experiments on the model: stimuli with handles, psychophysics, scanpaths, comparisons with people."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocra.lab.experiments import EXPERIMENTS
    from ocra.lab.running import Condition, LabExperiment, Look, Outcome, run
    from ocra.lab.stimuli import Scenes

__all__ = ["EXPERIMENTS", "Condition", "LabExperiment", "Look", "Outcome", "Scenes", "run"]


def __getattr__(name: str) -> Any:
    """Each name when it is first used: a command that writes scanpaths need not wait for what draws figures."""
    if name not in __all__:
        raise AttributeError(f"module 'ocra.lab' has no attribute '{name}'")
    home = {"EXPERIMENTS": "experiments", "Scenes": "stimuli"}.get(name, "running")
    return getattr(import_module(f"ocra.lab.{home}"), name)
