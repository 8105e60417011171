"""What can be taken away from the page: its address, Python that does the same, figures, animations and tables."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from torch import Tensor

from ocra.app.looking import (
    MOST_ROUTINGS,
    MOST_UNTIL,
    Choice,
    Force,
    Look,
    Manner,
    companion,
    most_glimpses,
    silenceable,
)
from ocra.app.subjects import (
    MOST_CLUTTER,
    MOST_NUMBER,
    MOST_SEED,
    Request,
    SceneRequest,
    Subject,
    scene_like,
    task_of,
)
from ocra.data import task_names
from ocra.data.corruptions import CORRUPTIONS, MOST
from ocra.errors import OcraError
from ocra.lab.scanpaths import Scanpath, to_csv
from ocra.model.network import Network
from ocra.model.trace import Windows
from ocra.prediction import decode, given
from ocra.viz import save_look
from ocra.viz.record import records

FILES = ("figure.png", "figure.pdf", "animation.gif", "scanpath.csv")
"""What can be saved of a pass."""
OWN = "own"
"""Stands in an address for an image that the visitor has made."""
LOST = "Drawings and uploaded images are not part of the address: here is a test image instead."
MOST_FORCED = 100


@dataclass(frozen=True)
class Opened:
    """What an address asks for."""

    choice: Choice
    asked: Request | SceneRequest
    forced: tuple[Force, ...]
    problems: tuple[str, ...]
    """A sentence for each value that was passed over."""


def to_query(choice: Choice, subject: Subject, forced: Sequence[Force]) -> str:
    """The query string that leads to what is shown."""
    values: list[tuple[str, Any]] = [("model", choice.model), ("glimpses", _short(choice.glimpses))]
    if choice.compare:
        values += [("with", choice.other), ("with-glimpses", _short(choice.other_glimpses))]
    values += _origin(subject.origin, choice.model)
    values += [("until", _short(choice.until))] if choice.until else []
    values += [("routings", _short(choice.routings))] if choice.routings else []
    values += [("lesion", ",".join(choice.silenced))] if choice.silenced else []
    values += [("only", "second")] if choice.second_only and choice.compare else []
    for force in forced:
        values.append(("window", ",".join(map(_short, (force.step + 1, force.x, force.y, force.width)))))
    return urlencode(values, safe=",/")


def _origin(origin: Request | SceneRequest | None, model: str) -> list[tuple[str, Any]]:
    """The part of an address that says which image is shown."""
    if origin is None:
        return [("image", OWN)]
    if isinstance(origin, Request):
        values: list[tuple[str, Any]] = [("task", origin.task), ("image", _short(origin.number))]
    else:
        values = [("scene", _short(origin.number))]
        values += [
            (key, _short(value))
            for key in ("overlap", "clutter")
            if (value := getattr(origin, key)) is not None
        ]
        values += [("contrast", _short(origin.contrast))] if origin.contrast != 1 else []
        values += [("noise", origin.noise), ("severity", _short(origin.severity))] if origin.severity else []
    values += [("seed", _short(origin.seed))] if origin.seed else []
    return values + ([("of", origin.of)] if origin.of and origin.of != model else [])


def _short(number: Any) -> str:
    """A number with as many decimals as matter, two at most."""
    return f"{round(float(number or 0), 2):.10g}"


class _Values:
    """The values of an address, each checked; what is wrong with them is kept as sentences."""

    def __init__(self, query: str) -> None:
        self.values = parse_qs(query[:10_000].removeprefix("?"), keep_blank_values=True)
        self.problems: list[str] = []

    def refuse(self, key: str, value: str, why: str) -> None:
        self.problems.append(f"'{key}={value[:40]}' in the address was passed over: {why}.")

    def name(self, key: str, known: Sequence[str], usual: str, what: str) -> str:
        """One of the known names."""
        value = self.values.get(key, [usual])[-1]
        if value in known:
            return value
        self.refuse(key, value, f"there is no {what} of this name here")
        return usual

    def number(self, key: str, least: float, most: float, usual: Any, whole: bool = False) -> Any:
        """A number in a range."""
        if key not in self.values:
            return usual
        text = self.values[key][-1]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (whole and value != int(value)):
            kind = "whole number" if whole else "number"
            self.refuse(key, text, f"it takes a {kind} from {least:g} to {most:,.10g}")
            return usual
        return int(value) if whole else value


def from_query(query: str, models: Mapping[str, Network]) -> Opened:
    """What a query string asks for; values that are unknown or broken are passed over, with a sentence each."""
    given_ = _Values(query)
    names = list(models)
    known = {
        "model", "glimpses", "with", "with-glimpses", "task", "image", "seed", "of", "scene", "overlap", "clutter",
        "contrast", "noise", "severity", "until", "routings", "lesion", "only", "window",
    }  # fmt: skip
    name = given_.name("model", names, names[0], "model")
    model = models[name]
    compare = "with" in given_.values
    usual = companion(models, name) or names[min(1, len(names) - 1)]
    other = given_.name("with", names, usual, "model")
    trained = model.config.glimpses
    fewer = max(1, trained // 2) if other == name else models[other].config.glimpses
    choice = Choice(
        name,
        given_.number("glimpses", 1, most_glimpses(model), trained, whole=True),
        compare,
        other,
        given_.number("with-glimpses", 1, most_glimpses(models[other]), fewer, whole=True),
        given_.number("until", 0, MOST_UNTIL, 0.0),
        given_.number("routings", 0, MOST_ROUTINGS, 0, whole=True),
        _silenced(given_, [model, models[other]] if compare else [model]),
        given_.name("only", ["second", ""], "", "column") == "second",
    )
    asked = _asked(given_, name, models)
    forced = _forced(given_)
    for key in given_.values.keys() - known:
        # Gradio has parameters of its own, which all begin like this.
        if not key.startswith("__"):
            given_.problems.append(f"'{key[:40]}' in the address means nothing to this page.")
    return Opened(choice, asked, forced, tuple(given_.problems))


def _silenced(given_: _Values, models: Sequence[Network]) -> tuple[str, ...]:
    """The parts of a lesion that one of the models has."""
    text = given_.values.get("lesion", [""])[-1]
    parts = [part for part in text.split(",") if part]
    able = [part for part in dict.fromkeys(parts) if any(part in parts_of(model) for model in models)]
    for part in dict.fromkeys(parts):
        if part not in able:
            given_.refuse("lesion", part, "the model has no such part")
    return tuple(able)


def parts_of(model: Network) -> dict[str, str]:
    """Every part of a model that can be silenced, as an address has it, with its name."""
    memories = {part: part.replace("-", " ") for part in silenceable(model)}
    capsules = model.info.capsule_names(model.config)
    return memories | {
        part: f"capsule {name}"
        for part, name in zip(map(str, range(len(capsules))), capsules, strict=True)
        if Manner(1, silenced=(part,)).applied(model)[0].silenced
    }


def _asked(given_: _Values, name: str, models: Mapping[str, Network]) -> Request | SceneRequest:
    """The image that an address asks for; test image 0 of the model's task where it asks for none."""
    of = given_.name("of", list(models), name, "model")
    seed = given_.number("seed", 0, MOST_SEED, 0, whole=True)
    if "scene" in given_.values:
        usual = scene_like(models[of])
        return SceneRequest(
            given_.number("scene", 0, MOST_NUMBER, 0, whole=True),
            given_.number("overlap", 0, 1, usual.overlap),
            given_.number("clutter", 0, MOST_CLUTTER, usual.clutter, whole=True),
            given_.number("contrast", 0, 1, 1.0),
            given_.name("noise", list(CORRUPTIONS), "gaussian", "kind of noise"),
            given_.number("severity", 0, MOST, 0.0),
            seed=seed,
            of=of,
        )
    own = task_of(models[of]).name
    task = given_.name("task", [*task_names(), own], own, "task")
    if given_.values.get("image") == [OWN]:
        given_.problems.append(LOST)
        del given_.values["image"]
    return Request(task, given_.number("image", 0, MOST_NUMBER, 0, whole=True), seed=seed, of=of)


