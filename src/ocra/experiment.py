"""An experiment is data: a network, a task, a loss, and the stages of training that make its weights."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ocra.config import (
    ModelConfig,
    NetworkConfig,
    check_numbers,
    check_switches,
    check_whole_numbers,
    from_dict,
)
from ocra.data.task import TaskConfig, make_task, task_config
from ocra.errors import OcraError, UsageError
from ocra.losses import LossConfig
from ocra.model.network import model_config

Ramp = float | tuple[float, float]
"""A value that stays, or the values at the start and at the end of a stage."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run. A pair of values is the start and the end of the stage; a single value stays."""

    images: int = 1_300_000
    """Images to train on, counted with repetition; 3e6 may be written for 3000000. Rounded up to whole batches."""
    batch_size: int = 64
    """Images in one step, over all processes together."""
    lr: Ramp = (4e-3, 0.0)
    """Adam's learning rate."""
    shampoo_lr: Ramp = (0.015, 0.0)
    """Learning rate of one-sided Shampoo for the LSTMs and the primary capsules. 0: Adam for all."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rates go from start to end; all other pairs of values go linearly."""
    warmup_images: int = 0
    """Images at the start of the stage over which the learning rates rise from zero."""
    attention_lr_mult: float = 1.0
    """Learning rate of what chooses where to look (OCRA: the two attention layers), relative to the others'."""
    beta2: float = 0.99
    """Adam's β₂."""
    grad_clip: float = 10.0
    """Largest norm of the gradient; a longer one is scaled down to it."""
    ema_decay: float = 0.9995
    """Decay of the moving average of the weights, which is what is validated and saved. 0: none."""
    glimpses: int | tuple[int, int] | None = None
    """Glimpses at each image. None: the model's own number."""
    reconstruction: Ramp = 10.0
    """Weight of the reconstruction loss, the paper's λ_recon."""
    cross_entropy: Ramp = 0.0
    """Weight of the soft-target cross-entropy between scores and counts. Paper: none."""
    over_count: Ramp = 0.0
    """Weight of the penalty on scores above the count, for tasks that count. Paper: none."""
    attention_supervision: Ramp = 0.0
    """Weight of the loss that draws the read windows to the objects' boxes. Paper: none."""
    attention_teacher: str | None = None
    """Weights, NAME@HASH, that find the objects in place of boxes: they recognise one in a small image at first sight,
    and are slid over large ones. Then class labels are the only supervision."""
    detach_windows: bool = False
    """Teach where to look by attention supervision alone: no other loss moves the read windows."""
    early_answers: Ramp = 0.0
    """Weight of the margin loss on the scores so far, after each glimpse, not the last alone. Paper: none."""
    single_objects: Ramp = 0.0
    """Curriculum: share of images that show one object only."""
    spread: Ramp = 1.0
    """Curriculum: share of the canvas, around the middle, in which digits are placed (enlarged among clutter)."""
    select: int = 1
    """Hard-example selection: candidates made for each image trained on; those of the highest loss are chosen."""
    init_from: str | None = None
    """Weights to fine-tune, in the first stage only: NAME@HASH of shipped ones or of a folder. None: random."""
    attention_scale: float = 1.0
    """When the stage begins, scale the attention layers' weights by this: windows move less at first."""
    read_window: float = 1.0
    """When the stage begins, scale the width of the read windows by this."""

    def __post_init__(self) -> None:
        check_switches(self, "stage")
        check_whole_numbers(self, "stage", images=1, batch_size=1, warmup_images=0, select=1)
        check_numbers(self, "stage", ("grad_clip", "read_window"), lambda value: value > 0, "above 0")
        check_numbers(
            self, "stage", ("attention_lr_mult", "attention_scale"), lambda value: value >= 0, "at least 0"
        )
        check_numbers(
            self, "stage", ("beta2", "ema_decay"), lambda value: 0 <= value < 1, "from 0 to below 1"
        )
        for name in (
            "lr",
            "shampoo_lr",
            "reconstruction",
            "cross_entropy",
            "over_count",
            "attention_supervision",
            "early_answers",
        ):
            self._check_ramp(name, math.inf)
        for name in ("single_objects", "spread"):
            self._check_ramp(name, 1.0)
        if self.glimpses is not None:
            pair = self.glimpses if isinstance(self.glimpses, tuple) else (self.glimpses, self.glimpses)
            whole = all(isinstance(end, int) and not isinstance(end, bool) for end in pair)
            if len(pair) != 2 or not whole or not all(1 <= end <= 1000 for end in pair):
                raise OcraError(
                    "stage.glimpses must be a whole number from 1 to 1000, or two: start and end; "
                    f"not {self.glimpses!r}."
                )
        if self.schedule not in ("cosine", "linear"):
            raise OcraError(f"stage.schedule must be cosine or linear, not {self.schedule!r}.")
        if self.detach_windows and self.attention_supervision in (0, (0, 0)):
            raise OcraError(
                "stage.detach_windows needs attention_supervision, or nothing teaches where to look."
            )
        if self.attention_teacher is not None and self.attention_supervision in (0, (0, 0)):
            raise OcraError("stage.attention_teacher has nothing to teach without attention_supervision.")
        for name in ("init_from", "attention_teacher"):
            if not isinstance(value := getattr(self, name), str | None):
                raise OcraError(f"stage.{name} must be the name of weights, not {value!r}.")

    def _check_ramp(self, name: str, most: float) -> None:
        value = getattr(self, name)
        pair = value if isinstance(value, tuple) else (value, value)
        valid = len(pair) == 2 and all(
            isinstance(end, int | float) and not isinstance(end, bool) and 0 <= end <= most and end < math.inf
            for end in pair
        )
        if not valid:
            bound = "at least 0" if most == math.inf else f"from 0 to {most:g}"
            raise OcraError(f"stage.{name} must be a number {bound}, or two: start and end; not {value!r}.")

    @property
    def steps(self) -> int:
        """Optimiser steps in the stage."""
        return -(-self.images // self.batch_size)


@dataclass(frozen=True)
class RunConfig:
    """How a run is watched, scored and saved; nothing here changes what is learnt but precision."""

    report_every_images: int = 12_800
    """Images between two lines of the log."""
    validate_every_images: int = 100_000
    """Images between two validations."""
    validate_images: int = 5_000
    """Images of the validation split that are scored each time."""
    patience: int = 0
    """End the run after so many validations in a row without a lower error (early stopping). 0: never."""
    test_images: int = 10_000
    """Images of the test split that are scored at the end. 0: none."""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints."""
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """Arithmetic of the large products: 32-bit floats, or bfloat16 where the hardware has it."""
    compile: bool = True
    """Compile the glimpse step: half a minute at the start, then much faster."""

    def __post_init__(self) -> None:
        check_whole_numbers(
            self,
            "run",
            report_every_images=1,
            validate_every_images=1,
            validate_images=1,
            test_images=0,
            patience=0,
        )
        check_numbers(self, "run", ("checkpoint_minutes",), lambda value: value > 0, "above 0")
        check_switches(self, "run")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise OcraError(f"run.precision must be auto, fp32 or bf16, not {self.precision!r}.")


@dataclass(frozen=True)
class Experiment:
    """Everything that makes one set of weights; the same on the command line, in config.json and in the docs."""

    name: str = "custom"
    """Name of the preset it started from."""
    description: str = ""
    """What it is, in a sentence."""
    paper_error: str = ""
    """The paper's exact error in percent, mean ± standard deviation of five runs."""
    seed: int = 0
    """Seed of the weights, of the images and of their order."""
    model: NetworkConfig = field(default_factory=ModelConfig)
    """The network."""
    task: TaskConfig = field(default_factory=lambda: task_config("multimnist"))
    """The images."""
    loss: LossConfig = field(default_factory=LossConfig)
    """The loss; its weights are in the stages."""
    init: Literal["ours", "paper"] = "ours"
    """Random weights at the start: larger capsule transforms, orthogonal LSTMs that remember, or the paper's."""
    stages: tuple[Stage, ...] = (Stage(),)
    """What training does, one stage after the other."""
    run: RunConfig = field(default_factory=RunConfig)
    """How the run is watched and saved."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip(".") or {"/", "\\"} & set(self.name):
            raise OcraError(f"name must be a word that can name a folder, not {self.name!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise OcraError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed!r}.")
        if self.init not in ("ours", "paper"):
            raise OcraError(f"init must be ours or paper, not {self.init!r}.")
        if not self.stages:
            raise OcraError("An experiment needs at least one stage of training.")
        if any(stage.init_from is not None for stage in self.stages[1:]):
            raise OcraError("Only the first stage may start from other weights (init_from).")

    @property
    def images(self) -> int:
        """Images that the whole run trains on."""
        return sum(stage.steps * stage.batch_size for stage in self.stages)

    @property
    def attention_teachers(self) -> tuple[str, ...]:
        """The weights that teach where to look in any stage, each once."""
        return tuple(dict.fromkeys(filter(None, (stage.attention_teacher for stage in self.stages))))

    @property
    def planned_images(self) -> int:
        """Images of all stages, before they are rounded to whole batches."""
        return sum(stage.images for stage in self.stages)

    def scaled(self, images: int) -> Experiment:
        """The same experiment over so many images in all.

        The early stages, which teach most, keep their length up to three tenths of what is left of the run; the last
        one takes the rest. Over its own number it is what it was.
        """
        if images == self.planned_images:
            return self
        stages, left = [], images
        for stage in self.stages:
            length = left if stage is self.stages[-1] else min(stage.images, left * 3 // 10)
            left -= length
            warmup = min(stage.warmup_images, images // 10)
            stages.append(replace(stage, images=max(1, length), warmup_images=warmup))
        return replace(self, stages=tuple(stages))

    def fitted(self) -> Experiment:
        """The same experiment with the model's image size and classes, and the loss, made to fit the task."""
        task = make_task(self.task, "train", self.seed)
        model = self.model.fitted_to(
            task.image_shape, len(task.class_names), task.answer_rule, task.sequence_length
        )
        # Divided by the largest, scores are comparable within an image only: fine for the highest few, not for counts.
        comparable = task.answer_rule.objects is not None and not task.answer_rule.repeats
        loss = replace(self.loss, normalise_scores=self.loss.normalise_scores and comparable)
        return replace(self, model=model, loss=loss)

    def check(self) -> Experiment:
        """Itself, if its settings go together. Asked before training, for fitting to a task may change some."""
        if self.loss.normalise_scores and any(stage.over_count not in (0, (0, 0)) for stage in self.stages):
            raise UsageError(
                "The over-count penalty needs scores that count: set loss.normalise_scores to false, "
                "or over_count to 0 in all stages."
            )
        looks = isinstance(self.model, ModelConfig) and self.model.attention
        if not looks and any(stage.detach_windows for stage in self.stages):
            raise UsageError("detach_windows is for networks with read windows; leave it off for this one.")
        return self

    def to_dict(self) -> dict[str, Any]:
        """As nested dictionaries, ready for JSON."""
        return {**dataclasses.asdict(self), "model": self.model.to_dict(), "task": self.task.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Experiment:
        """From nested dictionaries; unknown names are refused, missing ones take their defaults."""
        if isinstance(values, dict) and "training" in values and "stages" not in values:
            raise OcraError(
                "It is of version 0.1, which had 'training' in place of 'stages'. Finish that run with ocra 0.1, or "
                "fine-tune its weights in a new one: ocra train PRESET --stages.0.init-from FOLDER."
            )
        if not isinstance(values, dict):
            raise OcraError(f"A config is an object with names and values, not {values!r}.")
        made = dict(values)
        for name, kind in {"loss": LossConfig, "run": RunConfig}.items():
            made[name] = from_dict(kind, values.get(name, {}), f"{name}.")
        made["model"] = model_config(values.get("model", {}))
        made["task"] = task_config(values.get("task", "multimnist"))
        stages = values.get("stages", [{}])
        if not isinstance(stages, list | tuple):
            raise OcraError(f"stages must be a list, not {stages!r}.")
        made["stages"] = tuple(from_dict(Stage, stage, f"stages.{k}.") for k, stage in enumerate(stages))
        return from_dict(cls, made, "")
