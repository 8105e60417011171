"""Train on a folder of images with a labels.csv: python train_own_folder.py OUT [IMAGES [FOLDER]]"""

import argparse
import random
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw

import ocra


def draw_folder(folder: Path) -> Path:
    """An example: images of a disc, a square or both, and a labels.csv that says what is in each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["file,labels"]
    for number in range(300):
        image, labels = Image.new("L", (36, 36)), random.choice(["disc", "square", "disc square"])
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
parser.add_argument("images", type=int, nargs="?", default=20_000, help="images to train on")
parser.add_argument("folder", type=Path, nargs="?", help="your images; without it some are drawn")
given = parser.parse_args()
folder = given.folder or draw_folder(given.out.with_name(given.out.name + "-images"))

experiment = ocra.preset("multimnist-3").scaled(given.images)
run = replace(experiment.run, compile=False)
task = ocra.FolderTask.Config(root=folder)
experiment = replace(experiment, name="own-folder", task=task, run=run).fitted()
test = ocra.train(experiment, out=given.out, processes=1, quiet=True)["test"]["best"]
print(f"{test['object_error']:.0%} of objects missed, {test['exact_error']:.0%} of {test['n']} images wrong.")
print(f"Now try: ocra predict {folder}/*.png --weights {given.out}/weights/best")
