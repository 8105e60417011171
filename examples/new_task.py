"""A task of one's own, and the plain loop that learns it: python new_task.py [steps]"""

import sys

import numpy as np
import torch

import ocra
from ocra.losses import compute_losses


class Strokes(ocra.Task):
    """Two of four strokes on 20×20 pixels; image i is a function of the seed and i alone."""

    class_names, image_shape = ("falling", "rising", "standing", "lying"), (1, 20, 20)
    shapes = torch.stack([torch.eye(9), torch.eye(9).flip(0), torch.eye(9)[[4] * 9], torch.eye(9)[[4] * 9].T])

    def __len__(self):
        return 100_000

    def make(self, indices, *, annotations, single_objects, spread):
        images, counts = torch.zeros(len(indices), 1, 20, 20), torch.zeros(len(indices), 4)
        for k, index in enumerate(indices):
            draw = np.random.default_rng([self.seed, index])
            for stroke, (x, y) in zip(draw.permutation(4)[:2], draw.integers(0, 12, (2, 2)), strict=True):
                images[k, 0, y : y + 9, x : x + 9] += self.shapes[stroke]
                counts[k, stroke] = 1
        return ocra.Batch(images.clamp(max=1), counts)


task = Strokes(split="train")
model = ocra.OCRA(ocra.ModelConfig(height=20, width=20, classes=4, hidden=128, filters=8))
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 500):
    batch = task.batch(range(64 * step, 64 * step + 64))
    trace = model(batch.images)
    loss = compute_losses(trace, batch, ocra.LossConfig()).total
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    right = (batch.counts.gather(1, trace.scores.topk(2).indices) == 1).all(1).float().mean()
    print(f"step {step:3}  loss {loss:.3f}  images right {right:.0%}", flush=True)
