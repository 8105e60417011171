"""Release the weights of a run, or write every table, page and card of the project anew from its records.

python benchmarks/release.py RUN NAME      # score, store, record, describe: runs/multimnist-3 multimnist-3
python benchmarks/release.py               # only write what is generated from benchmarks/results
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import tyro
from tyro.conf import Positional

from ocra.errors import OcraError
from ocra.reproduce.release import publish, release

ROOT = Path(__file__).resolve().parent.parent


def main(
    run: Positional[Path | None] = None,
    name: Positional[str] = "",
    /,
    which: Literal["best", "last"] = "best",
    images: int | None = None,
    note: str = "",
) -> None:
    """Release the weights of a run under a name; without one, write what is generated from records anew.

    Args:
        run: Folder of the run, finished or not.
        name: Name of the weights, such as multimnist-3.
        which: The best weights by validation, or the last ones.
        images: Test images to score on. Default: the whole test set.
        note: A sentence on the run for its card and the pages.
    """
    if run is not None:
        release(run, name, results=ROOT / "benchmarks" / "results", which=which, images=images, notes=note)
    publish(ROOT)
    print("Tables, pages, plots and cards are written.")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except OcraError as error:
        sys.exit(str(error))
