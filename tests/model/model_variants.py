"""The networks that the tests of the model share: every row of the paper's tables, and small ones."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ocra.config import ModelConfig
from ocra.model.ocra import OCRA
from ocra.model.trace import Trace, Windows
from ocra.presets import PRESETS

PAPER = {name: experiment.model for name, experiment in PRESETS.items()}

SMALL = ModelConfig(
    height=12,
    width=12,
    glimpse_size=8,
    write_size=6,
    filters=3,
    hidden=16,
    primary_capsules=5,
    primary_size=4,
    classes=4,
    capsule_size=6,
)

VARIATIONS = {
    "small": SMALL,
    "five routings": replace(SMALL, routings=5),
    "feedback": replace(SMALL, feedback=True),
    "feedback without attention": replace(SMALL, feedback=True, attention=False),
    "writes that erase": replace(SMALL, rectify_writes=False),
    "canvas not clipped": replace(SMALL, clip_canvas=False),
    "no masking": replace(SMALL, masking=False),
    "colour, wide": replace(SMALL, channels=3, height=10, width=17),
    "grey, tall": replace(SMALL, height=19, width=9),
    "colour without attention": replace(SMALL, channels=3, attention=False, width=14),
    "two background capsules": replace(SMALL, background_capsules=2),
    "one object capsule": replace(SMALL, classes=1),
    "odd glimpse": replace(SMALL, glimpse_size=11, write_size=3),
    "readouts": replace(SMALL, glimpses=5, readout_digits=2, readout_skip=1, background_capsules=1),
}


def lively(config: ModelConfig, seed: int = 0) -> OCRA:
    """A network whose capsules are long and whose windows move: at the usual start both hardly do."""
    torch.manual_seed(seed)
    model = OCRA(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "object_capsules.weight":
                parameter.mul_(30)
            elif "attention" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.3 if name.endswith("bias") else 0.5))
    return model


def random_images(config: ModelConfig, batch: int = 2, seed: int = 1) -> Tensor:
    """Noise in [0, 1] of the network's own image size."""
    return torch.rand(batch, *config.image_shape, generator=torch.Generator().manual_seed(seed))


def flat(trace: Trace) -> dict[str, Tensor]:
    """The tensors of a trace by name, those of its windows as `read_windows.center` and so on."""
    tensors: dict[str, Tensor] = {}
    for field in fields(trace):
        value: Any = getattr(trace, field.name)
        if isinstance(value, Windows):
            tensors |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        elif value is not None:
            tensors[field.name] = value
    return tensors


def assert_same_trace(trace: Trace, other: Trace, steps: slice = slice(None), **tolerance: float) -> None:
    """The two traces agree; with `steps`, in all that belongs to those glimpses."""
    ours, theirs = flat(trace), flat(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        a, b = ours[name], theirs[name]
        if steps != slice(None):
            if name in ("scores", "canvas", "readout", "attended"):
                continue
            a, b = a[:, steps], b[:, steps]
        torch.testing.assert_close(
            a, b, **(tolerance or {"rtol": 0.0, "atol": 0.0}), msg=lambda text, name=name: f"{name}: {text}"
        )
