# %% [markdown]
# # Scanpaths and human data
#
# Where does the model look, how do its windows change from glimpse to glimpse, and how alike are two scanpaths?
#
# To start this in Colab, choose *File → Upload notebook*, take `scanpaths.ipynb`, and run `%pip install
# ocra-vision` in a cell of its own first.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import ocra
from ocra.lab import comparing, formats

DIGITS = "mnist"
NUMBER = 200

# %% [markdown]
# ## A table of glimpses
#
# `ocra.scanpath` writes CSV, TSV for MultiMatch, or NPZ for pysaliency, by the ending. Coordinates are pixels
# of the image, 0 at the centre of the top left one.

# %%
os.chdir(tempfile.mkdtemp())  # all that is written goes there
task = ocra.MultiMNIST(split="test", digits=DIGITS)
paths = ocra.scanpath("multimnist-10", task, "ten.csv", number=NUMBER)
print("\n".join(Path("ten.csv").read_text().splitlines()[:4]))

# %%
centres = np.array([[(glimpse.x, glimpse.y) for glimpse in path.glimpses] for path in paths])
widths = np.array([[glimpse.width for glimpse in path.glimpses] for path in paths])
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
left.plot(range(1, 11), widths.mean(0), marker="o")
left.set(xlabel="glimpse", ylabel="mean width of the window, pixels", ylim=(0, None))
for step in (0, 4, 9):
    right.scatter(*centres[:, step].T, s=6, label=f"glimpse {step + 1}")
right.set(xlim=(0, 35), ylim=(35, 0), aspect="equal", title="centres of the windows")
right.legend(fontsize=8)
fig.tight_layout()

# %% [markdown]
# The first window is the same for every image, since nothing has been seen yet. Whoever compares scanpaths
# leaves it out.
#
# ## How alike are two paths?
#
# Dynamic time warping is a distance in pixels, string edit a similarity from 0 to 1 over a grid of cells. The
# paths of one model on the *same* image should be more alike than those on different images, or it does not
# look at the image.

# %%
other = ocra.scanpath("multimnist-3", task, "three.csv", number=NUMBER)
ten, three = (formats.read_fixations(name) for name in ("ten.csv", "three.csv"))
same = [comparing.dtw(a.places[1:], b.places[1:]) for a, b in zip(ten, three, strict=True)]
shifted = [comparing.dtw(a.places[1:], b.places[1:]) for a, b in zip(ten, three[1:] + three[:1], strict=True)]
for name, values in (("the same image", same), ("another image", shifted)):
    mean, low, high = comparing.bootstrap(values)
    print(f"ten against three glimpses on {name}: {mean:.2f} px apart ({low:.2f} to {high:.2f})")

# %% [markdown]
# ## Beside people
#
# People's clicks on MNIST digits (Baruah et al. 2023) are published without a licence, so you bring the file:
#
# ```sh
# ocra lab human attention-mnist --file mnist.json --weights mnist-6
# ```
#
# It compares accuracy by glimpse and fixation maps, with people among themselves as the ceiling. Scanpaths of
# other programs are compared by `ocra scanpath compare`.
