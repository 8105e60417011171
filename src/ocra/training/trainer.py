"""The training loop, plain PyTorch from top to bottom: copy it and change it."""

from __future__ import annotations

import dataclasses
import math
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocra.data.task import Batch, Task, make_task
from ocra.errors import OcraError
from ocra.evaluation import count_errors
from ocra.experiment import Experiment
from ocra.losses import compute_losses, image_losses
from ocra.metrics import ErrorCounter, wrong_answers
from ocra.model.kernels import float32_by_onednn
from ocra.model.weights import load
from ocra.training.checkpoint import Checkpoint, CheckpointError, RunFolder
from ocra.training.distributed import Group, PeerLost, StopSignals, check_share
from ocra.training.init import build_model, info_of
from ocra.training.localisation import Localiser
from ocra.training.logging import Reporter, Timer, commit, versions
from ocra.training.optim import Buffers, FlatParameters, Optimisers
from ocra.training.schedule import Moment, crossed, ema_decay, image_indices, moment, share_of, uses_shampoo

MOST_BAD_STEPS = 10
FIXED_SEED = 0  # validation and test images are the same for every run


class Diverged(OcraError):
    """The loss is not finite any more."""


@dataclass
class Progress:
    """Where a run is, in numbers."""

    processes: int = 1
    images: int = 0
    step: int = 0
    stage: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validated_images: int = 0
    validation_error: float = math.inf
    best_error: float = math.inf
    best_images: int = 0
    validations_since_best: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class Trainer:
    """One process of a run. The first one has the folder; the others have None and do as it says."""

    def __init__(
        self,
        experiment: Experiment,
        group: Group,
        folder: RunFolder | None,
        reporter: Reporter,
        checkpoint: Checkpoint | None = None,
        resumed: bool = False,
    ) -> None:
        """resumed: the first process has a checkpoint, so the weights to fine-tune are not needed."""
        self.experiment, self.group, self.folder, self.reporter = experiment, group, folder, reporter
        for stage in experiment.stages:
            check_share(group.size, stage.batch_size)  # torchrun may have started too many
        self.task = make_task(experiment.task, "train", experiment.seed)
        self.model = build_model(experiment, fine_tune=not resumed).to(group.device)
        self.flat, self.buffers = FlatParameters(self.model, group), Buffers(self.model)
        state = group.broadcast_json(checkpoint.state if checkpoint else {})
        self.progress = Progress(**{**state, "processes": group.size})
        if experiment.run.precision == "bf16":
            self.use_bf16()
        self.optimisers = Optimisers(
            self.model, self.flat, uses_shampoo(experiment.stages[self.progress.stage])
        )
        if state:
            self.restore(checkpoint)
        self.commit = None if folder is None else commit()  # now, for the source may change while it runs
        self.localisers = {
            source: Localiser(source, self.task, group.device, experiment.run.compile)
            for source in experiment.attention_teachers
        }
        self.model.defer_weight_gradients = True
        if experiment.run.compile:
            self.model.compile_step()
        self.timer = Timer()
        self.wall, self.cpu, self.saved = time.monotonic(), time.process_time(), time.monotonic()

    def use_bf16(self) -> None:
        """Multiply by bfloat16 copies of the large matrices, which each step of the optimisers refreshes."""
        copies = {id(self.flat.parameters[name]): copy for name, copy in self.flat.make_bf16_copy().items()}
        self.model.use_bf16(lambda matrix: copies[id(matrix)])

    def run(self) -> dict[str, Any]:
        """Train through all stages to the end and return the summary, or save and leave at a signal."""
        settings, progress = self.experiment.run, self.progress
        self.reporter.start(progress.images, self.experiment.images)
        try:
            if progress.images:
                self.reporter.say(f"Going on at {progress.images:,} images.")
                if crossed(progress.validated_images, progress.images, settings.validate_every_images):
                    self.validate()  # a process was lost before it could be
            else:
                self.save()  # a disk without room for a checkpoint is found out now
            with StopSignals() as signals:
                while progress.images < self.experiment.images and not self.given_up():
                    before = progress.images
                    due = time.monotonic() - self.saved > 60 * settings.checkpoint_minutes
                    stop, save = self.step(signals.caught is not None, due)
                    if crossed(before, progress.images, settings.report_every_images):
                        self.reporter.report(self.where(), skipped=progress.skipped)
                    if crossed(before, progress.images, settings.validate_every_images):
                        self.validate()
                    if stop:  # only now, so that what belongs to this step is not left out
                        self.save()
                        self.reporter.say(f"Stopped. {self.how_to_resume()}")
                        signals.leave()
                    if save and not progress.skipped_in_a_row:  # else the weights may be past saving
                        self.save(insist=False)
                if progress.validated_images != progress.images:
                    self.validate()
                self.save()
                with self.holding(self.flat.average, self.buffers.average):
                    self.save_weights("last")
                if self.group.all_reduce(torch.tensor([float(signals.caught is not None)])) > 0:
                    self.reporter.say(f"Stopped before the test. {self.how_to_resume()}")
                    signals.leave()
            return self.finish()  # all is saved, so a signal may end it at once
        except PeerLost as error:
            raise PeerLost(f"{error} {self.how_to_resume()}") from None
        finally:
            self.reporter.close()

    @float32_by_onednn()
    def step(self, stop: bool = False, save: bool = False) -> tuple[bool, bool]:
        """One step over one batch; whether any process was asked to stop, and whether a checkpoint is due."""
        experiment, progress, flat = self.experiment, self.progress, self.flat
        now = moment(experiment.stages, progress.images, experiment.model.glimpses)
        if now.index != progress.stage:
            self.begin(now)
        self.timer.start()
        if self.model.stochastic:  # by images seen and process, so that resuming needs no state
            noise = np.random.SeedSequence((experiment.seed, progress.images, self.group.rank))
            torch.manual_seed(int(noise.generate_state(1, np.uint64)[0]))
        batch = self.next_batch(now)
        self.timer.lap("batch")

        flat.zero_gradients(but_for=self.model.deferred_weights(now.glimpses))
        trace = self.model(batch.images, **self.asked_for(now))
        if self.model.losses is None:
            losses = compute_losses(trace, batch, experiment.loss, now.weights, experiment.model.glimpses)
        else:
            losses = self.model.losses(trace, batch, now.weights)
        self.timer.lap("forward")
        share = len(batch) / now.stage.batch_size  # so that the sum over processes is the mean over the batch
        (losses[0] * share).backward()
        self.timer.lap("backward")
        error = wrong_answers(trace, batch, self.task.answer_rule).float().mean()

        shared = share * torch.stack([*losses, error]).detach().double().cpu()
        mine = torch.tensor(
            [float(stop), float(save and self.group.rank == 0), self.cpu_lap()], dtype=torch.float64
        )
        summed = self.group.all_reduce(torch.cat([shared, mine, share * self.buffers.flat()]))
        shown = ("loss", *losses._fields[1:], "error")
        names = (*shown, "stop", "save", "cpu_seconds")
        figures = dict(zip(names, summed[: len(names)].tolist(), strict=True))
        self.buffers.fill(summed[len(names) :])
        norm = flat.reduce()
        self.timer.lap("reduce")
        if math.isfinite(norm) and math.isfinite(figures["loss"]):
            self.update(now, norm)
            extra = {"gradient_norm": norm, "lr": now.lr, "shampoo_lr": now.shampoo_lr}
            reported = {name: figures[name] for name in shown} | extra
            self.reporter.add(now.stage.batch_size, progress.images, reported)
        else:
            self.skip(now)
        self.timer.lap("update")

        progress.images += now.stage.batch_size
        progress.step += 1
        progress.cpu_seconds += figures["cpu_seconds"]
        progress.seconds += self.wall_lap()
        return figures["stop"] > 0, figures["save"] > 0

    def asked_for(self, now: Moment) -> dict[str, Any]:
        """What a pass is asked for beside the scores; a model need not know what its experiment does not use."""
        options: dict[str, Any] = {}
        if self.experiment.model.recurrent:
            options["glimpses"] = now.glimpses
        if self.experiment.loss.needs_attended:
            options["attended"] = True
        if now.weights.attention_supervision > 0:
            options["record"] = True
        if now.stage.detach_windows:
            options["detach_windows"] = True
        return options

    def begin(self, now: Moment) -> None:
        """Begin a further stage: change the weights as it says.

        The optimisers go on, unless the stage switches Shampoo on or off: then they begin afresh. So do the averages
        where the weights were changed.
        """
        stage, flat = now.stage, self.flat
        if stage.attention_scale != 1 or stage.read_window != 1:
            if self.group.rank == 0 or not flat.shared:
                self.model.begin_stage(stage.attention_scale, stage.read_window)
            flat.publish()
            flat.average[flat.own] = flat.values[flat.own]
        if uses_shampoo(stage) != self.optimisers.uses_shampoo:
            self.optimisers = Optimisers(self.model, flat, uses_shampoo(stage))
        self.progress.stage = now.index
        self.reporter.say(f"Stage {now.index + 1} of {len(self.experiment.stages)}.")

    def next_batch(self, now: Moment) -> Batch:
        """This process's share of a batch; with selection, the hardest of its candidates."""
        stage = now.stage
        part = share_of(self.group.rank, self.group.size, stage.batch_size)
        drawn = slice(now.drawn + stage.select * part.start, now.drawn + stage.select * part.stop)
        indices = image_indices(self.experiment.seed, len(self.task), drawn.start, drawn.stop)
        supervised, teacher = now.weights.attention_supervision > 0, stage.attention_teacher
        batch = self.task.batch(
            indices,
            annotations=self.model.needs_annotations or (supervised and teacher is None),
            single_objects=now.single_objects,
            spread=now.spread,
        ).to(self.group.device)
        if stage.select > 1:
            batch = batch.take(self.hardest(batch, part.stop - part.start, now))
        if supervised and teacher is not None:
            batch = self.localisers[teacher].annotated(batch, self.task.enlarged_by(now.spread))
        return batch

    @torch.no_grad()
    def hardest(self, candidates: Batch, count: int, now: Moment) -> Tensor:
        """Positions [count] of the candidates of the highest loss; `count` at a time, so that one size is compiled."""
        losses = []
        glimpses = now.glimpses if self.experiment.model.recurrent else None
        for start in range(0, len(candidates), count):
            part = candidates.take(torch.arange(start, start + count, device=candidates.images.device))
            trace = self.model.answer(part.images, glimpses)
            losses.append(image_losses(trace, part, self.experiment.loss, now.weights.over_count))
        return torch.cat(losses).topk(count).indices

    def update(self, now: Moment, norm: float) -> None:
        """Clip the gradient, move the own weights and their averages, and let the others have them."""
        flat, stage = self.flat, now.stage
        if norm > stage.grad_clip:
            flat.gradient[flat.own] *= stage.grad_clip / norm
        self.optimisers.step(stage, now.lr, now.shampoo_lr)
        decay = ema_decay(stage, self.progress.step)
        flat.average[flat.own].lerp_(flat.values[flat.own], 1 - decay)
        self.buffers.update_average(decay)
        flat.publish()
        self.progress.skipped_in_a_row = 0

    def skip(self, now: Moment) -> None:
        """Leave out a step that is not finite; too many in a row mean that the run has diverged."""
        progress = self.progress
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row < MOST_BAD_STEPS:
            return
        first_bad = progress.images - (MOST_BAD_STEPS - 1) * now.stage.batch_size
        # A step of finite loss may have ruined the weights, and those may just have been saved.
        good = None if self.folder is None else self.folder.checkpoints.drop_from(first_bad)
        raise Diverged(
            f"The loss or its gradient was not finite in {MOST_BAD_STEPS} steps in a row: the run has diverged. "
            "Train again with a lower lr, shampoo_lr or grad_clip."
            + ("" if good is None else f" The last good checkpoint is that of {good:,} images.")
        )

    def given_up(self) -> bool:
        """Whether validation has shown for long enough that there is nothing more to gain (early stopping)."""
        patience = self.experiment.run.patience
        return 0 < patience <= self.progress.validations_since_best

    def validate(self) -> None:
        """Score the averaged weights on the validation split; keep them if none before were clearly better.

        That is the one-standard-error rule: few validation images cannot tell the best weights from later ones, whose
        learning rate has fallen further.
        """
        progress, started = self.progress, time.monotonic()
        task = make_task(self.experiment.task, "validation", FIXED_SEED)
        with self.holding(self.flat.average, self.buffers.average):
            images = min(self.experiment.run.validate_images, len(task))
            result = self.score(task, np.arange(images))
            error, before = result.exact_error, progress.best_error
            progress.validated_images, progress.validation_error = progress.images, error
            progress.validations_since_best = 0 if error < before else progress.validations_since_best + 1
            if error <= before + standard_error(before, images) and self.save_best():
                progress.best_error, progress.best_images = min(error, before), progress.images
        figures = {
            "cpu_seconds": progress.cpu_seconds,
            "validation_error": error,
            "validation_images": images,
            "validation_object_error": result.object_error,
            "silent_glimpses": result.silent_glimpses,
        }
        self.reporter.write({**self.where(), **figures})
        self.reporter.pause(time.monotonic() - started)

    @contextmanager
    def holding(self, values: Tensor, buffers: dict[str, Tensor]) -> Iterator[None]:
        """Within the block the model has these parameters [size] and buffers; afterwards its own again."""
        with self.flat.holding(values), self.buffers.holding(buffers):
            yield

    def score(self, task: Task, indices: NDArray[np.int64]) -> ErrorCounter:
        """Score the weights the model holds on these images, which the processes share among them."""
        mine = indices[share_of(self.group.rank, self.group.size, len(indices))]
        batch_size = self.experiment.stages[self.progress.stage].batch_size
        part = share_of(self.group.rank, self.group.size, batch_size)
        size = part.stop - part.start  # as in training, so that the compiled step is for one size
        with self.model.as_used():
            counter = count_errors(self.model, task, mine, size, device=self.group.device)
        return counter.combined(self.group.all_reduce)

    def finish(self) -> dict[str, Any]:
        """Score the last and the best weights on the test split, and sum up; the summary marks the run as ended."""
        progress, tests = self.progress, {}
        if self.experiment.run.test_images:
            task = make_task(self.experiment.task, "test", FIXED_SEED)
            indices = task.sample(self.experiment.run.test_images)
            with self.holding(self.flat.average, self.buffers.average):
                tests["last"] = tests["best"] = self.score(task, indices)
            if progress.best_images != progress.images:
                with self.holding(*self.best_weights()):
                    tests["best"] = self.score(task, indices)
        progress.seconds += self.wall_lap()
        progress.cpu_seconds += float(
            self.group.all_reduce(torch.tensor([self.cpu_lap()], dtype=torch.float64))
        )
        summary = {
            "name": self.experiment.name,
            "seed": self.experiment.seed,
            **dataclasses.asdict(progress),
            "test": {which: result.figures() for which, result in tests.items()},
            "versions": versions(),
            "commit": self.commit,
            "config": self.experiment.to_dict(),
        }
        if self.folder is not None:
            self.folder.write_summary(summary)
            where = f"{self.folder.path} holds weights/best, weights/last and summary.json."
            self.reporter.say(f"Done{_told(tests.get('best'))}. {where}")
        return summary

    # What is written to disk, by the first process; all take part, for each knows its own share.

    def save(self, insist: bool = True) -> None:
        """Write a checkpoint; without `insist` a failure is only worth a warning, as the next may succeed."""
        started = time.monotonic()
        tensors = self.tensors()
        if self.folder is not None:
            try:
                self.folder.checkpoints.save(Checkpoint(tensors, dataclasses.asdict(self.progress)))
            except CheckpointError as error:
                if insist:
                    raise
                self.reporter.say(f"warning: {error} Training goes on and will try again.")
        self.saved = time.monotonic()
        self.reporter.pause(self.saved - started)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes during a run, from all processes, by name."""
        flat, group = self.flat, self.group
        flat.synchronise(flat.average)
        kept = {"random_state": torch.get_rng_state()}
        for kind, values in (("model", flat.values), ("average", flat.average)):
            kept |= {f"{kind}.{name}": view for name, view in flat.unflatten(values).items()}
        kept |= self.buffers.tensors()
        for rank in range(group.size):
            own = self.optimisers.tensors() if rank == group.rank else {}
            shapes = group.broadcast_json(
                {
                    name: (list(value.shape), str(value.dtype).removeprefix("torch."))
                    for name, value in own.items()
                },
                rank,
            )
            for name, (shape, dtype) in shapes.items():
                # Contiguous, for messages are made of memory, in whatever format that is.
                value = (
                    own[name].clone(memory_format=torch.contiguous_format)
                    if own
                    else torch.empty(shape, dtype=getattr(torch, dtype))
                )
                kept[name] = group.broadcast(value, rank)
        return kept

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Take over a checkpoint; the first process has read it and sends each tensor to the others."""
        flat, group = self.flat, self.group
        places = {
            f"{kind}.{name}": view
            for kind, values in (("model", flat.values), ("average", flat.average))
            for name, view in flat.unflatten(values).items()
        }
        places |= self.buffers.tensors() | self.optimisers.tensors()
        given = checkpoint.tensors if checkpoint else {}
        shapes = group.broadcast_json(
            {
                name: (list(value.shape), str(value.dtype).removeprefix("torch."))
                for name, value in given.items()
            }
        )
        for name, place in places.items():
            if name not in shapes or shapes[name][0] != list(place.shape):
                raise OcraError(
                    f"The checkpoint does not fit its config.json ({name} differs); put back what that said, or "
                    "fine-tune the run's weights in a new run (--stages.0.init-from)."
                )
        for name, (shape, dtype) in shapes.items():
            value = given[name].clone() if given else torch.empty(shape, dtype=getattr(torch, dtype))
            value = group.broadcast(value)
            if name in places:
                places[name].copy_(value)
            elif name == "random_state":
                torch.set_rng_state(value)
        flat.publish()

    def save_weights(self, which: str) -> None:
        """Write the weights the model holds where others can load them."""
        if self.folder is None:
            return
        progress = self.progress
        info = info_of(
            self.experiment, self.task, images=progress.images, validation_error=progress.validation_error
        )
        try:
            self.model.save_pretrained(self.folder.weights(which), info=info)
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
        return self.group.broadcast_json(failure) is None

    def best_weights(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The best parameters so far as one flat tensor, and the buffers, read by the first process."""
        flat = torch.zeros_like(self.flat.average)
        buffers = {name: torch.zeros_like(value) for name, value in self.buffers.values.items()}
        if self.folder is not None:
            best = load(self.folder.weights("best")).state_dict()
            for name, place in (self.flat.unflatten(flat) | buffers).items():
                place.copy_(best[name])
        return self.group.broadcast(flat), {
            name: self.group.broadcast(value) for name, value in buffers.items()
        }

    def where(self) -> dict[str, Any]:
        """What every line of the log begins with; stages are counted from 1."""
        return {"step": self.progress.step, "images": self.progress.images, "stage": self.progress.stage + 1}

    def how_to_resume(self) -> str:
        """Where the newest checkpoint is, and how to go on from it."""
        if self.folder is None:
            return "Continue with ocra train --resume and the folder of the run."
        saved = self.folder.checkpoints.newest()
        path = shlex.quote(str(self.folder.path))
        return f"Saved at {saved or 0:,} images; continue with: ocra train --resume {path}"

    def wall_lap(self) -> float:
        """Seconds since the last call."""
        last, self.wall = self.wall, time.monotonic()
        return self.wall - last

    def cpu_lap(self) -> float:
        """CPU seconds of this process since the last call."""
        last, self.cpu = self.cpu, time.process_time()
        return self.cpu - last


def standard_error(error: float, images: int) -> float:
    """Of an error measured on so many images; none at all does not mean that there will never be one."""
    share = (min(error, 1.0) * images + 1) / (images + 1)
    return max(math.sqrt(share * (1 - share) / images), 1 / images)


def _told(test: ErrorCounter | None) -> str:
    """What a test found, in a few words."""
    if test is None:
        return ""
    figures = test.figures()
    low, high = figures["exact_error_interval"]
    return f": exact error {figures['exact_error']:.2%} ({low:.2%} to {high:.2%}) on {figures['n']:,} test images"