def _forced(given_: _Values) -> tuple[Force, ...]:
    """The forced windows of an address."""
    found: list[Force] = []
    for text in given_.values.get("window", [])[:MOST_FORCED]:
        parts = text.split(",")
        try:
            step, x, y, width = map(float, parts)
            found += Force.parse([{"step": step - 1, "x": x, "y": y, "width": width}])
        except (ValueError, OcraError):
            given_.refuse("window", text, "it takes glimpse, x, y and width, as in 2,8.5,20,17")
    return tuple({force.step: force for force in found}.values())


def to_python(look: Look, subject: Subject, source: str) -> str:
    """A few lines of Python that show the same image to the same model in the same way."""
    options = _code_of(look.manner, look.model)
    lines, model, images = ["import ocra"], repr(source), subject.code
    if subject.exact is None:
        options += ["invert='no'"] if subject.invert == "no" else []
        if images == repr("drawing.png"):
            lines.append("# The drawing has to be saved first: right-click the pad.")
    elif not subject.fits(look.model):  # the page resizes it, as it would a user's image of no special kind
        lines += [
            "from ocra.images.fitting import UserImage, prepare",
            f"model = ocra.Network.from_pretrained({model})",
            f"pixels = {images}[0].movedim(0, -1).squeeze(-1).numpy()",
            'image = UserImage("test image", pixels, *pixels.shape[1::-1])',
        ]
        model, images = "model", "prepare(image, model.config, ocra.Preprocessing()).image[None]"
    if look.windows is not None:
        lines.append("from torch import nan, tensor")
        lines.append(f"windows = ocra.Windows({', '.join(_code_of_windows(look.windows))})")
        options.append("windows=windows")
    if subject.exact is not None:
        lines.append(f"images = {images}")
        images = "images"
    lines.append(f"(answer,) = ocra.predict({', '.join([model, images, *options])})")
    return "\n".join([*lines, "print(answer)", ""])


