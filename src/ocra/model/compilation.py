"""Compile a function if a working compiler is at hand, else leave it as it is."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def compiled_or_eager(function: Callable[..., Result]) -> Callable[..., Result]:
    """A compiled `function` that turns back into the plain one, with a warning, where compilation fails."""
    compiled: Callable[..., Result] = torch.compile(_with_own_code(function))
    failed = False

    def call(*args: Any, **kwargs: Any) -> Result:
        nonlocal failed
        if not failed:
            try:
                return compiled(*args, **kwargs)
            except torch._dynamo.exc.TorchDynamoException as error:  # that of its back end too
                failed = True
                warnings.warn(
                    f"Compilation failed, going on uncompiled: {str(error).splitlines()[0]}", stacklevel=2
                )
        return function(*args, **kwargs)

    return call


def _with_own_code(function: Callable[..., Result]) -> Callable[..., Result]:
    """A copy with a code object of its own.

    PyTorch keeps what it compiles with the code, and gives up after the eighth variant of it: several networks
    trained in one process would soon have used them up.
    """
    plain = getattr(function, "__func__", function)
    copy = types.FunctionType(
        plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    owner = getattr(function, "__self__", None)
    return copy if owner is None else types.MethodType(copy, owner)
