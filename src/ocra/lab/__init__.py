"""Experiments on the model: stimuli with handles, psychophysics, scanpaths, comparisons with people."""

from ocra.lab.experiments import EXPERIMENTS
from ocra.lab.running import Condition, LabExperiment, Look, Outcome, run
from ocra.lab.stimuli import Scenes

__all__ = ["EXPERIMENTS", "Condition", "LabExperiment", "Look", "Outcome", "Scenes", "run"]
