"""Train on four kinds of drawn folders as a user would on their own: python benchmarks/own_images.py --help

Each folder is drawn from a seed, trained by `ocra.train_folder` with no setting but the seed, and scored on 1,000
further images that no run has seen. Figures are kept in results/own-images.json; docs/own-images.md is written from it.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

import ocra

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "own-images.json"
PAGE = HERE.parent / "docs" / "own-images.md"

FINE = 4
"""Pixels that are drawn along one of the image's, for smooth edges."""
RECIPE = 3
"""Raised when the recipe for folders changes, so that the page can tell what it was that made a figure."""
TEST_IMAGES = 1_000
TEST_SEED = 4_000
"""No folder for training is drawn from it, and the recipe was not chosen by its images (seeds 100, 1,000 and 2,000)."""

Rng = np.random.Generator
Colour = tuple[int, ...]


def polygon(corners: int, dent: float = 1.0, turn: float = 0.0) -> list[tuple[float, float]]:
    """Corners on the unit circle; every second one on a circle of radius `dent`."""
    angles = [turn - math.pi / 2 + 2 * math.pi * k / corners for k in range(corners)]
    radii = [1.0 if k % 2 == 0 else dent for k in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
    "triangle": [(0, -1), (0.95, 0.8), (-0.95, 0.8)],
    "cross": [
        (-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3), (0.3, 1), (-0.3, 1), (-0.3, 0.3),
        (-1, 0.3), (-1, -0.3), (-0.3, -0.3),
    ],
    "star": polygon(10, 0.42),
    "house": [(0, -1), (0.95, -0.1), (0.65, -0.1), (0.65, 0.95), (-0.65, 0.95), (-0.65, -0.1), (-0.95, -0.1)],
    "arrow": [(1, 0), (0.1, -0.85), (0.1, -0.3), (-1, -0.3), (-1, 0.3), (0.1, 0.3), (0.1, 0.85)],
    "bolt": [(0.3, -1), (-0.65, 0.2), (-0.05, 0.2), (-0.3, 1), (0.65, -0.25), (0.05, -0.25)],
    "tree": [(0, -1), (0.8, 0.5), (0.2, 0.5), (0.2, 1), (-0.2, 1), (-0.2, 0.5), (-0.8, 0.5)],
    "hexagon": polygon(6),
}  # fmt: skip


def draw_object(image: Image.Image, name: str, x: float, y: float, radius: float, colour: Colour) -> None:
    """Draw a shape with its middle at (x, y), in pixels of the fine image."""
    draw = ImageDraw.Draw(image)
    box = (x - radius, y - radius, x + radius, y + radius)
    if name in ("circle", "disc"):
        draw.ellipse(box, fill=colour)
    elif name == "ring":
        draw.ellipse(box, outline=colour, width=round(0.45 * radius))
    else:
        draw.polygon([(x + radius * a, y + radius * b) for a, b in OUTLINES[name]], fill=colour)


def places(rng: Rng, radii: list[float], size: int, nearest: float) -> list[tuple[float, float]]:
    """A place for each object, wholly inside and at least `nearest` times the sum of two radii apart."""
    while True:
        middles = [(rng.uniform(r + 1, size - r - 1), rng.uniform(r + 1, size - r - 1)) for r in radii]
        pairs = [(i, j) for i in range(len(radii)) for j in range(i)]
        if all(math.dist(middles[i], middles[j]) >= nearest * (radii[i] + radii[j]) for i, j in pairs):
            return middles


def plain(rng: Rng, size: int) -> Image.Image:
    """A dark, even background."""
    return Image.new("L", (FINE * size, FINE * size), int(rng.integers(0, 60)))


def texture(rng: Rng, size: int) -> Image.Image:
    """A coloured background of blurred blotches."""
    coarse = int(rng.integers(4, 16))
    base = rng.uniform(20, 130, 3)
    blotches = np.clip(base + rng.normal(0, 22, (coarse, coarse, 3)), 0, 255).astype(np.uint8)
    image = Image.fromarray(blotches).resize((FINE * size, FINE * size), Image.Resampling.BICUBIC)
    return image.filter(ImageFilter.GaussianBlur(FINE / 2))


