"""What a run leaves on disk while it goes on: checkpoints and weights."""

from __future__ import annotations

import shlex
import time
from typing import Any

import torch
from torch import Tensor

from ocra.data import Task
from ocra.errors import OcraError
from ocra.metrics import ErrorCounter
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo, load
from ocra.presets import Experiment
from ocra.training.checkpoint import CheckpointError
from ocra.training.folder import RunFolder
from ocra.training.logging import Reporter
from ocra.training.state import State
from ocra.training.summary import commit, done, summarise, weights_metadata


class Checkpointer:
    """Writes to the folder of a run; in a process that has none it writes nothing."""

    def __init__(
        self,
        folder: RunFolder | None,
        reporter: Reporter,
        experiment: Experiment,
        task: Task,
        model: OCRA,
        state: State,
    ) -> None:
        self.folder, self.reporter = folder, reporter
        self.experiment, self.task, self.model, self.state = experiment, task, model, state
        self.commit = None if folder is None else commit()  # now, for the source may change while it runs

    def save(self, insist: bool = True) -> None:
        """Write a checkpoint; without `insist` a failure is only worth a warning, as the next may succeed."""
        if self.folder is None:
            return
        started = time.monotonic()
        try:
            self.folder.checkpoints.save(self.state.checkpoint())
        except CheckpointError as error:
            if insist:
                raise
            self.reporter.say(f"warning: {error} Training goes on and will try again.")
        self.reporter.pause(time.monotonic() - started)

    def save_weights(self, which: str) -> None:
        """Write the weights the model holds where others can load them."""
        if self.folder is None:
            return
        progress = self.state.progress
        about = weights_metadata(self.experiment, self.task, progress.images, progress.validation_error)
        try:
            self.model.save_pretrained(
                self.folder.weights(which), ModelInfo.from_dict(about, self.model.config)
            )
        except (OSError, OcraError) as error:
            raise OcraError(f"The {which} weights could not be saved: {str(error).rstrip('.')}.") from None

    def save_best(self) -> bool:
        """Write the weights the model holds as the best so far; all processes learn whether there was room."""
        failure = None
        try:
            self.save_weights("best")
        except OcraError as error:
            failure = str(error)
            self.reporter.say(f"warning: {error} Training goes on and will try again.")
        return self.state.group.spread_json(failure) is None

    def best_weights(self) -> Tensor:
        """The best weights so far as one flat tensor, read by the first process."""
        flat = torch.zeros_like(self.state.average)
        if self.folder is not None:
            best = load(self.folder.weights("best")).state_dict()
            for name, place in self.state.parameters.unflatten(flat).items():
                place.copy_(best[name])
        return self.state.group.spread(flat)

    def save_good(self, images: Tensor, first_bad: int) -> str:
        """After divergence: save the weights if they still work on images, else go back to those before; says which.

        first_bad: images seen before the bad steps. The step before may have ruined the weights, though its own
        loss was finite.
        """
        if self.folder is None:
            return ""
        good: int | None = self.state.progress.images
        with torch.no_grad():
            trace = self.model(images)
        if trace.scores.isfinite().all() and trace.canvas.isfinite().all():
            self.save()
        else:
            good = self.folder.checkpoints.go_back(first_bad)
        return "" if good is None else f" The last good weights are saved at {good:,} images."

    def sum_up(self, progress: dict[str, Any], tests: dict[str, ErrorCounter]) -> dict[str, Any]:
        """Write the summary, which marks the run as ended, and return it."""
        summary = summarise(self.experiment, progress, tests, self.commit)
        if self.folder is not None:
            self.folder.write_summary(summary)
            self.reporter.say(done(self.folder.path, tests.get("best")))
        return summary

    def told_saved(self) -> str:
        """That all is saved, if this process did it, and how to go on."""
        if self.folder is None:
            return "Continue with ocra train --resume and the folder of the run."
        path = shlex.quote(str(self.folder.path))
        return f"Saved at {self.state.progress.images:,} images; continue with: ocra train --resume {path}"
