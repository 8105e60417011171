"""Every row of the paper's tables by name, with the stages of training that make its weights."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ocra.baselines import CapsNetConfig, CNNConfig, DRAMConfig, RAMConfig, SmallCNNConfig
from ocra.config import ModelConfig, NetworkConfig
from ocra.data.task import TaskConfig, task_config
from ocra.errors import UsageError
from ocra.experiment import Experiment, RunConfig, Stage
from ocra.losses import LossConfig

Recipe = Literal["default", "paper"]

MULTIMNIST_3 = "multimnist-3@0a86e2e26c9b"
"""The shipped weights that ten glimpses and longer training begin with."""
MULTIMNIST_3_LONG = "multimnist-3-long@aba700581fd8"
"""Those that clutter begins with."""
CLUTTERED_5 = "cluttered-5@ff8810246e45"
"""Those that seven glimpses are fine-tuned from: they look at one digit after the other."""
CLUTTERED_5_SUPERVISED = "cluttered-5-supervised@7d22955a9daa"
"""The same, shown by boxes where to look: those that any number of digits are fine-tuned from."""
MNIST_6_EARLY = "mnist-6-early@bbd1b8920eb6"
"""Those that find the digits among clutter, so that no boxes are needed to teach where to look."""
MULTIMNIST, CLUTTERED, SVHN = task_config("multimnist"), task_config("cluttered"), task_config("svhn")

# Single digits first, then pairs; the canvas matters less and less.
OVERLAPPING = (
    Stage(60_000, lr=4e-3, shampoo_lr=0.015, warmup_images=12_800, single_objects=(1.0, 0.0)),
    Stage(1_240_000, reconstruction=(10.0, 1.0)),
)
# The same for longer; three quarters of all fresh images soon teach next to nothing, so the hardest are selected.
OVERLAPPING_LONG = (
    OVERLAPPING[0],
    Stage(240_000, lr=4e-3, shampoo_lr=0.015),
    Stage(
        900_000, batch_size=128, lr=(4e-3, 3.4e-3), shampoo_lr=(0.015, 0.013), grad_clip=3.0,
        reconstruction=(10.0, 5.0), select=2,
    ),
    Stage(
        2_200_000, batch_size=128, lr=(3.4e-3, 0.0), shampoo_lr=(0.013, 0.0), grad_clip=3.0,
        reconstruction=(5.0, 1.0), select=4,
    ),
)  # fmt: skip
# From the weights that the stages above made, at rates that rise once more: the hardest quarter still teaches.
OVERLAPPING_FURTHER = (
    Stage(
        3_400_000, batch_size=128, lr=(2.5e-3, 0.0), shampoo_lr=(0.0095, 0.0), warmup_images=12_800, grad_clip=3.0,
        reconstruction=(2.0, 1.0), select=4, init_from=MULTIMNIST_3,
    ),
)  # fmt: skip
# With more glimpses than the weights it starts from, windows that went on as they did would leave the image:
# so they move less at first (attention_scale).
_TEN = Stage(
    400_000, batch_size=128, lr=3e-3, shampoo_lr=0.011, attention_lr_mult=0.05, grad_clip=1.0, reconstruction=10.0,
    cross_entropy=0.5,
)  # fmt: skip
LONGER = (
    replace(_TEN, warmup_images=12_800, init_from=MULTIMNIST_3, attention_scale=0.1),
    replace(_TEN, images=500_000, lr=(3e-3, 2.6e-3), shampoo_lr=(0.011, 0.0095), reconstruction=(10.0, 5.0), select=2),
    replace(
        _TEN, images=700_000, lr=(2.6e-3, 0.0), shampoo_lr=(0.0095, 0.0), reconstruction=(5.0, 1.0), select=4,
    ),
)  # fmt: skip
# Among clutter the answer alone does not teach to look twice, or takes very long to; and its gradient, through one
# window after the other, drowns what boxes say: so boxes alone teach where to look. They are found by a network of
# single digits that is slid over the image; one image of two is searched, so the weight is twice that of true boxes.
# What is shown grows from the middle, as large as the digits of the weights it starts from, to the whole canvas.
_CLUTTER = Stage(
    300_000, lr=2e-3, shampoo_lr=0.009, grad_clip=3.0, ema_decay=0.999, reconstruction=20.0, cross_entropy=0.5,
    over_count=0.5, attention_supervision=4.0, attention_teacher=MNIST_6_EARLY, detach_windows=True,
)  # fmt: skip
SCATTERED = (
    replace(_CLUTTER, warmup_images=6_400, spread=(0.11, 1.0), init_from=MULTIMNIST_3_LONG, attention_scale=0.3),
    replace(_CLUTTER, images=600_000, batch_size=128, lr=(2e-3, 1.4e-3), shampoo_lr=(0.009, 0.0063), select=2),
    replace(_CLUTTER, images=250_000, batch_size=128, lr=(1.4e-3, 0.0), shampoo_lr=(0.0063, 0.0), select=4),
)  # fmt: skip
SCATTERED_SHOWN = tuple(
    replace(stage, attention_supervision=2.0, attention_teacher=None) for stage in SCATTERED
)
# Two glimpses more for weights that look twice already: each digit has three.
SCATTERED_LONGER = (
    replace(
        _CLUTTER, images=200_000, batch_size=128, lr=(1.5e-3, 0.0), shampoo_lr=(0.0068, 0.0), warmup_images=6_400,
        select=2, init_from=CLUTTERED_5,
    ),
)  # fmt: skip
# A number is read one digit after the other, and boxes alone teach where each of them is: single digits at first, with
# few glimpses. The losses of reading are ten times those of the other tasks, and so is the weight of supervision.
_READ = Stage(
    200_000, lr=2e-3, shampoo_lr=0.009, ema_decay=0.999, attention_supervision=20.0, detach_windows=True,
)  # fmt: skip
READING = (
    replace(
        _READ, warmup_images=12_800, glimpses=(4, 12), single_objects=(1.0, 0.0), attention_scale=0.0, read_window=0.85,
    ),
    replace(_READ, reconstruction=20.0, cross_entropy=1.0),
    replace(
        _READ, images=600_000, batch_size=128, lr=(2e-3, 0.0), shampoo_lr=(0.009, 0.0), reconstruction=20.0,
        cross_entropy=1.0,
    ),
)  # fmt: skip
# From weights that count two digits among clutter to none or four of any size. Boxes alone teach where to look: the
# gradient of the answers, through nine windows one after the other, is so large that it drowns what they say.
_ANY = Stage(
    300_000, lr=2.5e-3, shampoo_lr=0.01, ema_decay=0.998, grad_clip=3.0, reconstruction=(10.0, 5.0), cross_entropy=0.5,
    over_count=1.0, attention_supervision=2.0, detach_windows=True,
)  # fmt: skip
COUNTING = (
    replace(_ANY, warmup_images=6_400, single_objects=(0.3, 0.0), init_from=CLUTTERED_5_SUPERVISED),
    replace(
        _ANY, images=1_000_000, batch_size=128, lr=(2.5e-3, 0.0), shampoo_lr=(0.01, 0.0), reconstruction=(5.0, 1.0),
        select=2,
    ),
    replace(
        _ANY, images=150_000, batch_size=128, lr=(8e-4, 0.0), shampoo_lr=(0.0032, 0.0), reconstruction=1.0, select=4,
    ),
)  # fmt: skip
# Half of the images under nuisance, from weights that never saw any; noise is not worth much of the canvas.
ROBUST = (
    Stage(
        300_000, lr=(2e-3, 0.0), shampoo_lr=(0.0075, 0.0), warmup_images=12_800, grad_clip=3.0,
        reconstruction=(3.0, 1.0), init_from=MULTIMNIST_3,
    ),
)  # fmt: skip

CLUTTERED_MODEL = ModelConfig(height=100, width=100, glimpses=5, background_capsules=1, clip_canvas=False)
SVHN_MODEL = ModelConfig(height=64, width=64, glimpses=12, filters=64, classes=14, readout_digits=5)
COUNTED = LossConfig("authors", normalise_scores=False)
OFTEN = RunConfig(validate_every_images=25_000)
THOROUGH = RunConfig(validate_every_images=500_000, validate_images=60_000, precision="auto")


def _overlapping(name: str, description: str, paper_error: str, **model: int | bool) -> Experiment:
    """A row about overlapping digits; all are trained alike."""
    return Experiment(
        name,
        description,
        paper_error,
        model=ModelConfig(**model),  # type: ignore[arg-type]
        task=MULTIMNIST,
        stages=OVERLAPPING,
    )


def _cluttered(name: str, description: str, paper_error: str, **model: int | bool) -> Experiment:
    """A row about digits among clutter."""
    return Experiment(
        name, description, paper_error, model=replace(CLUTTERED_MODEL, **model), task=CLUTTERED,  # type: ignore[arg-type]
        loss=COUNTED, stages=SCATTERED, run=replace(OFTEN, precision="auto"),
    )  # fmt: skip


_ROWS = (
    replace(
        _overlapping("multimnist-3", "Two overlapping digits, three glimpses", "7.24 ± 0.11"),
        stages=OVERLAPPING_LONG, run=THOROUGH,
    ),
    replace(
        _overlapping("multimnist-10", "Two overlapping digits, ten glimpses", "5.08 ± 0.17", glimpses=10),
        stages=LONGER, run=replace(THOROUGH, validate_every_images=200_000),
    ),
    _overlapping(
        "multimnist-recurrent-3", "Ablation: the whole image at each of three steps, no glimpses", "8.98 ± 0.14",
        attention=False,
    ),
    _overlapping(
        "multimnist-feedforward", "Ablation: one feed-forward pass over the whole image", "10.63 ± 0.10",
        attention=False, recurrent=False, masking=False, glimpses=1,
    ),
    _overlapping(
        "multimnist-3-one-routing", "Ablation: one routing, so uniform couplings", "7.77 ± 0.24", routings=1
    ),
    _overlapping(
        "multimnist-3-no-capsules", "Ablation: fully connected layers in place of capsules", "8.04 ± 0.13",
        capsules=False,
    ),
    _cluttered("cluttered-5", "Two digits among clutter, five glimpses", "8.37 ± 1.43"),
    replace(
        _cluttered("cluttered-7", "Two digits among clutter, seven glimpses", "7.12 ± 1.05", glimpses=7),
        stages=SCATTERED_LONGER,
    ),
    _cluttered(
        "cluttered-5-no-capsules", "Ablation: cluttered-5 with fully connected layers in place of capsules", "> 20",
        capsules=False,
    ),
    Experiment(
        "svhn-12", "House numbers read from left to right in twelve glimpses", "10.07 ± 0.53",
        model=SVHN_MODEL, task=SVHN, loss=LossConfig(reconstruction_of="contrast", normalise_scores=False),
        stages=READING, run=replace(OFTEN, validate_images=3_000, precision="auto"),
    ),
)  # fmt: skip

# Coarse glimpses, 8×8 values, so that a digit takes several: for comparisons with people.
SINGLE_DIGITS = Experiment(
    "mnist-6", "Single digits, six coarse glimpses", "",
    model=ModelConfig(height=28, width=28, glimpses=6, glimpse_size=8, write_size=12, hidden=256),
    task=task_config({"name": "mnist", "max_shift": 2}), loss=LossConfig(normalise_scores=False),
    stages=(Stage(400_000, warmup_images=12_800, reconstruction=(10.0, 1.0)),),
)  # fmt: skip

PRESETS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ROWS}
"""The rows of the paper's tables."""

