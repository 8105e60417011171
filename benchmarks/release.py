"""Release the weights of a run, or write every table, page and card of the project anew from its records.

python benchmarks/release.py RUN NAME      # score, store, record, describe: runs/multimnist-3 multimnist-3
python benchmarks/release.py --rescore NAME…   # calibrate shipped weights, score what they withstand
python benchmarks/release.py               # only write what is generated from benchmarks/results
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import tyro
from tyro.conf import Positional

from ocra.errors import OcraError
from ocra.reproduce import release as again
from ocra.reproduce.release import publish, release

ROOT = Path(__file__).resolve().parent.parent


def main(
    run: Positional[Path | None] = None,
    name: Positional[str] = "",
    /,
    which: Literal["best", "last"] = "best",
    images: int | None = None,
    note: str = "",
    rescore: tuple[str, ...] = (),
    damaged_images: int = 1_000,
) -> None:
    """Release the weights of a run under a name; without one, write what is generated from records anew.

    Args:
        run: Folder of the run, finished or not.
        name: Name of the weights, such as multimnist-3.
        which: The best weights by validation, or the last ones.
        images: Test images to score on. Default: the whole test set.
        note: A sentence on the run for its card and the pages.
        rescore: Shipped weights to calibrate and to score again, without a run.
        damaged_images: Test images for each corruption and each size of the digits.
    """
    results = ROOT / "benchmarks" / "results"
    if run is not None:
        release(
            run, name, results=results, which=which, images=images, notes=note, damaged_images=damaged_images
        )
    for weights in rescore:
        again.rescore(weights, results=results, images=images or 10_000, damaged_images=damaged_images)
    publish(ROOT)
    print("Tables, pages, plots and cards are written.")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except OcraError as error:
        sys.exit(str(error))
