"""bfloat16 where the hardware has it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch

from ocra.errors import OcraError
from ocra.training.distributed import choose_device

_PROBE = """
import torch
a = torch.ones(64, 64, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    y = torch.nn.functional.conv2d((a @ a)[None, None], torch.ones(4, 1, 3, 3)).sum()
y.backward()
"""


def check_precision(precision: str, device: str) -> None:
    """Refuse bfloat16 where it does not work, before a run starts."""
    if precision != "bf16":
        return
    place = choose_device(device)
    works = torch.cuda.is_bf16_supported() if place.type == "cuda" else _works_on_cpu()
    if not works:
        raise OcraError(f"bfloat16 does not work on this {place.type}; use --training.precision fp32.")


@lru_cache(maxsize=1)
def _works_on_cpu() -> bool:
    """Try it in a process of its own: a CPU that promises instructions it lacks would end this one."""
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True).returncode == 0


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a model computes at this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
