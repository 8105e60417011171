"""Arithmetic: what must not be computed in half of a float, and what is slow when written plainly."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 where autocast made them shorter; float64 stays as it is."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def relu(values: Tensor) -> Tensor:
    """ReLU as (x + |x|) / 2, exactly: values [...] → [...].

    Its gradient is a sign, a number. That of `relu` is a choice by truth values, and storing those for the
    backward pass is slow in a step compiled for a CPU (12 ns each in a profile of its kernels).
    """
    return 0.5 * (values + values.abs())
