"""The local web page `ocra app`: draw or choose an image, watch the model look at it, move its gaze.

`subjects` is what is looked at, `looking` one pass over it, `view` that pass as HTML, `sharing` what can be taken away
of it, `studio` what a visitor can do; none of them knows of Gradio. `page` wires them to it and `server` serves the
page: these need the extra `ocra-vision[app]`. `static_page` writes a smaller page, in `static/`, that needs no server.
"""
