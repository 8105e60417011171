"""Every row of the paper's tables by name: model, task, loss and training of one experiment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ocra.config import ModelConfig
from ocra.data import SVHN, ClutteredMNIST, MultiMNIST, TaskConfig, task_config
from ocra.errors import OcraError, UsageError
from ocra.files import unknown_option
from ocra.losses import LossConfig
from ocra.training.config import TrainingConfig

Recipe = Literal["default", "paper"]


@dataclass(frozen=True)
class Experiment:
    """Everything one experiment is."""

    name: str = "custom"
    """Name of the preset it started from."""
    description: str = ""
    """What it is, in a sentence."""
    paper_error: str = ""
    """The paper's exact error in percent, mean ± standard deviation of five runs."""
    seed: int = 0
    """Seed of the weights, of the images and of their order."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    task: TaskConfig = field(default_factory=MultiMNIST.Config)
    """The images."""
    loss: LossConfig = field(default_factory=LossConfig)
    """The loss."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The run."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip(".") or {"/", "\\"} & set(self.name):
            raise OcraError(f"name must be a word that can name a folder, not {self.name!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise OcraError(f"seed must be a whole number from 0 to 2**63 - 1, not {self.seed!r}.")

    def to_dict(self) -> dict[str, Any]:
        """As nested dictionaries, ready for JSON."""
        return {**dataclasses.asdict(self), "task": self.task.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Experiment:
        """From nested dictionaries; unknown names are refused, missing ones take their defaults."""
        parts = {"model": ModelConfig, "loss": LossConfig, "training": TrainingConfig}
        made = dict(_checked(values, ""))
        for name, kind in parts.items():
            made[name] = _from_dict(kind, values.get(name, {}), f"{name}.")
        made["task"] = task_config(_checked(values.get("task", {}), "task."))
        return _from_dict(cls, made, "")


def _checked(values: Any, prefix: str) -> dict[str, Any]:
    """The values, if they are a dictionary."""
    if not isinstance(values, dict):
        raise OcraError(
            f"The config needs an object for {prefix.rstrip('.') or 'the whole'}, not {values!r}."
        )
    return values


def _from_dict(kind: Any, values: Any, prefix: str) -> Any:
    """A dataclass from a dictionary, with a sentence for names it does not know."""
    known = {item.name for item in dataclasses.fields(kind)}
    if unknown := sorted(set(_checked(values, prefix)) - known):
        raise unknown_option(unknown[0], known, prefix)
    # JSON has lists only; the configs hold tuples, which can be compared and hashed.
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def fit_to_task(experiment: Experiment) -> Experiment:
    """The same experiment with the model's image size and classes, and the loss, made to fit the task."""
    from ocra.data import make_task

    task = make_task(experiment.task, "train", experiment.seed)
    channels, height, width = task.image_shape
    model = replace(
        experiment.model, channels=channels, height=height, width=width, classes=len(task.class_names),
        readout_digits=experiment.model.readout_digits if task.sequence_length else 0,
    )  # fmt: skip
    rule = task.answer_rule
    # Scores are comparable only within an image then: fine for the highest few, not for counting.
    comparable = rule.objects is not None and not rule.repeats
    loss = replace(experiment.loss, normalise_scores=experiment.loss.normalise_scores and comparable)
    return _without_foreign_names(replace(experiment, model=model, loss=loss))


def _without_foreign_names(experiment: Experiment) -> Experiment:
    """The same experiment; if it is no longer that of its preset, it does not bear the paper's figure or its name."""
    known = PRESETS.get(experiment.name)
    if known is None:
        return experiment
    if experiment.task.name != known.task.name:
        return replace(
            experiment, name=f"{experiment.name}-{experiment.task.name}", description="", paper_error=""
        )
    # Neither where the data lies nor how training pictures are varied makes it another task.
    variable = ("root", "download", "augment", "extra", "class_names")
    same = {name: value for name, value in known.task.to_dict().items() if name in variable}
    if replace(experiment.task, **same) != known.task or experiment.model != known.model:
        return replace(experiment, description="", paper_error="")
    return experiment


CLUTTERED = ClutteredMNIST.Config()
HOUSE_NUMBERS = SVHN.Config()

OVERLAPPING = TrainingConfig(batch=64, learning_rate=4e-3, whitening=0.015, reconstruction_end=0.1)
OVERLAPPING_LOSS = LossConfig(10.0)
# Where there are more glimpses than in the weights to start from, windows that went on like that would leave the
# image: so they move less at first (attention_init).
LONGER = TrainingConfig(
    batch=64, learning_rate=2e-3, whitening=0.0075, attention_rate=0.05, clip=1.0, attention_init=0.1,
    single_until_images=0, reconstruction_end=0.1, start_from="multimnist-3",
)  # fmt: skip
# Among clutter the answer alone does not teach to look twice, or takes very long to: so it is shown at first (guide).
SCATTERED = TrainingConfig(
    images=1_500_000, batch=64, learning_rate=5e-4, warmup_images=6_400, beta2=0.999, clip=3.0, average=0.999,
    forget_bias=0.0, orthogonal=False, attention_init=0.3, single_until_images=0, guide=2.0,
    guide_until_images=1_100_000, start_from="multimnist-3", validate_every_images=25_000,
)  # fmt: skip
# A number is read by looking at one digit after the other, which is shown at first as well. The losses of reading are
# ten times those of the other tasks, and so is the weight of showing.
READING = TrainingConfig(
    images=800_000, batch=64, learning_rate=1.5e-3, whitening=0.008, average=0.999, attention_init=0.0,
    read_window=0.85, single_until_images=150_000, few_glimpses=4, few_until_images=200_000, guide=20.0,
    guide_until_images=500_000, validate_every_images=25_000,
)  # fmt: skip

CLUTTERED_MODEL = ModelConfig(height=100, width=100, glimpses=5, background_capsules=1, clip_canvas=False)
HOUSE_NUMBER_MODEL = ModelConfig(height=64, width=64, glimpses=12, filters=64, classes=14, readout_digits=5)
CLUTTERED_LOSS = LossConfig(20.0, "authors", normalise_scores=False, excess_weight=0.5)

_SPECS = [
    Experiment(
        "multimnist-3", "Two overlapping digits, three glimpses", "7.24 ± 0.11",
        loss=OVERLAPPING_LOSS, training=OVERLAPPING,
    ),
    Experiment(
        "multimnist-10", "Two overlapping digits, ten glimpses", "5.08 ± 0.17",
        model=ModelConfig(glimpses=10), loss=LossConfig(10.0, share_weight=0.5), training=LONGER,
    ),
    Experiment(
        "multimnist-recurrent-3", "Ablation: the whole image at each of three steps, no glimpses", "8.98 ± 0.14",
        model=ModelConfig(attention=False), loss=OVERLAPPING_LOSS, training=OVERLAPPING,
    ),
    Experiment(
        "multimnist-feedforward", "Ablation: one feed-forward pass over the whole image", "10.63 ± 0.10",
        model=ModelConfig(attention=False, recurrent=False, masking=False, glimpses=1),
        loss=OVERLAPPING_LOSS, training=OVERLAPPING,
    ),
    Experiment(
        "multimnist-3-one-routing", "Ablation: one routing, so uniform couplings", "7.77 ± 0.24",
        model=ModelConfig(routings=1), loss=OVERLAPPING_LOSS, training=OVERLAPPING,
    ),
    Experiment(
        "multimnist-3-no-capsules", "Ablation: fully connected layers in place of capsules", "8.04 ± 0.13",
        model=ModelConfig(capsules=False), loss=OVERLAPPING_LOSS, training=OVERLAPPING,
    ),
    Experiment(
        "cluttered-5", "Two digits among clutter, five glimpses", "8.37 ± 1.43",
        model=CLUTTERED_MODEL, task=CLUTTERED, loss=CLUTTERED_LOSS, training=SCATTERED,
    ),
    Experiment(
        "cluttered-7", "Two digits among clutter, seven glimpses", "7.12 ± 1.05",
        model=replace(CLUTTERED_MODEL, glimpses=7), task=CLUTTERED, loss=CLUTTERED_LOSS, training=SCATTERED,
    ),
    Experiment(
        "cluttered-5-no-capsules", "Ablation: cluttered-5 with fully connected layers in place of capsules", "> 20",
        model=replace(CLUTTERED_MODEL, capsules=False), task=CLUTTERED, loss=CLUTTERED_LOSS, training=SCATTERED,
    ),
    Experiment(
        "svhn-12", "House numbers read from left to right in twelve glimpses", "10.07 ± 0.53",
        model=HOUSE_NUMBER_MODEL, task=HOUSE_NUMBERS, loss=LossConfig(10.0, normalise_scores=False), training=READING,
    ),
]  # fmt: skip

PRESETS: dict[str, Experiment] = {experiment.name: experiment for experiment in _SPECS}

# The paper's epochs times the size of its training sets.
PAPER_IMAGES = {"multimnist": 50 * 3_000_000, "cluttered": 1000 * 180_000, "svhn": 1000 * 235_000}
# The paper's λ_recon, where it is not 3.
PAPER_RECONSTRUCTION = {
    "multimnist-10": 10.0, "cluttered-5": 175.0, "cluttered-5-no-capsules": 175.0, "cluttered-7": 200.0,
    "svhn-12": 200.0,
}  # fmt: skip


def preset(name: str, recipe: Recipe = "default") -> Experiment:
    """The experiment of this name, with our recipe of training or the paper's."""
    if name not in PRESETS:
        raise UsageError(f"There is no preset '{name}'; choose one of {', '.join(PRESETS)}.")
    experiment = PRESETS[name]
    if recipe == "default":
        return experiment
    if recipe != "paper":
        raise UsageError(f"There is no recipe '{recipe}'; choose default or paper.")
    weight = PAPER_RECONSTRUCTION.get(name, 3.0)
    loss = replace(experiment.loss, reconstruction_weight=weight, excess_weight=0.0, share_weight=0.0)
    # Its house numbers were those of train and extra, as they are.
    task = (
        replace(experiment.task, augment=False, extra=True)
        if isinstance(experiment.task, SVHN.Config)
        else experiment.task
    )
    return replace(
        experiment, task=task, loss=loss, training=paper_training(PAPER_IMAGES[experiment.task.name])
    )


def paper_training(images: int) -> TrainingConfig:
    """Training as in the paper: Adam at a constant 0.001, batches of 128, PyTorch's initialisation, no averages."""
    return TrainingConfig(
        images=images, batch=128, learning_rate=1e-3, schedule="constant", warmup_images=0, beta2=0.999, average=0.0,
        capsule_init=0.01, forget_bias=0.0, orthogonal=False, single_until_images=0, validate_every_images=500_000,
    )  # fmt: skip
