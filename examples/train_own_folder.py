"""Train on a folder of pictures with a labels.csv: python train_own_folder.py OUT [IMAGES [FOLDER]]"""

import random
import sys
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw

import ocra


def draw_folder(folder: Path) -> Path:
    """An example: pictures of a disc, a square or both, and a labels.csv that says what is in each."""
    folder.mkdir(parents=True)
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


out = Path(sys.argv[1])
images = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
folder = Path(sys.argv[3]) if len(sys.argv) > 3 else draw_folder(out.with_name(out.name + "-pictures"))

spec = ocra.preset("multimnist-3")
training = replace(spec.training, images=images, batch=32, learning_rate=2e-3, compile=False)
task = ocra.TaskConfig(name="folder", root=str(folder))
spec = ocra.fit_to_task(replace(spec, name="own-folder", task=task, training=training))
test = ocra.train(spec, out=out, processes=1, quiet=True)["test"]["best"]
print(
    f"{test['object_error']:.0%} of the objects missed, {test['exact_error']:.0%} of {test['n']} images wrong."
)
print(f"Now try: ocra predict {folder}/*.png --weights {out}/weights/best")
