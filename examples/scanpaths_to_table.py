"""Where does the model look? A table with a row for each glimpse, and how the windows shrink."""

import argparse
from collections import defaultdict

import ocra

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--weights", default="multimnist-3", help="name of shipped weights, or a folder")
parser.add_argument("--digits", default="mnist", choices=["mnist", "glyphs"])
parser.add_argument("--number", type=int, default=200, help="test images to look at")
parser.add_argument("--out", default="scanpaths.csv", help=".csv, .tsv (MultiMatch) or .npz (pysaliency)")
arguments = parser.parse_args()

task = ocra.MultiMNIST(split="test", digits=arguments.digits)
paths = ocra.scanpath(arguments.weights, task, arguments.out, number=arguments.number)

widths = defaultdict(list)
for path in paths:
    for step, glimpse in enumerate(path.glimpses, start=1):
        widths[step].append(glimpse.width)
for step, values in widths.items():
    print(f"glimpse {step}: mean window {sum(values) / len(values):.1f} px")
print(f"{len(paths)} scanpaths are in {arguments.out}.")
