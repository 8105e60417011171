"""The settings of one training run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ocra.config import check_switches
from ocra.errors import OcraError


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained: how long, how fast, from where, and what is saved on the way."""

    images: int = 3_000_000
    """Images to train on, counted with repetition. 3e6 may be written for 3000000."""
    batch: int = 128
    """Images in one step, over all processes together."""
    learning_rate: float = 5e-3
    """Adam's learning rate at its highest."""
    whitening: float = 0.0
    """Length of the largest matrices' steps, whitened, at the highest learning rate: 0.015, say. 0: Adam for all."""
    attention_rate: float = 1.0
    """Learning rate of the two attention layers, as a share of that of the rest."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """What the learning rate does after the warm-up: fall to zero along a cosine, or stay."""
    warmup_images: int = 12_800
    """Images over which the learning rate rises from zero; at most a tenth of the run."""
    beta2: float = 0.99
    """Adam's β₂, the memory of squared gradients."""
    clip: float = 10.0
    """Largest norm of the gradient; a longer one is shortened to it."""
    average: float = 0.9995
    """Share of the averaged weights kept at each step; they are what is validated and saved. 0: no averaging."""
    capsule_init: float = 0.1
    """Standard deviation of the capsule transforms at the start (paper: 0.01)."""
    background_scale: float = 1.0
    """Scale of the background capsules' transforms at the start: above 1 they win at first and steer the glimpses."""
    forget_bias: float = 1.0
    """Added to the forget gates' bias at the start, so that the LSTMs begin by remembering."""
    orthogonal: bool = True
    """Start the hidden-to-hidden weights of the LSTMs as orthogonal matrices."""
    attention_init: float = 1.0
    """Scale of the attention layers' weights at the start. 0: all read windows start alike, and all write windows."""
    read_window: float = 1.0
    """Width of the first read window at the start, as a share of the image."""
    write_window: float = 1.0
    """Width of the write windows at the start, as a share of the image."""
    single_until_images: int = 60_000
    """Curriculum: the share of images with one object only falls from 1 to 0 over this many images, at most six tenths
    of the run (as for the other phases below). 0: none."""
    spread: float = 1.0
    """Share of the room for digits, around the middle, used at the start of what `spread_until_images` sets."""
    spread_until_images: int = 0
    """Curriculum: digits begin in the middle (`spread`), shown enlarged if among clutter, and use all the room
    after this many images. 0: none."""
    reconstruction_end: float = 1.0
    """Share of the weight of reconstruction that is left at the end of the run; it falls evenly. 1: it stays."""
    guide: float = 0.0
    """Weight at the start of a loss that shows where to look, for `guide_until_images`; needs boxes. Paper: none."""
    guide_until_images: int = 0
    """Curriculum: windows are drawn to the whole image first and to the objects one by one then; the weight of that
    falls from `guide` to 0 over this many images, at most four fifths of the run. 0: none."""
    few_glimpses: int = 1
    """Glimpses at the start of the curriculum that `few_until_images` sets."""
    few_until_images: int = 0
    """Curriculum: the number of glimpses rises from `few_glimpses` to the model's over this many images. 0: none."""
    start_from: str | None = None
    """Weights to start from: a shipped name or a folder. What does not fit the model is left as initialised."""
    report_every_images: int = 12_800
    """Images between two lines of the log."""
    validate_every_images: int = 100_000
    """Images between two validations."""
    validate_images: int = 5_000
    """Images of the validation split that are scored each time."""
    test_images: int = 10_000
    """Images of the test split that are scored at the end. 0: none."""
    patience: int = 0
    """Stop after this many validations without a better error. 0: never."""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic: 32-bit floats, or bfloat16 autocast where the hardware has it."""
    compile: bool = True
    """Compile the glimpse step: half a minute at the start, then much faster."""

    def __post_init__(self) -> None:
        smallest = {
            "images": 1, "batch": 1, "warmup_images": 0, "single_until_images": 0, "few_glimpses": 1,
            "few_until_images": 0, "spread_until_images": 0, "guide_until_images": 0, "report_every_images": 1,
            "validate_every_images": 1, "validate_images": 1, "test_images": 0, "patience": 0,
        }  # fmt: skip
        for name, least in smallest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
                raise OcraError(
                    f"training.{name} must be a whole number of at least {least} and below 2**63, not {value!r}."
                )
        for name in ("learning_rate", "clip", "read_window", "write_window", "checkpoint_minutes"):
            self._check(name, lambda value: 0 < value < math.inf, "a number above 0")
        for name in ("beta2", "average"):
            self._check(name, lambda value: 0 <= value < 1, "at least 0 and below 1")
        for name in ("attention_rate", "attention_init", "reconstruction_end", "guide", "whitening"):
            self._check(name, lambda value: 0 <= value < math.inf, "a number of at least 0")
        self._check("spread", lambda value: 0 <= value <= 1, "from 0 to 1")
        for name in ("capsule_init", "background_scale", "forget_bias"):
            self._check(name, math.isfinite, "a finite number")
        check_switches(self, "training")
        if not isinstance(self.start_from, str | None):
            raise OcraError(f"training.start_from must be the name of weights, not {self.start_from!r}.")
        choices = {"schedule": ("cosine", "constant"), "precision": ("fp32", "bf16")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OcraError(
                    f"training.{name} must be {' or '.join(allowed)}, not {getattr(self, name)!r}."
                )

    def _check(self, name: str, allowed: Callable[[float], bool], wanted: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not allowed(value):
            raise OcraError(f"training.{name} must be {wanted}, not {value!r}.")
