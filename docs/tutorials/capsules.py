# %% [markdown]
# # Inside the capsules
#
# Primary capsules vote for object capsules; routing by agreement decides whose votes count; only the longest
# object capsule reaches the decoder. Here we look at each of these, and then interfere.
#
# To start this in Colab, choose *File → Upload notebook*, take `capsules.ipynb`, and run `%pip install
# ocra-vision` in a cell of its own first.

# %%
import matplotlib.pyplot as plt
import torch

import ocra

DIGITS = "mnist"
NUMBER = 500

model = ocra.OCRA.from_pretrained("multimnist-3")
task = ocra.MultiMNIST(split="test", digits=DIGITS)
batch = task.batch(range(NUMBER))
with torch.no_grad():
    trace = model(batch.images, record=True)

# %% [markdown]
# ## Lengths
#
# A capsule's length, from 0 to 1, says how sure the network is that its class is there, at that glimpse.

# %%
fig, axes = plt.subplots(1, 4, figsize=(10, 2.6), width_ratios=[1, 2, 2, 2])
axes[0].imshow(batch.images[0, 0], cmap="gray")
axes[0].axis("off")
for step in range(3):
    axes[step + 1].bar(range(10), trace.capsule_lengths[0, step])
    axes[step + 1].set(title=f"glimpse {step + 1}", ylim=(0, 1), xticks=range(10))
fig.tight_layout()

# %% [markdown]
# ## Couplings
#
# How much each of the 40 primary capsules listens to each object capsule after routing. Without routing all
# would be alike.

# %%
fig, axis = plt.subplots(figsize=(8, 2.6))
shown = axis.imshow(trace.couplings[0, -1], aspect="auto", cmap="viridis")
axis.set(xlabel="primary capsule", ylabel="object capsule", title="couplings at the last glimpse")
fig.colorbar(shown)

# %% [markdown]
# ## What does each part buy?
#
# Interventions are arguments of the call: the weights stay as they are.

# %%
conditions = {
    "intact": {},
    "one routing": {"routings": 1},
    "five routings": {"routings": 5},
    "encoder forgets": {"lesion": ocra.Lesion(encoder_memory=True)},
    "decoder forgets": {"lesion": ocra.Lesion(decoder_memory=True)},
    "no capsule for 4": {"lesion": ocra.Lesion(capsules=(4,))},
}
errors = {
    name: ocra.evaluate(model, task, images=NUMBER, **changes).exact_error
    for name, changes in conditions.items()
}
fig, axis = plt.subplots(figsize=(6, 2.6))
axis.barh(list(errors), list(errors.values()))
axis.invert_yaxis()
axis.set(xlabel=f"share of {NUMBER} images wrong", xlim=(0, 1))
fig.tight_layout()

# %% [markdown]
# ## A capsule's imagination
#
# Send another class to the decoder than the one that won, and the canvas shows what the network expects of it.

# %%
with torch.no_grad():
    wanted = torch.arange(10)[:, None].expand(10, 3)
    imagined = model(batch.images[:1].expand(10, -1, -1, -1), winners=wanted)
fig, axes = plt.subplots(1, 10, figsize=(10, 1.4))
for label, axis in enumerate(axes):
    axis.imshow(imagined.canvas[label, 0], cmap="gray", vmin=0, vmax=1)
    axis.set_title(label)
    axis.axis("off")
