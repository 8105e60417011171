"""The page without a server behind it: files for any web server, the network running in the visitor's browser.

The files in `static/` are the page; beside them are written the network as ONNX, what its answers mean, and
onnxruntime-web, which is taken from the npm registry or from a folder, never from a content delivery network.
"""

from __future__ import annotations

import os
from pathlib import Path

from ocra.data import get_task, task_names
from ocra.data.download import npm_files
from ocra.errors import OcraError, UsageError
from ocra.exporting import Portable, describe, export
from ocra.files import write_bytes_atomically, write_json_atomically
from ocra.model.weights import load
from ocra.viz.style import css_variables

PAGE = Path(__file__).parent / "static"
RUNTIME_PACKAGE = "onnxruntime-web@1.30.0"
RUNTIME = {
    "ort.js": "ort.wasm.min.mjs",
    "ort-wasm.js": "ort-wasm-simd-threaded.mjs",
    "ort-wasm.wasm": "ort-wasm-simd-threaded.wasm",
}
"""Our name of each file of the runtime → its own; some web servers do not know that .mjs is JavaScript."""


def write_page(
    folder: str | os.PathLike[str], weights: str, runtime: str | os.PathLike[str] | None = None
) -> None:
    """Write the page with the network of these weights into a folder.

    runtime: a folder with the files of onnxruntime-web (its dist/), such as node_modules/onnxruntime-web; None
    fetches them with the npm client.
    """
    folder, network = Path(folder), load(weights)
    task = get_task(network.info.task_name) if network.info.task_name in task_names() else None
    drawn = task is not None and task.preprocessing.ink == "handwriting"
    if task is None or not drawn or not network.config.attention:
        raise UsageError(
            f"The static page is for networks that look at drawn digits through windows; {weights} is none of them."
        )
    files = {f"ort/{name}": content for name, content in _runtime(runtime).items()}
    for path in sorted(PAGE.iterdir()):
        files[path.name] = path.read_bytes()
    files["icon.svg"] = (PAGE.parent / "icon.svg").read_bytes()
    colours = css_variables("@media (prefers-color-scheme: dark) {{ :root {{ {} }} }}")
    files["page.css"] = colours.encode() + files["page.css"]
    about = describe(network, Portable(network))
    export(weights, folder / "model.onnx")
    try:
        for name, content in files.items():
            write_bytes_atomically(folder / name, content)
        drawing = {"hint": task.drawing_hint, "pen": task.pen_width, "limits": task.limits}
        write_json_atomically(folder / "model.json", {**about, **drawing})
    except OSError as error:
        raise OcraError(f"The page could not be written to {folder}: {error.strerror or error}.") from None


def _runtime(folder: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """The files of onnxruntime-web by our names."""
    if folder is None:
        advice = "Unpack it by hand and name the folder with --onnxruntime."
        members = [f"package/dist/{name}" for name in RUNTIME.values()]
        found = npm_files(RUNTIME_PACKAGE, members, advice)
        return dict(zip(RUNTIME, found, strict=True))
    place = Path(folder) / "dist" if (Path(folder) / "dist").is_dir() else Path(folder)
    try:
        return {name: (place / own).read_bytes() for name, own in RUNTIME.items()}
    except OSError as error:
        raise OcraError(
            f"{folder} does not hold onnxruntime-web: {error.filename}: {error.strerror}. It needs "
            f"{', '.join(RUNTIME.values())}, as in the npm package {RUNTIME_PACKAGE}."
        ) from None
