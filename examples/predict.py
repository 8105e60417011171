"""Recognise what is in pictures: python predict.py photo.png scan.jpg"""

import argparse

import ocra
from ocra.viz import look

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("pictures", nargs="+", help="picture files of any kind")
parser.add_argument("--weights", default="multimnist-3", help="name of shipped weights, or a folder")
parser.add_argument("--out", default="look.png", help="figure of the first picture")
arguments = parser.parse_args()

predictions = ocra.predict(arguments.weights, arguments.pictures)
for picture, prediction in zip(arguments.pictures, predictions, strict=True):
    objects = ", ".join(f"{found.label} (confidence {found.confidence:.0%})" for found in prediction.objects)
    print(f"{picture}: {objects}")
    for step, glimpse in enumerate(prediction.glimpses, start=1):
        place = f"x {glimpse.x:.0f}, y {glimpse.y:.0f}, {glimpse.width:.0f} px wide"
        print(f"  glimpse {step}: {place}, taken for {glimpse.winner}")

look(arguments.weights, arguments.pictures[0], arguments.out)
print(f"See {arguments.out} for how it came to that.")