OWN_PRESETS: dict[str, Experiment] = {
    # Scores are rounded to counts, so each has to be near its count from both sides.
    "digits-any": Experiment(
        "digits-any", "None to four digits of any size, nine glimpses", "",
        model=replace(CLUTTERED_MODEL, height=64, width=64, glimpses=9), task=task_config("digits-any"),
        loss=replace(COUNTED, over_count_from=0.1), stages=COUNTING,
        run=RunConfig(validate_every_images=50_000, precision="auto"),
    ),
    "cluttered-5-supervised": replace(
        _cluttered("cluttered-5-supervised", "Two digits among clutter, shown where to look", "8.37 ± 1.43"),
        stages=SCATTERED_SHOWN,
    ),
    # Apart from multimnist-3, which others are fine-tuned from: those need not be trained again with it.
    "multimnist-3-long": replace(
        _overlapping("multimnist-3-long", "Two overlapping digits, three glimpses, trained for longer", "7.24 ± 0.11"),
        stages=OVERLAPPING_FURTHER, run=THOROUGH,
    ),
    "multimnist-3-robust": Experiment(
        "multimnist-3-robust", "Two overlapping digits under nuisance, three glimpses", "",
        model=ModelConfig(), task=task_config({"name": "multimnist", "nuisance": 0.5}), stages=ROBUST,
        run=RunConfig(validate_images=10_000, precision="auto"),
    ),
    "mnist-6": SINGLE_DIGITS,
    # For reaction times: the scores count after every glimpse, so that an easy digit may be named at the first one.
    "mnist-6-early": replace(
        SINGLE_DIGITS, name="mnist-6-early", description="Single digits, six coarse glimpses, answers early",
        stages=(replace(SINGLE_DIGITS.stages[0], early_answers=1.0),),
        run=RunConfig(precision="auto"),
    ),
    # The authors' next task (Adeli and others 2023, Journal of Vision 23(5):16): a capsule for each of the two shapes,
    # one for same and one for different, none of them masked; what the decoder knows goes back to the encoder.
    "same-different": Experiment(
        "same-different", "Two outlines: the same or different? Ten glimpses, with feedback", "1.1",
        model=ModelConfig(height=64, width=64, classes=4, glimpses=10, feedback=True, masking=False),
        task=task_config("same-different"),
        stages=(
            Stage(
                2_000_000, lr=(1e-3, 0.0), shampoo_lr=(0.004, 0.0), warmup_images=12_800, grad_clip=3.0,
                reconstruction=30.0, cross_entropy=1.0, attention_supervision=(2.0, 0.0),
            ),
        ),
        run=RunConfig(validate_every_images=20_000),
    ),
}  # fmt: skip
"""Networks that are not in the paper, and the baselines."""


