"""Run an exported network with NumPy and ONNX Runtime alone: python onnx_numpy.py model.onnx images.npy"""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map  # class names, answer rule, preprocessing, licence
class_names, capsule_names = json.loads(about["class_names"]), json.loads(about["capsule_names"])
images = np.load(sys.argv[2]).astype(np.float32)  # [batch, channels, height, width], values from 0 to 1
names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(names, {"images": images}), strict=True))

for number, scores in enumerate(found["scores"]):
    if "digits" in found:  # a house number, digit by digit; 10 stands for none
        answer = [class_names[digit] for digit in found["digits"][number] if digit != 10]
    else:
        answer = [
            name for name, k in zip(class_names, found["counts"][number], strict=True) for _ in range(k)
        ]
    print(f"image {number}:", *answer, f"(highest score {scores.max():.2f})")
    for (x, y, width, _), winner in zip(found["windows"][number], found["winners"][number], strict=True):
        print(f"  a window {width:.0f} px wide at x {x:.0f}, y {y:.0f}, taken for {capsule_names[winner]}")
