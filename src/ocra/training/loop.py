"""The training loop, plain PyTorch from top to bottom: copy it and change it."""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import make_task
from ..errors import OcraError
from ..evaluation import Tally, on_device, tally, wrong_answers
from ..losses import compute_losses
from ..metrics import answer_rule
from ..presets import Spec
from ..pretrained import load
from .checkpoints import Checkpoint, CheckpointError
from .distribution import Group, PeerLost, further_process, process_group
from .flat import FlatParameters
from .folder import RunFolder, fresh_path, new_run, old_run
from .initialise import build_model
from .logs import Reporter
from .precision import autocast, check_precision
from .sampling import image_indices, share
from .schedule import average_decay, crossed, learning_rate, single_share
from .signals import StopSignals
from .summary import summarise, weights_metadata

MOST_BAD_STEPS = 10
FIXED_SEED = 0  # validation and test images are the same for every run
REPORTED = ("loss", "margin_loss", "reconstruction_loss", "readout_loss", "error")
FIGURES = (*REPORTED, "stop", "cpu_seconds")  # what the processes tell each other with their gradients


@dataclass
class Progress:
    """Where a run is: with the tensors, all that a checkpoint holds."""

    processes: int = 1
    images: int = 0
    step: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validated_images: int = 0
    validation_error: float = math.inf
    best_error: float = math.inf
    best_images: int = 0
    validations_since_best: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def train(
    spec: Spec,
    out: str | Path | None = None,
    *,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
) -> dict[str, Any]:
    """Train an experiment in a new folder (runs/NAME by default) and return what its summary.json holds.

    processes: how many share each batch; 0 takes one for each core or GPU. Under torchrun its group is joined.
    """
    if further_process():
        return take_part(device)
    check_precision(spec.training.precision, device)
    with (
        new_run(fresh_path(spec.name) if out is None else Path(out), spec) as folder,
        process_group(processes, device, spec.training.batch) as group,
    ):
        return Run(spec, group, folder, Reporter(folder.path, quiet, track)).go()


