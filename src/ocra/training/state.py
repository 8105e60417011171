"""Everything that changes during a run, and how it goes into a checkpoint and comes back."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ocra.errors import OcraError
from ocra.model.ocra import OCRA
from ocra.training.channel import Channel
from ocra.training.checkpoint import Checkpoint
from ocra.training.config import TrainingConfig
from ocra.training.distributed import Group
from ocra.training.flat import FlatParameters
from ocra.training.optim import Whitening


@dataclass
class Progress:
    """Where a run is, in numbers."""

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


class State:
    """Weights, their averages, the optimiser with its memory, and the progress.

    `extras` numbers travel with the gradients when the processes add them up in `channel`.
    """

    def __init__(self, model: OCRA, training: TrainingConfig, group: Group, extras: int) -> None:
        self.group = group
        self.parameters = FlatParameters(model)
        self.channel = Channel(group, self.parameters.size + extras)
        self.parameters.send_gradients_to(self.channel.mine[: self.parameters.size])
        values = self.parameters.values
        self.average = values.detach().clone()
        self.optimiser = torch.optim.Adam([values], betas=(0.9, training.beta2), fused=True)
        self.updates = torch.zeros((), device=values.device)
        moments = {"exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}
        self.optimiser.state[values] = {"step": self.updates, **moments}
        means = self.parameters.unflatten(moments["exp_avg"])
        self.whitening = None
        if training.whitening:
            self.whitening = Whitening(self.parameters.unflatten(values.data), means, group)
        self.progress = Progress(processes=group.size)
        self._flat = {"model": values.data, "average": self.average, **moments}
        self._kept = {"updates": self.updates}
        if self.whitening is not None:
            self._kept |= {f"whitening.{name}": value for name, value in self.whitening.tensors().items()}

    def checkpoint(self) -> Checkpoint:
        """A checkpoint of this very moment."""
        tensors = {
            f"{kind}.{name}": value
            for kind, flat in self._flat.items()
            for name, value in self.parameters.unflatten(flat).items()
        }
        others = {**self._kept, "random_state": torch.get_rng_state()}
        return Checkpoint({**tensors, **others}, dataclasses.asdict(self.progress))

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Take over a checkpoint; the first process has read it (or None) and tells the others."""
        if checkpoint is not None:
            tensors = checkpoint.tensors
            self._check_fit(tensors)
            for kind, flat in self._flat.items():
                for name, place in self.parameters.unflatten(flat).items():
                    place.copy_(tensors[f"{kind}.{name}"])
            for name, place in self._kept.items():
                place.copy_(tensors[name])
            torch.set_rng_state(tensors["random_state"])
            self.progress = Progress(**{**checkpoint.state, "processes": self.group.size})
        for tensor in (*self._flat.values(), *self._kept.values()):
            tensor.copy_(self.group.spread(tensor))
        self.progress = Progress(**self.group.spread_json(dataclasses.asdict(self.progress)))

    def _check_fit(self, tensors: dict[str, Tensor]) -> None:
        """Refuse a checkpoint of other settings than those its config.json has now."""
        for name, place in self.parameters.unflatten(self.average).items():
            if (found := tensors.get(f"average.{name}")) is None or found.shape != place.shape:
                raise OcraError(
                    f"The checkpoint does not fit the model of its config.json ({name} differs); "
                    "put back what that said, or start a new run."
                )
        if not self._kept.keys() <= tensors.keys():
            raise OcraError(
                "The checkpoint is of a run without training.whitening, or of another version of ocra; set it to "
                "0 in its config.json, or start a new run from the run's weights (--training.start-from)."
            )
