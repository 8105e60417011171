"""The command line: find the command, let its module do the work, say in one sentence what went wrong.

The module of a command, and all that parsing needs, is imported only when it is used, so that `ocra --help` is
instant.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, get_type_hints

from ocra.errors import OcraError, UsageError
from ocra.files import printable

if TYPE_CHECKING:
    from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

Device = Literal["cpu", "cuda", "mps"]
Split = Literal["train", "validation", "test"]
Result = TypeVar("Result")

COMMANDS = {
    "demo": ("demo.demo", "see it work: recognise test digits with shipped weights"),
    "predict": ("look.predict", "say what is in images"),
    "look": ("look.look", "draw where the model looks and what it makes of it"),
    "scanpath": ("scanpath.main", "write down where the model looks; compare scanpaths"),
    "lab": ("lab.main", "run experiments of vision science, compare with people"),
    "app": ("demo.app", "open a local web page to draw, look and compare"),
    "train": ("train.main", "train a preset or a task of your own, to evaluated weights"),
    "evaluate": ("measure.evaluate", "score weights: exact error, per-object error, confusions"),
    "calibrate": ("measure.calibrate", "find out how sure answers of weights are, and keep it"),
    "report": ("look.report", "make one web page of a training run"),
    "presets": ("presets.presets", "list the experiments of the paper, or show one whole"),
    "reproduce": ("reproduce.main", "run every row of a table of the paper, write the results"),
    "bench": ("measure.bench", "measure speed and memory on this machine"),
    "data": ("data.main", "get data sets, check them, look at their images"),
    "doctor": ("doctor.main", "say whether this machine has what is needed"),
    "export": ("presets.export", "write a network as one file: ONNX or a PyTorch program"),
    "import-authors": ("presets.import_authors", "turn a checkpoint of the paper's authors into ours"),
}
"""Each command with its function in `ocra.cli` and a line of help. A function called main parses its words itself."""

LONG = ("train", "reproduce")
"""Commands that have not done their work if they end before their output does."""

_LINES = "\n".join(f"  {name:16}{text}" for name, (_, text) in COMMANDS.items())
OVERVIEW = f"""usage: ocra COMMAND [OPTIONS]
OCRA: object-centric recurrent attention. Recognises several objects in an image
by looking at it in a few glimpses, and shows where it looked.

{_LINES}

  ocra COMMAND --help explains a command and gives an example.
  ocra --version      says which version this is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(OVERVIEW)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from ocra import __version__

        print(f"ocra {__version__}")
        return 0
    warnings.showwarning = _show_warning
    try:
        run(words[0], words[1:])
        return 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if words[0] in LONG else 0
    except OcraError as error:
        show_error(error)
        return 2 if isinstance(error, UsageError) else 1
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        show_error(f"There is not enough memory for this{detail}. Ask for less at once.")
    except RuntimeError as error:
        if not any(
            words in str(error) for words in ("allocate memory", "not enough memory", "out of memory")
        ):
            raise
        show_error("There is not enough memory for this. Ask for a smaller network, or for less at once.")
    except OSError as error:  # a full disk, a folder that may not be written to
        where = f"{error.filename}: " if error.filename else ""
        show_error(f"{where}{error.strerror or error}.")
    return 1


def run(command: str, words: Sequence[str]) -> None:
    """Import the function of a command and call it with what the words say; errors are raised."""
    if command not in COMMANDS:
        raise UsageError(f"There is no command '{command}'; 'ocra --help' lists them.")
    module, _, name = COMMANDS[command][0].partition(".")
    function = getattr(importlib.import_module(f"ocra.cli.{module}"), name)
    if name == "main":
        function(list(words))
    else:
        parse(function, words, f"ocra {command}")


