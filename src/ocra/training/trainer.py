"""The training loop, plain PyTorch from top to bottom: copy it and change it."""

from __future__ import annotations

import dataclasses
import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.data import Batch, Task, make_task
from ocra.errors import OcraError
from ocra.evaluation import count_errors, on_device, sample
from ocra.losses import LossConfig, compute_losses
from ocra.metrics import ErrorCounter, wrong_answers
from ocra.presets import Experiment
from ocra.training.checkpoint import Checkpoint
from ocra.training.distributed import Group, PeerLost, check_share
from ocra.training.folder import RunFolder
from ocra.training.initialise import build_model
from ocra.training.keeping import Checkpointer
from ocra.training.logging import Reporter
from ocra.training.parts import attention_parameters, slower
from ocra.training.precision import autocast
from ocra.training.sampling import image_indices, share
from ocra.training.schedule import (
    average_decay,
    crossed,
    glimpse_count,
    guide_weight,
    learning_rate,
    reconstruction_share,
    single_share,
    spread_share,
)
from ocra.training.signals import StopSignals
from ocra.training.state import State

MOST_BAD_STEPS = 10
FIXED_SEED = 0  # validation and test images are the same for every run
REPORTED = ("loss", "margin_loss", "reconstruction_loss", "readout_loss", "share_loss", "guide_loss", "error")
FIGURES = (*REPORTED, "stop", "cpu_seconds")  # what the processes tell each other with their gradients


class Diverged(OcraError):
    """The loss is not finite any more."""


