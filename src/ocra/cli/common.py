"""One module for each command of the command line; `parse` turns words into a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

Result = TypeVar("Result")

whole_numbers = tyro.constructors.ConstructorRegistry()
"""Within it whole numbers may be written 3e6."""


@whole_numbers.primitive_rule
def _whole_numbers(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """How a whole number is read and shown."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def whole_number(text: str) -> int:
    """A whole number from 3000000, 3_000_000 or 3e6; anything else is a ValueError."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is no whole number") from None
        return int(number)


def parse(function: Callable[..., Result], words: Sequence[str], program: str, **options: Any) -> Result:
    """Call a function, or make a dataclass, with what the words of the command line say.

    The help begins with the docstring up to its list of arguments, the example included.
    """
    options.setdefault("description", inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")[0])
    with whole_numbers:
        return tyro.cli(function, args=list(words), prog=program, **options)