def show_error(error: OcraError | str) -> None:
    """One sentence on standard error; names in it come from files of anybody."""
    print("\n".join(map(printable, f"error: {error}".split("\n"))), file=sys.stderr, flush=True)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Warnings are sentences for a person as well, without the line of code they come from."""
    with suppress(OSError):
        print(printable(f"warning: {message}"), file=sys.stderr)


def parse(
    target: Callable[..., Result] | Mapping[str, Callable[..., Result]],
    words: Sequence[str],
    program: str,
    **options: Any,
) -> Result:
    """Call a function, or make a dataclass, with what the words of the command line say.

    target: the function, or one for each subcommand. The help begins with the docstring up to its list of
    arguments, the example included. Whole numbers may be written 3e6. A function with an argument `settings` gets one
    with the settings of all tasks, see `task_settings`.
    """
    import tyro

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_whole_number_rule)
    with registry:
        if isinstance(target, Mapping):
            commands = dict(target)
            return tyro.extras.subcommand_cli_from_dict(commands, args=list(words), prog=program, **options)
        if inspect.isfunction(target) and "settings" in target.__annotations__:
            own = set(target.__annotations__)
            target.__annotations__["settings"] = tyro.conf.OmitArgPrefixes[task_settings(words, own)]  # type: ignore[misc]
        options.setdefault("description", inspect.cleandoc(target.__doc__ or "").partition("\n\nArgs:")[0])
        return tyro.cli(target, args=list(words), prog=program, **options)


def _whole_number_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """How tyro reads and shows a whole number."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def task_settings(words: Sequence[str], taken: Collection[str] = ()) -> type:
    """A dataclass of the settings of all tasks, under their own names, each None unless it is given.

    It inherits from the tasks' configs, because that is where the sentences of the help stand. words: those of the
    command line; --task may name a class of somebody else's. taken: names that are options of the command; a setting
    of such a name is called --image-NAME.
    """
    from tyro.conf import arg

    from ocra.data import get_task, task_names

    named = [word for before, word in pairwise(words) if before == "--task"]
    configs = list(dict.fromkeys(get_task(name).Config for name in [*task_names(), *named]))
    fields: dict[str, tuple[str, Any, None]] = {}
    for config in configs:
        for field in dataclasses.fields(config):
            kind: Any = Optional[get_type_hints(config)[field.name]]  # noqa: UP045
            if field.name in taken:
                kind = Annotated[kind, arg(name=f"image-{field.name}")]
            fields[field.name] = (field.name, kind, None)
    body = {
        "__doc__": "Settings of the task's images; those of other tasks are refused.",
        "__post_init__": lambda self: None,
    }
    return dataclasses.make_dataclass(
        "Settings", fields.values(), bases=tuple(configs), frozen=True, namespace=body
    )


@dataclass(frozen=True)
class Interventions:
    """What is done to the model while it looks."""

    glimpses: int | None = None
    """Number of glimpses, if not the one the model was trained with."""
    until: float | None = None
    """Stop at an image once its answer is so far ahead of the next class, in capsule lengths (0.5, say)."""
    routings: int | None = None
    """Number of routings, if not the model's own."""
    lesion: tuple[str, ...] = ()
    """Parts to silence: encoder-memory, decoder-memory, feedback, or numbers of object capsules."""
    cue: tuple[float, float] | None = None
    """Put the middle of the first window at this x and y, in pixels of the model's image."""

    def given(self) -> dict[str, Any]:
        """Those that were asked for, as arguments of `OCRA.forward`."""
        from ocra.model.interventions import cued, lesion_of

        values = {**vars(self), "lesion": lesion_of(self.lesion), "windows": self.cue and cued(*self.cue)}
        return {name: value for name, value in values.items() if value is not None and name != "cue"}


def whole_number(text: str) -> int:
    """A whole number from 3000000, 3_000_000 or 3e6; anything else is a ValueError."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is no whole number") from None
        return int(number)


def columns(rows: Iterable[Sequence[str]], titles: Sequence[str]) -> str:
    """Rows as text in aligned columns, the first one to the left; as wide as its content, whatever the terminal."""
    from rich.cells import cell_len

    lines = [[printable(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]

    def pad(k: int, cell: str) -> str:
        space = " " * (widths[k] - cell_len(cell))
        return space + cell if k else cell + space

    return "\n".join("  ".join(pad(k, cell) for k, cell in enumerate(row)).rstrip() for row in lines)
