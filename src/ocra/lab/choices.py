"""Whose error looks more human? Images that two models get wrong in different ways, as a two-alternative experiment.

As in the second experiment of ORA (Ahn, Adeli and Zelinsky 2024, PLoS Computational Biology 20:e1012159): people see
the image and two wrong answers, one of each model, and choose the one that a person would more likely give.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ocra.data.random import integers, random_bits
from ocra.errors import OcraError, UsageError
from ocra.files import rows_to_csv, write_bytes_atomically, write_text_atomically
from ocra.lab.running import BATCH, names_of, scenes_like
from ocra.lab.stimuli import Shown
from ocra.metrics import wilson_interval, wrong_answers
from ocra.model.network import Network
from ocra.prediction import Source, answers, load
from ocra.prediction import run as show

QUESTION = "Which answer would a person more likely give?"


@dataclass(frozen=True)
class Choice:
    """One trial: an image and the wrong answers of two models."""

    row: dict[str, Any]
    """Trial, truth, left and right answer, whose they are and how sure of it, and all that the stimulus is made of."""
    png: bytes


def find_choices(
    weights: Sequence[Source | Network],
    *,
    trials: int = 50,
    images: int = 5_000,
    corruption: str | None = None,
    severity: float = 3.0,
    seed: int = 0,
    device: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Choice]:
    """Trials for people: images that two of the models get wrong, each with another answer.

        find_choices(["multimnist-3", "cnn-small-multimnist"], trials=80, corruption="spatter", severity=1)

    Scenes are as the task makes them, damaged if `corruption` (see `ocra.data.corruptions`) is given: the networks
    make few errors on clean digits. trials: how many to look for; images: how many to show the models at most. With
    more than two models each pair has its trials. On which side an answer stands is drawn at random.
    """
    if len(weights) < 2:
        raise UsageError("A choice is between the errors of two models; name two or more.")
    if min(trials, images) < 1:
        raise UsageError("At least 1 trial is to be found in at least 1 image.")
    models = [load(each, device).eval() for each in weights]
    if len({model.config.image_shape for model in models}) > 1:
        shapes = "; ".join(f"{m.info.name} {m.config.height}×{m.config.width}" for m in models)
        raise UsageError(f"The models have to look at the same images, but these take others each: {shapes}.")
    scenes = scenes_like(models[0])
    scenes = scenes if corruption is None else scenes.change(corruption=corruption, severity=severity)
    names = names_of(models)
    found: list[Choice] = []
    for start in range(0, images, BATCH):
        shown = scenes.make(range(start, min(start + BATCH, images)), seed)
        said = [_errors(model, shown) for model in models]
        for k in range(len(shown.rows)):
            for one, two in combinations(range(len(models)), 2):
                pair = (said[one][k], said[two][k])
                if pair[0] and pair[1] and pair[0]["answer"] != pair[1]["answer"] and len(found) < trials:
                    found.append(
                        _choice(len(found) + 1, shown, k, {names[one]: pair[0], names[two]: pair[1]}, seed)
                    )
        if on_progress is not None:
            on_progress(len(found), trials)
        if len(found) == trials:
            break
    if not found:
        raise OcraError(
            f"In {images:,} images there is none that both models get wrong with different answers; look at more "
            "(--images), or make them harder (--corruption)."
        )
    return found


def _errors(model: Network, shown: Shown) -> list[dict[str, Any] | None]:
    """What the model said to each scene where it was wrong, None where it was right or named too few digits."""
    trace = show(model, shown.images)
    wrong = wrong_answers(trace, shown.batch, model.info.answer).tolist()
    found = answers(trace, model.info.class_names, model.info.answer)
    objects = model.info.answer.objects
    return [
        {
            "answer": " ".join(sorted(item.label for item in items)),
            "confidence": min(i.confidence for i in items),
        }
        if mistaken and items and len(items) == objects
        else None
        for mistaken, items in zip(wrong, found, strict=True)
    ]


def _choice(number: int, shown: Shown, k: int, said: dict[str, Any], seed: int) -> Choice:
    """The trial of one scene; which model stands on the left is a function of seed and trial."""
    stimulus = shown.rows[k]
    sides = list(said.items())
    if integers(random_bits(seed, "side", torch.tensor([number]).numpy(), 1), 2)[0, 0]:
        sides.reverse()
    row: dict[str, Any] = {"trial": number, "image": f"images/{number:04d}.png"}
    row["truth"] = " ".join(sorted(stimulus["truth"].split()))
    for side, (name, answer) in zip(("left", "right"), sides, strict=True):
        row |= {side: answer["answer"], f"{side}_model": name}
        row[f"{side}_confidence"] = round(answer["confidence"], 4)
    row |= {("scene" if name == "trial" else name): v for name, v in stimulus.items() if name != "truth"}
    file = io.BytesIO()
    Image.fromarray((shown.images[k, 0] * 255).round().to(torch.uint8).numpy()).save(file, "png")
    return Choice(row, file.getvalue())


def save_choices(choices: Sequence[Choice], folder: Source) -> Path:
    """Write the experiment into a folder; returns its page.

    images/*.png and trials.csv (for PsychoPy or any other program), jspsych.json (timeline variables of jsPsych's
    image-button-response), and experiment.html, a page that runs by itself: it shows the trials in random order and
    hands out responses.csv at the end.
    """
    target = Path(os.fspath(folder))
    variables = [
        {
            "stimulus": choice.row["image"],
            "choices": [choice.row["left"], choice.row["right"]],
            "prompt": QUESTION,
            "data": {name: choice.row[name] for name in ("trial", "truth", "left_model", "right_model")},
        }
        for choice in choices
    ]
    try:
        for choice in choices:
            write_bytes_atomically(target / choice.row["image"], choice.png)
        write_text_atomically(target / "trials.csv", rows_to_csv([choice.row for choice in choices]))
        write_text_atomically(target / "jspsych.json", json.dumps(variables, indent=1) + "\n")
        write_text_atomically(target / "experiment.html", page(choices))
    except OSError as error:
        raise OcraError(f"{folder} could not be written: {error.strerror or error}.") from None
    return target / "experiment.html"


def page(choices: Sequence[Choice]) -> str:
    """The experiment as one HTML page that needs no network: images and trials are in it."""
    trials = [
        {
            **{name: choice.row[name] for name in ("trial", "left", "right", "left_model", "right_model")},
            "image": "data:image/png;base64," + base64.b64encode(choice.png).decode("ascii"),
        }
        for choice in choices
    ]
    # In a script element only </ could end the data.
    return _PAGE.replace("TRIALS", json.dumps(trials).replace("</", "<\\/")).replace("QUESTION", QUESTION)


def score_choices(responses: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """How often each model's error was chosen, from the responses.csv of one or more people.

    Rows: model, against, trials, chosen, share and its 95 % interval (low, high) after Wilson; a half is chance.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for file in responses:
        try:
            with open(file, newline="", encoding="utf-8") as lines:
                rows = [(row["chosen_model"], row["other_model"]) for row in csv.DictReader(lines)]
        except OSError as error:
            raise OcraError(f"{file} could not be read: {error.strerror or error}.") from None
        except (KeyError, UnicodeDecodeError, csv.Error):
            raise OcraError(f"{file} is not a responses.csv of the experiment's page.") from None
        for chosen, other in rows:
            for key, won in (((chosen, other), 1), ((other, chosen), 0)):
                counts.setdefault(key, []).append(won)
    if not counts:
        raise OcraError("There is no response in these files.")
    table = []
    for (model, against), outcomes in sorted(counts.items()):
        n, won = len(outcomes), sum(outcomes)
        low, high = wilson_interval(won, n)
        row = {"model": model, "against": against, "trials": n, "chosen": won}
        table.append({**row, "share": won / n, "low": low, "high": high})
    return table


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Whose error?</title>
<style>
body { margin: 0; background: #777; color: #fff; font: 18px/1.5 system-ui, sans-serif; text-align: center }
main { max-width: 40rem; margin: 4vh auto; padding: 0 1rem }
img { width: min(20rem, 80vw); image-rendering: pixelated; background: #000 }
button { font: inherit; min-width: 8rem; margin: 1rem; padding: .6rem 1rem; border: 0; border-radius: .3rem }
button:focus-visible { outline: 3px solid #fff }
</style></head><body><main id="stage" aria-live="polite">
<h1>Whose error?</h1>
<p>You will see images, each with two answers. Both are wrong. QUESTION<br>
Click it, or press F for the left one and J for the right one.</p>
<button id="begin">Begin</button></main>
<script type="application/json" id="trials">TRIALS</script>
<script>
const trials = JSON.parse(document.getElementById("trials").textContent);
for (let i = trials.length - 1; i > 0; i--) {
  const j = Math.floor(Math.random() * (i + 1));
  [trials[i], trials[j]] = [trials[j], trials[i]];
}
const stage = document.getElementById("stage"), rows = [];
let at = -1, shown = 0;
const element = (name, values) => Object.assign(document.createElement(name), values);
function next() {
  at += 1;
  if (at === trials.length) return end();
  const trial = trials[at];
  const left = element("button", { textContent: trial.left, onclick: () => answer("left") });
  const right = element("button", { textContent: trial.right, onclick: () => answer("right") });
  stage.replaceChildren(
    element("p", { textContent: `QUESTION (${at + 1} of ${trials.length})` }),
    element("img", { src: trial.image, alt: "stimulus" }), element("br", {}), left, right);
  shown = performance.now();
}
function answer(side) {
  const trial = trials[at], other = side === "left" ? "right" : "left";
  rows.push([trial.trial, at + 1, side, trial[side], trial[side + "_model"], trial[other + "_model"],
    Math.round(performance.now() - shown)]);
  next();
}
function end() {
  const quoted = value => `"${String(value).replaceAll('"', '""')}"`;
  const header = "trial,order,side,answer,chosen_model,other_model,milliseconds";
  const text = [header, ...rows.map(row => row.map(quoted).join(","))].join("\\n") + "\\n";
  const link = element("a", { textContent: "Save your answers", download: "responses.csv",
    href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
  link.style.color = "#fff";
  stage.replaceChildren(element("h1", { textContent: "Thank you" }), link);
  stage.dataset.responses = text;
}
document.getElementById("begin").onclick = next;
document.onkeydown = event => {
  if (at < 0 || at >= trials.length || event.repeat) return;
  if (event.key === "f" || event.key === "F") answer("left");
  if (event.key === "j" || event.key === "J") answer("right");
};
</script></body></html>
"""
