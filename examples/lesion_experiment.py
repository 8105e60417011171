"""What does each part of the network do? Silence it during the pass and count the errors."""

import argparse

import torch

import ocra

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--weights", default="multimnist-3", help="name of shipped weights, or a folder")
parser.add_argument("--digits", default="mnist", choices=["mnist", "glyphs"])
parser.add_argument("--number", type=int, default=1000, help="test images")
arguments = parser.parse_args()

model = ocra.OCRA.from_pretrained(arguments.weights)
task = ocra.MultiMNIST(split="test", digits=arguments.digits)
whole = (task.image_shape[2] - 1) / 2
windows = ocra.Windows(  # every glimpse takes in the whole image
    center=torch.full((model.config.glimpses, 2), whole),
    stride=torch.full((model.config.glimpses,), 2 * whole / (model.config.glimpse_size - 1)),
    sigma=torch.full((model.config.glimpses,), float("nan")),  # NaN: the model's own
)
conditions = {
    "intact": {},
    "encoder forgets": {"lesion": ocra.Lesion(encoder_memory=True)},
    "decoder forgets": {"lesion": ocra.Lesion(decoder_memory=True)},
    "no capsule for 4": {"lesion": ocra.Lesion(capsules=(4,))},
    "one routing": {"routings": 1},
    "looks never move": {"windows": windows},
}
for name, condition in conditions.items():
    error = ocra.evaluate(model, task, images=arguments.number, **condition).exact_error
    print(f"{name:18} {error:6.1%} wrong")
