"""The command line: find the command, let its module do the work, say in one sentence what went wrong.

The module of a command is imported only when it is used, so that `ocra --help` is instant.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ocra.errors import OcraError, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "see it work: recognise test digits with shipped weights"),
    "predict": ("predict", "say what is in pictures"),
    "look": ("look", "draw where the model looks and what it makes of it"),
    "scanpath": ("scanpath", "write down where the model looks, as a table"),
    "app": ("app", "open a local web page to draw, look and compare"),
    "train": ("train", "train a preset or a task of your own, to evaluated weights"),
    "evaluate": ("evaluate", "score weights: exact error, per-object error, confusions"),
    "report": ("report", "make one web page of a training run"),
    "presets": ("presets", "list the experiments of the paper, or show one whole"),
    "reproduce": ("reproduce", "run every row of a table of the paper, write the results"),
    "bench": ("bench", "measure speed and memory on this machine"),
    "data": ("data", "get data sets, check them, look at their pictures"),
    "import-authors": ("import_authors", "turn a checkpoint of the paper's authors into ours"),
}
"""Each command with its module in `ocra.cli` and a line of help. A module has `main(args)`."""

LONG = ("train", "reproduce")
"""Commands that have not done their work if they end before their output does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 asked for wrongly, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from ocra import __version__

        print(f"ocra {__version__}")
        return 0
    return guarded(lambda: _run(words[0], words[1:]), long=words[0] in LONG)


def guarded(action: Callable[[], int | None], long: bool = False) -> int:
    """Do something for a person at a terminal: the exit code, after one sentence about what went wrong, if it did."""
    warnings.showwarning = _show_warning
    try:
        return int(action() or 0)
    except UsageError as error:
        return _fail(error, 2)
    except OcraError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if long else 0
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        return _fail(OcraError(f"There is not enough memory for this{detail}. Ask for less at once."), 1)
    except OSError as error:  # a full disk, a folder that may not be written to
        where = f"{error.filename}: " if error.filename else ""
        return _fail(OcraError(f"{where}{error.strerror or error}."), 1)


def _run(command: str, words: list[str]) -> int:
    """Import the module of a command and let it parse and do what the words say."""
    if command not in available():
        raise UsageError(f"There is no command '{command}'; 'ocra --help' lists them.")
    module = importlib.import_module(f".{COMMANDS[command][0]}", __package__)
    return int(module.main(words) or 0)


def available() -> dict[str, str]:
    """The commands whose modules are there, with a line of help for each."""
    folder = Path(__file__).parent
    return {name: text for name, (module, text) in COMMANDS.items() if (folder / f"{module}.py").is_file()}


def overview() -> str:
    """The help of the whole program, on one screen."""
    lines = [f"  {name:16}{text}" for name, text in available().items()]
    return "\n".join(
        [
            "usage: ocra COMMAND [OPTIONS]",
            "",
            "OCRA: object-centric recurrent attention. Recognises several objects in an image",
            "by looking at it in a few glimpses, and shows where it looked.",
            "",
            "commands:",
            *lines,
            "",
            "  ocra COMMAND --help explains a command and gives an example.",
            "  ocra --version      says which version this is.",
            "",
            "example: ocra predict photo.png",
        ]
    )


def _fail(error: OcraError, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Warnings are sentences for a person as well, without the line of code they come from."""
    with suppress(OSError):
        print(f"warning: {message}", file=sys.stderr)
