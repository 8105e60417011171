"""Compile a function if a working compiler is at hand, else leave it as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def compiled_or_eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """A compiled `function` that turns back into the plain one, with a warning, where compilation fails."""
    compiled: Callable[..., Result] = torch.compile(function)
    failed = False

    def call(*args: Any, **kwargs: Any) -> Result:
        nonlocal failed
        if not failed:
            try:
                return compiled(*args, **kwargs)
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                failed = True
                warnings.warn(
                    f"Compilation failed, going on uncompiled: {str(error).splitlines()[0]}", stacklevel=2
                )
        return function(*args, **kwargs)

    return call
