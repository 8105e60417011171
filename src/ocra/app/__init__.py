"""The local web page `ocra app`: draw or choose a picture, watch the model look at it, move its gaze.

`networks`, `subjects` and `looking` know nothing of the page, `view` turns a pass into HTML, `page` wires it
all to Gradio, `server` serves it. Only the last two need the extra `ocra-vision[app]`.
"""
