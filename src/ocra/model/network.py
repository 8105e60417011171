"""What every network is that the package can train, save, score and show: OCRA, the baselines, one of your own.

A network of one's own is a subclass of Network with a config, a `forward` that gives a Trace and, where OCRA's losses
are not its own, `losses`. Give it a name, `class Mine(Network, kind="mine")`, or call it by its place,
"package.module:Class".
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ocra.config import NetworkConfig
from ocra.errors import OcraError, UsageError
from ocra.model.kernels import bf16_copy
from ocra.model.trace import Trace
from ocra.model.weights import ModelInfo, Storage, load, save

if TYPE_CHECKING:
    from typing_extensions import Self

_KINDS: dict[str, type[Network]] = {}


class Network(nn.Module, ABC):
    """A network that turns images into a Trace."""

    Config: ClassVar[type[NetworkConfig]]
    """What it is built from."""
    matrices: ClassVar[dict[str, int]] = {}
    """Parameters that Shampoo may move, each a matrix, with its number of blocks of rows (an LSTM's gates)."""
    attention_layers: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of parameters that choose where to look: a stage may have them learn more slowly."""
    needs_annotations: ClassVar[bool] = False
    """Whether its losses need the annotations of a batch."""
    stochastic: ClassVar[bool] = False
    """Whether a training step draws random numbers: dropout, sampled places to look at."""
    supports_bf16: ClassVar[bool] = False
    """Whether it can compute its large products in bfloat16."""
    mixed: bool = False
    """Whether `mixed_precision` is on."""
    defer_weight_gradients: bool = False
    """Whether first derivatives are enough, so that it may compute them in a faster way if it knows one."""
    losses: Callable[..., Any] | None = None
    """A method losses(trace, batch, weights) where it has losses of its own: a NamedTuple of scalars, the first of
    which is minimised. None: those of `ocra.losses`."""

    def __init_subclass__(cls, kind: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Config" in cls.__dict__:
            cls.Config.network = cls
            cls.Config.kind = kind or f"{cls.__module__}:{cls.__qualname__}"
            _KINDS[cls.Config.kind] = cls

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.info = ModelInfo.from_dict({}, config)

    @abstractmethod
    def forward(self, images: Tensor, *, record: bool = False) -> Trace:
        """Look at images [batch, channels, height, width], values in [0, 1]; record: fill every field of the trace.

        A network that takes interventions (`glimpses`, `routings`, …) takes them by these names.
        """

    @torch.no_grad()
    def answer(self, images: Tensor, glimpses: int | None = None) -> Trace:
        """A pass of which only the answer is wanted, the scores and what is read out: the rest may be left out."""
        return self(images) if glimpses is None else self(images, glimpses=glimpses)

    def initialise(self) -> None:
        """Start from other random weights than its paper's, where that is known to be better."""

    def begin_stage(self, attention_scale: float, read_window: float) -> None:
        """Change the weights of its attention when a stage of training begins, see `ocra.experiment.Stage`."""

    def deferred_weights(self, glimpses: int) -> list[Tensor]:
        """The weights whose gradients a training pass of so many glimpses overwrites in place of adding to them."""
        return []

    def use_bf16(self, copy_of: Callable[[Tensor], Tensor] = bf16_copy) -> None:
        """Compute large products in bfloat16, where `supports_bf16`.

        copy_of: gives the bfloat16 copy of a parameter, for a network that multiplies by copies; whoever changes the
        parameter afterwards refreshes the copy. Another network has its large products within `mixed_precision`.
        """
        self.mixed = True

    def mixed_precision(self) -> torch.autocast:
        """Within the block convolutions and matrix products are in bfloat16, if it was asked to `use_bf16`."""
        return torch.autocast(next(self.parameters()).device.type, torch.bfloat16, enabled=self.mixed)

    def compile_step(self) -> Self:
        """Compile what is worth it."""
        return self

    @contextmanager
    def as_used(self) -> Iterator[None]:
        """Within the block it computes as it will once it is trained."""
        training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(training)

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Self:
        """Load shipped weights by name, or those of a folder written by `save_pretrained`, or from the hub."""
        model = load(name)
        if not isinstance(model, cls):
            raise OcraError(f"{name} holds weights of another network, {type(model).__name__}.")
        return model

    def save_pretrained(
        self, folder: str | Path, info: ModelInfo | None = None, storage: Storage = "float32"
    ) -> None:
        """Write `config.json` and `model.safetensors` into a folder, the layout of the Hugging Face hub.

        info: what goes into config.json besides the network. By default `self.info` without its record: what answers
        mean is kept, figures of other weights are not.
        """
        save(self, folder, info, storage)

    def push_to_hub(self, name: str, *, private: bool = False) -> str:
        """Put the weights into the repository 'user/name' on the Hugging Face hub; returns its address.

        See `ocra.push_to_hub`, which also takes a folder of weights, with all that was recorded about them.
        """
        # The card says what the network was trained on, of which a network knows nothing but the name.
        address: str = import_module("ocra.exporting").push_to_hub(self, name, private=private)
        return address


def model_config(values: dict[str, Any], *, from_weights: bool = False) -> NetworkConfig:
    """The config of a network from a parsed JSON object as `NetworkConfig.to_dict` makes it.

    from_weights: it was saved with weights, which may be anybody's, so that no module is imported for it.
    """
    if not isinstance(values, dict):
        raise OcraError(f"The config needs an object for model, not {values!r}.")
    rest = dict(values)
    kind = str(rest.pop("kind", "ocra"))
    if kind not in _KINDS:  # those of the package name themselves when they are imported
        import_module("ocra.model.ocra")
        import_module("ocra.baselines")
    if kind not in _KINDS and ":" in kind and not from_weights:
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.append(os.getcwd())
        try:
            import_module(kind.partition(":")[0])
        except ImportError as error:
            raise UsageError(f"The network {kind} cannot be imported: {error}.") from error
    if kind not in _KINDS:
        known = ", ".join(_KINDS)
        raise OcraError(
            f"There is no network of the kind '{kind}'; there are {known}, or import yours first."
        )
    return _KINDS[kind].Config.from_dict(rest)