def _code_of(manner: Manner, model: Network) -> list[str]:
    """The arguments of `ocra.predict` for a way of looking; what is the model's own is left out."""
    arguments = manner.arguments(model)
    if arguments.get("glimpses") == model.config.glimpses:
        del arguments["glimpses"]
    lesion = arguments.pop("lesion", None)
    code = [f"{key}={value!r}" for key, value in arguments.items()]
    if lesion is not None:
        parts = [f"{key}={value!r}" for key, value in vars(lesion).items() if value]
        code.append(f"lesion=ocra.Lesion({', '.join(parts)})")
    return code


def _code_of_windows(windows: Windows) -> list[str]:
    """The arguments of `ocra.Windows` for the forced pass."""

    def text(values: Any) -> str:
        if isinstance(values, list):
            return f"[{', '.join(map(text, values))}]"
        return "nan" if math.isnan(values) else f"{values:.7g}"

    parts: tuple[Tensor, ...] = (windows.center, windows.stride, windows.sigma)
    return [f"tensor({text(part[-1].tolist())})" for part in parts]


def to_file(look: Look, subject: Subject, what: str) -> tuple[str, bytes]:
    """A figure, an animation or a table of a pass, as FILES names it, with a name for the file."""
    if what not in FILES:
        raise OcraError(f"There is no {what} to be saved.")
    stem = re.sub(r"[^\w-]+", "-", f"ocra-{look.name}-{Path(subject.title).stem}").strip("-").lower()
    name = f"{stem}-{what}"
    if what == "scanpath.csv":
        placements = [look.prepared.placement] * len(look.trace.scores)
        found = decode(look.trace, look.config, look.model.info, placements)[-1]
        return name, to_csv([Scanpath(subject.title, found.glimpses, look.names)]).encode()
    windows = look.windows and Windows(*(part[-1] for part in vars(look.windows).values()))
    (record,) = records(
        look.model,
        look.prepared.image[None],
        truths=[subject.truth] if subject.truth else None,
        titles=[" · ".join([subject.title, look.name, *in_short(look)])],
        prepared=[look.prepared] if subject.exact is None and look.prepared.steps else None,
        **look.manner.arguments(look.model),
        **given(windows=windows),
    )
    with tempfile.TemporaryDirectory(prefix="ocra-save-") as folder:
        path = os.path.join(folder, what)
        save_look(record, path)
        return name, Path(path).read_bytes()


def condition(look: Look, scene: SceneRequest) -> str:
    """What was shown and done to a model in a trial, but for the digits: trials with the same words belong together."""
    words = [look.name]
    if look.manner.glimpses != look.config.glimpses:
        words.append(f"{look.manner.glimpses} glimpses")
    words += [f"stops at {look.manner.until:g}"] if look.manner.until else []
    words += [word for word in in_short(look) if " after " not in word]
    words += [f"overlap {scene.overlap:g}"] if scene.overlap is not None else []
    words += [f"{scene.clutter:g} distractors"] if scene.clutter else []
    words += [f"contrast {scene.contrast:g}"] if scene.contrast != 1 else []
    return ", ".join([*words, f"{scene.noise} {scene.severity:g}"] if scene.severity else words)


def in_short(look: Look) -> list[str]:
    """What was done to a model, in a few words each."""
    parts = parts_of(look.model)
    said = (
        [f"without {' and '.join(parts[part] for part in look.manner.silenced)}"]
        if look.manner.silenced
        else []
    )
    said += [f"{look.manner.routings} routings"] if look.manner.routings else []
    if look.manner.until:
        stopped = look.margin >= look.manner.until
        said.append(f"sure after {look.glimpses}" if stopped else f"not sure after {look.glimpses}")
    return said
