# %% [markdown]
# # An experiment in the lab
#
# Control the stimulus, run the experiment, get a table with intervals and a figure. First one that comes with
# the package, then one of our own.
#
# To start this in Colab, choose *File → Upload notebook*, take `lab.ipynb`, and run `%pip install ocra-vision`
# in a cell of its own first.

# %%
import matplotlib.pyplot as plt

from ocra.lab import EXPERIMENTS, Condition, LabExperiment, Scenes, run

DIGITS = "mnist"
TRIALS = 200

# %% [markdown]
# ## Stimuli with handles
#
# Every parameter of a scene is an argument and is recorded with the trial. Changing one leaves the others as
# they were.

# %%
base = Scenes(size=36, objects=2, relation="different", source=DIGITS)
scenes = [
    base,
    base.change(ink_overlap=0.5),
    base.change(contrast=0.4),
    base.change(corruption="gaussian", severity=3),
]
names = ["as in training", "half of the ink overlaps", "low contrast", "noise"]
fig, axes = plt.subplots(1, 4, figsize=(9, 2.4))
for axis, spec, name in zip(axes, scenes, names, strict=True):
    axis.imshow(spec.make([0], seed=1).images[0, 0], cmap="gray", vmin=0, vmax=1)
    axis.set_title(name, fontsize=9)
    axis.axis("off")

# %% [markdown]
# ## An experiment that is there
#
# `ocra lab list` says what there is. Each is also one command: `ocra lab run overlap --trials 200 --out
# overlap`.

# %%
print(", ".join(sorted(EXPERIMENTS)))

# %% [markdown]
# ## One of our own
#
# Are digits harder to tell apart when they are turned upside down, and more so when they overlap? An experiment
# is a class with a name, a question and its conditions.


# %%
class UpsideDown(LabExperiment):
    name, title = "upside-down", "Upright and upside down"
    question = "Are upside-down digits harder, and more so when they overlap?"
    axis = "share of ink that overlaps"

    def conditions(self, base, model):
        base = base.change(source=DIGITS)
        return [
            Condition(overlap, base.change(rotation=turn, ink_overlap=overlap), f"{turn} degrees")
            for turn in (0, 180)
            for overlap in (0.0, 0.2, 0.4)
        ]


outcome = run(UpsideDown(), "multimnist-3", trials=TRIALS)
fig, axis = plt.subplots(figsize=(5, 3))
for series in ("0 degrees", "180 degrees"):
    rows = [row for row in outcome.summary if row["series"] == series]
    mean = [row["mean"] for row in rows]
    below = [row["mean"] - row["low"] for row in rows]
    above = [row["high"] - row["mean"] for row in rows]
    axis.errorbar([row["x"] for row in rows], mean, [below, above], marker="o", capsize=3, label=series)
axis.set(xlabel=UpsideDown.axis, ylabel="share of wrong answers", ylim=(0, 1))
axis.legend()

# %% [markdown]
# With `out="folder"` the trials, the summary, the figure as PNG, SVG and PDF, and a page of text are written
# there.