@dataclass(frozen=True)
class Kind:
    """A kind of folder: what its images show, and the exact error that training is to reach."""

    about: str
    images: int
    size: int
    classes: tuple[str, ...]
    objects: tuple[int, int]
    radius: tuple[float, float]
    target: float
    repeats: bool = True
    background: Callable[[Rng, int], Image.Image] = plain
    nearest: float = 0.75

    def draw(self, rng: Rng) -> tuple[Image.Image, list[str]]:
        """One image and its labels."""
        number = int(rng.integers(self.objects[0], self.objects[1] + 1))
        labels = [str(name) for name in rng.choice(self.classes, number, replace=self.repeats)]
        radii = [float(rng.uniform(*self.radius)) for _ in labels]
        image = self.background(rng, self.size)
        behind = np.asarray(image, dtype=np.float32).reshape(-1, len(image.getbands())).mean(0)
        for name, (x, y), radius in zip(
            labels, places(rng, radii, self.size, self.nearest), radii, strict=True
        ):
            while True:
                colour = rng.integers(0, 256, len(behind)) if len(behind) == 3 else rng.integers(160, 256, 1)
                if np.abs(colour - behind).max() > 100:
                    break
            draw_object(image, name, FINE * x, FINE * y, FINE * radius, tuple(int(c) for c in colour))
        return image.resize((self.size, self.size), Image.Resampling.BOX), sorted(labels)


KINDS = {
    "shapes": Kind(
        "one or two of three shapes, grey", 600, 48, ("circle", "square", "triangle"), (1, 2), (6, 10), 0.05
    ),
    "icons": Kind(
        "one to three of eight icons in colour on textured backgrounds", 2_000, 64,
        ("arrow", "bolt", "cross", "house", "ring", "star", "tree", "triangle"), (1, 3), (8, 12), 0.15,
        repeats=False, background=texture,
    ),
    "few": Kind("300 images only, one or two of two shapes", 300, 48, ("cross", "ring"), (1, 2), (6, 10), 0.10),
    "counting": Kind("zero to four discs to be counted", 600, 48, ("disc",), (0, 4), (4, 7), 0.15, nearest=1.05),
}  # fmt: skip


def draw_folder(kind: Kind, folder: Path, seed: int, images: int, split: str = "") -> Path:
    """Draw a folder of images with its labels.csv; without a split, as a user would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["file", "labels", "split"] if split else ["file", "labels"])
        for number in range(images):
            image, labels = kind.draw(rng)
            image.save(folder / f"{number}.png")
            table.writerow([f"{number}.png", " ".join(labels), *([split] if split else [])])
    return folder


def run_one(
    name: str, seed: int, work: Path, images: int | None, processes: int, compare: bool
) -> dict[str, Any]:
    """Train on one folder with nothing set but the seed, and score the best weights on further images."""
    kind = KINDS[name]
    with TemporaryDirectory(dir=work) as place:
        folder = draw_folder(kind, Path(place, "images"), seed, kind.images)
        further = draw_folder(kind, Path(place, "further"), TEST_SEED, TEST_IMAGES, "test")
        result = ocra.train_folder(
            folder, Path(place, "run"), seed=seed, images=images, processes=processes, compare=compare
        )
        test = ocra.evaluate(result.weights, root=str(further))
        cnn = ocra.evaluate(Path(place, "run", "cnn"), root=str(further)) if compare else None
    figures = (
        "exact_error",
        "object_error",
        "misses",
        "false_alarms",
        "objects",
        "precision",
        "recall",
        "d_prime",
    )
    return {
        "kind": name,
        "seed": seed,
        "images": result.summary["images"],
        "shortened": images is not None,
        "recipe": RECIPE,
        "cpu_seconds": round(result.summary["cpu_seconds"]),
        "n": test.figures["n"],
        **{figure: round(test.figures[figure], 4) for figure in figures},
        "by_objects": {
            number: round(row["exact_error"], 4) for number, row in test.details["objects_in_image"].items()
        },
        "cnn_error": None if cnn is None else round(cnn.exact_error, 4),
        "versions": result.summary["versions"],
    }


def page(runs: list[dict[str, Any]]) -> str:
    """docs/own-images.md."""
    rows = []
    for name, kind in KINDS.items():
        own = [run for run in runs if run["kind"] == name]
        cells = ["—"] * 8
        if own:
            errors = [run["exact_error"] for run in own]
            objects, misses, false_alarms = (
                sum(run[key] for run in own) for key in ("objects", "misses", "false_alarms")
            )
            cells = [
                f"**{sum(errors) / len(errors):.1%}**",
                ", ".join(f"{error:.1%}" for error in errors),
                ", ".join(f"{run['cnn_error']:.1%}" for run in own if run.get("cnn_error") is not None)
                or "—",
                f"{misses / objects:.1%}",
                f"{false_alarms / objects:.1%}",
                f"{sum(run['d_prime'] for run in own) / len(own):.2f}",
                f"{own[0]['images']:,}{' (shortened)' if own[0]['shortened'] else ''}"
                + (" (an earlier recipe)" if own[0].get("recipe", 1) != RECIPE else ""),
                f"{sum(run['cpu_seconds'] for run in own) / len(own):.0f}",
            ]
        about = f"`{name}`: {kind.about}; {kind.images:,} images of {kind.size}×{kind.size}"
        rows.append(f"| {about} | ≤ {kind.target:.0%} | {' | '.join(cells)} |")
    return PAGE_TEXT.format(test_images=TEST_IMAGES, rows="\n".join(rows))


PAGE_TEXT = """\
<!-- Written by benchmarks/own_images.py; do not edit. -->