def resume(
    out: str | Path,
    *,
    processes: int = 0,
    device: str = "auto",
    quiet: bool = False,
    track: str | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder from its newest checkpoint, to the same end as if it had never stopped."""
    if further_process():
        return take_part(device)
    with old_run(Path(out)) as (folder, spec):
        if (summary := folder.summary()) is not None:
            return summary
        check_precision(spec.training.precision, device)
        checkpoint = folder.checkpoints.load()
        processes = processes or (checkpoint.state["processes"] if checkpoint else 0)
        with process_group(processes, device, spec.training.batch) as group:
            return Run(spec, group, folder, Reporter(folder.path, quiet, track), checkpoint).go()


def take_part(device: str = "auto") -> dict[str, Any]:
    """Train along as a further process of a run: the first one says what, and alone reads and writes its folder."""
    with process_group(0, device) as group:
        return Run(None, group, None, Reporter(None)).go()


class Run:
    """One process of a run: the model, its optimiser, and where it is."""

    def __init__(
        self,
        spec: Spec | None,
        group: Group,
        folder: RunFolder | None,
        reporter: Reporter,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.spec = spec = Spec.from_dict(group.spread_json(spec.to_dict() if spec else None))
        self.group, self.folder, self.reporter = group, folder, reporter
        self.task = make_task(spec.task, "train", spec.seed)
        self.part = share(group.rank, group.size, spec.training.batch)
        self.model = build_model(spec).to(group.device)
        self.parameters = FlatParameters(self.model, extras=len(FIGURES))
        values = self.parameters.values
        self.average = values.detach().clone()
        self.optimiser = torch.optim.Adam([values], betas=(0.9, spec.training.beta2), fused=True)
        moments = {"exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}
        self.optimiser.state[values] = {"step": torch.zeros((), device=group.device), **moments}
        self.state = {"model": values.data, "average": self.average, **moments}
        self.progress = Progress(processes=group.size)
        self.restore(checkpoint)
        self.model.train()
        if spec.training.compile:
            self.model.compile_step()

    def go(self) -> dict[str, Any]:
        """Train to the end and return the summary, or save and leave at a signal."""
        training, progress = self.spec.training, self.progress
        self.reporter.start(progress.images, training.images)
        saved = time.monotonic()
        try:
            with StopSignals() as signals:
                while progress.images < training.images and not self.out_of_patience():
                    before = progress.images
                    if self.step(stop=signals.caught is not None):
                        self.save()
                        self.reporter.say(f"Stopped at {progress.images:,} images; {self.hint()}.")
                        signals.leave()
                    if crossed(before, progress.images, training.report_every_images):
                        self.reporter.report(progress.step, progress.images, skipped=progress.skipped)
                    if crossed(before, progress.images, training.validate_every_images):
                        self.validate()
                    if time.monotonic() - saved > 60 * training.checkpoint_minutes:
                        self.save(insist=False)
                        saved = time.monotonic()
                return self.finish()
        except PeerLost as error:
            self.save()
            raise PeerLost(
                f"{error} All work up to {progress.images:,} images is saved; {self.hint()}."
            ) from None
        finally:
            self.reporter.stop()

    def step(self, stop: bool) -> bool:
        """One step over one batch; true if any process was asked to stop."""
        training, progress, flat = self.spec.training, self.progress, self.parameters
        started, cpu_started = time.monotonic(), time.process_time()
        seen = progress.images
        indices = image_indices(self.spec.seed, len(self.task), seen, seen + training.batch)[self.part]
        batch = on_device(self.task.batch(indices, single=single_share(training, seen)), self.group.device)
        flat.message.zero_()
        with autocast(training.precision, self.group.device):
            trace = self.model(batch.images, attended=self.spec.loss.needs_attended)
            losses = compute_losses(trace, batch, self.spec.loss)
        weight = len(indices) / training.batch  # so that the sum over processes is the mean over the batch
        (losses.total * weight).backward()
        error = wrong_answers(trace, batch, answer_rule(self.task)).float().mean()
        flat.extras[:5] = weight * torch.stack([*losses, error]).detach()
        flat.extras[5:] = torch.tensor([float(stop), time.process_time() - cpu_started])
        self.group.sum(flat.message)
        figures = dict(zip(FIGURES, flat.extras.tolist(), strict=True))
        norm = float(flat.gradient.norm())
        rate = learning_rate(training, seen)
        if math.isfinite(norm) and math.isfinite(figures["loss"]):
            self.update(norm, rate)
            shown = {name: figures[name] for name in REPORTED}
            self.reporter.add(training.batch, seen, {**shown, "gradient_norm": norm, "learning_rate": rate})
        else:
            self.skip(figures["loss"])
        progress.images += training.batch
        progress.step += 1
        progress.cpu_seconds += figures["cpu_seconds"]
        progress.seconds += time.monotonic() - started
        return bool(figures["stop"])

    def update(self, norm: float, rate: float) -> None:
        """Move the weights, and their averages after them."""
        training, progress = self.spec.training, self.progress
        if norm > training.clip:
            self.parameters.gradient.mul_(training.clip / norm)
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.step()
        self.average.lerp_(self.parameters.values.data, 1 - average_decay(training, progress.step))
        progress.skipped_in_a_row = 0

    def skip(self, loss: float) -> None:
        """Leave out a step that is not finite; too many in a row mean that the run has diverged."""
        progress = self.progress
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row >= MOST_BAD_STEPS:
            raise OcraError(
                f"The loss or its gradient was not finite in {MOST_BAD_STEPS} steps in a row (loss {loss}): the run has "
                "diverged. Its last checkpoint is from before; try a lower training.learning_rate."
            )

    def validate(self) -> None:
        """Score the averaged weights on the validation split; keep them if they are the best so far."""
        training, progress = self.spec.training, self.progress
        started = time.monotonic()
        with self.parameters.holding(self.average):
            result = self.score("validation", training.validate_images)
            progress.validated_images, progress.validation_error = progress.images, result.exact_error
            if result.exact_error < progress.best_error:
                progress.best_error, progress.best_images = result.exact_error, progress.images
                progress.validations_since_best = 0
                self.save_weights("best")
            else:
                progress.validations_since_best += 1
        figures = {"validation_error": result.exact_error, "validation_object_error": result.object_error}
        self.reporter.write({"step": progress.step, "images": progress.images, **figures})
        self.reporter.pause(time.monotonic() - started)
        progress.seconds += time.monotonic() - started

    def score(self, split: str, images: int) -> Tally:
        """Score the weights the model holds on a fixed set of images, shared among the processes."""
        task = make_task(self.spec.task, split, FIXED_SEED)
        indices = np.arange(min(images, len(task)))
        mine = indices[share(self.group.rank, self.group.size, len(indices))]
        # Batches of the size of the training step's, which is already compiled.
        result = tally(self.model, task, mine, self.part.stop - self.part.start, device=self.group.device)
        return result.over(self.group.sum)

    def out_of_patience(self) -> bool:
        patience = self.spec.training.patience
        return 0 < patience <= self.progress.validations_since_best

    def finish(self) -> dict[str, Any]:
        """Validate once more, save, score the last and the best weights on the test split, and sum up."""
        training, progress = self.spec.training, self.progress
        if progress.validated_images != progress.images:
            self.validate()
        self.save()
        tests = {}
        with self.parameters.holding(self.average):
            self.save_weights("last")
            tests["last"] = self.score("test", training.test_images) if training.test_images else None
        tests["best"] = tests["last"]
        if training.test_images and progress.best_images != progress.images:
            with self.parameters.holding(self.best_weights()):
                tests["best"] = self.score("test", training.test_images)
        summary = summarise(self.spec, dataclasses.asdict(progress), tests)
        if self.folder is not None:
            self.folder.write_summary(summary)
            self.reporter.say(f"Done: {self.folder.path} holds weights/best, weights/last and summary.json.")
        return summary

    def best_weights(self) -> Tensor:
        """The best weights so far, as one flat tensor, from the folder of the first process."""
        flat = torch.zeros_like(self.average)
        if self.folder is not None:
            best = load(self.folder.weights("best")).state_dict()
            for name, place in self.parameters.unflatten(flat).items():
                place.copy_(best[name])
        return self.group.spread(flat)

    def save_weights(self, which: str) -> None:
        """Write the weights the model holds where others can load them."""
        if self.folder is not None:
            metadata = weights_metadata(
                self.spec, self.task, self.progress.images, self.progress.validation_error
            )
            self.model.save_pretrained(self.folder.weights(which), **metadata)

    def save(self, insist: bool = True) -> None:
        """Write a checkpoint; without `insist` a full disk is only worth a warning, the next try may be lucky."""
        if self.folder is None:
            return
        started = time.monotonic()
        tensors = {
            f"{kind}.{name}": value
            for kind, flat in self.state.items()
            for name, value in self.parameters.unflatten(flat).items()
        }
        tensors["updates"] = self.optimiser.state[self.parameters.values]["step"]
        tensors["random_state"] = torch.get_rng_state()
        try:
            self.folder.checkpoints.save(Checkpoint(tensors, dataclasses.asdict(self.progress)))
        except CheckpointError as error:
            if insist:
                raise
            self.reporter.say(f"warning: {error} Training goes on and will try again.")
        self.reporter.pause(time.monotonic() - started)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Take the state of a checkpoint, read by the first process, in all processes."""
        updates = self.optimiser.state[self.parameters.values]["step"]
        if checkpoint is not None:
            for kind, flat in self.state.items():
                for name, place in self.parameters.unflatten(flat).items():
                    place.copy_(checkpoint.tensors[f"{kind}.{name}"])
            updates.copy_(checkpoint.tensors["updates"])
            torch.set_rng_state(checkpoint.tensors["random_state"])
            self.progress = Progress(**{**checkpoint.state, "processes": self.group.size})
        for tensor in (*self.state.values(), updates):
            self.group.spread(tensor)
        self.progress = Progress(**self.group.spread_json(dataclasses.asdict(self.progress)))

    def hint(self) -> str:
        """How to go on with this run."""
        return f"continue with: ocra train --resume {self.folder.path}" if self.folder is not None else ""
