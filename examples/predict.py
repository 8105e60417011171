"""Recognise what is in images: python predict.py photo.png scan.jpg"""

import argparse

import ocra

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("images", nargs="+", help="image files of any kind")
parser.add_argument("--weights", default="multimnist-3", help="name of shipped weights, or a folder")
parser.add_argument("--out", default="look.png", help="figure of the first image")
arguments = parser.parse_args()

predictions = ocra.predict(arguments.weights, arguments.images)
for image, prediction in zip(arguments.images, predictions, strict=True):
    objects = ", ".join(f"{found.label} (confidence {found.confidence:.0%})" for found in prediction.objects)
    print(f"{image}: {objects}")
    for step, glimpse in enumerate(prediction.glimpses, start=1):
        place = f"x {glimpse.x:.0f}, y {glimpse.y:.0f}, {glimpse.width:.0f} px wide"
        print(f"  glimpse {step}: {place}, taken for {glimpse.winner}")

ocra.look(arguments.weights, arguments.images[0], arguments.out)
print(f"See {arguments.out} for how it came to that.")