class Run:
    """One process of a run. The first one has the folder; the others have None and do as it says."""

    def __init__(
        self,
        experiment: Experiment,
        group: Group,
        folder: RunFolder | None,
        reporter: Reporter,
        checkpoint: Checkpoint | None = None,
        goes_on: bool = False,
    ) -> None:
        """goes_on: the first process has a checkpoint, so the weights to start from are not needed."""
        self.experiment, self.group, self.reporter = experiment, group, reporter
        check_share(group.size, experiment.training.batch)  # torchrun may have started too many
        self.task = make_task(experiment.task, "train", experiment.seed)
        self.part = share(group.rank, group.size, experiment.training.batch)
        self.model = build_model(_afresh(experiment) if goes_on else experiment).to(group.device)
        self.slow = attention_parameters(self.model)
        self.state = State(self.model, experiment.training, group, extras=len(FIGURES))
        self.state.restore(checkpoint)
        self.keeper = Checkpointer(folder, reporter, experiment, self.task, self.model, self.state)
        self.progress = self.state.progress
        self.wall, self.cpu = time.monotonic(), time.process_time()
        self.model.defer_weight_gradients = True
        if experiment.training.compile:
            self.model.compile_step()

    def go(self) -> dict[str, Any]:
        """Train to the end and return the summary, or save and leave at a signal."""
        training, progress = self.experiment.training, self.progress
        self.reporter.start(progress.images, training.images)
        saved = time.monotonic()
        try:
            if progress.images:
                self.reporter.say(f"Going on at {progress.images:,} images.")
                if crossed(progress.validated_images, progress.images, training.validate_every_images):
                    self.validate()  # a process was lost before it could be
            else:
                self.keeper.save()  # a disk without room for a checkpoint is found out now
            with StopSignals() as signals:
                while progress.images < training.images and not self.out_of_patience():
                    before = progress.images
                    stopped = self.step(stop=signals.caught is not None)
                    if crossed(before, progress.images, training.report_every_images):
                        self.reporter.report(progress.step, progress.images, skipped=progress.skipped)
                    if crossed(before, progress.images, training.validate_every_images):
                        self.validate()
                    if stopped:  # only now, so that what belongs to this step is not left out
                        self.keeper.save()
                        self.reporter.say(f"Stopped. {self.keeper.told_saved()}")
                        signals.leave()
                    due = time.monotonic() - saved > 60 * training.checkpoint_minutes
                    if due and not progress.skipped_in_a_row:  # else the weights may be past saving
                        self.keeper.save(insist=False)
                        saved = time.monotonic()
                self.conclude()
                if self.group.sum(torch.tensor([float(signals.caught is not None)])) > 0:
                    self.reporter.say(f"Stopped before the test. {self.keeper.told_saved()}")
                    signals.leave()
            return self.finish()  # all is saved, so a signal may end it at once
        except PeerLost as error:
            self.keeper.save()
            raise PeerLost(f"{error} {self.keeper.told_saved()}") from None
        except Diverged as error:
            images, batch = progress.images, training.batch
            trial = self.batch_of(images).images
            good = self.keeper.save_good(trial, first_bad=images - (MOST_BAD_STEPS - 1) * batch)
            raise Diverged(f"{error}{good}") from None
        finally:
            self.reporter.stop()

    def step(self, stop: bool) -> bool:
        """One step over one batch; true if any process was asked to stop."""
        training, progress, channel = self.experiment.training, self.progress, self.state.channel
        seen, size = progress.images, self.state.parameters.size
        guide = guide_weight(training, seen)
        batch = self.batch_of(seen, parts=guide > 0)
        channel.mine.zero_()
        with autocast(training.precision, self.group.device):
            planned = self.experiment.model.glimpses
            glimpses = glimpse_count(training, planned, seen)
            attended = self.experiment.loss.needs_attended
            trace = self.model(batch.images, glimpses=glimpses, attended=attended, record=guide > 0)
            losses = compute_losses(trace, batch, self.loss(seen), guide, planned)
        weight = len(batch) / training.batch  # so that the sum over processes is the mean over the batch
        (losses.total * weight).backward()
        error = wrong_answers(trace, batch, self.task.answer_rule).float().mean()
        channel.mine[size:-2] = weight * torch.stack([*losses, error]).detach()
        channel.mine[-2:] = torch.tensor([float(stop), self.cpu_lap()])
        gradient, extras = channel.add_up().split([size, len(FIGURES)])
        figures = dict(zip(FIGURES, extras.tolist(), strict=True))
        norm = float(gradient.norm())
        if math.isfinite(norm) and math.isfinite(figures["loss"]):
            rate = self.update(gradient, norm)
            shown = {name: figures[name] for name in REPORTED}
            self.reporter.add(training.batch, seen, {**shown, "gradient_norm": norm, "learning_rate": rate})
        else:
            self.skip()
        progress.images += training.batch
        progress.step += 1
        progress.cpu_seconds += figures["cpu_seconds"]
        progress.seconds += self.wall_lap()
        return bool(figures["stop"])

    def batch_of(self, seen: int, parts: bool = False) -> Batch:
        """This process's share of the batch after `seen` images."""
        training = self.experiment.training
        indices = image_indices(self.experiment.seed, len(self.task), seen, seen + training.batch)[self.part]
        single, spread = single_share(training, seen), spread_share(training, seen)
        batch = self.task.batch(indices, annotations=parts, single_objects=single, spread=spread)
        return on_device(batch, self.group.device)

    def loss(self, seen: int) -> LossConfig:
        """How the parts of the loss are weighted after `seen` images."""
        loss = self.experiment.loss
        weight = loss.reconstruction_weight * reconstruction_share(self.experiment.training, seen)
        return dataclasses.replace(loss, reconstruction_weight=weight)

    def update(self, gradient: Tensor, norm: float) -> float:
        """Move the weights, and their averages after them; returns the learning rate."""
        training, progress, state = self.experiment.training, self.progress, self.state
        if norm > training.clip:  # into memory of our own: others are reading the sum as well
            gradient = torch.mul(gradient, training.clip / norm, out=state.channel.mine[: len(gradient)])
        state.parameters.values.grad = gradient
        rate = learning_rate(training, progress.images)
        state.optimiser.param_groups[0]["lr"] = rate
        with slower(self.slow, training.attention_rate), self.whitened(rate):
            state.optimiser.step()
        state.average.lerp_(state.parameters.values.data, 1 - average_decay(training, progress.step))
        progress.skipped_in_a_row = 0
        return rate

    def whitened(self, rate: float) -> AbstractContextManager[None]:
        """A block whose steps of the large matrices are whitened, if the settings say so."""
        whitening, training = self.state.whitening, self.experiment.training
        if whitening is None:
            return nullcontext()
        return whitening.instead(training.whitening * rate / training.learning_rate, self.progress.step)

    def skip(self) -> None:
        """Leave out a step that is not finite; too many in a row mean that the run has diverged."""
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row >= MOST_BAD_STEPS:
            raise Diverged(
                f"The loss or its gradient was not finite in {MOST_BAD_STEPS} steps in a row: the run has "
                "diverged. Train again with a lower --training.learning-rate or a lower --training.clip."
            )

    def validate(self) -> None:
        """Score the averaged weights on the validation split; keep them if they are the best so far."""
        progress = self.progress
        started = time.monotonic()
        with self.state.parameters.holding(self.state.average):
            task = make_task(self.experiment.task, "validation", FIXED_SEED)
            result = self.score(task, np.arange(min(self.experiment.training.validate_images, len(task))))
            progress.validated_images, progress.validation_error = progress.images, result.exact_error
            progress.validations_since_best += 1
            if result.exact_error < progress.best_error and self.keeper.save_best():
                progress.best_error, progress.best_images = result.exact_error, progress.images
                progress.validations_since_best = 0
        figures = {
            "validation_error": result.exact_error,
            "validation_object_error": result.object_error,
            "silent_glimpses": result.silent_glimpses,
        }
        spent = {"step": progress.step, "images": progress.images, "cpu_seconds": progress.cpu_seconds}
        self.reporter.write({**spent, **figures})
        self.reporter.pause(time.monotonic() - started)

    def score(self, task: Task, indices: NDArray[np.int64]) -> ErrorCounter:
        """Score the weights the model holds on these images, which the processes share among them."""
        mine = indices[share(self.group.rank, self.group.size, len(indices))]
        size = self.part.stop - self.part.start  # as in training, so that the compiled step is for one size
        return count_errors(self.model, task, mine, size, device=self.group.device).combined(self.group.sum)

    def out_of_patience(self) -> bool:
        """Whether validation has not become better for too long."""
        return 0 < self.experiment.training.patience <= self.progress.validations_since_best

    def conclude(self) -> None:
        """Validate once more and save all there is."""
        if self.progress.validated_images != self.progress.images:
            self.validate()
        self.keeper.save()
        with self.state.parameters.holding(self.state.average):
            self.keeper.save_weights("last")

    def finish(self) -> dict[str, Any]:
        """Score the last and the best weights on the test split, and sum up."""
        progress = self.progress
        tests = self.test()
        progress.seconds += self.wall_lap()
        progress.cpu_seconds += float(self.group.sum(torch.tensor([self.cpu_lap()], dtype=torch.float64)))
        return self.keeper.sum_up(dataclasses.asdict(progress), tests)

    def test(self) -> dict[str, ErrorCounter]:
        """Score the last and the best weights on the test split, unless the settings say not to."""
        if self.experiment.training.test_images == 0:
            return {}
        task = make_task(self.experiment.task, "test", FIXED_SEED)
        indices = sample(task, self.experiment.training.test_images)
        with self.state.parameters.holding(self.state.average):
            last = self.score(task, indices)
        if self.progress.best_images == self.progress.images:
            return {"last": last, "best": last}
        with self.state.parameters.holding(self.keeper.best_weights()):
            return {"last": last, "best": self.score(task, indices)}

    def wall_lap(self) -> float:
        """Seconds since the last call."""
        last, self.wall = self.wall, time.monotonic()
        return self.wall - last

    def cpu_lap(self) -> float:
        """CPU seconds of this process since the last call."""
        last, self.cpu = self.cpu, time.process_time()
        return self.cpu - last


def _afresh(experiment: Experiment) -> Experiment:
    """The same experiment from random weights."""
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, start_from=None))
