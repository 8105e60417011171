# %% [markdown]
# # First look
#
# A model looks at two digits that lie on top of each other, three times, and says what they are. You will see
# where it looked, what it took each glimpse for, and how often it is wrong.
#
# To start this in Colab, choose *File → Upload notebook*, take `first_look.ipynb`, and run `%pip install
# ocra-vision` in a cell of its own first.

# %%
import matplotlib.pyplot as plt
import torch

import ocra

DIGITS = "mnist"  # fetched on first use; "glyphs" draws digits from fonts and needs no data
NUMBER = 1000  # test images to score

# %% [markdown]
# ## One image
#
# `from_pretrained` takes the name of shipped weights, or a folder. A task makes images; image `i` of a split is
# always the same.

# %%
model = ocra.OCRA.from_pretrained("multimnist-3")
task = ocra.MultiMNIST(split="test", digits=DIGITS)
batch = task.batch(range(8))

fig, axes = plt.subplots(1, 8, figsize=(10, 1.6))
for axis, image, counts in zip(axes, batch.images, batch.counts, strict=True):
    axis.imshow(image[0], cmap="gray")
    axis.set_title(" ".join(map(str, counts.nonzero().flatten().tolist())))
    axis.axis("off")

# %% [markdown]
# ## A pass
#
# Calling the model gives a `Trace`. With `record=True` it holds all that happened, glimpse by glimpse.

# %%
with torch.no_grad():
    trace = model(batch.images, record=True)
print("scores", tuple(trace.scores.shape), "glimpses", tuple(trace.glimpses.shape))
for step in range(model.config.glimpses):
    x, y = trace.read_windows.center[0, step].tolist()
    width = trace.read_windows.width(model.config.glimpse_size)[0, step]
    winner = int(trace.winners[0, step])
    print(f"glimpse {step + 1}: centre ({x:.1f}, {y:.1f}), {width:.1f} px wide, longest capsule: {winner}")

# %% [markdown]
# The score of a class is the length of its capsule, summed over the glimpses; the two highest are the answer.

# %%
fig, axes = plt.subplots(1, 4, figsize=(10, 2.4))
axes[0].imshow(batch.images[0, 0], cmap="gray")
axes[1].imshow(trace.canvas[0, 0], cmap="gray", vmin=0, vmax=1)
axes[2].imshow(trace.glimpses[0, 0, 0], cmap="gray")
axes[3].bar(range(10), trace.scores[0])
for axis, title in zip(axes, ("image", "reconstruction", "first glimpse", "scores"), strict=True):
    axis.set_title(title)
for axis in axes[:3]:
    axis.axis("off")

# %% [markdown]
# ## How often is it wrong?
#
# An image counts as wrong if either digit is. The interval says how far such a figure can be trusted.

# %%
result = ocra.evaluate(model, task, images=NUMBER)
low, high = result.figures["exact_error_interval"]
print(f"{result.exact_error:.1%} of {NUMBER} images wrong (95 % interval {low:.1%} to {high:.1%})")

# %% [markdown]
# Next: `ocra look IMAGE --out figure.png` draws all this for an image of your own, and `ocra app` lets you play
# with it.
