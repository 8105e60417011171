"""Plain data that every part shares: the network, how scores become an answer, how an image is prepared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from ocra.errors import OcraError
from ocra.files import unknown_option

if TYPE_CHECKING:
    from typing_extensions import Self


def check_switches(config: Any, prefix: str) -> None:
    """Refuse anything but true and false for the switches of a config: the word "no" would count as yes."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.type in (bool, "bool") and not isinstance(value, bool):
            raise OcraError(f"{prefix}.{item.name} must be true or false, not {value!r}.")


def check_whole_numbers(config: Any, prefix: str, **least: int) -> None:
    """Refuse fields that are no whole numbers, or smaller than the least that is given for each."""
    for name, smallest in least.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value < 2**63:
            wanted = f"a whole number of at least {smallest} and below 2**63"
            raise OcraError(f"{prefix}.{name} must be {wanted}, not {value!r}.")


def check_numbers(
    config: Any, prefix: str, names: tuple[str, ...], allowed: Callable[[float], bool], wanted: str
) -> None:
    """Refuse fields that are no finite numbers, or not those that are `allowed`."""
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not allowed(value):
            raise OcraError(f"{prefix}.{name} must be a number {wanted}, not {value!r}.")


Config = TypeVar("Config")
MOST_CLASSES, MOST_PIXELS = 1_000_000, 100_000_000
"""Files of anybody may ask for any number; more than these would take all memory before anything else is checked."""


def from_dict(kind: type[Config], values: Any, prefix: str) -> Config:
    """A config dataclass from a parsed JSON object, with a sentence for names it does not know."""
    if not isinstance(values, dict):
        raise OcraError(
            f"The config needs an object for {prefix.rstrip('.') or 'the whole'}, not {values!r}."
        )
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - known):
        raise unknown_option(unknown[0], known, prefix)
    # JSON has lists only; the configs hold tuples, which can be compared and hashed.
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


@dataclass(frozen=True)
class AnswerRule:
    """How scores become an answer on a task."""

    objects: int | None = 2
    """Objects in each image; None where the number is not known: then each score is rounded."""
    repeats: bool = True
    """Whether a class may occur more than once in an image."""


EVIDENCE = 14
"""How many quantities `ocra.model.deciding.evidence` makes of a pass."""


@dataclass(frozen=True)
class Calibration:
    """From how clear an answer is to the probability that it is right, as found on held-out validation images.

    The probability of a margin m is 1 / (1 + exp(−(m − offset) / temperature)), for whole answers and for single
    objects; what margins are, `ocra.model.deciding.margins` says.
    """

    temperature: float
    offset: float
    object_temperature: float
    object_offset: float
    threshold: float
    """Below this probability that the whole is right, the answer is "unsure"."""
    silence: float = 0.0
    """Where no class scores higher than this, the answer is "nothing"; for networks that always name so many."""
    images: int = 0
    """Validation images it was found on."""
    plausible: tuple[float, ...] = ()
    """Weights of `ocra.model.deciding.evidence`, then a constant: where the sum is below 0, the image does not look as
    if it held as many objects as the network always names. Empty where that was not found out."""

    def __post_init__(self) -> None:
        names = tuple(item.name for item in dataclasses.fields(self) if item.name != "plausible")
        check_numbers(self, "calibration", names, lambda value: True, "that is finite")
        if not isinstance(self.plausible, list | tuple) or len(self.plausible) not in (0, EVIDENCE + 1):
            raise OcraError(f"calibration.plausible must have {EVIDENCE + 1} numbers or none.")
        if not all(type(value) in (int, float) and math.isfinite(value) for value in self.plausible):
            raise OcraError("calibration.plausible must have numbers that are finite.")
        object.__setattr__(self, "plausible", tuple(map(float, self.plausible)))
        check_numbers(
            self, "calibration", ("temperature", "object_temperature"), lambda value: value > 0, "above 0"
        )


@dataclass(frozen=True)
class Preprocessing:
    """How a user's own photograph or drawing becomes an image like those of a task."""

    fit: Literal["content", "whole", "stretch"] = "whole"
    """What is kept: the surroundings of the ink, all of it padded with black, or all of it stretched to the image."""
    ink: Literal["handwriting", "inverted", "contrast", "as-is"] = "as-is"
    """Light and dark: made white ink on even black as handwriting needs it, always inverted, each place's difference
    from the tone of the border, or left as they are."""
    digit_height: float = 20
    """With fit="content": height in pixels to which digits are scaled."""
    digits_apart: bool = False
    """With fit="content": a digit is the largest connected piece of ink, not all of the ink."""


