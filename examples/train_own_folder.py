"""Train on a folder of your own images: python train_own_folder.py OUT [IMAGES [FOLDER]]"""

import argparse
import random
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw

import ocra


def draw_folder(folder: Path) -> Path:
    """An example: images of a disc, a square, both or nothing, and a labels.csv that says what is in each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file,labels"]
    for number in range(300):
        image, labels = Image.new("L", (36, 36)), random.choice(["disc", "square", "disc square", ""])
        draw = ImageDraw.Draw(image)
        for label in labels.split():
            x, y = random.randint(2, 20), random.randint(2, 20)
            (draw.ellipse if label == "disc" else draw.rectangle)((x, y, x + 13, y + 13), fill=255)
        image.save(folder / f"{number}.png")
        lines.append(f"{number}.png,{labels}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("out", type=Path, help="new folder for the run")
parser.add_argument("images", type=int, nargs="?", help="images to train on; by default the recipe says")
parser.add_argument("folder", type=Path, nargs="?", help="your images; without it some are drawn")
given = parser.parse_args()
folder = given.folder or draw_folder(given.out.with_name(given.out.name + "-images"))

experiment = ocra.folder_experiment(
    folder, images=given.images
)  # the recipe for these images, to be changed at will
experiment = replace(experiment, run=replace(experiment.run, compile=False))
result = ocra.train_folder(folder, given.out, experiment=experiment, processes=1)
print(f"Now try: ocra predict {folder}/*.png --weights {result.weights}")