# Training on your own images

## The first time

Put your images into a folder, with a file `labels.csv` that says what is in each: names separated by spaces, one
twice if there are two of it, nothing if the image shows nothing.

```
file,labels
1.png,ring star
2.png,star star
3.png,
```

```sh
ocra train my-images                                    # into runs/my-images
ocra predict new.png --weights runs/my-images
ocra look --weights runs/my-images --out looks.png      # where it looked, glimpse by glimpse
```

`python examples/train_own_folder.py runs/first` draws such a folder and trains on it. Training begins with a summary
(images in each split, classes, objects in an image, size, colour, whether places are known) and a plan (images to
see, glimpses, stages, minutes on this machine), and ends with a report on images that were held out. Nothing has to
be set; what the recipe is, every other format (a folder for each class, COCO with boxes, Hugging Face) and all
options are in [tasks.md](tasks.md#your-own-images).

If the error is high, in this order: read the warnings (few images of a class, copies across splits); look at the
objects by number, because many objects in an image need more images; give boxes (COCO), which show the network where
to look; train longer (`--images 5e5`). If the plain CNN that is reported beside does better, use that:
`runs/my-images/cnn` is a network like any other, for `ocra predict` too.

## What was measured

Four kinds of folders are drawn from a seed and trained by `ocra train FOLDER` with nothing set but the seed. Exact
error is the share of {test_images:,} further images, which no run has seen, with anything wrong in the answer: a
class missed, named wrongly or counted wrongly. Of a folder's own images 80 % are trained on. Beside it the exact
error of a plain small CNN on the same images, trained for the same CPU time. Misses and false alarms are shares of
the objects.

`python benchmarks/own_images.py KIND --seeds 0` makes a run again;
[own-images.json](../benchmarks/results/own-images.json) holds every run. A dash stands for runs that are not made
yet; [the notebook](notebook.md) has shorter ones, and what was tried.

| folder | target | exact error | by seed | small CNN | misses | false alarms | d′ | images trained on | CPU seconds |
|---|---|---|---|---|---|---|---|---|---|
{rows}
"""


def main() -> None:
    """Run what is asked for, keep the figures, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", choices=[*KINDS, []], help="folders to train on; none: write the page only"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, help="images to train on in place of what the recipe says")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--no-compare", action="store_true", help="train no CNN")
    parser.add_argument("--work", type=Path, default=None, help="where folders and runs are put for a while")
    given = parser.parse_args()
    runs = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for name, seed in product(given.kinds, given.seeds):
        made = run_one(name, seed, given.work, given.images, given.processes, not given.no_compare)
        runs = [run for run in runs if (run["kind"], run["seed"]) != (name, seed)] + [made]
        runs.sort(key=lambda run: (list(KINDS).index(run["kind"]), run["seed"]))
        RESULTS.write_text(json.dumps(runs, indent=1) + "\n")  # now, for the next may fail
    RESULTS.write_text(json.dumps(runs, indent=1) + "\n")
    PAGE.write_text(page(runs))


if __name__ == "__main__":
    main()
