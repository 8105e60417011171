# %% [markdown]
# # Train on your own images
#
# All it takes is a folder of images and a table that says what is in each. Here we draw such a folder
# ourselves: discs and squares, one or two in an image.
#
# To start this in Colab, choose *File → Upload notebook*, take `own_images.ipynb`, and run `%pip install
# ocra-vision` in a cell of its own first.

# %%
import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image, ImageDraw

import ocra

IMAGES = 300  # in the folder
SEEN = 12_000  # images to train on, with repetition; None: as many as the recipe says

# %%
random.seed(0)
os.chdir(tempfile.mkdtemp())  # all that is written goes there
folder = Path("shapes")
folder.mkdir()
lines = ["file,labels"]
for number in range(IMAGES):
    image, labels = (
        Image.new("L", (36, 36)),
        random.choice(["disc", "square", "disc square", "disc disc"]),
    )
    draw = ImageDraw.Draw(image)
    for label in labels.split():
        x, y, side = random.randint(2, 20), random.randint(2, 20), random.randint(9, 14)
        tone = random.randint(150, 255)
        (draw.ellipse if label == "disc" else draw.rectangle)((x, y, x + side, y + side), fill=tone)
    image.save(folder / f"{number}.png")
    lines.append(f"{number}.png,{labels}")
(folder / "labels.csv").write_text("\n".join(lines) + "\n")
print("\n".join(lines[:6]))

# %% [markdown]
# ## The recipe
#
# `folder_experiment` looks at the images and chooses a network and the stages of training. It is plain data:
# change what you like with `dataclasses.replace`. On the command line this is `ocra train shapes`.

# %%
experiment = ocra.folder_experiment(folder, images=SEEN)
watching = replace(experiment.run, compile=False, report_every_images=2000, validate_every_images=4000)
experiment = replace(experiment, run=watching)
model = experiment.model
print(f"{model.glimpses} glimpses at {model.height}×{model.width} pixels, classes: {model.classes}")
for number, stage in enumerate(experiment.stages, start=1):
    print(f"stage {number}: {stage.images:,} images, learning rate {stage.lr}")

# %%
result = ocra.train_folder(folder, "run", experiment=experiment, processes=1)

# %% [markdown]
# ## What it learnt
#
# The weights are a folder like any other: `ocra.predict`, `ocra.look`, `ocra.evaluate`, the page and the lab
# take it.

# %%
files = [folder / f"{number}.png" for number in range(6)]
fig, axes = plt.subplots(1, 6, figsize=(10, 2))
for axis, file, found in zip(axes, files, ocra.predict(result.weights, files), strict=True):
    axis.imshow(Image.open(file), cmap="gray")
    axis.set_title(" ".join(thing.label for thing in found.objects) or "nothing", fontsize=9)
    axis.axis("off")