def _baseline(
    name: str, description: str, error: str, model: NetworkConfig, task: TaskConfig, lr: float, stage: Stage
) -> Experiment:
    """A system that the paper compares OCRA with; plain Adam, averaged weights, no compiler."""
    run = RunConfig(validate_every_images=max(10_000, stage.images // 40), compile=False)
    plain = replace(stage, lr=(lr, 0.0), shampoo_lr=0.0, beta2=0.999, ema_decay=0.999)
    return Experiment(
        name, description, error, model=model, task=task, loss=LossConfig(normalise_scores=False), stages=(plain,),
        run=run,
    )  # fmt: skip


_CLUTTERED_SMALL = SmallCNNConfig(height=100, width=100, most=2, stride=2, widths=(24, 32, 64, 128, 256))
_BASELINE_ROWS = (
    _baseline(
        "cnn-multimnist", "Baseline: the CNN of Sabour et al. (2017)", "8.1", CNNConfig(), MULTIMNIST,
        1e-3, Stage(60_000, reconstruction=0.0),
    ),
    _baseline(
        "cnn-small-multimnist", "Baseline: a small CNN with batch norm", "", SmallCNNConfig(), MULTIMNIST,
        4e-3, Stage(3_000_000, reconstruction=0.0, warmup_images=12_800),
    ),
    _baseline(
        "capsnet-multimnist", "Baseline: CapsNet (Sabour et al. 2017), given each digit's own image", "5.2",
        CapsNetConfig(), MULTIMNIST, 1e-3, Stage(100_000, reconstruction=0.0005, warmup_images=6_400),
    ),
    _baseline(
        "cnn-small-cluttered", "Baseline: a small CNN with batch norm", "", _CLUTTERED_SMALL, CLUTTERED,
        4e-3, Stage(2_000_000, reconstruction=0.0, warmup_images=12_800),
    ),
    _baseline(
        "ram-cluttered", "Baseline: RAM (Mnih et al. 2014)", "9", RAMConfig(), CLUTTERED,
        1e-3, Stage(5_000_000, reconstruction=0.0, grad_clip=1.0, attention_lr_mult=0.1),
    ),
    _baseline(
        "dram-cluttered", "Baseline: DRAM (Ba et al. 2015)", "5", DRAMConfig(), CLUTTERED,
        3e-4, Stage(1_000_000, reconstruction=0.0, grad_clip=1.0, attention_lr_mult=0.1),
    ),
    _baseline(
        "dram-no-context-cluttered", "Baseline: DRAM without its context network", "7", DRAMConfig(context=False),
        CLUTTERED, 3e-4, Stage(1_000_000, reconstruction=0.0, grad_clip=1.0, attention_lr_mult=0.1),
    ),
)  # fmt: skip

BASELINES: dict[str, Experiment] = {experiment.name: experiment for experiment in _BASELINE_ROWS}
"""Systems to compare OCRA with; the errors are those their own papers print."""
OWN_PRESETS |= BASELINES
ALL_PRESETS: Mapping[str, Experiment] = ChainMap(OWN_PRESETS, PRESETS)

# The paper's epochs times the size of its training sets.
PAPER_IMAGES = {MULTIMNIST: 50 * 3_000_000, CLUTTERED: 1000 * 180_000, SVHN: 1000 * 235_000}
# The paper's λ_recon, where it is not 3.
PAPER_RECONSTRUCTION = {
    "multimnist-10": 10.0, "cluttered-5": 175.0, "cluttered-5-no-capsules": 175.0, "cluttered-7": 200.0,
    "svhn-12": 200.0,
}  # fmt: skip


def preset(name: str, recipe: Recipe = "default") -> Experiment:
    """The experiment of this name, with our recipe of training or the paper's."""
    if name not in ALL_PRESETS:
        raise UsageError(f"There is no preset '{name}'; choose one of {', '.join(ALL_PRESETS)}.")
    experiment = ALL_PRESETS[name]
    if recipe == "default":
        return experiment
    if recipe != "paper":
        raise UsageError(f"There is no recipe '{recipe}'; choose default or paper.")
    if name in OWN_PRESETS:
        raise UsageError(f"{name} is not in the paper, or not its own network: it has no recipe for it.")
    stage = paper_stage(PAPER_IMAGES[experiment.task], PAPER_RECONSTRUCTION.get(name, 3.0))
    # The paper's house numbers were those of train and extra, as they are.
    task = (
        task_config({"name": "svhn", "augment": False, "extra": True})
        if experiment.task == SVHN
        else experiment.task
    )
    run = replace(experiment.run, validate_every_images=500_000)
    return replace(experiment, task=task, init="paper", stages=(stage,), run=run)


def paper_stage(images: int, reconstruction: float) -> Stage:
    """Training as in the paper: Adam at a constant 0.001, batches of 128, gradients clipped to 10, no averages."""
    return Stage(
        images,
        batch_size=128,
        lr=1e-3,
        shampoo_lr=0.0,
        beta2=0.999,
        ema_decay=0.0,
        reconstruction=reconstruction,
    )


def own_experiment(experiment: Experiment) -> Experiment:
    """The same experiment; if it is no longer that of its preset, it does not bear the paper's figure or its name."""
    known = {**PRESETS, **OWN_PRESETS}.get(experiment.name)
    if known is None:
        return experiment
    if type(experiment.task) is not type(known.task):
        name = f"{experiment.name}-{experiment.task.to_dict()['name'].rpartition(':')[2]}"
        return replace(experiment, name=name, description="", paper_error="")
    own, usual = experiment.task.to_dict(), known.task.to_dict()
    # Neither where the data lies nor how training images are varied makes it another task.
    differs = any(own[key] != usual[key] for key in usual.keys() - {"root", "download", "augment", "extra"})
    if differs or experiment.model != known.model:
        return replace(experiment, description="", paper_error="")
    return experiment
