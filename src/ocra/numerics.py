"""Precision: what must not be computed in half of a float."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 where autocast made them shorter; float64 stays as it is."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
