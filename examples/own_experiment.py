"""An experiment of one's own: are upside-down digits harder when they overlap more?"""

import argparse

from ocra.lab import Condition, LabExperiment, run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--weights", default="multimnist-3", help="name of shipped weights, or a folder")
parser.add_argument("--trials", type=int, default=200)
arguments = parser.parse_args()


class UpsideDown(LabExperiment):
    name, title = "upside-down", "Upright and upside down"
    question = "Are upside-down digits harder when they overlap more?"
    axis = "share of ink that overlaps"

    def conditions(self, base, model):
        return [
            Condition(overlap, base.change(rotation=turn, ink_overlap=overlap), f"{turn} degrees")
            for turn in (0, 180)
            for overlap in (0.1, 0.4)
        ]


for row in run(UpsideDown(), arguments.weights, trials=arguments.trials, out="upside-down").summary:
    low, high = f"{row['low']:.0%}", f"{row['high']:.0%}"
    print(f"{row['series']:12} overlap {row['x']}: {row['mean']:.0%} wrong ({low} to {high})")