@dataclass(frozen=True)
class NetworkConfig:
    """What the config of any network says: which images it takes and how many classes it names.

    The properties are those of a network that looks once, at the whole image, and has no capsules; a config with
    fields of these names says otherwise.
    """

    network: ClassVar[type[Any]]
    """The class that is built from this config, see `ocra.model.network`."""
    kind: ClassVar[str]
    """The name of that class in a config.json."""

    channels: int = 1
    """Image channels: 1 (grey) or 3 (colour)."""
    height: int = 36
    """Image height in pixels."""
    width: int = 36
    """Image width in pixels."""
    classes: int = 10
    """Number of classes."""

    def __post_init__(self) -> None:
        check_whole_numbers(self, "model", height=8, width=8, classes=1)
        check_switches(self, "model")
        if self.classes > MOST_CLASSES:
            raise OcraError(f"model.classes must be at most {MOST_CLASSES:,}, not {self.classes}.")
        if self.height * self.width > MOST_PIXELS:
            raise OcraError(
                f"A model's image has at most {MOST_PIXELS:,} pixels, not {self.height} × {self.width}."
            )
        if isinstance(self.channels, bool) or self.channels not in (1, 3):
            raise OcraError(f"model.channels must be 1 (grey) or 3 (colour), not {self.channels!r}.")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width of the images the network takes."""
        return self.channels, self.height, self.width

    @property
    def glimpses(self) -> int:
        """Number of glimpses."""
        return 1

    @property
    def glimpse_size(self) -> int:
        """Side of the square grid that reads a glimpse."""
        return max(self.height, self.width)

    @property
    def write_size(self) -> int:
        """Side of the square grid that writes to the canvas."""
        return self.glimpse_size

    @property
    def attention(self) -> bool:
        """Whether it reads through windows."""
        return False

    @property
    def recurrent(self) -> bool:
        """Whether it can make another number of glimpses."""
        return False

    @property
    def background_capsules(self) -> int:
        """Object capsules that belong to no class."""
        return 0

    @property
    def readout_digits(self) -> int:
        """Length of the sequence read out."""
        return 0

    @property
    def readout_classes(self) -> int:
        """Outputs of each readout."""
        return 0

    @property
    def object_capsules(self) -> int:
        """Class capsules and background capsules together."""
        return self.classes + self.background_capsules

    def fitted_to(
        self, image_shape: tuple[int, int, int], classes: int, answer: AnswerRule, sequence_length: int
    ) -> Self:
        """The same network for other images, classes and answers: how many objects, a sequence of what length."""
        channels, height, width = image_shape
        return dataclasses.replace(self, channels=channels, height=height, width=width, classes=classes)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; `ocra.model.network.model_config` takes it back. No kind stands for OCRA."""
        kind = {} if self.kind == "ocra" else {"kind": self.kind}
        return {**kind, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make a config from a parsed JSON object; unknown names are refused."""
        return from_dict(cls, values, "model.")


@dataclass(frozen=True)
class ModelConfig(NetworkConfig):
    """Everything that defines OCRA; nothing about data, loss or training."""

    glimpses: int = 3
    """Number of glimpses, the paper's timesteps."""
    glimpse_size: int = 18
    """Side N of the square grid of filters that reads a glimpse."""
    write_size: int = 18
    """Side M of the square grid of filters that writes to the canvas."""
    filters: int = 32
    """Filters in each of the two convolutions."""
    hidden: int = 512
    """Units in the encoder LSTM and in the decoder LSTM."""
    primary_capsules: int = 40
    """Number of primary capsules."""
    primary_size: int = 8
    """Elements of one primary capsule."""
    background_capsules: int = 0
    """Object capsules that belong to no class and take up clutter."""
    capsule_size: int = 16
    """Elements of one object capsule."""
    routings: int = 3
    """How often the object capsules are computed; the couplings are updated one time less."""
    attention: bool = True
    """Read and write through windows; off: the whole image is read and written at each step."""
    recurrent: bool = True
    """Hidden-to-hidden weights in the LSTMs; off: a single feed-forward pass."""
    masking: bool = True
    """Send only the longest capsule to the decoder; off: send all of them."""
    capsules: bool = True
    """Capsules with routing; off: two fully connected layers and a softmax readout."""
    feedback: bool = False
    """Feed the decoder state back into the encoder (the 2023 follow-up)."""
    rectify_writes: bool = True
    """Pass each write through a ReLU, as the authors' program does; the paper does not mention it."""
    clip_canvas: bool = True
    """Clip the final canvas to [0, 1]."""
    readout_digits: int = 0
    """Length of the sequence read out from the capsule lengths (SVHN: 5); 0 for none."""
    readout_classes: int = 11
    """Outputs of each readout: ten digits and 'no digit'."""
    readout_skip: int = 2
    """Glimpses before the first readout."""
    readout_span: int = 2
    """Glimpses that feed one readout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest = {
            "glimpses": 1, "glimpse_size": 8, "write_size": 2, "filters": 1, "hidden": 1, "primary_capsules": 1,
            "primary_size": 1, "background_capsules": 0, "capsule_size": 1, "routings": 1, "readout_digits": 0,
            "readout_classes": 2, "readout_skip": 0, "readout_span": 1,
        }  # fmt: skip
        check_whole_numbers(self, "model", **smallest)
        if not self.recurrent and self.glimpses != 1:
            raise OcraError(
                f"A model with model.recurrent off makes one pass: set model.glimpses to 1, not {self.glimpses}."
            )
        needed = self.readout_skip + self.readout_span * self.readout_digits
        if self.readout_digits and self.glimpses < needed:
            raise OcraError(
                f"Reading {self.readout_digits} digits needs model.glimpses of at least {needed}, not {self.glimpses}."
            )

    def fitted_to(
        self, image_shape: tuple[int, int, int], classes: int, answer: AnswerRule, sequence_length: int
    ) -> Self:
        """The same network for other images and classes; without readouts where nothing is read out."""
        fitted = super().fitted_to(image_shape, classes, answer, sequence_length)
        return fitted if sequence_length else dataclasses.replace(fitted, readout_digits=0)

    @property
    def features(self) -> int:
        """Length of the vector the two convolutions make of one glimpse."""
        rows, columns = (self.glimpse_size,) * 2 if self.attention else (self.height, self.width)
        return self.filters * (rows // 4) * (columns // 4)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make a config from a parsed JSON object; unknown names are refused."""
        values = dict(values)
        if (coupling := values.pop("coupling", "maxmin")) != "maxmin":  # an option of version 0.1
            raise OcraError(
                f"model.coupling={coupling!r} is no longer made: couplings are max-min, as in the paper."
            )
        return from_dict(cls, values, "model.")
