"""A task of one's own, trained by the whole engine: python new_task.py OUT [IMAGES]

The command line takes it as well: ocra train multimnist-3 --task new_task:Strokes
"""

import sys
from dataclasses import replace

import numpy as np
import torch

import ocra


class Strokes(ocra.Task):
    """Two of four strokes on 20×20 pixels; image i is a function of seed, split and i alone."""

    class_names, image_shape = ("falling", "rising", "standing", "lying"), (1, 20, 20)
    answer_rule = ocra.AnswerRule(objects=2, repeats=False)
    shapes = torch.stack([torch.eye(9), torch.eye(9).flip(0), torch.eye(9)[[4] * 9], torch.eye(9)[[4] * 9].T])

    def __len__(self):
        return 100_000

    def make(self, indices, **options):
        images, counts = torch.zeros(len(indices), *self.image_shape), torch.zeros(len(indices), 4)
        for k, index in enumerate(indices):
            draw = np.random.default_rng([self.seed, *self.split.encode(), index])
            for stroke, (x, y) in zip(draw.permutation(4)[:2], draw.integers(0, 12, (2, 2)), strict=True):
                images[k, 0, y : y + 9, x : x + 9] += self.shapes[stroke]
                counts[k, stroke] = 1
        return ocra.Batch(images.clamp(max=1), counts)


if __name__ == "__main__":
    out, images = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
    experiment = ocra.preset("multimnist-3").scaled(images)
    model = replace(experiment.model, hidden=128, filters=8)
    run = replace(experiment.run, validate_images=500, test_images=1000, compile=False)
    experiment = replace(experiment, model=model, run=run)
    test = ocra.train(experiment, out, task=Strokes, processes=1, quiet=True)["test"]["best"]
    print(f"{test['exact_error']:.0%} of {test['n']} images wrong; the run is in {out}.")
