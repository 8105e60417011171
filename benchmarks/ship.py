"""Put the weights of a run into the package: score, store, record, write the model card and the tables.

    python benchmarks/ship.py RUN NAME [--images N] [--which best|last]

for example: python benchmarks/ship.py runs/multimnist-3 multimnist-3. The run may not have ended yet.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from ocra.cli.main import guarded, parse
from ocra.cli.reproduce import write_page
from ocra.reproduce.shipping import ship

ROOT = Path(__file__).resolve().parent.parent


def main(
    run: Positional[Path],
    name: Positional[str],
    /,
    which: Literal["best", "last"] = "best",
    images: int = 10_000,
    curve_images: int = 5_000,
    storage: Literal["float16", "float32"] = "float16",
    into: Path | None = None,
    results: Path = ROOT / "benchmarks" / "results",
    out: Path = ROOT / "docs" / "results.md",
    result_name: str = "",
    note: str = "",
    threads: int = 0,
) -> None:
    """Put the weights of a run into the package, with their figures and their card.

    Args:
        run: Folder of the run, ended or not.
        name: Name of the weights, such as multimnist-3.
        which: The best weights by validation, or the last ones.
        images: Test images of each generated test set (MultiMNIST: 4 px and 6 px). 0: all of it, which is
            500,000 for MultiMNIST. House numbers are always scored on all 13,068.
        curve_images: Test images for the error by number of glimpses, the same for each number. 0: leave that out.
        storage: How numbers are stored.
        into: Folder of all shipped weights. Default: that of the package.
        results: Where the result is recorded.
        out: The page of results to write.
        result_name: Name of the recorded result. Default: preset, images and seed.
        note: A sentence on the run for the card and the tables.
        threads: Batches scored at once. 0: one for each core.
    """
    ship(
        run,
        name,
        which=which,
        images=images,
        curve_images=curve_images,
        storage=storage,
        into=into,
        results=results,
        result_name=result_name,
        notes=note,
        threads=threads,
    )
    write_page(results, out)
    print(f"{out} written")


if __name__ == "__main__":
    sys.exit(guarded(lambda: parse(main, sys.argv[1:], "python benchmarks/ship.py")))
